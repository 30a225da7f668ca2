"""A process that can be killed, as its parent sees it: started, asked in JSON lines, killed at a deadline, started again."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from microrl.clock import now_s
from microrl.processes import how_it_ended

LOOK_S = 0.1
"""How often a wait looks whether it is still wanted, at the clock and at signals."""
LONGEST_REPLY = 2**26
"""Bytes."""
NO_ANSWER = "its process has sent something that is no answer"
ENDING_S = 1.0
"""How long a process that has closed its pipes may take to end."""
Cancelled = Callable[[], bool]
"""Whether nobody wants the result any more."""


KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TZ")


def clean() -> dict[str, str]:
    """The environment of a process that will be confined: the few variables that Python needs, its search path as it is here, and
    one thread for numeric libraries. Nothing of the user's, such as a token, is then in its memory."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    path = os.pathsep.join(entry for entry in sys.path if entry and os.path.isabs(entry))
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HOME": "/nonexistent"}


def never() -> bool:
    """For what is always wanted."""
    return False


class NoReply(Exception):
    """The process did not answer. `why` says why; empty where it took too long, or nobody waits any more."""

    def __init__(self, why: str = "") -> None:
        super().__init__(why)
        self.why = why


class Lines:
    """JSON lines to and from another process, over two pipes that do not block. Used by one thread at a time."""

    def __init__(self, writes: int, reads: int, how_it_ended: Callable[[], str], longest: int = LONGEST_REPLY) -> None:
        self._writes, self._reads, self._how_it_ended, self._longest = writes, reads, how_it_ended, longest
        self._unread = b""
        for descriptor in (writes, reads):
            os.set_blocking(descriptor, False)

    def send(self, request: Any, until: float, is_cancelled: Cancelled, descriptor: int | None = None) -> None:
        """Write a request, to another pipe where one is named. Raises NoReply where not all of it can be written in time."""
        self.send_line(json.dumps(request).encode("ascii"), until, is_cancelled, descriptor)

    def send_line(self, line: bytes, until: float, is_cancelled: Cancelled, descriptor: int | None = None) -> None:
        """As `send`."""
        descriptor = self._writes if descriptor is None else descriptor
        view = memoryview(line + b"\n")
        try:
            while view:
                _wait(descriptor, select.POLLOUT, until, is_cancelled)
                with suppress(BlockingIOError):  # some systems say that there is room where it is too little
                    view = view[os.write(descriptor, view[: 1 << 16]) :]
        except BrokenPipeError:
            raise NoReply(self._how_it_ended()) from None

    def receive(self, until: float, is_cancelled: Cancelled) -> Any:
        """The next reply. Raises NoReply, also for what is no JSON."""
        try:
            return json.loads(self.receive_line(until, is_cancelled))
        except (ValueError, RecursionError):
            raise NoReply(NO_ANSWER) from None

    def receive_line(self, until: float, is_cancelled: Cancelled) -> bytes:
        """The next line. Raises NoReply."""
        part, data = self._unread, bytearray(self._unread)
        while b"\n" not in part:
            _wait(self._reads, select.POLLIN, until, is_cancelled)
            part = os.read(self._reads, 1 << 16)
            if not part:
                raise NoReply(self._how_it_ended())
            if len(data) > self._longest:
                raise NoReply(f"it sent more than {self._longest:,} bytes")
            data += part
        line, _, self._unread = bytes(data).partition(b"\n")
        return line


class Worker:
    """Used by one thread at a time. Started at its first request, and again after a death."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        """Whether it waits for a request: what it had to import, or to remove, is done."""
        self._lines: Lines

    def _launch(self, command: list[str], **more: Any) -> None:
        """Begin to start it. `more` is for `subprocess.Popen`."""
        self._is_ready = False
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the parent, which decides; and what it starts can be killed with it
            **more,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._lines = Lines(self._process.stdin.fileno(), self._process.stdout.fileno(), self._how_it_ended)

    def _how_it_ended(self) -> str:
        assert self._process is not None
        try:
            status = self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            return "its process has closed its pipes"
        return f"its process ended ({how_it_ended(status)})"

    def kill(self) -> None:
        """Kill the process, which holds nothing worth saving, and what it has started."""
        if self._process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process, self._is_ready = None, False


def _wait(descriptor: int, event: int, until: float, is_cancelled: Cancelled) -> None:
    """Wait for a pipe. Raises NoReply where the time is up (`clock.now_s`), or nobody waits any more."""
    poll = select.poll()
    poll.register(descriptor, event)
    while not is_cancelled() and (left_s := until - now_s()) > 0:
        if poll.poll(min(left_s, LOOK_S) * 1000):
            return
    raise NoReply
