"""The budget: time and money used and left, and whether another step fits. It covers the process from creation to exit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator

from microrl.clock import now_s
from microrl.limits import BEFORE_FRACTION, MIN_EVALUATION, TRIAL_EVALUATION, exit_reserve_s
from microrl.terminal import time_in_words

RECENT = 16
QUANTILE = 0.85
"""Quantile of the last few measurements that serves as forecast: a single outlier must not waste the end of the budget."""
FIRST_MARGIN = 0.2
"""Margin on a forecast from a single measurement; divided by n for n measurements, whose quantile reflects their variation."""
EVALUATION_MARGIN = 0.1


class Durations:
    """Recent durations of something, in seconds, and a forecast of the next."""

    def __init__(self, guess_s: float = 0.0) -> None:
        self.guess_s = guess_s
        self.recent: list[float] = []
        """The last few durations; a checkpoint stores them."""

    def add(self, seconds: float) -> None:
        self.recent = [*self.recent, seconds][-RECENT:]

    def forecast_s(self) -> float:
        """A high quantile of the last few, plus a margin that shrinks with their number; `guess_s` before there are any."""
        count = len(self.recent)
        if not count:
            return self.guess_s
        return sorted(self.recent)[math.ceil(QUANTILE * count) - 1] * (1 + FIRST_MARGIN / count)

    def typical_s(self) -> float:
        """The median of the last few; `guess_s` before there are any."""
        return statistics.median(self.recent) if self.recent else self.guess_s


class Budget:
    """Bounds a run by `hours`, by `steps`, or by both. `before_s`: seconds used by earlier processes of this run. `is_trial`: of
    a sweep, whose trials are all evaluated on the same questions, so that none may shorten its final evaluation.

    `step`, `save`, `validation` and `sft_step` (a supervised step) are forecast from measurements. `evaluation_s` is set by
    `Forecast`: measured before training, and scaled with the length of the completions.
    """

    def __init__(
        self,
        *,
        hours: float | None,
        steps: int | None,
        price: float = 0.0,
        started: float,
        before_s: float = 0.0,
        is_trial: bool = False,
        now: Callable[[], float] = now_s,
    ) -> None:
        self.hours, self.max_steps, self.price, self.is_trial = hours, steps, price, is_trial
        self._started, self._before_s, self._now = started, before_s, now
        self.step, self.save, self.validation, self.sft_step = Durations(), Durations(), Durations(), Durations()
        self.evaluation_s = 0.0
        self.is_by_steps = hours is None
        """Whether schedule and validation follow the steps, which is reproducible, or the clock."""

    def elapsed_s(self) -> float:
        """Seconds used by this process and earlier ones of the run."""
        return self._before_s + self.process_s()

    def process_s(self) -> float:
        """Seconds since this process was created."""
        return self._now() - self._started

    def left_s(self) -> float | None:
        """Seconds left; None without a time limit."""
        return None if self.hours is None else self.hours * 3600 - self.elapsed_s()

    def cost_usd(self) -> float:
        """US dollars spent."""
        return self.elapsed_s() / 3600 * self.price

    def exit_s(self) -> float:
        """Seconds reserved for the exit; see `exit_reserve_s`."""
        return exit_reserve_s(self.hours)

    def reserve_s(self) -> float:
        """Seconds reserved after the last step: final save, final evaluation, exit, and of a trial the final validation."""
        margin = 0.0 if self.is_trial else EVALUATION_MARGIN  # a trial's forecast is twice the measurement
        validation_s = self.validation.forecast_s() if self.is_trial else 0.0
        return validation_s + self.save.forecast_s() + self.evaluation_s * (1 + margin) + self.exit_s()

    def fits(self, seconds: float, *, barely: bool = False) -> bool:
        """Whether `seconds` of work can start now and still leave `reserve_s`, or if `barely`, `min_reserve_s`."""
        left = self.left_s()
        return left is None or seconds + (self.min_reserve_s() if barely else self.reserve_s()) <= left

    def min_reserve_s(self) -> float:
        """The reserve with a shortened final evaluation. Of a trial, only the first step may shorten it."""
        is_whole = self.is_trial and (self.step.recent or self.sft_step.recent)
        return self.save.forecast_s() + self.evaluation_s * (1.0 if is_whole else MIN_EVALUATION) + self.exit_s()

    @property
    def before_fraction(self) -> float:
        """Fraction of the time left that the evaluation before training may take."""
        return BEFORE_FRACTION / TRIAL_EVALUATION if self.is_trial else BEFORE_FRACTION

    def is_over(self) -> bool:
        """Whether the current work must be discarded now, because otherwise even a shortened final evaluation would not fit."""
        left = self.left_s()
        return left is not None and left < self.min_reserve_s()

    def steps(self, start: int) -> Iterator[int]:
        """Step numbers from `start`, as long as another step, the final save and the final evaluation fit."""
        step = start
        while self.max_steps is None or step < self.max_steps:
            if not self.fits(self.step.forecast_s(), barely=step == 0):
                return
            yield step
            step += 1

    def progress(self, step: int) -> float:
        """Used fraction of the budget, 0 to 1, when `step` starts: of the steps if they end the run, else of the time."""
        of_steps = step / self.max_steps if self.max_steps is not None else 0.0
        of_time = self.elapsed_s() / (self.hours * 3600) if self.hours is not None and not self.is_by_steps else 0.0
        return min(max(of_steps, of_time), 1.0)

    def deadline_s(self) -> float | None:
        """Maximum seconds for the final evaluation; None without a time limit."""
        left = self.left_s()
        return None if left is None else max(left - self.exit_s(), 0.0)

    def limit(self) -> str:
        """The time limit in words."""
        assert self.hours is not None
        return f"a time limit of {time_in_words(self.hours)}"

    def min_hours(self, missing_s: float) -> float:
        """Hours of the smallest budget that would leave `missing_s` seconds now, rounded up to two digits, plus 10 %."""
        left = self.left_s()
        assert left is not None and self.hours is not None, "only a time limit can be too small"
        wanted = (self.hours + (missing_s - left) / 3600) * 1.1
        return float(f"{wanted:.2g}") if float(f"{wanted:.2g}") >= wanted else float(f"{wanted * 1.05:.2g}")
