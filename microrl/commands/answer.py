"""What runs that are compared say to the question which method is better; see `microrl.evaluation.answer`."""

from __future__ import annotations

from collections.abc import Sequence

from microrl.commands.compare import names_of
from microrl.commands.stored import Entry, evaluations
from microrl.evaluation.answer import Answer
from microrl.report.history import History
from microrl.report.several import answer_of


def answer_to(entries: Sequence[Entry]) -> Answer | None:
    """What these runs say of their methods, on the first benchmark that all were evaluated on with the same settings.

    None where there is none, or one method only. Raises BadFile.
    """
    stored = [{one.setup.shared(): one.result for one in evaluations(entry)} for entry in entries]
    shared = [setup for setup in stored[0] if all(setup in one for one in stored)]
    if not shared:
        return None
    runs = [
        (name, entry.config.seed, one[shared[0]], History.load(entry.run.path))
        for entry, name, one in zip(entries, names_of(entries), stored, strict=True)
    ]
    notes = [f"This is of {shared[0].benchmark}, the first of their evaluations."] if len(shared) > 1 else []
    return answer_of(runs, "run", notes=notes)
