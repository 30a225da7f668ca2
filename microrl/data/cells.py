"""A cell of a table as text. Text, integers and decimals are accepted; anything else has no unique spelling."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from microrl.answers import spelled_out
from microrl.data.read import Number


class NotText(ValueError):
    """The message says what a cell is instead of text or a number."""


def plain(value: Any) -> str:
    """Text unchanged, a number as a plain decimal with all digits. Raises NotText."""
    if isinstance(value, Number):
        return _number(value)
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        raise NotText(f"a boolean ({value})")
    if isinstance(value, int):
        return _number(Number(value))
    if isinstance(value, float | Decimal) and math.isfinite(value):
        return format(value, "f") if isinstance(value, Decimal) else _number(Number(repr(value)))
    if isinstance(value, float | Decimal):
        raise NotText(f"not a finite number ({value})")
    if isinstance(value, list | tuple):
        raise NotText(f"a list of {len(value)} elements")
    raise NotText(f"an object with {len(value)} keys" if isinstance(value, dict) else f"of type {type(value).__name__}")


def as_text(value: Any) -> str:
    """A question: text, or the content of a chat's last message. Raises NotText."""
    if isinstance(value, list) and value and isinstance(value[-1], dict) and "content" in value[-1]:
        return plain(value[-1]["content"])
    return plain(value)


def _number(written: Number) -> str:
    found = spelled_out(str(written))
    if not found:
        raise NotText(f"a number too large or too small to be written out ({written[:40]})")
    return found
