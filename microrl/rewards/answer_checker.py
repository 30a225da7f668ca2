"""Asks for verdicts: `compare.quick` decides most pairs at once, a confined child that can be killed the rest."""

from __future__ import annotations

import queue
import threading
from typing import NamedTuple

from microrl.answers import same_text
from microrl.rewards.compare import quick, readable
from microrl.rewards.judges.judge import Judge, Kind
from microrl.sandbox.worker import Cancelled, never

REMEMBERED = 100_000
CHILDREN = 2
"""Checks at a time."""


class AnswerVerdict(NamedTuple):
    """`credit`: from 0 to 1, and 1 for a right answer; between them only for a program that passes some of its tests."""

    credit: float
    killed: bool = False

    @property
    def right(self) -> bool:
        """Whether it earns all of the credit."""
        return self.credit >= 1


class AnswerChecker:
    """Compares answers with gold answers, from several threads at once. Verdicts are remembered, but not those of a kill."""

    def __init__(self, *, deadline_s: float, kind: Kind = "math", children: int = CHILDREN, code_credit: str = "share") -> None:
        self.deadline_s = deadline_s
        self.kind = kind
        self._idle: queue.SimpleQueue[Judge] = queue.SimpleQueue()
        self._children = [Judge(kind, code_credit) for _ in range(children) if kind != "text"]
        for child in self._children:
            self._idle.put(child)
        self._known: dict[tuple[str, str], AnswerVerdict] = {}
        self._closing = threading.Lock()
        self._closed = False

    def start(self) -> None:
        """Start the children while others load: their imports take a second, which a run would wait for in its first steps."""
        for child in self._children:
            child.start()

    def at_once(self, gold: str, answer: str | None) -> AnswerVerdict | None:
        """The verdict where it takes no computer algebra system, or is remembered; else None."""
        if answer is None:
            return AnswerVerdict(0.0)
        if self.kind == "text":
            return AnswerVerdict(float(same_text(gold, answer)))
        known = self._known.get((gold, answer))
        if known is not None:
            return known
        if self.kind in ("code", "gym"):
            return None
        right = quick(gold, answer)
        return None if right is None else AnswerVerdict(float(right))

    def check(
        self, gold: str, answer: str | None, *, cpu_s: float | None = None, is_cancelled: Cancelled = never
    ) -> AnswerVerdict:
        """Whether `answer` equals `gold`. One whose check is killed is wrong, and says so: at its deadline, after `cpu_s`
        seconds of processor time, or once `is_cancelled()`.

        Raises MachineFailure where no checker can be started.
        """
        known = self.at_once(gold, answer)
        if known is not None:
            return known
        assert answer is not None
        reply = self._ask({"gold": gold, "answer": answer}, cpu_s, is_cancelled)
        if reply is None:
            return AnswerVerdict(0.0, killed=True)
        verdict = AnswerVerdict(float(reply))
        if len(self._known) < REMEMBERED:
            self._known[gold, answer] = verdict
        return verdict

    def parses(self, gold: str) -> bool | None:
        """Whether a gold answer can be checked at all: mathematics where it must be, some text elsewhere; for code and procedural
        tasks it was looked at when the data was read.

        None where finding out was killed at its deadline. Raises MachineFailure as `check` does.
        """
        if self.kind != "math":
            return bool(gold.strip())
        is_readable = readable(gold)
        if is_readable is not None:
            return is_readable
        reply = self._ask({"gold": gold}, None, never)
        return None if reply is None else bool(reply)

    def _ask(self, request: dict[str, str], cpu_s: float | None, is_cancelled: Cancelled) -> float | None:
        def is_over() -> bool:
            return self._closed or is_cancelled()

        # A child that is starved of the processor has no less of it than the deadline.
        limit_s = self.deadline_s if cpu_s is None else cpu_s
        child = self._idle.get()
        try:
            return None if is_over() else child.judge(request, self.deadline_s, limit_s, is_over)
        finally:
            self._idle.put(child)

    def close(self) -> None:
        """End the children, from any thread; what is still being checked is given up, and counts as killed."""
        self._closed = True
        with self._closing:
            ours: list[Judge] = []
            try:
                for _ in self._children:
                    ours.append(self._idle.get())  # those in use come back at once
                    ours[-1].kill()
            finally:
                for child in ours:
                    self._idle.put(child)
