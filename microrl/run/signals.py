"""Ctrl-C, SIGTERM and a lost terminal: stop at once where nothing is half done, otherwise as soon as it is done."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from microrl.terminal import say


class Interrupts:
    """While installed, these signals raise KeyboardInterrupt, but not inside `held()`: there `check()` or the end raises it.

    A second signal comes through at once, held or not. SIGHUP does not: a shell and the kernel both send it when a terminal goes
    away. Where it was ignored before, as under `nohup`, it still is. `log` hears what is said.
    """

    def __init__(self, log: Callable[[str], None] = lambda text: None) -> None:
        self._log = log
        self._held: str | None = None
        self._pending = False
        self._arrived_before = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
        for number in (signal.SIGINT, signal.SIGTERM, *hangup):
            self._before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        is_ending = kind is not None and issubclass(kind, KeyboardInterrupt)
        for number, handler in self._before.items():
            # All is saved, and the status is on its way: a further SIGTERM must not change it.
            dies = is_ending and number == signal.SIGTERM and handler is signal.SIG_DFL
            signal.signal(number, (lambda *_: None) if dies else handler)

    @contextmanager
    def held(self, what: str) -> Iterator[None]:
        """Hold back the first signal until the end of the block or a `check`; `what` names the block to the user."""
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
        if number == signal.SIGHUP and not first:
            return
        if self._held and first:
            self._pending = True
            said = f"stopping after {self._held}; press Ctrl-C again to stop at once"
            say(f"\n{said}")
            self._log(said)
            return
        self._pending = False
        raise KeyboardInterrupt
