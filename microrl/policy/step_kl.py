"""How far an update moves the policy: measured on some of its rows, and limited."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from microrl import clock
from microrl.algorithm.batch import Row
from microrl.algorithm.loss import k3
from microrl.limits import ABOVE_ROUNDING, MAX_SHRINKS, SHRUNK_ABOVE
from microrl.models import gpu

MAX_PASSES = 6
"""At most so many, in 16 bits, to find the length at which a step is measured. Once the rate is right, it is one."""


def every(count: int, rows: Sequence[Row]) -> list[Row]:
    """Every `count`-th of the rows by length, so that short and long completions are there in their proportion."""
    return sorted(rows, key=lambda row: len(row.completion_ids))[(count - 1) // 2 :: count] or list(rows[:1])


def kl(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor], rows: Sequence[Row]) -> float:
    """KL of the weights that sampled these rows to later ones by k3, nats a token, from the log-probabilities under both."""
    total = sum(float(k3(new_T, old_T).sum(dtype=torch.float64)) for old_T, new_T in zip(before, after, strict=True))
    return total / sum(row.length for row in rows)


class StepSize:
    """The size of one update: built before it, asked after it.

    `score` computes the rows' log-probabilities, before the update with `check_deadline`. `target`: the KL that the step should
    have, nats a token; None with a fixed rate.

    In 16 bits, the smallest change of the weights rounds all activations anew. On SmolLM2 in bfloat16 that alone is a KL of 1e-3
    to 2e-3 nats a token, as much as a step of the usual size: steered by it, the rate would fall without end. The KL of a small
    step grows with the square of its length. So the step is made longer until its KL is far above that of rounding, and the KL
    is divided by the square. Afterwards the weights are what they were, to the bit.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        parameters: Sequence[torch.Tensor],
        score: Callable[..., list[torch.Tensor]],
        check_deadline: Callable[[], None],
        *,
        target: float | None,
        dtype: torch.dtype,
    ) -> None:
        began_s = clock.now_s()
        self._rows, self._parameters, self._score, self._target = rows, parameters, score, target
        self._is_rounded = dtype.itemsize < 4
        self._before = score(check_deadline)
        self._start = _copies(parameters) if target or self._is_rounded else []
        self.seconds = gpu.done_s() - began_s

    def limited(self) -> tuple[float, float]:
        """After the update: (the fraction of it that is left where it was far too large, its KL in nats a token)."""
        began_s = gpu.done_s()
        moved, fraction = self._measure(), 1.0
        if self._target:
            fraction, moved = shrink(self._parameters, self._start, moved, self._target, self._measure)
        self.seconds += clock.now_s() - began_s
        return fraction, moved

    def _measure(self) -> float:
        if not self._is_rounded:
            return self._kl()
        length, ended = max(1.0, math.sqrt(ABOVE_ROUNDING / self._target)) if self._target else 1.0, _copies(self._parameters)
        try:
            for _ in range(MAX_PASSES):
                _place(self._parameters, self._start, ended, length)
                measured = self._kl()
                moved = measured / length**2
                if not measured < ABOVE_ROUNDING / 2:
                    break
                length *= math.sqrt(ABOVE_ROUNDING / max(measured, 1e-4))
        finally:
            with torch.no_grad():
                for parameter, end in zip(self._parameters, ended, strict=True):
                    parameter.copy_(end)
        return moved

    def _kl(self) -> float:
        return kl(self._before, self._score(), self._rows)


def _copies(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [parameter.detach().to("cpu", copy=True) for parameter in parameters]


@torch.no_grad()
def _place(
    parameters: Sequence[torch.Tensor], start: Sequence[torch.Tensor], end: Sequence[torch.Tensor], fraction: float
) -> None:
    """Put the parameters on the straight line from start to end, with a fraction above 1 beyond it. What is exactly 0 at its end
    stays so: AdaLoRA has cut it."""
    for parameter, origin, goal in zip(parameters, start, end, strict=True):
        there = goal.to(parameter)
        parameter.copy_(origin.to(parameter, copy=True).lerp_(there, fraction).masked_fill_(there == 0, 0.0))


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
        _place(parameters, before, parameters, factor)
        fraction *= factor
        moved = measure()
    return fraction, moved
