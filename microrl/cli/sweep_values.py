"""The values that an option lists: `A,B`, with quotes or brackets around what has commas of its own."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable

from microrl.errors import UserError, invalid_value
from microrl.sweep.grid import Quoted, refuse_varied_key

_STRING = r""""(?:[^"\\]|\\.)*"|'[^']*'"""
_IN_QUOTES = re.compile(rf"({_STRING})\s*(?:,|$)", re.DOTALL)
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_IN_BRACKETS = re.compile(rf"{_STRING}|.", re.DOTALL)


def values(flag: str, text: str | None) -> list[str]:
    """The values of an option. One that begins with a quote or a bracket ends where that is closed; in quotes it is a `Quoted`.

    Raises UserError for one that is empty or not closed.
    """
    found: list[str] = []
    rest = text
    while rest is not None:
        value, comma, after = _first(flag, rest.strip())
        if not value and not isinstance(value, Quoted):
            raise UserError(f"{flag} '{text}': a value is empty", "put a single comma between two values, and none at the end")
        found.append(value)
        rest = after if comma else None
    return found


def numbers(flag: str, text: str | None, least: int | None = None) -> list[int]:
    """As `values`, of whole numbers."""
    found = values(flag, text)
    if not all(_WHOLE.fullmatch(value) and (least is None or int(value) >= least) for value in found):
        wanted = "whole numbers" if least is None else f"whole numbers of at least {least},"
        raise invalid_value(flag, text, f"{wanted} with commas between them: {flag} 1,2,3")
    return [int(value) for value in found]


def varied(texts: Iterable[str]) -> dict[str, list[str]]:
    """The values of each key that `--vary` is given for. Raises UserError."""
    found: dict[str, list[str]] = {}
    for text in texts:
        key, equals, listed = text.partition("=")
        key = key.strip()
        if not equals or not key or not listed.strip():
            raise UserError(f"--vary {text}: expected KEY=A,B", "for example: --vary optim.lr=1e-5,2e-5")
        refuse_varied_key(key, "--vary")
        if key in found:
            raise UserError(f"--vary {key} is given twice", f"list all values together: --vary {key}=A,B")
        found[key] = values(f"--vary {key}", listed)
    return found


def _first(flag: str, text: str) -> tuple[str, str, str]:
    """(first value of a list, the comma behind it, the other values)."""
    if text.startswith(('"', "'")):
        return _quoted(flag, text)
    start = _closing(flag, text) if text.startswith(("[", "{")) else 0
    behind, comma, after = text[start:].partition(",")
    return (text[:start] + behind).strip(), comma, after


def _quoted(flag: str, text: str) -> tuple[Quoted, str, str]:
    """As `_first`, of a list that begins with a quote. The string is TOML's, as for `--set`."""
    closed = _IN_QUOTES.match(text)
    if closed is None:
        quote = text[0]
        hint = f'quotes go around a whole value: {quote}a,b{quote},c; inside double quotes, \\" is a quote'
        raise UserError(f"{flag}: the quote in `{text}` is not closed at the end of a value", hint)
    try:
        value = Quoted(tomllib.loads(f"value = {closed[1]}")["value"])
    except tomllib.TOMLDecodeError as error:
        hint = "in single quotes a backslash is only a backslash"
        raise UserError(f"{flag}: {closed[1]} cannot be read: {error}", hint) from None
    return value, text[closed.end(1) : closed.end()].strip(), text[closed.end() :]


def _closing(flag: str, text: str) -> int:
    """Where the bracket that a text begins with is closed. Brackets in quotes do not count."""
    depth = 0
    for part in _IN_BRACKETS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(part[0], 0)
        if depth == 0:
            return part.end()
    raise UserError(
        f"{flag}: a bracket or quote in `{text}` is not closed", f'close it, or put the value into quotes: "{text[0]}a",b'
    )
