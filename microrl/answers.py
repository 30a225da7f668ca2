"""What can be read off a completion's text without mathematics: the thinking structure and the boxed answer."""

from __future__ import annotations

import re
from decimal import Decimal

THINK, END_THINK = "<think>", "</think>"
_LATEX_TEXT = re.compile(r"\\(text|textbf|mathrm|mbox)\{[^{}]*\}")
_PROSE = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}\s+[a-zA-Z]{2,}")
_INTEGER = re.compile(r"[+-]?\d{1,4000}")
_SCIENTIFIC = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))[eE]([+-]?\d+)", re.ASCII)
MAX_ZEROS = 1000
"""Powers of ten that are written out."""


def has_format(completion: str, *, opened: bool = False) -> bool:
    """Whether the completion is `<think>...</think>` and something after it, each tag once.

    `opened`: the chat template has already written `<think>`, as DeepSeek's distilled models' does.
    """
    text = (THINK if opened else "") + completion
    text = text.strip()
    if not text.startswith(THINK) or text.count(THINK) != 1 or text.count(END_THINK) != 1:
        return False
    return bool(text.partition(END_THINK)[2].strip())


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}`, braces balanced; None where there is none or it never closes."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    begin = start + len("\\boxed{")
    for position in range(begin - 1, len(text)):
        character = text[position]
        if text[position - 1] == "\\" and character in "{}":
            continue  # an escaped brace is a symbol, not a bracket
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[begin:position].strip()
    return None


def is_prose(text: str) -> bool:
    """Whether two plain words stand side by side, which a maths parser would take for a product of letters."""
    return _PROSE.search(_LATEX_TEXT.sub("", text)) is not None


def same_text(a: str, b: str) -> bool:
    """Equal but for case and white space."""
    return " ".join(a.split()).casefold() == " ".join(b.split()).casefold()


def as_integer(text: str) -> int | None:
    """The integer that a plain numeral stands for; None for anything else."""
    text = text.strip()
    return int(text) if _INTEGER.fullmatch(text) and text.isascii() else None


def spelled_out(text: str) -> str:
    """A number in scientific notation as a plain decimal; any other text as it is.

    1e16 is 10000000000000000: a maths parser would take its e for Euler's. Empty for what is too large or too small to be
    written out, which is then no mathematics and equal to nothing.
    """
    found = _SCIENTIFIC.fullmatch(text.strip())
    if found is None:
        return text
    power = found[2].lstrip("+-0")
    if len(power) > 4 or int(power or 0) > MAX_ZEROS:
        return ""
    return format(Decimal(f"{found[1]}e{found[2]}"), "f")
