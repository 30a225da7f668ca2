"""Is a program right? It runs in one confined process, the data set's tests in another, which calls it over a pair of pipes.

The tests, their expected values and the verdicts never exist in the program's process: no frame, no memory and no descriptor of
it leads to them. All that it can do is return plain values (`microrl.plain`), and then it is right if they are.
`serve` is the program's side, `handle` the tests'; both are called in a fresh fork that is already confined. The process that
they are forked from must never have held a test: a fork sees its parent's memory.
"""

from __future__ import annotations

import builtins
import importlib
import json
import re
import sys
import textwrap
import types
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from microrl import plain
from microrl.answers import after_thinking
from microrl.clock import now_s
from microrl.plain import BadValue, NotPlain
from microrl.rewards.judges.calls import Channel, Program, ProgramGone

LONGEST_PROGRAM = 100_000
"""Characters. A longer text is no program, and is not run."""
MAX_OBJECTS = 100_000
"""Objects of the program that its tests may hold."""
SECONDS = 4.0
"""For all tests of a program, where the request does not say."""
COMMON = (
    "bisect", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "hashlib",
    "heapq", "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "sys", "time", "typing", "numpy",
)  # fmt: skip
"""Modules that programs import most."""

_FENCE = re.compile(r"[ \t]*(?P<mark>```+|~~~+)[ \t]*(?P<label>[^`\n]*)")
_PYTHON = ("python", "python3", "py", "py3")
_DEFINES = re.compile(r"^[ \t]*(?:async[ \t]+def|def|class)[ \t]+\w|^\w+[ \t]*=[ \t]*lambda\b", re.MULTILINE)
_STARTS_AS_CODE = re.compile(r"\s*(?:(?:async\s+def|def|class|import|from)\s+\w|@\w|#|\w+\s*=\s*lambda\b)")
MODULE = "solution"
"""Name of the module that the program runs as. It is not `__main__`, so that it only defines."""


def program_of(completion: str, opened: bool = False) -> str | None:
    """The program in a completion; None where there is none.

    It is the last fenced Python block after the thinking that defines something (a later one often shows how to call it), else
    the last fenced block, else the whole text if it begins as Python and defines something. A block that the length limit cut
    off counts as it is. `opened`: the chat template has already written `<think>`.
    """
    if (text := after_thinking(completion, opened=opened)) is None:
        return None
    blocks = _blocks(text)
    for labels in (_PYTHON, ("",)):
        candidates = [code for label, code in blocks if label in labels and len(code) <= LONGEST_PROGRAM]
        if candidates:
            return _flush_left(next((code for code in reversed(candidates) if _DEFINES.search(code)), candidates[-1]))
    if blocks or len(text) > LONGEST_PROGRAM or not _STARTS_AS_CODE.match(text) or not _DEFINES.search(text):
        return None
    return _flush_left(text)


def _flush_left(code: str) -> str | None:
    """None for an empty one. A block inside a list is indented; any other stays as it is, blanks in its strings included."""
    if code.strip() and code.lstrip("\r\n")[0] in " \t":
        code = textwrap.dedent(code)
    return code if code.strip() else None


def _blocks(text: str) -> list[tuple[str, str]]:
    """Fenced blocks in order, each with its label. One pass over the lines."""
    blocks: list[tuple[str, str]] = []
    mark = label = ""
    lines: list[str] = []
    for line in text.split("\n"):
        fence = _FENCE.fullmatch(line.rstrip())
        if not mark:
            if fence:
                mark, lines = fence["mark"], []
                label = (fence["label"].split() or [""])[0].strip("{}.").lower()
        elif fence and not fence["label"] and fence["mark"].startswith(mark):
            blocks.append((label, "\n".join(lines)))
            mark = ""
        else:
            lines.append(line)
    if mark:
        blocks.append((label, "\n".join(lines)))
    return blocks


def requests(gold: str, program: str, seconds: float = SECONDS) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `serve` and `handle` are asked: the program with what it was given to build on, and the tests. `gold` is the answer of
    a question of kind code (`microrl.data.code`)."""
    row = json.loads(gold)
    asked = {"program": program, "given": row.get("given", ""), "entry_point": row.get("entry_point")}
    tests = {name: row[name] for name in ("setup", "solution", "tests", "entry_point", "names") if name in row}
    return asked, {**tests, "seconds": seconds}


def credit(verdicts: Sequence[bool], kind: str) -> float:
    """The accuracy of a program: the share of the tests that it passes, or with `all` 1 if it passes them all, else 0."""
    if not verdicts:
        return 0.0
    return sum(verdicts) / len(verdicts) if kind == "share" else float(all(verdicts))


def prepare() -> None:
    """Import what programs commonly use, before forking: a fork then has it at once, and needs no files."""
    for name in COMMON:
        with suppress(ImportError):
            importlib.import_module(name)


# ---- the program's process


def serve(request: dict[str, Any], reads: int, writes: int) -> None:
    """Execute a program, and answer what the tests ask of it, until they have ended.

    `request`: its source in `program`; what it builds on in `given` (HumanEval: the stub with its imports and helpers), of which
    the `entry_point` is taken away, so that a program which does not define it fails.
    """
    server = _Server(Channel(reads, writes), types.ModuleType(MODULE))
    server.start(request)
    with suppress(ProgramGone):
        while True:
            server.answer()


class _Server:
    def __init__(self, channel: Channel, module: types.ModuleType) -> None:
        self._channel, self._module = channel, module
        self._objects: dict[int, Any] = {}
        self._number_of: dict[int, int] = {}

    def start(self, request: dict[str, Any]) -> None:
        sys.modules[MODULE] = self._module
        space = vars(self._module)
        reply: dict[str, Any] = {"id": 0}
        try:
            if request.get("given"):
                _run(request["given"], "<given>", space)
                space.pop(request.get("entry_point") or "", None)
            _run(request["program"], "<program>", space)
        except BaseException as error:  # sys.exit() in a program is an error of it, too
            reply["error"] = self._error(error)
        self._channel.send(reply)

    def answer(self) -> None:
        message = self._channel.receive()
        reply: dict[str, Any] = {"id": message["id"]}
        try:
            reply |= self._result(message)
        except BaseException as error:
            reply["error"] = self._error(error)
        try:
            self._channel.send(reply)
        except NotPlain as error:
            self._channel.send({"id": message["id"], "error": self._error(error)})

    def _result(self, message: dict[str, Any]) -> dict[str, Any]:
        space = vars(self._module)
        if message["op"] == "has":
            return {"value": message["name"] in space}
        if message["op"] == "global":
            value = space[message["name"]]
            # A function of Python's own is called here, too, as any other is.
            return {"value": self._number(value) if callable(value) else self._encoded(value)}
        target = self._known(message["of"])
        if message["op"] == "get":
            return {"value": self._encoded(getattr(target, message["name"]))}
        if message["op"] == "set":
            setattr(target, message["name"], self._decoded(message["value"]))
            return {}
        arguments = self._decoded(message["args"])
        before = self._encoded(arguments)
        reply: dict[str, Any] = {}
        try:
            reply["value"] = self._encoded(target(*arguments[0], **arguments[1]))
        except BaseException as error:
            reply["error"] = self._error(error)
        with suppress(NotPlain):
            after = self._encoded(arguments)
            if after != before:
                reply["after"] = after
        return reply

    def _error(self, error: BaseException) -> list:
        """Its nearest ancestor that Python defines, and its arguments where they are plain."""
        name = next(kind.__name__ for kind in type(error).__mro__ if vars(builtins).get(kind.__name__) is kind)
        try:
            args = self._encoded(list(error.args))
        except BaseException:
            args = ["l"]
        return [name, args]

    def _encoded(self, value: Any) -> Any:
        return plain.encode(value, self._number)

    def _decoded(self, data: Any) -> Any:
        return plain.decode(data, self._known)

    def _number(self, value: Any) -> list:
        number = self._number_of.get(id(value))
        if number is None:
            number = len(self._objects)
            if number >= MAX_OBJECTS:
                raise NotPlain(f"more than {MAX_OBJECTS:,} objects")
            self._objects[number] = value
            self._number_of[id(value)] = number
        return ["h", number]

    def _known(self, data: list) -> Any:
        if data[0] != "h" or data[1] not in self._objects:
            raise BadValue("not an object of this program")
        return self._objects[data[1]]


def _run(source: str, name: str, space: dict[str, Any]) -> None:
    # Not with this module's __future__ imports; asserts stay, whatever Python's -O says.
    exec(compile(source, name, "exec", dont_inherit=True, optimize=0), space)


# ---- the tests' process


def handle(request: dict[str, Any], reads: int, writes: int) -> list[bool]:
    """One verdict a test: whether it ended without an exception, and the program has answered what it asked.

    `request`: `setup`, a source that is executed first; `tests`, sources; `names`, which the program defines and the tests use;
    `entry_point`, one of them, even where the set-up defines it, too; `solution`, the row's own, whose other names the tests use
    as helpers; `seconds`, in which the program has to answer. What is not answered by then is not passed.
    """
    tests: list[str] = request["tests"]
    verdicts = [False] * len(tests)
    program = Program(Channel(reads, writes, now_s() + request["seconds"]))
    space, own = _new_space(), _new_space()
    try:
        program.start()
        wanted = request["names"]
        taken = program.names(wanted)
        # In a space of its own: a helper that calls what the program is asked for must get the solution's.
        _run(request.get("solution", ""), "<solution>", own)
        space |= {name: value for name, value in own.items() if name not in wanted} | taken
        _run(request.get("setup", ""), "<setup>", space)
    except BaseException:
        return verdicts
    entry_point = request.get("entry_point")
    if entry_point is not None:
        space.pop(entry_point, None)
    space |= {name: value for name, value in taken.items() if name == entry_point}
    for number, test in enumerate(tests):
        answered = program.answers
        with suppress(BaseException):  # whatever a test ends with, it has not passed
            _run(test, f"<test {number + 1}>", dict(space))
            verdicts[number] = program.answers > answered and not program.is_gone
    return verdicts


def _new_space() -> dict[str, Any]:
    return {"__name__": "tests", "__builtins__": builtins}
