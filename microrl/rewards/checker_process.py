"""The checker's process: one JSON request a line in, one JSON answer a line out. Run as `python -m`, never imported.

Mathematics on untrusted text can take forever, fill the memory or crash the interpreter. This process therefore never
computes: it imports what is needed and waits, and a fork of it computes. Killing that one costs a fork and no imports, and
whoever waits always sees that its parent has died. A line that arrives while the fork computes ends it; the answer is then
null, as where it died by itself. An empty line means nothing else.
"""

from __future__ import annotations

import json
import logging
import math
import os
import resource
import select
import signal
import sys
import time
from typing import Any

from microrl.rewards.compare import compare, parses, prepare
from microrl.sandbox.confine import Limits, confine

MEMORY_BYTES = 4 * 1024**3
PARENT_S = 1.0
"""How often it is checked that the parent lives, should something else hold its end of the pipe open."""


def main() -> None:
    parent = int(sys.argv[1])
    # The protocol owns standard output; whatever a library prints goes to standard error.
    replies = os.dup(1)
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    # sympy imports numpy for an infinite sum, if there is one. Its OpenBLAS starts threads, and ends a process that may not.
    sys.modules["numpy"] = None  # type: ignore[assignment]
    prepare()
    _write(replies, b"ready\n")
    worker, unread = None, b""
    try:
        while True:
            _readable([0], parent)
            data = os.read(0, 1 << 16)
            if not data:
                return
            *lines, unread = (unread + data).split(b"\n")
            for line in filter(None, lines):
                worker = worker or Worker()
                result = worker.result(line, parent)
                if result is None:
                    worker.kill()
                    worker = None
                _write(replies, result or b"null\n")
    finally:
        if worker is not None:
            worker.kill()


class Worker:
    """A fork of this process that computes, in the sandbox."""

    def __init__(self) -> None:
        requests, self._requests = os.pipe()
        self._results, results = os.pipe()
        owner = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                null = os.open(os.devnull, os.O_RDWR)
                for standard in (0, 1, 2):
                    os.dup2(null, standard)
                confine(owner, Limits(MEMORY_BYTES), keep=(requests, results))
                _compute(requests, results)
            finally:
                os._exit(0)
        os.close(requests)
        os.close(results)

    def result(self, line: bytes, parent: int) -> bytes | None:
        """The answer to one request; None where the worker has died, or standard input has something to say first."""
        try:
            _write(self._requests, line + b"\n")
        except BrokenPipeError:
            return None
        if self._results not in _readable([self._results, 0], parent):
            return None
        return os.read(self._results, 16) or None

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._requests)
        os.close(self._results)


def _limit_processor_time(seconds: float) -> None:
    """From now. The timer is exact; the limit counts in whole seconds, but cannot be forgotten."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(time.process_time() + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _compute(requests: int, results: int) -> None:
    with os.fdopen(requests, "rb") as lines:
        for line in lines:
            request = json.loads(line)
            _limit_processor_time(request["cpu_s"])
            result = is_right(request)
            signal.setitimer(signal.ITIMER_PROF, 0)
            _write(results, json.dumps(result).encode("ascii") + b"\n")


def is_right(request: dict[str, Any]) -> bool:
    """Whether the answer equals the gold answer; without an answer, whether answers can be compared with the gold answer."""
    return compare(request["gold"], request["answer"]) if "answer" in request else parses(request["gold"])


def _readable(descriptors: list[int], parent: int) -> list[int]:
    """Wait until some of them can be read, and return these. Exits where the parent has died."""
    while not (ready := select.select(descriptors, [], [], PARENT_S)[0]):
        if os.getppid() != parent:
            raise SystemExit
    return ready


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    main()
