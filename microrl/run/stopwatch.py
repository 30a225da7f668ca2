"""Where the time goes: seconds by phase, for a step and for the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from microrl import clock


class Stopwatch:
    """Adds up the seconds of named phases. Phases do not nest. `before` is what earlier processes of the run have counted."""

    def __init__(self, before: Mapping[str, float] | None = None) -> None:
        self.totals: dict[str, float] = dict(before or {})
        self._phase_seconds: dict[str, float] = {}
        self.in_phase = False

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside as this phase's."""
        began = clock.now_s()
        self.in_phase = True
        try:
            yield
        finally:
            self.in_phase = False
            self.add(name, clock.now_s() - began)

    def add(self, name: str, seconds: float) -> None:
        for book in (self.totals, self._phase_seconds):
            book[name] = book.get(name, 0.0) + seconds

    def restart(self) -> dict[str, float]:
        """Seconds by phase since the last call, as a step counts them; the totals go on."""
        seconds, self._phase_seconds = self._phase_seconds, {}
        return seconds
