"""The process of custom code, as its parent sees it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from microrl.clock import now_s
from microrl.config.plugins import REWARDS, refuse_missing
from microrl.config.reward import EXAMPLE, RewardConfig, parse_functions
from microrl.errors import UserError, did_you_mean
from microrl.sandbox import levels
from microrl.sandbox.worker import NO_ANSWER, Cancelled, NoReply, Worker, clean, never

HOST = str(Path(__file__).with_name("host.py"))
"""Run as a file: of this package it imports `processes` alone, and starts in a tenth of a second."""
IMPORT_S = 300.0
"""How long a function's module may take to be imported. Some load a model of their own."""


class CustomProcess(Worker):
    """The process of one reward function, or of what else `what` is called and the module `server` serves.

    `group` is that of its entry points, `folder` where its module may be besides the installed packages, which `key` names.
    """

    what, group, key, server = "reward", REWARDS, "reward.path", ""

    def __init__(self, target: str, folder: str | None, *, confined: bool = False) -> None:
        super().__init__()
        self._target, self._folder, self._confined = target, folder, "confined" if confined else ""
        self.is_by_name = False
        """Whether what it serves is a function with TRL's parameters, whose None leaves only its own part out, and not the
        completion; known once it is ready."""

    def start(self) -> None:
        """Begin to start it, unless it runs; nobody waits."""
        if self._process is None:
            # A process finds the environment that it was started with on its stack, whatever it clears later.
            self._launch(self._command(), env=clean() if self._confined else None)

    def _command(self) -> list[str]:
        # -P: neither the current folder nor that of the file, whose modules must not be taken for others.
        command = [sys.executable, "-P", HOST, self._target, self._folder or "", str(os.getpid())]
        return [*command, self.group, self._confined, self.server]

    def wait_until_ready(self, is_cancelled: Cancelled = never) -> None:
        """Wait until the code is imported. Raises UserError where it cannot be, and NoReply where nobody waits any more."""
        self.start()
        if self._is_ready:
            return
        target = self._target
        try:
            reply = self._reply(now_s() + IMPORT_S, is_cancelled)
        except NoReply as error:
            if is_cancelled():
                raise
            why = error.why or f"it took more than {IMPORT_S:g} s"
            raise UserError(f"the {self.what} `{target}` cannot be imported: {why}", self._import_hint()) from None
        if "error" in reply:
            self.kill()
            if reply.get("hint"):
                raise UserError(f"the {self.what} `{target}` cannot be used: {reply['error']}", reply["hint"])
            known = reply.get("known")
            hint = did_you_mean(target.rpartition(":")[2], known) if known else self._import_hint()
            raise UserError(f"the {self.what} `{target}` cannot be imported: {reply['error']}", hint)
        self._is_ready, self.is_by_name = True, reply.get("by_name") is True

    def call(self, request: dict[str, Any], deadline_s: float, is_cancelled: Cancelled) -> dict[str, Any]:
        """The answer to one call. Raises NoReply; the process is then killed, and started again by the next call."""
        self.wait_until_ready(is_cancelled)
        return self._reply(now_s() + deadline_s, is_cancelled, request)

    def _reply(self, until: float, is_cancelled: Cancelled, request: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            if request is not None:
                self._lines.send(request, until, is_cancelled)
            reply = self._lines.receive(until, is_cancelled)
            if not isinstance(reply, dict):
                raise NoReply(NO_ANSWER)
        except NoReply:
            self.kill()
            raise
        return reply

    def _import_hint(self) -> str:
        module, colon, _ = self._target.partition(":")
        places = f"modules are also looked for in the folder {self.key} (the current one)"
        return f"try it: python -c 'import {module if colon else 'PACKAGE'}'; {places}"


def refuse_unusable(config: RewardConfig) -> None:
    """Look for the functions' modules without importing anything. Raises UserError for one that does not exist, and where the
    functions are to be confined and this kernel cannot."""
    if config.functions and config.confine_functions and not levels().is_enforced:
        raise UserError(
            f"reward.confine_functions: this kernel cannot confine reward functions: it lacks {levels().lacking}; "
            f"in force: {levels()}",
            "use a machine with Linux 6.2 or later, or leave the key out: the functions then run with your rights",
        )
    for function in parse_functions(config.functions):
        refuse_missing(
            function.target, what="reward", group=REWARDS, folder=config.path, key="reward.path",
            example=f"a custom function is MODULE:FUNCTION, {EXAMPLE}",
        )  # fmt: skip
