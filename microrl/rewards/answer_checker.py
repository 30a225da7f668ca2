"""Asks for verdicts: `compare.quick` decides most pairs at once, a confined child that can be killed the rest."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from microrl.answers import same_text
from microrl.clock import now_s
from microrl.errors import MachineFailure
from microrl.rewards.compare import quick, readable
from microrl.rewards.judges.judge import Judge, Kind
from microrl.rewards.line_process import LineProcess, NoReply
from microrl.sandbox.environment import clean
from microrl.sandbox.pipes import Gone, never

START_S = 60.0
GIVE_UP_S = 1.0
"""How long a child has to say that it has given a check up; one that does not is itself killed."""
REMEMBERED = 100_000


class Verdict(NamedTuple):
    """`credit`: from 0 to 1, and 1 for a right answer; between them only for a program that passes some of its tests."""

    credit: float
    killed: bool = False

    @property
    def right(self) -> bool:
        """Whether it earns all of the credit."""
        return self.credit >= 1


class _Child(LineProcess):
    """One checker process."""

    def _popen(self) -> dict[str, Any]:
        command = [sys.executable, "-m", "microrl.rewards.checker_process", str(os.getpid())]
        return {"args": command, "env": clean(), "cwd": "/"}

    def ask(self, request: dict[str, Any], deadline_s: float, gone: Gone = never) -> float | None:
        """The child's answer; None where it did not come within the deadline, the check died, or nobody wants it any more."""
        self.start()
        try:
            self._await_start(gone)
            until = now_s() + deadline_s
            self._send(request, until, gone)
            try:
                reply = self._line(until, gone)
            except NoReply:
                until = now_s() + GIVE_UP_S
                self._send(None, until, never)
                reply = self._line(until, never)
        except NoReply:
            self.kill()
            return None
        return json.loads(reply)

    def _await_start(self, gone: Gone) -> None:
        if self._is_ready:
            return
        with suppress(NoReply):
            self._is_ready = self._line(now_s() + START_S, gone) == b"ready"
        if gone():
            raise NoReply
        if not self._is_ready:
            self.kill()
            raise MachineFailure("the answer checker did not start", "check that `python -c 'import math_verify'` works")


class AnswerChecker:
    """Compares answers with gold answers, from several threads at once. Verdicts are remembered, but not those of a kill."""

    def __init__(self, *, deadline_s: float, kind: Kind = "math", children: int = 2, code_credit: str = "share") -> None:
        self.deadline_s = deadline_s
        self.kind = kind
        self._idle: queue.SimpleQueue[_Child | Judge] = queue.SimpleQueue()
        self._children = [Judge(kind, code_credit) if kind == "code" or kind == "gym" else _Child() for _ in range(children)]
        for child in self._children:
            self._idle.put(child)
        self._known: dict[tuple[str, str], Verdict] = {}
        self._closing = threading.Lock()
        self._closed = False

    def start(self) -> None:
        """Start the children while others load: their imports take a second, which a run would wait for in its first steps."""
        if self.kind != "text":
            for child in self._children:
                child.start()

    def at_once(self, gold: str, answer: str | None) -> Verdict | None:
        """The verdict where it takes no computer algebra system, or is remembered; else None."""
        if answer is None:
            return Verdict(0.0)
        if self.kind == "text":
            return Verdict(float(same_text(gold, answer)))
        known = self._known.get((gold, answer))
        if known is not None:
            return known
        if self.kind in ("code", "gym"):
            return None
        right = quick(gold, answer)
        return None if right is None else Verdict(float(right))

    def check(self, gold: str, answer: str | None, *, cpu_s: float | None = None, gone: Gone = never) -> Verdict:
        """Whether `answer` equals `gold`. One whose check is killed is wrong, and says so: at its deadline, after `cpu_s`
        seconds of processor time, or once `gone()`.

        Raises MachineFailure where no checker can be started.
        """
        known = self.at_once(gold, answer)
        if known is not None:
            return known
        assert answer is not None
        reply = self._ask({"gold": gold, "answer": answer}, cpu_s, gone)
        if reply is None:
            return Verdict(0.0, killed=True)
        verdict = Verdict(float(reply))
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
        found = self._ask({"gold": gold}, None, never)
        return None if found is None else bool(found)

    def _ask(self, request: dict[str, str], cpu_s: float | None, gone: Gone) -> float | None:
        def is_over() -> bool:
            return self._closed or gone()

        # A child that is starved of the processor has no less of it than the deadline.
        limit_s = self.deadline_s if cpu_s is None else cpu_s
        with self._child() as child:
            return None if is_over() else child.ask({**request, "cpu_s": limit_s}, self.deadline_s, is_over)

    @contextmanager
    def _child(self) -> Iterator[_Child | Judge]:
        child = self._idle.get()
        try:
            yield child
        finally:
            self._idle.put(child)

    def close(self) -> None:
        """End the children, from any thread; what is still being checked is given up, and counts as killed."""
        self._closed = True
        with self._closing:
            ours: list[_Child | Judge] = []
            try:
                for _ in self._children:
                    ours.append(self._idle.get())  # those in use come back at once
                    ours[-1].kill()
            finally:
                for child in ours:
                    self._idle.put(child)
