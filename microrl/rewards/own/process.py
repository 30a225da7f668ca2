"""The process of a reward function, as its parent sees it: started, asked, killed at a deadline."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from microrl.clock import now_s
from microrl.config.own_rewards import EXAMPLE, GROUP, RewardFunction, parse_functions
from microrl.config.reward import RewardConfig
from microrl.errors import UserError, did_you_mean, nearest
from microrl.sandbox import levels
from microrl.sandbox.environment import clean
from microrl.sandbox.pipes import Gone, never, wait_for

HOST = str(Path(__file__).with_name("host.py"))
"""Run as a file: it needs nothing of this package, and starts in a tenth of a second."""
IMPORT_S = 300.0
"""How long a function's module may take to be imported. Some load a model of their own."""
ENDING_S = 1.0
"""How long a process that has closed its pipes may take to end."""
LONGEST_REPLY = 2**26
"""Bytes."""


class NoReply(Exception):
    """The function's process did not answer: it took too long, or has ended. `why` says which."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class FunctionProcess:
    """The process of one function, used by one thread at a time. Started at its first request, and again after a death."""

    def __init__(self, function: RewardFunction, folder: str | None, confined: bool) -> None:
        self._function, self._folder, self._confined = function, folder, "confined" if confined else ""
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._unread = b""

    def start(self) -> None:
        """Begin to start it, unless it runs; nobody waits."""
        if self._process is not None:
            return
        self._is_ready, self._unread = False, b""
        self._process = subprocess.Popen(
            # -P: neither the current folder nor that of the file, whose modules must not be taken for others.
            [sys.executable, "-P", HOST, self._function.target, self._folder or "", str(os.getpid()), self._confined],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            # A process finds the environment that it was started with on its stack, whatever it clears later.
            env=clean() if self._confined else None,
            start_new_session=True,  # Ctrl-C is for the parent, which decides; and what it starts can be killed with it
        )
        for descriptor in self._pipes():
            os.set_blocking(descriptor, False)

    def wait_until_ready(self, gone: Gone = never) -> None:
        """Wait until the function is imported. Raises UserError where it cannot be, and NoReply where nobody waits any more."""
        self.start()
        if self._is_ready:
            return
        target = self._function.target
        try:
            reply = self._reply(now_s() + IMPORT_S, gone)
        except NoReply as error:
            self.kill()
            if gone():
                raise
            why = error.why or f"it took more than {IMPORT_S:g} s"
            raise UserError(f"the reward `{target}` cannot be imported: {why}", _import_hint(self._function)) from None
        if "error" in reply:
            self.kill()
            known = reply.get("known")
            hint = did_you_mean(target.rpartition(":")[2], known) if known else _import_hint(self._function)
            raise UserError(f"the reward `{target}` cannot be imported: {reply['error']}", hint)
        self._is_ready = True

    def call(self, request: dict[str, Any], deadline_s: float, gone: Gone) -> dict[str, Any]:
        """The answer to one call. Raises NoReply; the process is then killed, and started again by the next call."""
        self.wait_until_ready(gone)
        until = now_s() + deadline_s
        try:
            self._send(json.dumps(request).encode("ascii") + b"\n", until, gone)
            return self._reply(until, gone)
        except NoReply:
            self.kill()
            raise

    def _pipes(self) -> tuple[int, int]:
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        return self._process.stdin.fileno(), self._process.stdout.fileno()

    def _send(self, data: bytes, until: float, gone: Gone) -> None:
        descriptor, view = self._pipes()[0], memoryview(data)
        try:
            while view:
                _wait(descriptor, select.POLLOUT, until, gone)
                view = view[os.write(descriptor, view[: 1 << 16]) :]
        except BrokenPipeError:
            raise NoReply(self._how_it_ended()) from None

    def _reply(self, until: float, gone: Gone) -> dict[str, Any]:
        descriptor, found = self._pipes()[1], [self._unread]
        while b"\n" not in found[-1]:
            _wait(descriptor, select.POLLIN, until, gone)
            data = os.read(descriptor, 1 << 16)
            if not data:
                raise NoReply(self._how_it_ended())
            if sum(map(len, found)) > LONGEST_REPLY:
                raise NoReply(f"it returned more than {LONGEST_REPLY:,} bytes")
            found.append(data)
        line, _, self._unread = b"".join(found).partition(b"\n")
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict):
            raise NoReply("its process has sent something that is no answer")
        return reply

    def _how_it_ended(self) -> str:
        assert self._process is not None
        try:
            status = self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            return "it has closed its process's pipes"
        return f"its process was ended by signal {-status}" if status < 0 else f"its process ended with status {status}"

    def kill(self) -> None:
        """Kill the process and what it has started."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
            self._process = None


def _wait(descriptor: int, event: int, until: float, gone: Gone) -> None:
    """Wait for a pipe. Raises NoReply where the time is up, or nobody waits any more."""
    if not wait_for(descriptor, event, until, gone):
        raise NoReply("")


def _import_hint(function: RewardFunction) -> str:
    module = function.module or "PACKAGE"
    return f"try it: python -c 'import {module}'; modules are also looked for in the folder reward.path (the current one)"


def refuse_unusable(config: RewardConfig) -> None:
    """Look for the functions' modules without importing anything. Raises UserError for one that does not exist, and where the
    functions are to be confined and this kernel cannot."""
    if config.functions and config.confine_functions and not levels().is_tight:
        raise UserError(
            f"reward.confine_functions: this kernel cannot confine reward functions: it lacks {levels().lacking}; "
            f"in force: {levels()}",
            "use a machine with Linux 6.2 or later, or leave the key out: the functions then run with your rights",
        )
    for function in parse_functions(config.functions):
        if function.module is not None:
            _refuse_missing(function, config.path)
        elif function.target not in (known := metadata.entry_points(group=GROUP).names):
            close = f"did you mean `{name}`? " if (name := nearest(function.target, known)) else ""
            raise UserError(
                f"there is no reward `{function.target}`: no installed package has such an entry point in the group {GROUP}",
                f"{close}a function of your own is MODULE:FUNCTION, {EXAMPLE}",
            )


def _refuse_missing(function: RewardFunction, folder: str | None) -> None:
    assert function.module is not None
    name, places = "", None
    for part in function.module.split("."):
        name = f"{name}.{part}" if name else part
        spec = _spec(name, places) or (_spec(name, [folder or os.getcwd()]) if name == part else None)
        if spec is None:
            raise UserError(
                f"the reward `{function.target}` cannot be imported: there is no module `{name}`",
                f"install its package, or put its file into {folder or 'the current folder'} (another: --set reward.path=DIR)",
            )
        places = list(spec.submodule_search_locations or [])


def _spec(name: str, places: list[str] | None) -> ModuleSpec | None:
    """Where a module is, as an import would find it in these places (None: in all that are known)."""
    for finder in sys.meta_path:
        with suppress(ImportError, AttributeError, ValueError):
            if (spec := finder.find_spec(name, places)) is not None:
                return spec
    return None
