"""Ctrl-C and SIGTERM: stop at once where nothing is half done, otherwise as soon as it is done."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupts:
    """While installed, both signals raise KeyboardInterrupt, but not inside `held()`: there `check()` or the end raises it.

    A second signal comes through at once, held or not.
    """

    def __init__(self) -> None:
        self._held: str | None = None
        self._pending = False
        self._arrived_before = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def held(self, what: str) -> Iterator[None]:
        """What is inside is finished before the first signal comes through, or gets to a `check`; `what` says it to a person."""
        self._held = what
        try:
            yield
        finally:
            self._held = None
        self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt here if a signal is waiting."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        first, self._arrived_before = not self._arrived_before, True
        if self._held and first:
            self._pending = True
            print(f"\nstopping after {self._held}; once more stops at once", file=sys.stderr)
            return
        self._pending = False
        raise KeyboardInterrupt
