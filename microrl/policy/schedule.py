"""The learning rate over a run's progress."""

from __future__ import annotations

import math

from microrl.config.schema import CosineSchedule, LinearSchedule, OptimConfig


def learning_rate(config: OptimConfig, progress: float, *, after: float) -> float:
    """The rate when the fraction `progress` (0 to 1) of the budget is spent: a linear warm-up, then constant, half a cosine, or
    a line.

    `after` is the fraction when the step ends, as far as that is known. A warm-up follows it: of W steps, step t has (t + 1) / W
    of the rate, and none has 0.
    """
    schedule, lr = config.schedule, config.lr
    assert not isinstance(lr, str), "auto is a number once the model is known"
    if progress < schedule.warmup:
        return lr * min(after / schedule.warmup, 1.0)
    left = 1 - (progress - schedule.warmup) / max(1 - schedule.warmup, 1e-9)
    if isinstance(schedule, CosineSchedule):
        return lr * (schedule.floor + (1 - schedule.floor) * (1 - math.cos(math.pi * left)) / 2)
    if isinstance(schedule, LinearSchedule):
        return lr * (schedule.floor + (1 - schedule.floor) * left)
    return lr
