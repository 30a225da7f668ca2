"""Calls between two confined processes over a pair of pipes: from a data set's tests to the program that a model wrote.

The tests' side asks, the program's side answers, one at a time. Of what the program's side sends nothing is believed: not the
length, not the number, not the form of a value.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from microrl import plain
from microrl.plain import BadValue, NotPlain
from microrl.sandbox.worker import Lines, NoReply, never

MAX_ANSWERS_BYTES = 1 << 26
"""Of all answers to one set of tests."""

EXCEPTIONS: dict[str, type[Exception]] = {
    name: kind for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)
}
"""Exceptions of the program that are raised again in the tests. Not the ones that end a process: those are BaseExceptions."""
_ENDS_A_LOOP = ("StopIteration", "StopAsyncIteration")


class ProgramError(Exception):
    """The program raised an exception of its own, or what it returned cannot be passed."""


class ProgramGone(BaseException):
    """The program does not answer, or not in this protocol. No `except Exception` of a test may take that for an answer."""


class Channel:
    """Messages over two pipes, a line of JSON each. Raises ProgramGone at the deadline and where the other side has closed its
    end."""

    def __init__(self, reads: int, writes: int, until_s: float = math.inf) -> None:
        self._lines, self._until_s = Lines(writes, reads, lambda: "it has ended", plain.MAX_BYTES), until_s
        self._received = 0

    def send(self, message: Any) -> None:
        """Raises NotPlain where it is too large."""
        data = plain.to_bytes(message)
        with _program_gone():
            self._lines.send_line(data, self._until_s, never)

    def receive(self) -> Any:
        """Raises ProgramGone also for what is no message."""
        with _program_gone():
            data = self._lines.receive_line(self._until_s, never)
        self._received += len(data)
        if len(data) > plain.MAX_BYTES or self._received > MAX_ANSWERS_BYTES:
            raise ProgramGone("it sends too much")
        try:
            return plain.from_bytes(data)
        except BadValue as error:
            raise ProgramGone("it does not send JSON") from error


@contextmanager
def _program_gone() -> Iterator[None]:
    try:
        yield
    except (NoReply, OSError) as error:
        raise ProgramGone("it takes too long, or has ended") from error


class Handle:
    """An object of the program, of which the tests know nothing: it can be called, asked for attributes, and passed back.

    It has no value here. So it is never equal to anything, nor true, nor false, nor of any length: asking is a TypeError.
    """

    __slots__ = ("_Handle__name", "_Handle__program")

    def __init__(self, program: Program, name: list) -> None:
        object.__setattr__(self, "_Handle__program", program)
        object.__setattr__(self, "_Handle__name", name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__program.call(self.__name, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__program.ask({"op": "get", "of": self.__name, "name": name})

    def __setattr__(self, name: str, value: Any) -> None:
        self.__program.ask({"op": "set", "of": self.__name, "name": name, "value": self.__program.encoded(value)})

    def _refuse(self, *_: Any) -> Any:
        raise TypeError("the tests cannot look into an object of the program")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = _refuse
    __str__ = __repr__ = __format__ = __reduce_ex__ = __delattr__ = __next__ = __setitem__ = __delitem__ = __index__ = _refuse
    __hash__ = None  # type: ignore[assignment]


class Program:
    """The program, as its tests see it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._number = 0
        self.answers = 0
        """How often it has answered, exceptions included."""
        self.is_gone = False
        """It has not answered a question; it will not be asked again."""

    def start(self) -> None:
        """Wait until it has been read and executed. Raises what it raises."""
        self._answer()

    def names(self, wanted: list[str]) -> dict[str, Any]:
        """Those of its global names that it has: their values where they are plain, else handles. Raises ProgramGone."""
        there = [name for name in wanted if self.ask({"op": "has", "name": name}) is True]
        return {name: self.ask({"op": "global", "name": name}) for name in there}

    def call(self, of: list, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call an object of the program. What it changes in place in its arguments is changed here, too."""
        message = {"op": "call", "of": of, "args": self.encoded([list(args), dict(kwargs)])}
        return self.ask(message, [list(args), dict(kwargs)])

    def encoded(self, value: Any) -> Any:
        """Raises NotPlain, a TypeError."""
        return plain.encode(value, self._own)

    def ask(self, message: dict[str, Any], arguments: list | None = None) -> Any:
        """Its answer. Raises the exception that it raised, and ProgramGone."""
        if self.is_gone:
            raise ProgramGone("it has not answered before")
        try:
            self._channel.send({**message, "id": self._number + 1})
        except ProgramGone:
            self.is_gone = True
            raise
        self._number += 1
        return self._answer(arguments)

    def _answer(self, arguments: list | None = None) -> Any:
        try:
            reply = self._channel.receive()
            if type(reply) is not dict or type(reply.get("id")) is not int or reply["id"] != self._number:
                raise ProgramGone("it answers another question")
            error = self._exception(reply["error"]) if "error" in reply else None
            value = plain.decode(reply.get("value"), self._known)
            after = plain.decode(reply["after"], self._known) if "after" in reply else None
        except BadValue as problem:
            self.is_gone = True
            raise ProgramGone(str(problem)) from problem
        except ProgramGone:
            self.is_gone = True
            raise
        if after is not None and arguments is not None:
            change(arguments, after)
        self.answers += 1
        if error is not None:
            raise error
        return value

    def _exception(self, error: Any) -> Exception:
        if type(error) is not list or len(error) != 2 or type(error[0]) is not str:
            raise BadValue("not an exception")
        name, encoded = error
        args = plain.decode(encoded, self._known)
        if type(args) is not list:
            raise BadValue("not an exception's arguments")
        if name in _ENDS_A_LOOP:
            # It would end a loop of the tests early and silently: `all(map(candidate, inputs))`.
            return RuntimeError("the program raised StopIteration")
        kind = EXCEPTIONS.get(name, ProgramError)
        try:
            return kind(*args)
        except (TypeError, ValueError):  # UnicodeDecodeError(...), ExceptionGroup(...)
            return ProgramError(name)

    def _own(self, value: Any) -> list:
        if type(value) is Handle:
            return object.__getattribute__(value, "_Handle__name")
        raise NotPlain(f"a {type(value).__name__} cannot be passed to the program")

    def _known(self, data: list) -> Handle:
        if len(data) == 2 and data[0] == "h" and type(data[1]) is int:
            return Handle(self, data)
        raise BadValue("not a value")


def change(old: Any, new: Any) -> None:
    """Make `old` what `new` is, in place, where both are of the same changeable type; what is in them, likewise."""
    kind = type(old)
    if kind is not type(new):
        return
    if kind in (list, tuple):
        kept = [_changed(a, b) for a, b in zip(old, new, strict=False)]
        if kind is list:
            old[:] = [*kept, *new[len(kept) :]]
    elif isinstance(old, dict):
        kept_items = {key: _changed(old[key], value) if key in old else value for key, value in new.items()}
        old.clear()
        old.update(kept_items)
    elif isinstance(old, set):
        old.intersection_update(new)
        old.update(new)
    elif hasattr(old, "extend") and hasattr(old, "clear"):  # deque, bytearray
        old.clear()
        old.extend(new)


def _changed(old: Any, new: Any) -> Any:
    """The object that stands for `new` where `old` was: the same one, if it can become it."""
    if type(old) is type(new) and isinstance(old, list | dict | set | bytearray):
        change(old, new)
        return old
    if type(old) is tuple and type(new) is tuple and len(old) == len(new):
        change(old, new)
        # A tuple cannot change, what is in it can: it stays itself unless an element of it was replaced.
        return old if all(map(_has_become, old, new)) else new
    return new


def _has_become(old: Any, new: Any) -> bool:
    kind = type(old)
    if kind is not type(new):
        return False
    if kind is tuple:
        return len(old) == len(new) and all(map(_has_become, old, new))
    return isinstance(old, list | dict | set | bytearray) or (kind is not Handle and old == new)
