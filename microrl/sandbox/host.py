"""Confined processes that each work on one request: forked, locked in, and killed afterwards.

A host is a process of its own. It imports what the work needs, once, and never computes; each job is then a fork of it, so that
killing one costs no imports. It never reads the requests either: they wait in pipes that only the forks read. So the fork that
runs a model's program inherits no memory that has ever held the tests. Run as `python -m microrl.sandbox.host MODULE ...`, where
MODULE has

- `prepare()`: imports what the work needs;
- `handle(request, reads, writes)`: works, and returns what JSON can hold (`reads` and `writes` are -1 where nothing serves);
- optionally `serve(request, reads, writes)`: the other side of `reads` and `writes`, in a confined process of its own, which
  may read no installed packages: some of them hold the tests of benchmarks;
- optionally `LASTS = True`: the fork that has answered goes on with the next job, and what it has cached.

Every message is a line of JSON. An answer is a list of one; `null` from the host says that it waits for the next job, and `null`
to it ends the job that runs, if there is one.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import logging
import os
import resource
import select
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from io import FileIO
from typing import Any, NamedTuple

from microrl.clock import now_s, processor_s
from microrl.errors import MachineFailure
from microrl.processes import write_line
from microrl.sandbox import folders, memory_folder
from microrl.sandbox.confine import Limits, confine, libraries
from microrl.sandbox.worker import Cancelled, NoReply, Worker, clean, never

START_S = 60.0
GIVE_UP_S = 1.0
"""How long a host has to say that it has ended a job; one that does not is itself killed."""
PARENT_S = 1.0
"""How often a host looks whether its parent lives, should something else hold its end of the pipe open."""
LIMITS = Limits(memory_bytes=2 << 30, file_bytes=4 << 20, files=32)
LONGEST_ANSWER = 1 << 20
"""Bytes of what a job returns."""


class Host(Worker):
    """The other end: one job at a time, from one thread at a time. Started at the first one, and again after a death."""

    def __init__(self, module: str) -> None:
        super().__init__()
        self._module = module
        self._has_started = False
        self._requests: tuple[int, ...] = ()
        """Pipes to the fork that serves, and to the one that handles."""
        self._folder, self._lock = "", -1

    def start(self) -> None:
        """Begin to start it, unless it runs; nobody waits."""
        if self._process is not None:
            return
        (asked, ask), (told, tell) = os.pipe(), os.pipe()
        self._folder, self._lock = folders.make()
        command = [sys.executable, "-m", __name__, self._module, self._folder, *map(str, (os.getpid(), asked, told))]
        self._launch(command, pass_fds=(asked, told), env=clean(), cwd="/")
        for descriptor in (asked, told):
            os.close(descriptor)
        self._requests, self._has_started = (ask, tell), False
        for descriptor in self._requests:
            os.set_blocking(descriptor, False)

    def await_ready(self, is_cancelled: Cancelled = never) -> bool:
        """Wait until it has started, or removed what the last job left; False where nobody wants it any more.

        Raises MachineFailure where it does not start.
        """
        while not self._is_ready:
            self.start()
            try:
                self._until_ready(now_s() + START_S, is_cancelled)
            except NoReply:
                if is_cancelled():
                    return False
                has_started = self._has_started
                self.kill()
                if not has_started:
                    raise MachineFailure(
                        f"the process for {self._module} did not start", f"check that `python -c 'import {self._module}'` works"
                    ) from None
        return True

    def ask(self, handled: Any, served: Any = None, *, deadline_s: float, cpu_s: float, is_cancelled: Cancelled = never) -> Any:
        """What `handle` returned; None where it did not come within the deadline, died, or nobody wants it any more.

        `served`: the request to `serve`. `deadline_s` counts from when the host is ready. `cpu_s`: processor seconds of each
        of the two. Raises MachineFailure where the host does not start.
        """
        if not self.await_ready(is_cancelled):
            return None
        until = now_s() + deadline_s
        ask, tell = self._requests
        self._is_ready = False
        try:
            self._lines.send(served is not None, until, is_cancelled)
            if served is not None:
                self._lines.send([cpu_s, served], until, is_cancelled, ask)
            self._lines.send([cpu_s, handled], until, is_cancelled, tell)
            reply = self._lines.receive(until, is_cancelled)
        except NoReply:
            self._end_job()
            return None
        self._is_ready = reply is None  # the job died
        return reply[0] if isinstance(reply, list) and reply else None

    def _end_job(self) -> None:
        until = now_s() + GIVE_UP_S
        try:
            self._lines.send(None, until, never)
            self._until_ready(until, never)
        except NoReply:
            self.kill()

    def _until_ready(self, until: float, is_cancelled: Cancelled) -> None:
        """Wait for the host's own word. An answer that comes before it has come too late. Raises NoReply."""
        while self._lines.receive(until, is_cancelled) is not None:
            pass
        self._is_ready = self._has_started = True

    def kill(self) -> None:
        """Kill the host; its forks die with it."""
        if self._process is None:
            return
        super().kill()
        for descriptor in (*self._requests, self._lock):
            os.close(descriptor)
        folders.remove(self._folder)

    close = kill


# ---- the host's own process


def main() -> None:
    module_name, folder = sys.argv[1:3]
    parent, asked, told = map(int, sys.argv[3:])
    is_in_memory = memory_folder.enter(folder)  # before anything starts a thread
    replies = os.dup(1)
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    module = importlib.import_module(module_name)
    module.prepare()
    libraries(True), libraries(False)
    gc.freeze()  # else a fork that collects garbage copies the memory of all that is here
    jobs = _Jobs(module, (asked, told), replies, parent, folder, is_in_memory)
    try:
        with contextlib.suppress(BrokenPipeError):
            jobs.run()
    finally:
        folders.remove(folder)  # nobody else does where the parent was killed


class _Jobs:
    def __init__(self, module: Any, requests: tuple[int, int], replies: int, parent: int, base: str, is_in_memory: bool) -> None:
        self._module, self._requests, self._replies = module, requests, replies
        self._parent, self._base, self._is_in_memory = parent, base, is_in_memory
        self._commands = FileIO(0)  # without a buffer, so that `select` sees what is there
        self._lasts = getattr(module, "LASTS", False)
        self._handling: _Handling | None = None

    def run(self) -> None:
        """Until the parent closes its end, or dies."""
        write_line(self._replies, None)
        while True:
            while not self._readable([0]):
                pass
            if not (line := self._commands.readline()):
                return
            if (serves := json.loads(line)) is not None:
                self._job(serves)
                write_line(self._replies, None)

    def _job(self, serves: bool) -> None:
        """Fork for one request, wait until it has answered, or the parent gives it up or dies, and clean up."""
        asked, told = self._requests
        pipes, serving, has_answered = [], None, False
        if serves:
            (to_program, calls), (answers, to_tests) = os.pipe(), os.pipe()
            pipes = [to_program, to_tests, answers, calls]
            folder = tempfile.mkdtemp(dir=self._base)
            if self._is_in_memory:
                memory_folder.mount(folder, folders.MAX_BYTES, folders.MAX_ENTRIES)
            serving = _Serving(_fork(self._module.serve, asked, pipes[:2], folder=folder), folder)
        if self._handling is None:
            ended, tells = os.pipe()
            result = self._replies, tells
            self._handling = _Handling(_fork(self._module.handle, told, pipes[2:], result, lasts=self._lasts), ended)
            os.close(tells)
        for descriptor in pipes:
            os.close(descriptor)
        try:
            has_answered = self._has_answered(self._handling.ended, serving)
        finally:
            if serving is not None:
                _end(serving.pid)
            if not (has_answered and self._lasts):
                _end(self._handling.pid)
                os.close(self._handling.ended)
                self._handling = None
                for descriptor in self._requests:
                    _drain(descriptor)
            if serving is not None:
                if self._is_in_memory:
                    memory_folder.unmount(serving.folder)
                folders.remove(serving.folder)

    def _has_answered(self, ended: int, serving: _Serving | None) -> bool:
        """Wait for that; False where the fork has died, or the parent gives the job up."""
        looked_at = None if self._is_in_memory else serving
        while not (ready := self._readable([ended, 0], folders.LOOK_S if looked_at else PARENT_S)):
            if looked_at is not None and folders.is_overfull(looked_at.folder, looked_at.pid, LIMITS.file_bytes):
                os.kill(looked_at.pid, signal.SIGKILL)
                looked_at = None
        if 0 in ready:
            self._commands.readline()
            return False
        return os.read(ended, 1) != b""

    def _readable(self, descriptors: list[int], look_s: float = PARENT_S) -> list[int]:
        """Those that can be read; none after `look_s`. Exits where the parent has died."""
        ready = select.select(descriptors, [], [], look_s)[0]
        if not ready and os.getppid() != self._parent:
            raise SystemExit
        return ready


class _Serving(NamedTuple):
    """A fork that serves, and the folder that it may write to."""

    pid: int
    folder: str


class _Handling(NamedTuple):
    """A fork that handles requests. `ended`: a pipe with a byte once it has answered, and nothing more once it has died."""

    pid: int
    ended: int


def _fork(
    work: Callable[..., Any], source: int, pipes: Sequence[int], result: tuple[int, ...] = (), *, folder: str | None = None,
    lasts: bool = False,
) -> int:  # fmt: skip
    """A confined process that reads its request and works; where it `lasts`, one after the other. `result`: pipes for what comes
    out, and for a byte that says so."""
    owner = os.getpid()
    if (pid := os.fork()) != 0:
        return pid
    try:
        with open(source, "rb", closefd=False) as lines:
            cpu_s, request = json.loads(lines.readline())
            null = os.open(os.devnull, os.O_RDWR)
            for standard in (0, 1, 2):
                os.dup2(null, standard)
            _limit_processor_time(cpu_s, lasts)
            kept = (*pipes, *result, source) if lasts else (*pipes, *result)
            confine(owner, LIMITS, folder=folder, keep=kept, packages=bool(result))
            while True:
                answer = work(request, *(pipes or (-1, -1)))
                if result:
                    write_line(result[0], [answer], LONGEST_ANSWER)
                if not lasts:
                    break
                signal.setitimer(signal.ITIMER_PROF, 0)
                os.write(result[1], b".")
                cpu_s, request = json.loads(lines.readline())
                _limit_processor_time(cpu_s, lasts)
    finally:
        os._exit(0)


def _limit_processor_time(seconds: float, lasts: bool) -> None:
    """From now. The timer is exact, but code can stop it; the limit counts in whole seconds, and stays."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    limit = int(processor_s() + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1] if lasts else limit))


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _drain(descriptor: int) -> None:
    """Throw away what no fork has read of a request. It does not pass through this process's memory, which all forks inherit."""
    with open(os.devnull, "wb") as nowhere:
        while select.select([descriptor], [], [], 0)[0] and os.splice(descriptor, nowhere.fileno(), 1 << 20):
            pass


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
