"""A terminal: text of others must not steer it, and nothing that writes to it may fail because it has gone away."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

# Nothing in a text may move the cursor, change colours, or turn the reading order around.
# C0 but tab and line feed, DEL, C1, marks of direction, and halves of surrogate pairs, which cannot be printed at all.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_HALF_SURROGATE = re.compile("[\ud800-\udfff]")


def printable(text: str) -> str:
    r"""The text with every control character written out as `\u001b`. Within JSON that is the same value still."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def is_torn(text: str) -> bool:
    """Whether a text contains half a surrogate pair, which tokenizers refuse."""
    return _HALF_SURROGATE.search(text) is not None


def counted(count: int, noun: str) -> str:
    """`1 step`, `2,000 steps`."""
    return f"{count:,} {noun}{'s' if count != 1 else ''}"


def time_in_words(hours: float) -> str:
    """`24 hours`; below an hour `18 minutes` or `1.5 seconds`."""
    value, unit = (hours, "hour") if hours >= 1 else (60 * hours, "minute") if hours >= 1 / 30 else (3600 * hours, "second")
    number = f"{value:.3g}" if 1 <= hours < 100 else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
    return f"{number} {unit}{'s' if number != '1' else ''}"


def rounded_up(value: float) -> str:
    """A positive number with two digits, or whole, as advice gives it."""
    digits = max(1 - math.floor(math.log10(value)), 0)
    return f"{math.ceil(value * 10**digits - 1e-9) / 10**digits:.10g}"


def alike(text: str) -> str:
    """What texts have in common that differ in their numbers alone, and so in the plural of what is counted."""
    return re.sub(r"(# [a-z-]+?)s\b", r"\1", re.sub(r"\d+([.,]\d+)*", "#", text))


class TolerantStream:
    """A text stream that drops what it cannot write.

    Once its reader is gone the file descriptor is pointed at the null device, for libraries that write to the descriptor itself.
    """

    def __init__(self, stream: TextIO | None) -> None:
        if stream is None:  # closed before Python started
            stream = open(os.devnull, "w")  # noqa: SIM115
        self._stream = stream

    def write(self, text: str) -> int:
        with self._given_up():
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with self._given_up():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _given_up(self) -> Iterator[None]:
        try:
            yield
        except UnicodeError:  # a ValueError, but of the text
            raise
        except (BlockingIOError, RuntimeError):
            pass  # a reader that is only slow; a signal's handler that has interrupted a write to the same stream
        except (OSError, ValueError):  # no reader, no terminal, or closed
            with suppress(OSError, ValueError):
                descriptor = self._stream.fileno()
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


def say(text: str) -> None:
    """A line on standard error, where there is one."""
    print(printable(text), file=TolerantStream(sys.stderr))
