"""How a command ends: an error line, a hint, an exit status. Data goes to standard output, messages to standard error."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from microrl import terminal
from microrl.errors import Explained, MachineFailure, SyncNotProved, UserError, did_you_mean, invalid_value
from microrl.terminal import TolerantStream, printable

if TYPE_CHECKING:
    from microrl.run.folder import RunFolder

# Typer carries a copy of click in newer versions and depends on it in older ones: the class is the same by name.
ClickException: type[Exception] = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
OK, FAILED, USAGE, STOPPED, UNPROVED, INTERRUPTED = 0, 1, 2, 3, 4, 130
_STATUS: dict[type[Explained], int] = {UserError: USAGE, SyncNotProved: UNPROVED, MachineFailure: FAILED}
_NO_CHOICE = re.compile(r"(?:Value error, )?'(.*)' is not one of (.*)\.", re.DOTALL)

_run: RunFolder | None = None


def in_run(folder: RunFolder) -> None:
    """From now on, write tracebacks into this run folder and messages also into its `run.log`."""
    global _run
    _run = folder


def guarded(command: Callable[[], Any]) -> int:
    """Run a command and return its exit status.

    0 done; 1 microrl or the machine failed; 2 an error that the user can fix; 3 stopped early by the guard; 4 a swap could not
    be proved; 130 interrupted after a clean save. Messages are dropped if standard error is closed.
    """
    global _run
    with redirect_stderr(cast("Any", TolerantStream(sys.stderr))):
        try:
            status = command()
            return status if isinstance(status, int) else OK
        except Explained as error:
            if error.fault is not None and error.__cause__ is not None:  # of a library: more than its first line may be wanted
                error.hint = "; ".join([*([error.hint] if error.hint else []), keep_traceback(error)])
            return _ended(error.message, error.hint, next(_STATUS[kind] for kind in _STATUS if isinstance(error, kind)))
        except ClickException as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # the help has been printed
                return USAGE
            if choice := _NO_CHOICE.fullmatch(getattr(error, "message", "")):  # typer's own words have no hint
                value, names = choice[1], re.findall("'(.*?)'", choice[2])
                wrong = invalid_value(error.param.opts[0], value, did_you_mean(value, names))  # type: ignore[attr-defined]
                return _ended(wrong.message, wrong.hint, USAGE)
            if known := _known_elsewhere(error):
                return _ended(f"No such option: {error.option_name}", known, USAGE)  # type: ignore[attr-defined]
            return _ended(error.format_message(), _help_of(error), USAGE)  # type: ignore[attr-defined]
        except (KeyboardInterrupt, typer.Abort):
            return _interrupted()
        except Exception as error:
            return _interrupted() if _was_interrupted(error) else _failed(error)
        finally:
            _run = None


def _help_of(error: Exception) -> str:
    """Which help lists what the command takes that was called."""
    context, words = getattr(error, "ctx", None), [""]
    while context is not None and context.parent is not None:
        context, words = context.parent, [f" {context.info_name}", *words]
    own = f"`microrl{''.join(words)} --help` lists its options; " if len(words) > 1 else ""
    return f"{own}`microrl --help` lists the commands"


def _known_elsewhere(error: Exception) -> str | None:
    """What to pass to this command instead of another trainer's option; None where that is not known."""
    name, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if name is None or context is None:
        return None
    from microrl.cli.options import FLAGS
    from microrl.config import other_names

    name = name.lstrip("-").replace("-", "_").lower()
    takes = {flag for parameter in context.command.params for flag in parameter.opts}
    argument = next((one.metavar for one in context.command.params if one.param_type_name == "argument"), None) or ""
    if (name, argument) == ("model", "WEIGHTS") or (name == "run" and ("RUN" in argument or argument == "WEIGHTS")):
        return f"it is given without an option: `{context.command_path} {argument}`"
    key, equals, value = (other_names.ours(name) or "").partition("=")
    if FLAGS.get(key) in takes:
        return f"did you mean `{FLAGS[key]}{' ' if equals else ''}{value}`?"
    if key == "sampling.max_completion_tokens" and "--max-tokens" in takes:
        return "did you mean `--max-tokens`?"
    if key and "--set" in takes and "--steps" in takes:
        return f"did you mean `--set {key}={value or 'VALUE'}`?"
    return other_names.INSTEAD.get(name) if "--out" in takes else None


def _ended(message: str, hint: str | None, status: int) -> int:
    say(f"error: {message}")
    if hint:
        say(f"hint: {hint}")
    return status


def _interrupted() -> int:
    say("interrupted")
    return INTERRUPTED


def _failed(error: Exception) -> int:
    """Report an unexpected exception and write its traceback to crash.log; returns the exit status."""
    if isinstance(error, BrokenPipeError) and _run is None:
        # Whoever read our output has left, as `head` does; nothing more can be said there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    text = (str(error).strip().splitlines() or [""])[0]
    return _ended(f"{type(error).__name__}: {text}", "; ".join([keep_traceback(error), *getattr(error, "__notes__", [])]), FAILED)


def keep_traceback(error: Exception) -> str:
    """Write an error's traceback to crash.log; returns where it is, in words."""
    text = "".join(traceback.format_exception(error))
    try:
        return f"the traceback is in {_crash_log(_run.path if _run is not None else None, text)}"
    except OSError:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"no crash.log could be written; the error was raised at {frame.filename}:{frame.lineno}"


def _crash_log(folder: Path | None, text: str) -> Path:
    """Write a traceback to `crash.log` in the run folder, the current folder or the temporary folder; returns its path.

    Raises OSError if none of them is writable.
    """
    from microrl import files

    refused: Exception | None = None
    for place in (*([folder] if folder is not None else []), Path(), Path(tempfile.gettempdir())):
        path = place / "crash.log"
        try:
            with files.open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
                file.write(text.encode(errors="backslashreplace"))
            return path
        except (OSError, files.BadFile) as error:
            refused = error
    raise OSError("no crash.log could be written") from refused


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether the error was caused by a KeyboardInterrupt that a library has wrapped."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def say(text: str) -> None:
    """Print a line to standard error, and to the `run.log` of the current run."""
    terminal.say(text)
    if _run is not None:
        _run.log(text)


def emit(value: Any) -> None:
    """Print data as JSON to standard output."""
    print(printable(json.dumps(value, indent=2, ensure_ascii=False)))
