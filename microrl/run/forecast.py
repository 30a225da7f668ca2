"""Forecasts of a run: the plan's estimates, corrected by measurements, and compared with what happened."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Any

from microrl.evaluation.result import Result
from microrl.limits import TRIAL_EVALUATION
from microrl.plan.plan import Plan
from microrl.run.budget import RECENT, Budget

MADE_AT = 0.1
"""Fraction of the training time after which the number of steps is forecast from measurements."""
MIN_STEPS = 3


class Forecast:
    """Initialises the budget's forecasts from the plan and keeps them up to date."""

    def __init__(self, plan: Plan, budget: Budget, *, done: int, is_same_engine: bool = True) -> None:
        """`done`: number of steps made by earlier processes of this run. `is_same_engine`: whether the evaluation before training
        was made by today's engine; if not, it may have been faster than the one after training will be."""
        self._plan, self._budget = plan, budget
        self._planned = plan.steps if budget.max_steps is not None else done + plan.steps
        budget.step.guess_s, budget.save.guess_s, budget.validation.guess_s = plan.step_s, plan.save_s, plan.validation_s
        budget.sft_step.guess_s = plan.sft_step_s
        budget.evaluation_s = plan.evaluation_s
        self.update_s = plan.step_parts_s["update"]
        """Seconds of an update, before any is measured."""
        self._before: Result | None = None
        self._at_least_s = 0.0 if is_same_engine else plan.evaluation_s
        self._lengths: deque[float] = deque(maxlen=RECENT)
        self._validation_s, self._validated, self._validated_length = float("inf"), 1, 1.0
        self._first_validation: tuple[int, float, float] | None = None
        """Completions, seconds, and their length, of the first validation with as many completions as the last."""
        self._began: tuple[int, float] | None = None
        self._steps: float | None = None
        self._made_after = 0

    def expected(self, made: int, step_s: float) -> int:
        """Steps of the whole run as they are expected after `made` of them, the last of which took `step_s` seconds, at the pace
        of the last few."""
        budget, left_s = self._budget, self._budget.left_s()
        if left_s is None:
            return self._planned
        pace_s = statistics.median([*budget.step.recent, step_s])
        fitting = made + math.floor(max(left_s - budget.reserve_s(), 0.0) / max(pace_s, 1e-9))
        return fitting if budget.max_steps is None else min(fitting, budget.max_steps)

    def evaluated(self, before: Result | None) -> None:
        """Take in the evaluation before training; None if there was none."""
        self._before = before
        self._budget.evaluation_s = max(self._evaluation_s(before), self._floor_s(before)) if before else 0.0

    def plan_sft(self, length_mean: float) -> None:
        """Expect completions to become as long as the solutions, `length_mean` tokens."""
        if self._before is not None:
            longer = length_mean / max(self._before.mean_length, 1.0)
            expected_s = self._evaluation_s(self._before) * max(longer, 1.0)
            self._budget.evaluation_s = max(expected_s, self._floor_s(self._before))

    def _evaluation_s(self, before: Result) -> float:
        return max(before.seconds, self._at_least_s)

    def _floor_s(self, before: Result) -> float:
        """What a sweep's trial reserves in any case."""
        return TRIAL_EVALUATION * self._evaluation_s(before) if self._budget.is_trial else 0.0

    def validated(self, seconds: float, completions: int) -> None:
        """Take in a validation: newer than the evaluation before training, and without its one-time costs."""
        self._budget.validation.add(seconds)
        self._validation_s, self._validated, self._validated_length = seconds, completions, self._length()
        if self._first_validation is None or self._first_validation[0] != completions:
            self._first_validation = completions, seconds, self._validated_length

    def _slowdown(self) -> float:
        """How many times slower the machine is than at the start, at least 1: the last validation against the first."""
        if self._first_validation is None:
            return 1.0
        _, first_s, first_length = self._first_validation
        return max(self._validation_s / first_s / max(self._validated_length / max(first_length, 1.0), 1.0), 1.0)

    def _length(self) -> float:
        """Median of the last steps' mean lengths; before there are any, that of the evaluation before training."""
        if self._lengths:
            return statistics.median(self._lengths)
        return self._before.mean_length if self._before is not None else 1.0

    def stepped(self, step: int, length_mean: float) -> None:
        """Take in a step; `length_mean`: mean tokens of its completions, which predicts those of the final evaluation."""
        budget = self._budget
        self._lengths.append(length_mean)
        if self._before is not None:
            before = self._before
            longer, longer_since = (self._length() / max(past, 1.0) for past in (before.mean_length, self._validated_length))
            # Two upper bounds: the first includes one-time costs again, the second a batch's overhead for every completion.
            # Fewer completions than a validation has can take as long: in one batch the longest decides.
            at_most = self._validation_s * max(len(before.right) * before.samples / self._validated, 1.0) * max(longer_since, 1.0)
            expected_s = min(self._evaluation_s(before) * max(longer, 1.0) * self._slowdown(), at_most)
            budget.evaluation_s = max(expected_s, self._floor_s(before))
        if self._began is None:
            self._began = (step + 1, budget.elapsed_s())  # what is measured from here on is steps, validations and saves
            return
        if self._steps is None:
            self._steps = self._measured(step + 1, *self._began)

    def _measured(self, made: int, began: int, began_s: float) -> float | None:
        """Steps of the whole run at the pace since `began`; None while that time is too short."""
        budget = self._budget
        spent_s, left_s = budget.elapsed_s() - began_s, budget.left_s()
        fitting = float("inf") if left_s is None else made + max(left_s - budget.reserve_s(), 0.0) / (spent_s / (made - began))
        total = fitting if budget.max_steps is None else min(fitting, budget.max_steps)
        if made - began < MIN_STEPS or made - began < MADE_AT * (total - began):
            return None
        self._made_after = made
        return total

    def to_json(self, steps: int, step_s: float | None) -> dict[str, Any]:
        """The forecasts before the start and after a tenth of the budget, and the actual values."""
        return {
            "planned_steps": self._planned,
            "planned_step_s": self._plan.step_s,
            "steps": None if self._steps is None else round(self._steps),
            "made_after_steps": self._made_after or None,
            "actual_steps": steps,
            "actual_step_s": step_s,
        }
