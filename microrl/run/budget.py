"""The clock: spent, left, does another step fit, dollars. From the creation of the process to its exit."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterator

from microrl.clock import now_s
from microrl.limits import MIN_EVALUATION, exit_reserve_s

RECENT = 16
QUANTILE = 0.85
"""Of the last few measurements, as a forecast: one hiccup among sixteen steps must not cost the end of the budget."""
FIRST_MARGIN = 0.2
"""On top of a single measurement; n of them need an n-th of it, since their quantile says by itself how much they vary."""
EVALUATION_MARGIN = 0.1


class Durations:
    """How long something took lately, and how long it may take next. Seconds."""

    def __init__(self, guess_s: float = 0.0) -> None:
        self.guess_s = guess_s
        self._recent: deque[float] = deque(maxlen=RECENT)

    def add(self, seconds: float) -> None:
        self._recent.append(seconds)

    @property
    def recent(self) -> list[float]:
        """The last few; a resumed run goes on with them."""
        return list(self._recent)

    @recent.setter
    def recent(self, seconds: list[float]) -> None:
        self._recent.extend(seconds)

    def forecast_s(self) -> float:
        """A high quantile of the last few, and a margin that shrinks as they grow in number; the guess before there are any."""
        count = len(self._recent)
        if not count:
            return self.guess_s
        return sorted(self._recent)[math.ceil(QUANTILE * count) - 1] * (1 + FIRST_MARGIN / count)

    def typical_s(self) -> float:
        """The median of the last few; the guess before there are any."""
        return statistics.median(self._recent) if self._recent else self.guess_s


class Budget:
    """Bounds a run by `hours`, by `steps`, or by both. `before_s` is what earlier processes of this run have spent.

    `step`, `save`, `validation` and `sft_step` (a supervised step) are forecast from what was measured. The final
    evaluation's seconds are set from outside: it is measured once, before training, and grows with the completions.
    """

    def __init__(
        self,
        *,
        hours: float | None,
        steps: int | None,
        price: float = 0.0,
        started: float,
        before_s: float = 0.0,
        now: Callable[[], float] = now_s,
    ) -> None:
        self.hours, self.max_steps, self.price = hours, steps, price
        self._started, self._before_s, self._now = started, before_s, now
        self.step, self.save, self.validation, self.sft_step = Durations(), Durations(), Durations(), Durations()
        self.evaluation_s = 0.0
        self.is_by_steps = hours is None
        """Whether schedule and validation follow the steps, and so repeat, or the clock."""

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
        return self.elapsed_s() / 3600 * self.price

    def exit_s(self) -> float:
        """See `exit_reserve_s`."""
        return exit_reserve_s(self.hours)

    def reserve_s(self) -> float:
        """What must follow the last step: the final save, the final evaluation, the exit."""
        return self.save.forecast_s() + self.evaluation_s * (1 + EVALUATION_MARGIN) + self.exit_s()

    def fits(self, seconds: float) -> bool:
        """Whether something this long can start now and still leave the reserve."""
        left = self.left_s()
        return left is None or seconds + self.reserve_s() <= left

    def min_reserve_s(self) -> float:
        """The reserve with the final evaluation cut down to a part."""
        return self.save.forecast_s() + self.evaluation_s * MIN_EVALUATION + self.exit_s()

    def fits_a_step(self) -> bool:
        """Whether a run that has made none yet can make one step, at the price of most of the final evaluation if need be."""
        return self.fits_barely(self.step.forecast_s())

    def fits_barely(self, seconds: float) -> bool:
        """Whether something this long can start now and still leave the least reserve."""
        left = self.left_s()
        return left is None or seconds + self.min_reserve_s() <= left

    def is_over(self) -> bool:
        """Whether what is running must be given up now, or not even a part of the final evaluation would fit."""
        left = self.left_s()
        return left is not None and left < self.min_reserve_s()

    def steps(self, start: int) -> Iterator[int]:
        """Step numbers from `start`, for as long as another step, the final save and the final evaluation fit."""
        step = start
        while self.max_steps is None or step < self.max_steps:
            if not (self.fits(self.step.forecast_s()) or (step == 0 and self.fits_a_step())):
                return
            yield step
            step += 1

    def progress(self, step: int) -> float:
        """The spent share of the budget, 0 to 1, when `step` starts: of the steps where these end the run, else of the time."""
        of_steps = step / self.max_steps if self.max_steps is not None else 0.0
        of_time = self.elapsed_s() / (self.hours * 3600) if self.hours is not None and not self.is_by_steps else 0.0
        return min(max(of_steps, of_time), 1.0)

    def deadline_s(self) -> float | None:
        """Seconds that the final evaluation may take at the most; None without a time bound."""
        left = self.left_s()
        return None if left is None else max(left - self.exit_s(), 0.0)

    def min_hours(self, missing_s: float) -> float:
        """The smallest budget, to two digits, that leaves `missing_s` more than is left now, with a tenth to spare."""
        left = self.left_s()
        assert left is not None and self.hours is not None, "only a time bound can be too small"
        wanted = (self.hours + (missing_s - left) / 3600) * 1.1
        return float(f"{wanted:.2g}") if float(f"{wanted:.2g}") >= wanted else float(f"{wanted * 1.05:.2g}")
