"""Text of others on a terminal: nothing in it may move the cursor, change colours, or turn the reading order around."""

from __future__ import annotations

import re

# C0 but tab and line feed, DEL, C1, marks of direction, and halves of surrogate pairs, which cannot be printed at all.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""The text with every control character written out as `\u001b`. Within JSON that is the same value still."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
