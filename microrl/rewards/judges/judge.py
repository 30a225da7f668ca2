"""What judges an answer by running something in the sandbox: a computer algebra system, a program with its tests, or a
procedural task's own scorer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from microrl.answers import THINK, final_answer
from microrl.clock import now_s
from microrl.config.schema import RunConfig
from microrl.errors import UserError
from microrl.rewards.judges import code, gym
from microrl.sandbox import Host, levels
from microrl.sandbox.worker import Cancelled

Kind = Literal["math", "text", "code", "gym"]
Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]
"""(items, their number, what is done with them) -> the items, with a progress bar."""
OF_THE_TIME = 0.8
"""Fraction of a check's time that a program has, so that verdicts that were reached come back within it."""
HUNG = 0.9
"""A program that took this fraction of its time, and did not pass, is taken for one that hangs."""


class Judge(Host):
    """A host of confined processes for answers of one kind."""

    def __init__(self, kind: Kind, credit: str) -> None:
        super().__init__(f"microrl.rewards.judges.{kind}")
        self._kind, self._credit = kind, credit

    def judge(self, request: dict[str, str], deadline_s: float, cpu_s: float, is_cancelled: Cancelled) -> float | None:
        """The credit of `answer` for `gold`, from 0 to 1; None where it hangs or its judge died, or nobody wants it any more.

        `cpu_s`: processor seconds that it may take. Raises MachineFailure where no process can be started.
        """
        if self._kind != "code":
            right = self.ask(request, deadline_s=deadline_s, cpu_s=cpu_s, is_cancelled=is_cancelled)
            return None if right is None else float(right)
        limit_s = OF_THE_TIME * min(cpu_s, deadline_s)
        served, judged = code.requests(request["gold"], request["answer"], limit_s)
        if not self.await_ready(is_cancelled):
            return None
        began = now_s()
        verdicts = self.ask(judged, served, deadline_s=deadline_s, cpu_s=cpu_s, is_cancelled=is_cancelled)
        if verdicts is None or (not all(verdicts) and now_s() - began >= HUNG * limit_s):
            return None
        return code.credit(verdicts, self._credit)


def read(completion: str, kind: Kind, *, opened: bool) -> str | None:
    """What a completion answers to a question of this kind: a program, or an answer as text; None where there is none.

    `opened`: the chat template has already written `<think>`.
    """
    if kind == "code":
        return code.program_of(completion, opened)
    if kind == "gym":
        return gym.answer_of(completion, opened)
    return final_answer(completion, opened=opened)


def is_opened(prompt: str) -> bool:
    """Whether the chat template has already written `<think>` at the end of a prompt."""
    return prompt.rstrip().endswith(THINK)


def refuse_unconfined(config: RunConfig) -> None:
    """Raise UserError if the data's answers are run, and nothing would confine them."""
    if config.data.answer_kind in ("code", "gym") and config.reward.sandbox == "strict" and not levels().is_enforced:
        raise UserError(
            f"scoring {config.data.name} runs code that the model writes, and this kernel lacks {levels().lacking}, "
            "which would confine it",
            "use a machine with Linux 6.2 or later; --set reward.sandbox=weak runs it with resource limits alone, at your risk",
        )


def weakness() -> str | None:
    """A warning where the sandbox does not hold; None where it does."""
    held = levels()
    return (
        None
        if held.is_enforced
        else f"the sandbox of the answer checks is weak: this kernel lacks {held.lacking}; in force: {held}"
    )


def refuse_unsound(questions: Sequence[str], progress: Progress) -> None:
    """Raise UserError for a procedural task whose own scorer cannot be trusted. `questions`: gold answers of all of them."""
    tasks: dict[str, list[str]] = {}
    for gold in questions:
        tasks.setdefault(json.loads(gold)["task"], []).append(gold)
    host = Host("microrl.rewards.judges.gym")
    try:
        for task, golds in progress(tasks.items(), len(tasks), "trying the tasks' scorers"):
            why = gym.refusal(task, golds[: gym.PROBED], lambda asked: host.ask(asked, deadline_s=60.0, cpu_s=30.0))
            if why is not None:
                raise UserError(f"the task {task} cannot be trained on: {why}", "leave it out of --data reasoning-gym:...")
    finally:
        host.close()
