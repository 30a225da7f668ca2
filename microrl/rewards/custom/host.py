"""The process of custom code: one JSON request a line in, one JSON answer a line out. Run as a file.

Arguments: the target, the folder of its module (or empty), the parent's process id, the entry points' group, whether to confine
it, and the module that serves it (empty for a reward function, which is served here). The first line out says whether the target
could be imported. Custom code may hang, print, or end the process: the parent sees that, and no more than this process is lost.
It runs with the rights of whoever started the run, unless it is confined after its module has been imported.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import sys
import traceback
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

ROOT = __file__.rsplit(os.sep, 4)[0]
MEMORY_BYTES = 16 << 30
"""Of address space, in the sandbox: libraries that compute reserve much more than they use."""
LARGEST = 1e12
"""Largest magnitude of a reward: the square of a larger one could overflow."""
_OWN = ("prompts", "completions", "rows")
"""The parameters of a reward function; see `microrl.rewards.custom.functions`."""
_SIGNATURES = "write def NAME(prompts, completions, rows), or as for TRL def NAME(completions, **kwargs)"
_UNNAMED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
_TEXT_AS_MESSAGES = re.compile("string ind|'str' object")
"""In the words of Python's exceptions: "string indices must be integers", "string index out of range", and attributes."""
_SHOWN = 300


class Unusable(Exception):
    """What is wrong with a function or its result; for names that do not exist the names that do, and for a class that lacks
    something what to write."""

    def __init__(self, message: str, known: list[str] | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.known, self.hint = known, hint


def main() -> None:
    target, folder, parent, group, confined, server = sys.argv[1:7]
    sys.path.insert(0, ROOT)  # for one import: this package need not be installed, and is then found
    from microrl.processes import die_with, write_line

    del sys.path[0]
    requests, replies = os.fdopen(os.dup(0), "rb"), os.dup(1)
    # The protocol owns the two pipes: what the function reads is empty, and what it prints goes to standard error.
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    die_with(int(parent))
    try:
        function_or_class = loaded(target, folder, group, "class" if server else "function")
        serve = import_module(server) if server else None
        if serve is None:
            refuse_other(function_or_class)
            call = as_called(function_or_class, confined=bool(confined))
        else:
            serve.refuse_other(function_or_class, Unusable)
    except Unusable as error:
        write_line(replies, {"error": str(error), "known": error.known, "hint": error.hint})
        return
    except BaseException as error:  # a module may raise anything, SystemExit too
        write_line(replies, {"error": error_text(error)})
        return
    if confined and not _locked_in((requests.fileno(), replies)):
        return
    if serve is not None:
        write_line(replies, {"ready": True})
        serve.serve(function_or_class, requests, replies)
        return
    write_line(replies, {"ready": True, "by_name": isinstance(call, ByName)})
    for line in requests:
        write_line(replies, answer(call, json.loads(line)))


def _locked_in(keep: tuple[int, int]) -> bool:
    """Go on in a confined fork, where this is True; the other process waits for its end.

    A fork, because only the calling thread is confined: a module may have started others while it was imported.
    """
    from microrl.processes import write_line
    from microrl.sandbox.confine import Limits, confine, levels_in_force

    owner = os.getpid()
    if (pid := os.fork()) != 0:
        os.waitpid(pid, 0)
        return False
    confine(owner, Limits(MEMORY_BYTES), keep=keep)
    if not (levels := levels_in_force()).is_enforced:
        write_line(keep[1], {"error": f"it could not be confined; in force: {levels}"})
        os._exit(0)
    return True


def loaded(target: str, folder: str, group: str, kind: str) -> Any:
    """What the target names. Raises Unusable, and what its module raises when it is imported."""
    if folder and folder not in sys.path:
        sys.path.append(folder)  # last: a file of the user's shadows no installed package
    module_name, colon, path = target.partition(":")
    target_object: Any
    if colon:
        target_object = import_module(module_name)
        for name in path.split("."):
            if not hasattr(target_object, name):
                known = [key for key, value in vars(target_object).items() if callable(value) and not key.startswith("_")]
                raise Unusable(f"`{module_name}` has no {kind} `{path}`", known)
            target_object = getattr(target_object, name)
    else:
        from importlib import metadata  # importing it takes as long as all the rest of this module

        points = {point.name: point for point in metadata.entry_points(group=group)}
        if target not in points:
            raise Unusable(f"no installed package has an entry point `{target}` in the group {group}", list(points))
        target_object = points[target].load()
    return target_object


def refuse_other(function: Any) -> None:
    """Raise Unusable for what is no function."""
    if not callable(function):
        raise Unusable(f"it is not a function, but of type {type(function).__name__}")
    if inspect.isclass(function):
        raise Unusable("it is a class, not a function", hint="pass a function, or an instance of the class")


def as_called(function: Callable[..., Any], *, confined: bool) -> Callable[[dict[str, Any]], Any]:
    """The function as one of a request. Raises Unusable for one that can be called in neither way."""
    if confined and inspect.iscoroutinefunction(function):
        raise Unusable("it is async, and its event loop needs a socket, which is refused", hint="remove reward.confine_functions")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a built-in function, whose parameters are not known
        signature = None
    if signature is not None:
        names = {parameter.name for parameter in signature.parameters.values() if parameter.kind not in _UNNAMED}
        if "rows" not in names and names & {"completions", "completion_ids"}:
            return ByName(function, signature)
        try:
            signature.bind(*_OWN)
        except TypeError:
            raise Unusable(f"its parameters are {signature}", hint=_SIGNATURES) from None
    return lambda request: _settled(function(*(request[name] for name in _OWN)))


class ByName:
    """A function with the parameters of TRL's reward functions: each is given by its name, a column of the data among them.

    Such functions read completions and prompts either as text or as conversations, which in TRL follows from the data. Here the
    first call tells: a function that reads conversations cannot index a text by a message's key.
    """

    def __init__(self, function: Callable[..., Any], signature: inspect.Signature) -> None:
        self._function = function
        parameters = signature.parameters.values()
        self._takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
        self._names = {parameter.name for parameter in parameters if parameter.kind not in _UNNAMED}
        self._needed = {name for name in self._names if signature.parameters[name].default is inspect.Parameter.empty}
        annotation = signature.parameters["completions"].annotation if "completions" in self._names else None
        self._reads_messages = True if "dict" in str(annotation) else None
        """None: not known yet."""

    def __call__(self, request: dict[str, Any]) -> Any:
        texts = request["completions"]
        if not self._reads_messages:
            try:
                result = self._called(request, request["prompts"], texts)
            except (TypeError, AttributeError, IndexError) as error:
                if self._reads_messages is False or _TEXT_AS_MESSAGES.search(str(error)) is None:
                    raise
            else:
                if any(texts):
                    self._reads_messages = False
                return result
        prompts = [[{"role": "user", "content": question}] for question in request["questions"]]
        result = self._called(request, prompts, [[{"role": "assistant", "content": text}] for text in texts])
        self._reads_messages = True
        return result

    def _called(self, request: dict[str, Any], prompts: list[Any], completions: list[Any]) -> Any:
        rows, answers = request["rows"], request["answers"]
        columns = {name: [row.get(name) for row in rows] for name in rows[0]} if rows else {}
        ids = [ids or _words(text) for ids, text in zip(request["token_ids"], request["completions"], strict=True)]
        given = {
            "solution": answers, **columns, "answer": answers,
            "prompts": prompts, "completions": completions, "completion_ids": ids,
            "log_extra": _nothing, "log_metric": _nothing,
        }  # fmt: skip
        if lacking := sorted(self._needed - given.keys()):
            needed = ", ".join(f"`{name}`" for name in lacking)
            raise Unusable(
                f"it needs {needed}, and the columns of the data are: {', '.join(columns) or 'none'} (microrl's own three "
                "parameters are named prompts, completions and rows)"
            )
        return _settled(self._function(**{name: given[name] for name in given if self._takes_all or name in self._names}))


def _nothing(*_: Any, **__: Any) -> None:
    """What a function would log in TRL's tables is dropped."""


def _words(text: str) -> list[int]:
    """A number for each word, in the place of token ids, where no model has written the text."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(word, len(numbers)) for word in text.split()]


def _settled(result: Any) -> Any:
    """What a function returned; of an async one, what it returns in the end."""
    return _loop().run_until_complete(result) if inspect.iscoroutine(result) else result


@cache
def _loop() -> Any:
    """One event loop for all calls: what a module keeps between two of them, as a client, belongs to its loop."""
    import asyncio

    return asyncio.new_event_loop()


def answer(call: Callable[[dict[str, Any]], Any], request: dict[str, Any]) -> dict[str, Any]:
    """`{"values": [...]}` with a number, None or `{"bad": why}` for each completion; or `{"error": why}` for all of them, with
    `raised` where it is an exception, and other completions may go well."""
    try:
        result = call(request)
        return {"values": checked(result, len(request["completions"]))}
    except Unusable as error:
        return {"error": str(error)}
    except BaseException as error:  # also SystemExit; what cannot be caught, the parent sees
        return {"error": error_text(error), "raised": True}


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


def error_text(error: BaseException) -> str:
    """The exception in one line, with the place where it was raised."""
    try:
        text = (str(error).strip().splitlines() or [""])[0][:_SHOWN]
    except Exception:  # an exception of the function's own may fail here as well
        text = ""
    place = ""
    if isinstance(error, SyntaxError) and error.filename:
        place = f" ({os.path.basename(error.filename)}, line {error.lineno})"
    else:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
        frames = [frame for frame in frames if not frame.filename.startswith("<frozen")]
        if frames:
            place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})"
    return f"{type(error).__name__}: {text}".removesuffix(": ") + place


if __name__ == "__main__":
    main()
