"""The clock: spent, left, does another step fit, dollars. From the creation of the process to its exit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

EXIT_S = 1.0
"""Kept back for closing the run and leaving the process."""
MARGIN = 1.2
"""A forecast is the longest of the last few measurements, times this."""
RECENT = 8


def process_started() -> float:
    """When this process was created, in seconds since the epoch, so that the time of importing counts too."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        boot = next(int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
        return boot + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, StopIteration, ValueError, IndexError):
        return time.time()  # not Linux: the imports so far, about a second, are not counted


class Budget:
    """Bounds a run by `hours`, by `steps`, or by both. `before_s` is what earlier processes of this run have spent."""

    def __init__(
        self,
        *,
        hours: float | None,
        steps: int | None,
        price: float = 0.0,
        started: float,
        before_s: float = 0.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.hours, self._steps, self._price = hours, steps, price
        self._started, self._before_s, self._now = started, before_s, now
        self._reserve_s = EXIT_S
        self._step_s: list[float] = []

    def elapsed_s(self) -> float:
        """Seconds spent, by this process and those before it."""
        return self._before_s + self.process_s()

    def process_s(self) -> float:
        """Seconds since this process was created."""
        return self._now() - self._started

    def left_s(self) -> float | None:
        """Seconds left; None without a time bound."""
        return None if self.hours is None else self.hours * 3600 - self.elapsed_s()

    def cost_usd(self) -> float:
        """Dollars spent."""
        return self.elapsed_s() / 3600 * self._price

    def reserve(self, seconds: float) -> None:
        """Keep this back for what must follow the last step: the final save and evaluation."""
        self._reserve_s = EXIT_S + seconds * MARGIN

    def step_forecast_s(self) -> float:
        """How long the next step may take; 0 before the first."""
        return MARGIN * max(self._step_s[-RECENT:], default=0.0)

    def fits(self, seconds: float) -> bool:
        """Whether something this long can start now and still leave the reserve."""
        left = self.left_s()
        return left is None or seconds + self._reserve_s <= left

    def steps(self, start: int) -> Iterator[int]:
        """Step numbers from `start`, for as long as another step, the final save and the final evaluation fit."""
        step = start
        while (self._steps is None or step < self._steps) and self.fits(self.step_forecast_s()):
            began = self._now()
            yield step
            self._step_s.append(self._now() - began)
            step += 1

    def share(self, step: int) -> float:
        """The spent share of the budget, 0 to 1, when `step` starts: of the steps where they are bounded, else of the time."""
        if self._steps is not None:
            return min(step / self._steps, 1.0)
        return min(self.elapsed_s() / (self.hours * 3600), 1.0) if self.hours else 0.0

    def deadline_s(self) -> float | None:
        """Seconds that the final evaluation may take at the most; None without a time bound."""
        left = self.left_s()
        return None if left is None else max(left - EXIT_S, 0.0)
