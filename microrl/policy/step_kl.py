"""How far an update moves the policy: measured on some of its rows, and limited."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from microrl.algorithm.batch import Row
from microrl.algorithm.loss import k3
from microrl.limits import MAX_SHRINKS, SHRUNK_ABOVE


def every(count: int, rows: Sequence[Row]) -> list[Row]:
    """Every `count`-th of the rows by length, so that short and long completions are there in their proportion."""
    return sorted(rows, key=lambda row: len(row.completion_ids))[(count - 1) // 2 :: count] or list(rows[:1])


def kl(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor], rows: Sequence[Row]) -> float:
    """KL of the weights that sampled these rows to later ones by k3, nats a token, from the log-probabilities under both."""
    total = sum(float(k3(new_T, old_T).sum(dtype=torch.float64)) for old_T, new_T in zip(before, after, strict=True))
    return total / sum(row.length for row in rows)


@torch.no_grad()
def shrink(
    parameters: Sequence[torch.Tensor], before: Sequence[torch.Tensor], moved: float, target: float, measure: Callable[[], float]
) -> tuple[float, float]:
    """Where an update has moved the policy by `moved` nats a token, many times `target`, take most of it back.

    `before`: the parameters before the update. AdamW's step is proportional to its rate, weight decay included, and the KL of a
    small step grows with the square of the rate. So the parameters go back on a straight line, to the root of target over
    moved; `measure` says how far they are then, and whether that is to be repeated. Returns the fraction of the step that is
    left, 1.0 where it was not too large, and the KL at its end.
    """
    fraction = 1.0
    for _ in range(MAX_SHRINKS):
        if moved <= SHRUNK_ABOVE * target:
            break
        factor = math.sqrt(target / min(moved, 1.0)) if math.isfinite(moved) else math.sqrt(target)  # above 1, it tells no size
        for parameter, start in zip(parameters, before, strict=True):
            parameter.copy_(start.to(parameter).lerp(parameter, factor))
        fraction *= factor
        moved = measure()
    return fraction, moved
