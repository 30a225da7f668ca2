"""The values that an option lists: `A,B`, where a value with commas of its own is written in TOML."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from contextlib import suppress

from microrl.errors import UserError, invalid_value
from microrl.sweep.grid import Quoted, refuse_varied_key

_CLOSING = {'"': '"', "'": "'", "[": "]", "{": "}"}
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")


def values(flag: str, text: str | None) -> list[str]:
    """The values of an option. A string, list or table of TOML is one value, commas and all; a string is a `Quoted`.

    Raises UserError for one that is empty or begins with a quote that is not closed.
    """
    option_values: list[str] = []
    parts, at = [] if text is None else text.split(","), 0
    while at < len(parts):
        value, at = _first(flag, parts, at)
        if not value and not isinstance(value, Quoted):
            raise UserError(f"{flag} '{text}': a value is empty", f"write values with single commas between them: {flag} A,B")
        option_values.append(value)
    return option_values


def numbers(flag: str, text: str | None, least: int | None = None) -> list[int]:
    """As `values`, of whole numbers."""
    option_values = values(flag, text)
    if not all(_WHOLE.fullmatch(value) and (least is None or int(value) >= least) for value in option_values):
        wanted = "whole numbers" if least is None else f"whole numbers of at least {least},"
        raise invalid_value(flag, text, f"{wanted} with commas between them: {flag} 1,2,3")
    return [int(value) for value in option_values]


def varied(texts: Iterable[str]) -> dict[str, list[str]]:
    """The values of each key that `--vary` is given for. Raises UserError."""
    values_by_key: dict[str, list[str]] = {}
    for text in texts:
        key, equals, listed = text.partition("=")
        key = key.strip()
        if not equals or not key or not listed.strip():
            raise UserError(f"--vary {text}: expected KEY=A,B", "for example: --vary optim.lr=1e-5,2e-5")
        refuse_varied_key(key, "--vary")
        if key in values_by_key:
            raise UserError(f"--vary {key} is given twice", f"list all values together: --vary {key}=A,B")
        values_by_key[key] = values(f"--vary {key}", listed)
    return values_by_key


def _first(flag: str, parts: list[str], start: int) -> tuple[str, int]:
    """(the value that begins with this part of a text between commas, the number of the part behind it). Raises UserError."""
    first = parts[start].strip()
    closing = _CLOSING.get(first[:1], "")
    for end in range(start + 1, len(parts) + 1) if closing else ():
        if not parts[end - 1].rstrip().endswith(closing):
            continue
        value = ",".join(parts[start:end]).strip()
        with suppress(ValueError, RecursionError):  # not TOML, lines with other keys, or too deep a nesting
            (read,) = tomllib.loads(f"value = {value}").values()
            return Quoted(read) if isinstance(read, str) else value, end
    if closing in ('"', "'"):
        hint = 'quotes go around a whole value: "a,b",c or \'a,b\',c; inside double quotes, write \\" and \\\\'
        raise UserError(f"{flag}: `{','.join(parts[start:]).strip()}` does not begin with a value in quotes", hint)
    return first, start + 1
