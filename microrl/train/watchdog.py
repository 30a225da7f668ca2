"""What happens when a run hangs: it is told everywhere, recorded, and its process ended. All in a thread beside the run's own."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from microrl import files
from microrl.errors import MachineFailure
from microrl.files import BadFile
from microrl.run import checkpoint, names
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.run.heartbeat import EVERY_S, Hang
from microrl.run.view import clock
from microrl.terminal import say
from microrl.train.run import Run
from microrl.train.summary import summary_of

FAILED = 1
OnHang = Callable[[MachineFailure], int | None]
"""Gets the error of a hang if time is left to resume the run; returns the process's exit status if somebody will, else None."""


class Watchdog:
    """Ends the process of a run that hangs. The run goes on from its last checkpoint: those are written whole or not at all.

    `console` and `run` are set as soon as they exist.
    """

    def __init__(self, folder: RunFolder, on_hang: OnHang) -> None:
        self._folder, self._on_hang = folder, on_hang
        self.console: RunConsole | None = None
        self.run: Run | None = None

    def end(self, hang: Hang) -> None:
        """Record what hangs, then say it, since a terminal may hang too. Does not return."""
        folder, run = self._folder, self.run
        usual = "" if hang.longest_s is None else f" (the longest pause before was {max(hang.longest_s, EVERY_S):.0f} s or less)"
        why = ", and the time is up" if hang.is_overdue else ""
        message = f"the run hung: no progress for {clock(hang.silent_s)} at `{hang.doing}`{usual}{why}{hang.innermost_call()}"
        resume = run.resume_command() if run else f"microrl train --resume {folder.path}"
        log, again = self._crash_log(hang.stack), "if it hangs there again, `microrl doctor` tests this machine"
        if (foreign := hang.foreign_file()) is not None:
            log = f"the code that hangs is your own, not microrl's or an installed package's: fix {foreign} ({log})"
            again = ""
        saved = checkpoint.steps(folder.path / names.CHECKPOINTS)
        kept = f" from step {saved} on" if saved else ""
        error = MachineFailure(message, f"resume the run{kept}: {resume}" + (f"; {again}" if again else ""))
        folder.event("failed", message, hint=log, resume=resume, remedy=again, stack=hang.stack)
        error.add_note(log)
        folder.log(f"error: {message}")
        folder.log(f"hint: {log}; {error.hint}")
        if run is not None and not (folder.path / names.SUMMARY).exists():
            with suppress(Exception):  # of a run in any state
                folder.write_json(names.SUMMARY, summary_of(run))
        if self.console is not None:
            self.console.__exit__(None, None, None)
        has_time = run is None or not hang.is_overdue
        status = self._on_hang(error) if has_time else None
        if status is None:
            say(f"error: {message}")
            say(f"hint: {'; '.join([*error.__notes__, error.hint or ''])}")
        os._exit(FAILED if status is None else status)

    def _crash_log(self, stack: str) -> str:
        path = self._folder.path / names.CRASH
        try:
            with files.open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
                file.write(stack.encode(errors="backslashreplace"))
        except (OSError, BadFile) as error:
            return f"no crash.log could be written: {error}"
        return f"see in {path} where it hung"
