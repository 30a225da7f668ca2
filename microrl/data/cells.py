"""A cell of a table as text, and a row as JSON. As text, only text, integers and decimals have a unique spelling."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, time
from decimal import Decimal
from typing import Any

from microrl.answers import spelled_out
from microrl.data.read import Number


class NotText(ValueError):
    """The message says what a cell is instead of text or a number."""


def cell(row: Mapping[str, Any], name: str) -> Any:
    """The cell of a column, or a field within one, such as `reward_model.ground_truth`; None where there is none."""
    if name in row:
        return row[name]
    nested: Any = row
    for part in name.split("."):
        nested = nested.get(part) if isinstance(nested, Mapping) else None
    return nested


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


def as_json(row: Mapping[str, Any]) -> str:
    """A row as JSON, for reward functions. Times become text; what JSON cannot hold, such as an image or NaN, becomes null."""
    return json.dumps({str(name): _for_json(value) for name, value in row.items()}, allow_nan=False)


def _for_json(value: Any, depth: int = 64) -> Any:
    """The value with JSON's types, of at most this depth."""
    if depth == 0:
        return None
    if isinstance(value, Number):
        return _as_written(value)
    if isinstance(value, Mapping):
        return {str(name): _for_json(part, depth - 1) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_for_json(part, depth - 1) for part in value]
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, float | Decimal):
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | bool | int) else None


def _as_written(number: Number) -> int | float | str | None:
    """The number that JSON's text stands for; the text itself where Python reads no integer of so many digits."""
    try:
        return int(number)
    except ValueError:
        pass
    try:
        as_float = float(number)
    except ValueError:
        return str(number)
    return as_float if math.isfinite(as_float) else str(number)


def _number(written: Number) -> str:
    digits = spelled_out(str(written))
    if not digits:
        raise NotText(f"a number too large or too small to be written out ({written[:40]})")
    return digits
