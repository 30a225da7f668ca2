"""Python values as JSON that is read without executing anything: what passes between a model's program and its tests.

None, bools, numbers and strings stand for themselves; anything else is a list whose first element names its type: `["t", 1, 2]`
is the tuple (1, 2). What is read is built from exact built-in types only, so its `==`, `len` and `hash` are Python's own,
whatever the other side did to produce it.
"""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from itertools import islice
from typing import Any

MAX_BYTES = 1 << 22
"""Of one message."""
MAX_ITEMS = 1 << 18
"""Elements of one message, nested ones included."""
MAX_DEPTH = 100
"""Levels of nesting of one value."""
MAX_BITS = 1 << 18
"""Of an integer."""
MAX_DIGITS = 10_000
"""Of a decimal number."""

Other = Callable[[Any], list]
"""The JSON of a value that is not plain. Raises NotPlain where there is none."""
Known = Callable[[list], Any]
"""The value of a JSON list that `Other` made on the other side. Raises BadValue."""

TYPES: dict[str, type] = {
    kind.__name__: kind
    for kind in (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range, object, type(None))
}
"""Types that may be passed themselves, by name."""
_SEQUENCES: dict[str, Callable[[list], Any]] = {
    "l": list, "t": tuple, "S": set, "F": frozenset, "q": deque, "it": iter,
    "dk": lambda items: dict.fromkeys(items).keys(), "dv": lambda items: dict(enumerate(items)).values(),
}  # fmt: skip
_MAPPINGS: dict[str, Callable[[list[tuple]], Any]] = {
    "d": dict, "C": lambda pairs: Counter(dict(pairs)), "O": OrderedDict, "di": lambda pairs: dict(pairs).items()
}  # fmt: skip
_TEXTS: dict[str, Callable[[str], Any]] = {
    "i": lambda text: int(text, 16), "f": float, "b": bytes.fromhex, "B": bytearray.fromhex, "date": date.fromisoformat,
    "datetime": datetime.fromisoformat, "time": time.fromisoformat, "M": Decimal,
}  # fmt: skip


class NotPlain(TypeError):
    """A value that cannot be passed."""


class BadValue(ValueError):
    """JSON that is no value, or too large a one."""


def encode(value: Any, other: Other) -> Any:
    """The JSON of a value, without losing its type. Instances of subclasses of plain types become plain themselves, iterators of
    Python's own are used up. Raises NotPlain for what is too large, too deep, or refused by `other`."""
    return _Encoder(other).encode(value, 0)


def _none_known(data: list) -> Any:
    raise BadValue("not a value")


def decode(data: Any, known: Known = _none_known) -> Any:
    """The value of a JSON text's object. `known` makes what `other` of `encode` has named; without it, only plain values are.
    Raises BadValue."""
    try:
        return _Decoder(known).decode(data, 0)
    except BadValue:
        raise
    except (TypeError, ValueError, OverflowError, InvalidOperation, ZeroDivisionError) as error:
        raise BadValue(str(error)) from None  # an element that cannot be in a set, a date that does not exist


def to_bytes(message: Any) -> bytes:
    """A message as bytes. Raises NotPlain where they are too many."""
    data = json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii")
    if len(data) > MAX_BYTES:
        raise NotPlain(f"a value of {len(data):,} bytes; the limit is {MAX_BYTES:,}")
    return data


def from_bytes(data: bytes) -> Any:
    """The message of these bytes. Raises BadValue."""
    try:
        return json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadValue(str(error)) from None


def _refuse(name: str) -> float:
    raise BadValue(f"{name} is not JSON")


class _Encoder:
    def __init__(self, other: Other) -> None:
        self._refer = other
        self._left = MAX_ITEMS
        self._keys = 0
        """Levels of sets and keys around the value: what is in them must be hashable on the other side."""

    def _other(self, value: Any) -> Any:
        if self._keys:
            raise _Opaque
        return self._refer(value)

    def encode(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if depth > MAX_DEPTH:
            raise NotPlain(f"nested deeper than {MAX_DEPTH} levels")
        if kind is list:  # the most common ones first
            return self._sequence("l", value, depth)
        if kind is tuple:
            return self._sequence("t", value, depth)
        if isinstance(value, bool | int | float | complex):
            return self._number(value)
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, type):
            if TYPES.get(value.__name__) is value:
                return ["n", value.__name__]
            return self._other(value)
        return self._collection(value, depth)

    def _number(self, value: Any) -> Any:
        if isinstance(value, int):
            exact = int.__int__(value)
            if exact.bit_length() > MAX_BITS:
                raise NotPlain(f"an integer of {exact.bit_length():,} bits; the limit is {MAX_BITS:,}")
            return exact if exact.bit_length() < 64 else ["i", format(exact, "x")]
        if isinstance(value, float):
            exact_float = float.__float__(value)
            return exact_float if math.isfinite(exact_float) else ["f", repr(exact_float)]
        return ["c", self._number(complex.__dict__["real"].__get__(value)), self._number(complex.__dict__["imag"].__get__(value))]

    def _collection(self, value: Any, depth: int) -> Any:
        tag = next((tag for base, tag in _BY_TYPE if isinstance(value, base)), None)
        if tag is None:
            return self._rest(value, depth)
        if tag in ("b", "B"):
            return [tag, bytes(value).hex()]
        head = []
        if tag == "D":
            factory = value.default_factory
            head = [factory.__name__ if isinstance(factory, type) and TYPES.get(factory.__name__) is factory else ""]
        if tag in ("C", "O", "d", "D"):
            return self._or_object(value, lambda: self._mapping(tag, dict.items(value), depth, *head))
        return self._or_object(value, lambda: self._sequence(tag, value, depth))

    def _or_object(self, value: Any, build: Callable[[], list]) -> list:
        keys = self._keys
        try:
            return build()
        except _Opaque:
            self._keys = keys
            return self._other(value)

    def _rest(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in _VIEWS:
            tag = _VIEWS[kind]
            build = self._mapping if tag == "di" else self._sequence
            return self._or_object(value, lambda: build(tag, value, depth))
        if kind is range and not value[MAX_ITEMS:]:
            return ["r", *(self._number(part) for part in (value.start, value.stop, value.step))]
        if kind is Fraction:
            return ["Q", self._number(value.numerator), self._number(value.denominator)]
        if kind is Decimal:
            return ["M", str(value)]
        if kind is timedelta:
            return ["td", value.days, value.seconds, value.microseconds]
        if kind in (date, datetime, time) and getattr(value, "tzinfo", None) is None:
            return [kind.__name__, value.isoformat()]
        if isinstance(value, Iterator) and kind.__module__ in ("builtins", "itertools"):
            return self._sequence("it", value, depth)
        if kind.__module__ == "numpy" and getattr(value, "ndim", None) == 0:
            return self.encode(value.item(), depth + 1)  # numpy's numbers that are not Python's already
        return self._other(value)

    def _sequence(self, tag: str, value: Iterable[Any], depth: int) -> list:
        items = list(islice(iter(value), self._left + 1))
        self._spend(len(items))
        is_key = tag in ("S", "F", "dk")
        self._keys += is_key
        encoded = [self.encode(item, depth + 1) for item in items]
        self._keys -= is_key
        return [tag, *encoded]

    def _mapping(self, tag: str, pairs: Iterable[tuple[Any, Any]], depth: int, *head: str) -> list:
        items = list(islice(pairs, self._left + 1))
        self._spend(2 * len(items))
        encoded: list[Any] = [tag, *head]
        for key, item in items:
            self._keys += 1
            encoded.append(self.encode(key, depth + 1))
            self._keys -= 1
            encoded.append(self.encode(item, depth + 1))
        return encoded

    def _spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise NotPlain(f"more than {MAX_ITEMS:,} elements")


class _Opaque(Exception):
    """An element of a set, or a key, that is not plain: the set or mapping is passed as an object."""


_VIEWS: dict[type, str] = {
    kind: tag
    for mapping in (dict[Any, Any](), OrderedDict[Any, Any]())
    for kind, tag in ((type(mapping.keys()), "dk"), (type(mapping.values()), "dv"), (type(mapping.items()), "di"))
}


_BY_TYPE: tuple[tuple[type, str], ...] = (
    (Counter, "C"), (OrderedDict, "O"), (defaultdict, "D"), (dict, "d"), (list, "l"), (tuple, "t"), (set, "S"), (frozenset, "F"),
    (deque, "q"), (bytes, "b"), (bytearray, "B"),
)  # fmt: skip


class _Decoder:
    def __init__(self, known: Known) -> None:
        self._known = known
        self._left = MAX_ITEMS

    def decode(self, data: Any, depth: int) -> Any:
        if data is None or type(data) in (bool, int, float, str):
            return data
        if type(data) is not list or not data or type(data[0]) is not str:
            raise BadValue("not a value")
        self._left -= len(data) - 1
        if self._left < 0 or depth > MAX_DEPTH:
            raise BadValue("too many elements or levels")
        tag, parts = data[0], data[1:]
        if tag in _SEQUENCES:
            return _SEQUENCES[tag]([self.decode(part, depth + 1) for part in parts])
        if tag in _MAPPINGS:
            return _MAPPINGS[tag](self._pairs(parts, depth))
        if tag == "D":
            if not parts or (parts[0] and parts[0] not in TYPES):
                raise BadValue("not a default factory")
            return defaultdict(TYPES[parts[0]] if parts[0] else None, self._pairs(parts[1:], depth))
        if tag in _TEXTS:
            return self._text(tag, parts)
        return self._numbers(tag, parts, data)

    def _pairs(self, parts: list, depth: int) -> list[tuple]:
        if len(parts) % 2:
            raise BadValue("a key without a value")
        decoded = [self.decode(part, depth + 1) for part in parts]
        return list(zip(decoded[::2], decoded[1::2], strict=True))

    def _text(self, tag: str, parts: list) -> Any:
        if len(parts) != 1 or type(parts[0]) is not str or len(parts[0]) > (MAX_DIGITS if tag == "M" else 2 * MAX_BYTES):
            raise BadValue("not a text")
        if tag == "i" and len(parts[0]) > MAX_BITS // 4 + 2:
            raise BadValue("too large an integer")
        decoded = _TEXTS[tag](parts[0])
        if tag == "M" and decoded.is_finite() and abs(decoded.adjusted()) > MAX_DIGITS:
            raise BadValue("too large or too small a decimal number")
        return decoded

    def _numbers(self, tag: str, parts: list, data: list) -> Any:
        if tag == "n" and len(parts) == 1 and type(parts[0]) is str and parts[0] in TYPES:
            return TYPES[parts[0]]
        wanted = {
            "c": (2, (int, float), complex),
            "r": (3, (int,), range),
            "Q": (2, (int,), Fraction),
            "td": (3, (int,), timedelta),
        }
        if tag not in wanted:
            return self._known(data)
        count, kinds, build = wanted[tag]
        numbers = [self.decode(part, MAX_DEPTH) for part in parts]
        if len(numbers) != count or any(type(number) not in kinds for number in numbers):
            raise BadValue("not numbers")
        decoded = build(*numbers)
        if tag == "r" and decoded[MAX_ITEMS:]:
            raise BadValue("too long a range")
        return decoded
