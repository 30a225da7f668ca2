"""What runs that are compared say to the question which method is better; see `microrl.evaluation.answer`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from microrl.commands.compare import labels_of
from microrl.commands.stored import Entry, Setup, evaluations
from microrl.evaluation.answer import Answer, Method, answer
from microrl.evaluation.result import Result


def answer_to(entries: Sequence[Entry]) -> Answer | None:
    """What these runs say of their methods, on the first benchmark that all were evaluated on with the same settings.

    None where there is none, or one method only. Raises BadFile.
    """
    stored = [{_shared_setup(one.setup): one.result for one in evaluations(entry)} for entry in entries]
    shared = [setup for setup in stored[0] if all(setup in one for one in stored)]
    if not shared:
        return None
    results: dict[str, dict[int, Result]] = {}
    for entry, label, one in zip(entries, labels_of([entry.config for entry in entries]), stored, strict=True):
        name = (entry.method or label) + (f" ({entry.part})" if entry.part else "")
        results.setdefault(name, {})[entry.config.seed] = one[shared[0]]
    notes = [f"This is of {shared[0].benchmark}, the first of their evaluations."] if len(shared) > 1 else []
    return answer([Method(name, runs) for name, runs in results.items()], notes=notes)


def _shared_setup(setup: Setup) -> Setup:
    """The setup without what may differ between runs that are compared: they are paired by question."""
    return replace(setup, seed=0, question_seed=0, prompts_sha256=None)
