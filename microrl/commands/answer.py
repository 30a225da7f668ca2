"""What runs that are compared say to the question which method is better; see `microrl.evaluation.answer`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from microrl.commands.compare import names_of
from microrl.commands.stored import Entry, Setup, evaluations
from microrl.evaluation.answer import Answer, Method, answer
from microrl.evaluation.result import Result
from microrl.report.history import History
from microrl.report.several import learned_nothing, told_of


def answer_to(entries: Sequence[Entry]) -> Answer | None:
    """What these runs say of their methods, on the first benchmark that all were evaluated on with the same settings.

    None where there is none, or one method only. Raises BadFile.
    """
    stored = [{_shared_setup(one.setup): one.result for one in evaluations(entry)} for entry in entries]
    shared = [setup for setup in stored[0] if all(setup in one for one in stored)]
    if not shared:
        return None
    results: dict[str, dict[int, Result]] = {}
    trained: set[str] = set()
    histories = {entry.run.path: History.load(entry.run.path) for entry in entries}
    for entry, name, one in zip(entries, names_of(entries), stored, strict=True):
        results.setdefault(name, {})[entry.config.seed] = one[shared[0]]
        if not learned_nothing(histories[entry.run.path]):
            trained.add(name)
    notes = [f"This is of {shared[0].benchmark}, the first of their evaluations."] if len(shared) > 1 else []
    methods = [Method(name, runs, is_untrained=name not in trained) for name, runs in results.items()]
    return answer(methods, notes=[*notes, *told_of([*histories.values()], "run")])


def _shared_setup(setup: Setup) -> Setup:
    """The setup without what may differ between runs that are compared: they are paired by question."""
    return replace(setup, seed=0, question_seed=0, prompts_sha256=None)
