"""A process that forks the two confined ones of code: run as a script, which never reads what it passes on to them.

Commands come on standard input, a line each: `go CONFINED` forks both, `end` kills them. The requests wait in pipes that only
the forks read, a frame each, so that the program's process finds nothing of the tests in the memory that it inherits.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path


class Host:
    """The other end, in the tests' process."""

    def __init__(self, **environment: str) -> None:
        pipes = [os.pipe() for _ in range(3)]
        (asked, self._ask), (told, self._tell), (self._verdict, said) = pipes
        self._process = subprocess.Popen(
            [sys.executable, __file__, *map(str, (asked, told, said))], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, pass_fds=(asked, told, said), env={**os.environ, **environment}, cwd="/",
        )  # fmt: skip
        for descriptor in (asked, told, said):
            os.close(descriptor)
        self.seconds = 0.0

    def verdicts(self, served: dict, judged: dict, *, confined: bool = True, patience_s: float = 20.0) -> list[bool] | None:
        """None where none came in time, or its process ended."""
        began = time.monotonic()
        self._command(f"go {int(confined)}")
        for pipe, request in ((self._ask, served), (self._tell, judged)):
            data = json.dumps(request).encode()
            os.write(pipe, b"%08d" % len(data) + data) if len(data) < 60_000 else self._long(pipe, data)
        ready = select.select([self._verdict], [], [], patience_s)[0]
        found = _frame(self._verdict) if ready else b"null"
        self._command("end")
        self.seconds = time.monotonic() - began
        return json.loads(found)

    def _long(self, pipe: int, data: bytes) -> None:
        data = b"%08d" % len(data) + data
        while data:
            data = data[os.write(pipe, data) :]

    def _command(self, line: str) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == b"done\n"

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(10)


def _frame(descriptor: int) -> bytes:
    def exactly(size: int) -> bytes:
        data = b""
        while len(data) < size and (part := os.read(descriptor, size - len(data))):
            data += part
        return data

    return exactly(int(exactly(8) or b"0"))


def main() -> None:
    from microrl.rewards.judges import code

    asked, told, said = map(int, sys.argv[1:])
    code.prepare()
    ours: list[int] = []
    for line in sys.stdin:
        if line.startswith("go"):
            confined = line.split()[1] == "1"
            (to_program, calls), (answers, to_tests) = os.pipe(), os.pipe()
            ours = [
                _fork(confined, code.serve, asked, (to_program, to_tests), None, (asked, told, said, calls, answers)),
                _fork(confined, code.handle, told, (answers, calls), said, (asked, told, said, to_program, to_tests)),
            ]
            for descriptor in (to_program, calls, answers, to_tests):
                os.close(descriptor)
        else:
            for pid in ours:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        print("done", flush=True)


def _fork(confined: bool, work, source: int, pipes: tuple[int, int], result: int | None, unused: tuple[int, ...]) -> int:
    owner = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        request = _frame(source)
        null = os.open("/dev/null", os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        os.close(null)
        for descriptor in unused:
            if descriptor != result:
                os.close(descriptor)
        if confined:
            from microrl.sandbox.confine import Limits, confine

            confine(owner, Limits(memory_bytes=2 << 30), keep=(*pipes, *([] if result is None else [result])))
        found = work(json.loads(request), *pipes)
        if result is not None:
            data = json.dumps(found).encode()
            os.write(result, b"%08d" % len(data) + data)
    except BaseException as error:
        if "CODE_HOST_ERRORS" in os.environ:
            Path(os.environ["CODE_HOST_ERRORS"]).write_text(repr(error))
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
