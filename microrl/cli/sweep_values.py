"""The values that an option lists: `A,B`, where a value with commas of its own is written in TOML."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from contextlib import suppress

from microrl.errors import UserError, invalid_value
from microrl.sweep.grid import Quoted, refuse_varied_key

_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")


def values(flag: str, text: str | None) -> list[str]:
    """The values of an option. A string, list or table of TOML is one value, commas and all; a string is a `Quoted`.

    Raises UserError for one that is empty or begins with a quote that is not closed.
    """
    found: list[str] = []
    rest = text
    while rest is not None:
        value, rest = _first(flag, rest.strip())
        if not value and not isinstance(value, Quoted):
            raise UserError(f"{flag} '{text}': a value is empty", "put a single comma between two values, and none at the end")
        found.append(value)
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


def _first(flag: str, text: str) -> tuple[str, str | None]:
    """(first value of a list, the text behind its comma). Raises UserError."""
    parts = text.split(",")
    if text.startswith(('"', "'", "[", "{")):
        for end in range(1, len(parts) + 1):
            value = ",".join(parts[:end]).strip()
            with suppress(tomllib.TOMLDecodeError):
                read = tomllib.loads(f"value = {value}")["value"]
                return Quoted(read) if isinstance(read, str) else value, _rest(parts[end:])
        if text.startswith(('"', "'")):
            hint = 'quotes go around a whole value: "a,b",c or \'a,b\',c; inside double quotes, write \\" and \\\\'
            raise UserError(f"{flag}: `{text}` does not begin with a value in quotes", hint)
    return parts[0].strip(), _rest(parts[1:])


def _rest(parts: list[str]) -> str | None:
    return ",".join(parts) if parts else None
