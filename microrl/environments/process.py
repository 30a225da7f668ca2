"""The processes of a run's environment, as their parent sees them: one that has imported the class, and a fork an instance."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from microrl.clock import now_s
from microrl.config.environment import BUILT_IN, EXAMPLE, EnvironmentConfig
from microrl.config.plugins import ENVIRONMENTS, refuse_missing
from microrl.errors import UserError
from microrl.rewards.custom.process import IMPORT_S, CustomProcess
from microrl.sandbox.pipes import Gone, never
from microrl.sandbox.worker import Lines, NoReply

ROOT = str(Path(__file__).parents[2])
START_S = 60.0
"""How long a fork may take on a machine that is busy."""


def refuse_unusable(config: EnvironmentConfig) -> None:
    """Look for the class's module without importing anything. Raises UserError for one that does not exist."""
    if config.target is not None and config.target not in BUILT_IN:
        refuse_missing(
            config.target, what="environment", group=ENVIRONMENTS, folder=config.path, key="env.path", example=EXAMPLE,
            known=BUILT_IN,
        )  # fmt: skip


class Described(NamedTuple):
    """What a class offers: the JSON schemas of its tools, as chat templates take them, and whether it has `get_reward`."""

    tools: tuple[dict[str, Any], ...]
    rewards: bool


class Instances(CustomProcess):
    """Starts and ends instances of the environment's class. Every method may be called from any thread."""

    what, group, key, server = "environment", ENVIRONMENTS, "env.path", "microrl.environments.forks"

    def __init__(self, config: EnvironmentConfig) -> None:
        assert config.target is not None
        # Its process finds this package as it finds a user's module, should it not be installed.
        super().__init__(*((BUILT_IN[config.target], ROOT) if config.target in BUILT_IN else (config.target, config.path)))
        self.deadline_s = config.deadline_s
        self._lock = Lock()
        self._channel: socket.socket | None = None
        self._theirs = -1
        self._closed = False

    def start(self) -> None:
        """Begin to start the process that imports the class, unless it runs; nobody waits."""
        if self._process is None:
            self._channel, theirs = socket.socketpair()
            self._theirs = theirs.fileno()
            with theirs:
                self._launch(self._command(), pass_fds=(self._theirs,))

    def describe(self) -> Described:
        """What the class offers. Raises UserError where it cannot be imported or is no environment."""
        instance = self.begin()
        try:
            found = instance.ask({"describe": True}, IMPORT_S)
        except NoReply as error:
            found = {"error": error.why or f"it took more than {IMPORT_S:g} s"}
        finally:
            instance.end()
        if "error" in found:
            raise UserError(
                f"the environment `{self._target}` cannot be used: {found['error']}",
                "every public method but reset and get_reward is a tool: it needs type hints, and a docstring in Google style "
                "that describes each argument; `microrl guide environments` shows one",
            )
        return Described(tuple(found["tools"]), bool(found["rewards"]))

    def begin(self) -> Instance:
        """A fresh instance. Raises UserError where the class cannot be imported or is no environment, and NoReply."""
        (asked, ask), (answers, answer) = os.pipe(), os.pipe()
        try:
            with self._lock:
                try:
                    pid = self._forked(asked, answer)
                except (NoReply, OSError):  # it was killed since, as where memory runs out: once more in a new one
                    self.kill()
                    pid = self._forked(asked, answer)
        except BaseException:
            os.close(ask)
            os.close(answers)
            raise
        finally:
            os.close(asked)
            os.close(answer)
        return Instance(self, pid, ask, answers)

    def _forked(self, asked: int, answer: int) -> int:
        self.wait_until_ready(lambda: self._closed)
        assert self._channel is not None
        socket.send_fds(self._channel, [b"."], [asked, answer])
        return int(self.call({"start": self._theirs}, START_S, never)["pid"])

    def end(self, pid: int) -> None:
        """Kill a fork and what it has started."""
        with self._lock:
            if self._process is not None:
                # It was killed together with its forks.
                with suppress(NoReply):
                    self.call({"end": pid}, START_S, never)

    def kill(self) -> None:
        """Kill the process; its forks die with it."""
        super().kill()
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def close(self) -> None:
        """End everything."""
        self._closed = True
        with self._lock:
            self.kill()


class Instance:
    """One instance of the class, in a process of its own. Used by one thread at a time."""

    def __init__(self, owner: Instances, pid: int, ask: int, answers: int) -> None:
        self._owner, self._pid = owner, pid
        self._pipes: tuple[int, ...] = (ask, answers)
        self._lines = Lines(ask, answers, lambda: "its process has ended")

    def ask(self, request: dict[str, Any], deadline_s: float, gone: Gone = never) -> dict[str, Any]:
        """The answer to one request. Raises NoReply; the instance is then of no more use."""
        until = now_s() + deadline_s
        self._lines.send(request, until, gone)
        reply = self._lines.receive(until, gone)
        if not isinstance(reply, dict):
            raise NoReply("its process has sent something that is no answer")
        return reply

    def end(self) -> None:
        """End its process. May be called twice."""
        if self._pipes:
            for descriptor in self._pipes:
                os.close(descriptor)
            self._pipes = ()
            self._owner.end(self._pid)
