"""Is the answer right? Plain numerals are compared here; everything else by math-verify in a child that can be killed."""

from __future__ import annotations

import json
import queue
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from microrl.answers import as_integer, is_prose, same_text, spelled_out

START_S = 60.0
REMEMBERED = 100_000


class Verdict(NamedTuple):
    right: bool
    killed: bool = False


class _Child:
    """One checker process. Started at its first request if it has not been before, and again after a death."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False

    def start(self) -> None:
        """Begin to start it; nobody waits."""
        self._is_ready = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "microrl.rewards.checker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the parent, which decides
        )

    def ask(self, request: dict[str, str], deadline_s: float) -> bool | None:
        """The child's answer; None where it did not come within the deadline, or the child died. Either way it is gone."""
        if self._process is None:
            self.start()
        if not self._is_ready:
            if self._line(START_S) != b"ready":
                self.close()
                raise RuntimeError("the maths checker did not start: does `python -c 'import math_verify'` work?")
            self._is_ready = True
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode("ascii") + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.close()
            return None
        line = self._line(deadline_s)
        if line is None:
            self.close()
            return None
        return bool(json.loads(line))

    def _line(self, deadline_s: float) -> bytes | None:
        assert self._process is not None and self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], deadline_s)
        line = self._process.stdout.readline() if readable else b""
        return line.strip() or None

    def close(self) -> None:
        """Kill the child, which holds nothing worth saving."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()
            self._process = None


class AnswerChecker:
    """Compares answers with gold answers, from several threads at once. Verdicts are remembered."""

    def __init__(self, *, deadline_s: float, kind: str = "math", children: int = 2) -> None:
        self.deadline_s = deadline_s
        self.kind = kind
        self._idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        self._children = [_Child() for _ in range(children)]
        for child in self._children:
            self._idle.put(child)
        self._known: dict[tuple[str, str], Verdict] = {}
        self._lock = threading.Lock()
        self._closed = False

    def start(self) -> None:
        """Start the children while others load: their imports take a second, which a run would wait for in its first steps."""
        if self.kind == "math":
            for child in self._children:
                child.start()

    def check(self, gold: str, answer: str | None) -> Verdict:
        """Whether `answer` equals `gold`. No answer is wrong; one whose check is killed is wrong, and says so."""
        if answer is None:
            return Verdict(False)
        if self.kind == "text":
            return Verdict(same_text(gold, answer))
        gold, answer = spelled_out(gold), spelled_out(answer)
        if gold.split() == answer.split():
            return Verdict(True)
        numbers = as_integer(gold), as_integer(answer)
        if None not in numbers:
            return Verdict(numbers[0] == numbers[1])
        if self._closed:
            return Verdict(False)
        with self._lock:
            known = self._known.get((gold, answer))
        if known is None:
            with self._child() as child:
                reply = child.ask({"gold": gold, "answer": answer}, self.deadline_s)
            known = Verdict(bool(reply), killed=reply is None)
            with self._lock:
                if len(self._known) < REMEMBERED:
                    self._known[gold, answer] = known
        return known

    def parses(self, gold: str) -> bool:
        """Whether a gold answer can be checked at all: mathematics where it must be, some text elsewhere."""
        if self.kind == "text":
            return bool(gold.strip())
        gold = spelled_out(gold)
        if not gold.strip():
            return False
        if as_integer(gold) is not None:
            return True
        if is_prose(gold):
            return False
        with self._child() as child:
            return bool(child.ask({"gold": gold}, self.deadline_s))

    @contextmanager
    def _child(self) -> Iterator[_Child]:
        child = self._idle.get()
        try:
            yield child
        finally:
            self._idle.put(child)

    def close(self) -> None:
        """End the children; what is still being checked then counts as wrong."""
        self._closed = True
        for child in self._children:
            child.close()
