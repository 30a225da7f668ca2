"""What a person reads when something ends: one line, a hint, an exit status. Data goes to standard output, words do not."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from microrl.errors import Explained, MachineFailure, SwapNotProved, UserError
from microrl.terminal import printable

# Typer carries a copy of click in newer versions and depends on it in older ones: the class is the same by name.
ClickException: type[Exception] = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
OK, FAILED, USAGE, STOPPED, UNPROVED, INTERRUPTED = 0, 1, 2, 3, 4, 130
_STATUS: dict[type[Explained], int] = {UserError: USAGE, SwapNotProved: UNPROVED, MachineFailure: FAILED}

_crash_folder: Path | None = None


def crash_here(folder: Path) -> None:
    """Tracebacks go into this run folder from now on."""
    global _crash_folder
    _crash_folder = folder


def guarded(command: Callable[[], Any]) -> int:
    """Run a command.

    0 done; 1 our or the machine's failure; 2 the user can mend it; 3 stopped early by the guard; 4 a swap that could not be
    proved; 130 interrupted after a clean save.
    """
    try:
        status = command()
        return status if isinstance(status, int) else OK
    except Explained as error:
        say(f"error: {error.message}")
        if error.hint:
            say(f"hint: {error.hint}")
        return next(status for kind, status in _STATUS.items() if isinstance(error, kind))
    except ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the help has been printed
            return USAGE
        say(f"error: {error.format_message()}")  # type: ignore[attr-defined]
        say("hint: see `microrl --help`, or `microrl COMMAND --help`")
        return USAGE
    except (KeyboardInterrupt, typer.Abort):
        say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left, as `head` does; nothing more can be said there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as error:
        if _was_interrupted(error):
            say("interrupted")
            return INTERRUPTED
        from microrl.tracking.run_folder import crash_log

        text = (str(error).strip().splitlines() or [""])[0]
        try:
            where = f"the traceback is in {crash_log(_crash_folder, traceback.format_exc())}"
        except (OSError, UserError):
            say(traceback.format_exc())
            where = "the traceback is above"
        say(f"error: {type(error).__name__}: {text}")
        say(f"hint: {where}")
        return FAILED


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether a library has dressed a Ctrl-C up as an error of its own."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def say(text: str) -> None:
    """A line on standard error."""
    print(printable(text), file=sys.stderr)


def emit(value: Any) -> None:
    """Data, as JSON, on standard output."""
    print(printable(json.dumps(value, indent=2, ensure_ascii=False)))
