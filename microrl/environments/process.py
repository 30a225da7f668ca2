"""The processes of a run's environment, as their parent sees them: one that has imported the class, and a fork an instance."""

from __future__ import annotations

import json
import os
import resource
import socket
from contextlib import ExitStack, closing, suppress
from threading import Lock
from typing import Any, NamedTuple

from microrl.clock import now_s
from microrl.config.environment import BUILT_IN, EXAMPLE, EnvironmentConfig
from microrl.config.plugins import ENVIRONMENTS, refuse_missing
from microrl.data.prompts import Tools
from microrl.environments.forks import Bounds
from microrl.errors import UserError
from microrl.processes import how_it_ended
from microrl.rewards.custom.process import IMPORT_S, CustomProcess
from microrl.sandbox import folders, levels
from microrl.sandbox.worker import NO_ANSWER, Cancelled, Lines, NoReply, clean, never

START_S = 60.0
"""How long a fork may take on a machine that is busy."""
CHARACTERS_PER_TOKEN = 4
"""Of a JSON schema, roughly, for a vocabulary of 100,000 tokens or more."""


def refuse_unusable(config: EnvironmentConfig) -> None:
    """Look for the classes' modules without importing anything. Raises UserError for one that does not exist, and where one is to
    be confined and this kernel cannot."""
    for one in config.each.values():
        if one.is_strict and not levels().is_enforced:
            why = "env.confine" if one.confine else f"--env {one.target} runs what the model writes"
            raise UserError(
                f"{why}: this kernel cannot confine an environment: it lacks {levels().lacking}; in force: {levels()}",
                "use a machine with Linux 6.2 or later" + (", or remove env.confine" if one.confine else ""),
            )
        if not one.is_built_in:
            refuse_missing(
                str(one.target), what="environment", group=ENVIRONMENTS, folder=one.path, key="env.path", example=EXAMPLE,
                known=BUILT_IN,
            )  # fmt: skip


class Interface(NamedTuple):
    """What a class offers: the JSON schemas of its tools, as chat templates take them, and whether it has `get_reward`."""

    tools: tuple[dict[str, Any], ...]
    rewards: bool


class Instances(CustomProcess):
    """Starts and ends instances of one environment's class. Every method may be called from any thread."""

    what, group, key, server = "environment", ENVIRONMENTS, "env.path", "microrl.environments.forks"

    def __init__(self, config: EnvironmentConfig) -> None:
        target = config.target
        assert isinstance(target, str), target
        with suppress(OSError, ValueError):  # each episode in progress has two descriptors
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        # Its process is not confined: it forks.
        super().__init__(*((BUILT_IN[target], None) if config.is_built_in else (target, config.path)))
        memory_bytes = None if config.memory_gb is None else int(config.memory_gb * 1e9)
        self._bounds = Bounds(memory_bytes, confined=config.confine or config.is_built_in, strict=config.is_strict)
        self._folder_lock = -1
        self._lock = Lock()
        self.open: set[Instance] = set()
        """Those that have not been ended; set operations are atomic."""
        self._channel: socket.socket | None = None
        self._theirs = -1
        self._closed = False

    def start(self) -> None:
        """Begin to start the process that imports the class, unless it runs; nobody waits."""
        if self._process is None:
            self._channel, theirs = socket.socketpair()
            self._theirs = theirs.fileno()
            if self._bounds.strict:  # the others that are confined come with microrl, and write nothing
                folder, self._folder_lock = folders.make()
                self._bounds = self._bounds._replace(folder=folder)
            with theirs:
                self._launch(self._command(), pass_fds=(self._theirs,), env=clean() if self._bounds.confined else None)

    def describe(self) -> Interface:
        """What the class offers. Raises UserError where it cannot be imported or is no environment."""
        instance = self.begin()
        try:
            reply = instance.ask({"describe": True}, IMPORT_S)
        except NoReply as error:
            reply = {"error": error.why or f"it took more than {IMPORT_S:g} s"}
        finally:
            instance.end()
        if "error" in reply:
            raise UserError(
                f"the environment `{self._target}` cannot be used: {reply['error']}",
                "every public method except reset and get_reward is a tool: it needs type hints, and a docstring in Google style "
                "that describes each argument; `microrl guide environments` shows one",
            )
        return Interface(tuple(reply["tools"]), bool(reply["rewards"]))

    def begin(self) -> Instance:
        """A fresh instance. Raises UserError where the class cannot be imported or is no environment, and NoReply."""
        with ExitStack() as theirs, ExitStack() as undo:
            asked, ask = os.pipe()
            theirs.callback(os.close, asked)
            undo.callback(os.close, ask)
            answers, answer = os.pipe()
            theirs.callback(os.close, answer)
            undo.callback(os.close, answers)
            with self._lock:
                try:
                    pid = self._forked(asked, answer)
                except (NoReply, OSError):  # it was killed since, as where memory runs out: once more in a new one
                    self.kill()
                    pid = self._forked(asked, answer)
            undo.pop_all()
        return Instance(self, pid, ask, answers)

    def _forked(self, asked: int, answer: int) -> int:
        self.wait_until_ready(lambda: self._closed)
        assert self._channel is not None
        socket.send_fds(self._channel, [b"."], [asked, answer])
        return int(self.call({"start": self._theirs, "bounds": self._bounds}, START_S, never)["pid"])

    def end(self, pid: int) -> str:
        """Kill a fork and what it has started. Says how it had ended, where it had."""
        with self._lock, suppress(NoReply):  # it was killed together with its forks
            if self._process is not None:
                status = self.call({"end": pid, "asks": True}, START_S, never)["status"]
                if status is None:
                    return "its process has ended"
                return f"its process ended ({how_it_ended(os.waitstatus_to_exitcode(status))})"
        return "its process has ended"

    def forget(self, pid: int) -> None:
        """`end` it, without waiting for that."""
        with self._lock, suppress(NoReply):
            if self._process is not None:
                self._lines.send({"end": pid, "asks": False}, now_s() + START_S, never)

    def kill(self) -> None:
        """Kill the process; its forks die with it."""
        super().kill()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._bounds.folder is not None:
            os.close(self._folder_lock)
            folders.remove(self._bounds.folder)
            self._bounds = self._bounds._replace(folder=None)

    def close(self) -> None:
        """End everything."""
        self._closed = True
        with self._lock:
            if self._process is not None and self._is_ready:
                with suppress(NoReply):  # it answers when it has ended all that it was to `forget`; there is no fork 0
                    self.call({"end": 0, "asks": True}, START_S, never)
            self.kill()


class Instance:
    """One instance of the class, in a process of its own. Used by one thread at a time."""

    def __init__(self, owner: Instances, pid: int, ask: int, answers: int) -> None:
        self._owner, self._pid = owner, pid
        self._runs = True
        self._pipes: tuple[int, ...] = (ask, answers)
        self._lines = Lines(ask, answers, self._kill)
        owner.open.add(self)

    def ask(self, request: dict[str, Any], deadline_s: float, is_cancelled: Cancelled = never) -> dict[str, Any]:
        """The answer to one request. Raises NoReply; the instance is then of no more use."""
        until, name = now_s() + deadline_s, os.urandom(8).hex()
        self._lines.send({"id": name, **request}, until, is_cancelled)
        reply = self._lines.receive(until, is_cancelled)
        if not isinstance(reply, dict) or reply.pop("id", None) != name:
            raise NoReply(NO_ANSWER)
        return reply

    def _kill(self) -> str:
        self._runs = False
        return self._owner.end(self._pid)

    def end(self) -> None:
        """End its process. May be called twice."""
        self._owner.open.discard(self)
        for descriptor in self._pipes:
            os.close(descriptor)
        self._pipes = ()
        if self._runs:
            self._runs = False
            self._owner.forget(self._pid)


def schema_tokens(config: EnvironmentConfig) -> int:
    """About how many tokens of a prompt tell of the tools, of several environments the most; 0 without tools. It takes the
    seconds of starting the class.

    Raises UserError for a class that cannot be used.
    """
    tokens = [0]
    for one in config.each.values():
        with closing(Instances(one)) as instances:
            tokens.append(tokens_of(instances.describe().tools))
    return max(tokens)


def tokens_of(tools: Tools) -> int:
    """As `schema_tokens`, for the tools of one environment that are at hand."""
    return sum(len(json.dumps(tool)) for tool in tools) // CHARACTERS_PER_TOKEN
