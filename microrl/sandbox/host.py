"""Confined processes that each work on one request: forked, locked in, and killed afterwards.

A host is a process of its own. It imports what the work needs, once; each job is then a fork of it. It never reads the requests
itself: they wait in pipes that only the forks read. So the fork that runs a model's program inherits no memory that has ever
held the tests. Run as `python -m microrl.sandbox.host MODULE ...`, where MODULE has

- `prepare()`: imports what the work needs;
- `handle(request, reads, writes)`: works, and returns what JSON can hold;
- optionally `serve(request, reads, writes)`: the other side of `reads` and `writes`, in a confined process of its own, which
  may read no installed packages: some of them hold the tests of benchmarks.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any, BinaryIO

from microrl.clock import now_s
from microrl.errors import MachineFailure
from microrl.sandbox import folders, memory_folder
from microrl.sandbox.confine import Limits, confine, libraries
from microrl.sandbox.environment import clean
from microrl.sandbox.pipes import Gone, never, wait_for

START_S = 60.0
LIMITS = Limits(memory_bytes=2 << 30, file_bytes=4 << 20, files=32)
LONGEST_ANSWER = 1 << 20
"""Bytes of what a job returns."""
_HEAD = 8
_READY = b"ready\n"


class Host:
    """The other end: one job at a time, from one thread at a time. Started at the first one, and again after a death."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = self._has_worked = False
        self._ends: list[int] = []
        self._folder, self._lock = "", -1

    def start(self) -> None:
        """Begin to start it; nobody waits."""
        (asked, ask), (told, tell), (verdict, said) = (os.pipe() for _ in range(3))
        self._ends = [ask, tell, verdict]
        theirs = (asked, told, said)
        self._folder, self._lock = folders.make()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, self._module, self._folder, *map(str, theirs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            pass_fds=theirs,
            env=clean(),
            cwd="/",
            start_new_session=True,  # Ctrl-C is for the parent, which decides
        )
        for descriptor in theirs:
            os.close(descriptor)
        assert self._process.stdin is not None
        for descriptor in (ask, tell, self._process.stdin.fileno()):
            os.set_blocking(descriptor, False)
        self._has_worked = False

    def await_ready(self, gone: Gone = never) -> bool:
        """Wait until it has started, or removed what the last job left; False where nobody wants it any more.

        Raises MachineFailure where it does not start.
        """
        while not self._is_ready:
            if self._process is None:
                self.start()
            self._is_ready = self._says_ready(gone)
            if not self._is_ready:
                if gone():
                    return False
                has_worked = self._has_worked
                self.kill()
                if not has_worked:
                    raise MachineFailure(
                        f"the process for {self._module} did not start", f"check that `python -c 'import {self._module}'` works"
                    )
        return True

    def ask(self, handled: Any, served: Any = None, *, deadline_s: float, cpu_s: float, gone: Gone = never) -> Any:
        """What `handle` returned; None where it did not come within the deadline, died, or nobody wants it any more.

        `served`: the request to `serve`. `deadline_s` counts from when the host is ready. `cpu_s`: processor seconds of each
        of the two. Raises MachineFailure where the host does not start.
        """
        if not self.await_ready(gone):
            return None
        until = now_s() + deadline_s
        ask, tell, verdict = self._ends
        command = {"cpu_s": cpu_s, "serves": served is not None}
        try:
            sent = self._send(self._stdin, json.dumps(command).encode() + b"\n", until, gone)
            if served is not None:
                sent = sent and self._send(ask, _framed(served), until, gone)
            sent = sent and self._send(tell, _framed(handled), until, gone)
            answer = self._frame(verdict, until, gone) if sent else None
            # A job that has answered is followed by an empty frame; one that died leaves nothing else.
            if not answer or self._frame(verdict, now_s() + START_S, gone) != b"":
                self.kill()  # some of its forks may still run, and requests may be half read
                return None
            self._send(self._stdin, b"end\n", now_s() + START_S, gone)
            self._is_ready, self._has_worked = False, True
        except (BrokenPipeError, ConnectionError):
            self.kill()
            return None
        return json.loads(answer)

    def kill(self) -> None:
        """Kill the host; its forks die with it."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        for descriptor in self._ends:
            os.close(descriptor)
        folders.remove(self._folder)
        os.close(self._lock)
        self._process, self._ends, self._is_ready = None, [], False

    close = kill

    @property
    def _stdin(self) -> int:
        assert self._process is not None and self._process.stdin is not None
        return self._process.stdin.fileno()

    def _says_ready(self, gone: Gone) -> bool:
        assert self._process is not None and self._process.stdout is not None
        until, said = now_s() + START_S, b""
        while not said.endswith(b"\n"):
            if not wait_for(self._process.stdout.fileno(), select.POLLIN, until, gone):
                return False
            part = os.read(self._process.stdout.fileno(), 1 << 12)
            if not part:
                return False
            said += part
        return said == _READY

    def _send(self, descriptor: int, data: bytes, until: float, gone: Gone) -> bool:
        """Whether all of it could be written in time."""
        while data:
            if not wait_for(descriptor, select.POLLOUT, until, gone):
                return False
            data = data[os.write(descriptor, data) :]
        return True

    def _frame(self, descriptor: int, until: float, gone: Gone) -> bytes | None:
        """A whole answer; None where it does not come. A job that died answers with an empty one."""
        data, size = b"", _HEAD
        while len(data) < size:
            if not wait_for(descriptor, select.POLLIN, until, gone):
                return None
            part = os.read(descriptor, size - len(data))  # and not a byte of the next frame
            if not part:
                return None
            data += part
            if size == _HEAD and len(data) >= _HEAD:
                size = _HEAD + int(data[:_HEAD])
        return data[_HEAD:]


def _framed(request: Any) -> bytes:
    data = json.dumps(request).encode("ascii")
    return b"%08d" % len(data) + data


# ---- the host's own process


def main() -> None:
    module_name, folder = sys.argv[1:3]
    asked, told, said = map(int, sys.argv[3:])
    is_in_memory = memory_folder.enter(folder)  # before anything starts a thread
    replies = os.dup(1)
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    module = importlib.import_module(module_name)
    module.prepare()
    libraries(True), libraries(False)
    with open(0, "rb", buffering=0) as commands, contextlib.suppress(BrokenPipeError):
        # Without a buffer, so that `select` sees what is there.
        while os.write(replies, _READY) and (line := commands.readline()):
            _job(module, json.loads(line), commands, (asked, told, said), folder, is_in_memory)
    folders.remove(folder)  # nobody else does where the parent was killed


def _job(
    module: Any, command: dict[str, Any], commands: BinaryIO, pipes: tuple[int, int, int], base: str, is_in_memory: bool
) -> None:
    """Fork for one request, wait until it has answered and the parent says so, and clean up. Returns at "end".

    If the parent dies or gives up first, so does the job.
    """
    (to_program, calls), (answers, to_tests) = os.pipe(), os.pipe()
    asked, told, said = pipes
    folder = tempfile.mkdtemp(dir=base)
    if is_in_memory:
        memory_folder.mount(folder, folders.MAX_BYTES, folders.MAX_ENTRIES)
    running = []
    if command["serves"]:
        running.append(_fork(module.serve, asked, (to_program, to_tests), None, folder, command["cpu_s"]))
    judging = _fork(module.handle, told, (answers, calls), said, None, command["cpu_s"])
    for descriptor in (to_program, calls, answers, to_tests):
        os.close(descriptor)
    running.append(judging)
    ended, looks = os.pidfd_open(judging), command["serves"] and not is_in_memory
    try:
        while not (ready := select.select([ended, commands.fileno()], [], [], folders.LOOK_S if looks else None)[0]):
            if folders.is_overfull(folder, running[0], LIMITS.file_bytes):
                os.kill(running[0], signal.SIGKILL)
                looks = False
        if ended in ready:
            os.write(said, b"%08d" % 0)
            commands.readline()
    finally:
        os.close(ended)
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if is_in_memory:
            memory_folder.unmount(folder)
        folders.remove(folder)


def _fork(
    work: Callable[..., Any], source: int, pipes: tuple[int, int], result: int | None, folder: str | None, cpu_s: float
) -> int:
    """A confined process that reads its request, works, and writes what comes out."""
    owner = os.getpid()
    if (pid := os.fork()) != 0:
        return pid
    try:
        request = json.loads(_read_frame(source))
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        limit = int(cpu_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        kept = pipes if result is None else (*pipes, result)
        confine(owner, LIMITS, folder=folder, keep=kept, packages=result is not None)
        found = work(request, *pipes)
        if result is not None:
            data = json.dumps(found).encode("ascii")
            if len(data) <= LONGEST_ANSWER:
                data = b"%08d" % len(data) + data
                while data:
                    data = data[os.write(result, data) :]
    finally:
        os._exit(0)


def _read_frame(descriptor: int) -> bytes:
    """One frame, and not a byte more: what follows is for the next fork."""

    def exactly(size: int) -> bytes:
        data = b""
        while len(data) < size and (part := os.read(descriptor, size - len(data))):
            data += part
        return data

    return exactly(int(exactly(_HEAD) or b"0"))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
