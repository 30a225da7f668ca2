"""Instances of an environment class, each in a fork of the process that has imported it. It runs in that process alone.

The process itself (`rewards/custom/host.py`) only forks and kills. Its requests are `{"start": descriptor}`, where two pipes for
the new instance lie ready at a Unix socket, and `{"end": pid}`. An instance answers one request at a time on its own pipes: what
it is (`describe`), `reset` with a row, a `call` of a tool, and its `reward`. So killing one costs no import, and whatever an
instance changes, in its module too, is gone with it.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import json
import os
import signal
import socket
import textwrap
from collections import Counter
from collections.abc import Callable
from typing import Any, BinaryIO

NO_TOOLS = ("reset", "get_reward", "done")
LONGEST_ANSWER = 1 << 16
"""Characters of a tool's answer: more than a conversation could hold."""


def refuse_other(found: Any, unusable: type[Exception]) -> None:
    """Raise `unusable` for what is no environment class; no instance is needed for that."""
    if not inspect.isclass(found):
        raise unusable(f"it is no class, but of type {type(found).__name__}")
    if not inspect.isfunction(getattr(found, "reset", None)):
        raise unusable("it has no method `reset`: def reset(self, **row) -> str | None")
    names = tool_names(found)
    if not names:
        raise unusable("it has no tool: every public method but reset and get_reward is one")
    for name in names:
        why = _lacks(getattr(found, name))
        if why:
            raise unusable(f"its tool `{name}` has no {why}, and the model is told of it by these")
    if twice := _defined_twice(found):
        raise unusable(f"it defines `{twice}` twice: the second definition shadows the first")


def tool_names(environment: type) -> list[str]:
    """The public methods that are tools, by name."""
    methods = inspect.getmembers(environment, inspect.isfunction)
    return [name for name, _ in methods if not name.startswith("_") and name not in NO_TOOLS]


def _lacks(tool: Callable[..., Any]) -> str:
    if not inspect.getdoc(tool):
        return "docstring"
    untyped = [one.name for one in list(inspect.signature(tool).parameters.values())[1:] if one.annotation is one.empty]
    return f"type hint for `{untyped[0]}`" if untyped else ""


def _defined_twice(environment: type) -> str | None:
    """A public method that the class defines twice; the parts of a property and of an overload are decorated."""
    try:
        (defined,) = ast.parse(textwrap.dedent(inspect.getsource(environment))).body
    except (OSError, TypeError, SyntaxError, ValueError):  # there is no source
        return None
    assert isinstance(defined, ast.ClassDef)
    methods = [node for node in defined.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    counts = Counter(node.name for node in methods if not node.decorator_list and not node.name.startswith("_"))
    return next((name for name, count in counts.items() if count > 1), None)


def serve(
    environment: type, requests: BinaryIO, replies: int, *, die_with: Callable[[int], None], described: Callable[..., str]
) -> None:
    """Fork and kill, until the parent closes its end."""
    forks: set[int] = set()
    for line in requests:
        request = json.loads(line)
        if "end" in request:
            if request["end"] in forks:  # else it was the fork of a process before this one, and the number may be another's now
                forks.remove(request["end"])
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(request["end"], signal.SIGKILL)
                os.waitpid(request["end"], 0)
            _write(replies, {})
            continue
        with socket.socket(fileno=os.dup(request["start"])) as channel:
            _, pipes, _, _ = socket.recv_fds(channel, 1, 2)
        owner = os.getpid()
        if (pid := os.fork()) == 0:
            try:
                os.setpgid(0, 0)
                die_with(owner)
                for descriptor in (requests.fileno(), replies, request["start"]):
                    os.close(descriptor)
                _Instance(environment, described).run(*pipes)
            finally:
                os._exit(0)
        forks.add(pid)
        with contextlib.suppress(OSError):  # it has done so itself
            os.setpgid(pid, pid)
        for descriptor in pipes:
            os.close(descriptor)
        _write(replies, {"pid": pid})


class _Instance:
    def __init__(self, environment: type, described: Callable[..., str]) -> None:
        self._class, self._described = environment, described
        self._instance: Any = None

    def run(self, asked: int, answers: int) -> None:
        with open(asked, "rb") as requests:
            for line in requests:
                try:
                    answer = self._answer(json.loads(line))
                except BaseException as error:  # whatever an environment raises, SystemExit too
                    answer = {"error": self._described(error)}
                _write(answers, answer)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._instance is None:
            self._instance = self._class()
        if "describe" in request:
            from transformers.utils import get_json_schema  # which takes seconds, and one instance of all is asked for it

            tools = [get_json_schema(getattr(self._instance, name)) for name in tool_names(self._class)]
            return {"tools": tools, "rewards": hasattr(self._class, "get_reward")}
        if "reset" in request:
            said = _awaited(self._instance.reset(**request["reset"]))
            if said is not None and not isinstance(said, str):
                return {"error": f"reset returned an object of type {type(said).__name__}, not a text or None"}
            return {"said": said}
        if "reward" in request:
            value = float(_awaited(self._instance.get_reward()))
            return {"reward": value} if abs(value) <= 1e12 else {"error": f"get_reward returned {value:g}"}
        answer = str(_awaited(getattr(self._instance, request["call"])(**request["arguments"])))
        if len(answer) > LONGEST_ANSWER:
            return {"error": f"the answer has {len(answer):,} characters; the limit is {LONGEST_ANSWER:,}"}
        return {"answer": answer, "done": bool(getattr(self._instance, "done", False))}


def _awaited(value: Any) -> Any:
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def _write(descriptor: int, value: dict[str, Any]) -> None:
    data = json.dumps(value).encode("ascii") + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]
