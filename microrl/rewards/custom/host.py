"""The process of one reward function: one JSON request a line in, one JSON answer a line out. Run as a file, never imported.

Arguments: the function's target, the folder of `reward.path` (or empty), the parent's process id, and whether to confine it. The
first line out says whether the function could be imported. A custom function may hang, print, or end the process: the
parent sees that, and no more than this process is lost. It runs with the rights of whoever started the run, unless it is confined
after its module has been imported.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

GROUP = "microrl.rewards"
"""The entry points' group, as in `microrl.config.custom_rewards`: of this package nothing but the sandbox is imported here."""
ROOT = str(Path(__file__).parents[3])
MEMORY_BYTES = 16 << 30
"""Of address space, in the sandbox: libraries that compute reserve much more than they use."""
LARGEST = 1e12
"""Largest magnitude of a reward: the square of a larger one could overflow."""
_PR_SET_PDEATHSIG = 1
_SHOWN = 300


class Unusable(Exception):
    """What is wrong with a function or its result, and for names that do not exist the names that do."""

    def __init__(self, message: str, known: list[str] | None = None) -> None:
        super().__init__(message)
        self.known = known


def main() -> None:
    target, folder, parent, confined = sys.argv[1:5]
    requests, replies = os.fdopen(os.dup(0), "rb"), os.dup(1)
    # The protocol owns the two pipes: what the function reads is empty, and what it prints goes to standard error.
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    _die_with(int(parent))
    try:
        function = loaded(target, folder)
    except Unusable as error:
        _write(replies, {"error": str(error), "known": error.known})
        return
    except BaseException as error:  # a module may raise anything, SystemExit too
        _write(replies, {"error": described(error)})
        return
    if confined and not _locked_in((requests.fileno(), replies)):
        return
    _write(replies, {"ready": True})
    for line in requests:
        _write(replies, answer(function, json.loads(line)))


def _locked_in(keep: tuple[int, int]) -> bool:
    """Go on in a confined fork, where this is True; the other process waits for its end.

    A fork, because only the calling thread is confined: a module may have started others while it was imported.
    """
    sys.path.append(ROOT)  # last, and only here: a checkout that is not installed is found by it
    from microrl.sandbox.confine import Limits, confine, levels_in_force

    sys.path.pop()
    owner = os.getpid()
    if (pid := os.fork()) != 0:
        os.waitpid(pid, 0)
        return False
    confine(owner, Limits(MEMORY_BYTES), keep=keep)
    if not levels_in_force().is_tight:
        _write(keep[1], {"error": f"it could not be confined; in force: {levels_in_force()}"})
        os._exit(0)
    return True


def loaded(target: str, folder: str) -> Callable[..., Any]:
    """The function. Raises Unusable, and what its module raises when it is imported."""
    if folder and folder not in sys.path:
        sys.path.append(folder)  # last: a file of the user's shadows no installed package
    module_name, colon, path = target.partition(":")
    found: Any
    if colon:
        found = import_module(module_name)
        for name in path.split("."):
            if not hasattr(found, name):
                known = [key for key, value in vars(found).items() if callable(value) and not key.startswith("_")]
                raise Unusable(f"`{module_name}` has no function `{path}`", known)
            found = getattr(found, name)
    else:
        points = {point.name: point for point in metadata.entry_points(group=GROUP)}
        if target not in points:
            raise Unusable(f"no installed package has an entry point `{target}` in the group {GROUP}", list(points))
        found = points[target].load()
    if not callable(found):
        raise Unusable(f"it is not a function, but of type {type(found).__name__}")
    if inspect.isclass(found):
        raise Unusable("it is a class, not a function")
    return found


def answer(function: Callable[..., Any], request: dict[str, Any]) -> dict[str, Any]:
    """`{"values": [...]}` with a number, None or `{"bad": why}` for each completion; or `{"error": why}` for all of them, with
    `raised` where it is an exception, and other completions may go well."""
    try:
        result = function(request["prompts"], request["completions"], request["rows"])
        return {"values": checked(result, len(request["completions"]))}
    except Unusable as error:
        return {"error": str(error)}
    except BaseException as error:  # also SystemExit; what cannot be caught, the parent sees
        return {"error": described(error), "raised": True}


def checked(result: Any, count: int) -> list[Any]:
    """The values of a call for `count` completions. Raises Unusable for what is no list of that length."""
    if hasattr(result, "tolist"):
        result = result.tolist()  # an array or a tensor
    if not isinstance(result, list | tuple):
        raise Unusable(f"it returned {_kind(result)} instead of a list of {count} numbers")
    if len(result) != count:
        raise Unusable(f"it returned a list of {len(result)} for {count} completions")
    return [_number(value) for value in result]


def _number(value: Any) -> float | dict[str, str] | None:
    if value is None:
        return None
    if isinstance(value, str | bytes | dict | list | tuple):
        return {"bad": f"it returned {_kind(value)} instead of a number"}
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return {"bad": f"it returned {_kind(value)} instead of a number"}
    if not math.isfinite(number):
        return {"bad": f"it returned {number}, which is not finite"}
    if abs(number) > LARGEST:
        return {"bad": f"it returned {number:g}; the largest magnitude allowed is {LARGEST:g}"}
    return number


def _kind(value: Any) -> str:
    name = type(value).__name__
    return "None" if value is None else f"an object of type {name[:40]}"


def described(error: BaseException) -> str:
    """The exception in one line, with the place where it was raised."""
    try:
        text = (str(error).strip().splitlines() or [""])[0][:_SHOWN]
    except Exception:  # an exception of the function's own may fail here as well
        text = ""
    place = ""
    if isinstance(error, SyntaxError) and error.filename:
        place = f" ({Path(error.filename).name}, line {error.lineno})"
    else:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
        frames = [frame for frame in frames if not frame.filename.startswith("<frozen")]
        if frames:
            place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
    return f"{type(error).__name__}: {text}".removesuffix(": ") + place


def _die_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends, even by SIGKILL. Only Linux can; elsewhere the pipe's end does."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:
        os._exit(0)


def _write(descriptor: int, value: dict[str, Any]) -> None:
    data = json.dumps(value).encode("ascii") + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    main()
