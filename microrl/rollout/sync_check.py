"""The proof that an engine samples from the trainer's weights: both score fixed sequences, each against its own base score.

What is compared is the change since the base, so the two sides' different arithmetic cancels, and a swap that never
happened shows as a slope of 0. How well the two can agree is measured with a canary, an adapter made for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from microrl.models.tensors import dequantize
from microrl.types import LowRank

TEXTS = (
    "To add 47 and 38, add the tens, 40 + 30 = 70, and the ones, 7 + 8 = 15. Together they make 85.",
    "A train leaves at noon and travels 60 miles an hour. After two and a half hours it has gone 150 miles.",
    "Let x be the smaller number. Then x + (x + 4) = 30, so 2x = 26 and x = 13. The answer is \\boxed{13}.",
    "<think>Half of 18 is 9, and three times 9 is 27, which is less than 30.</think> No, it is not enough.",
)
MAX_TOKENS = 32
"""Of each text, so that a proof costs a few milliseconds."""
CANARY_TIMES_NOISE, CANARY_MIN = 20, 0.02
"""Least change that the canary makes: a multiple of the noise, and nats a token."""
FLOOR_TIMES_NOISE, FLOOR_OF_CHANGE = 4, 0.05
"""A gap may be so many times the noise, and this fraction of the change: in narrow types a large adapter rounds more."""
MEASURABLE_TIMES_NOISE = 3
"""Below this multiple of the noise, the slope of the trainer's change is not measurable."""
LOWEST_SLOPE, HIGHEST_SLOPE = 0.8, 1.25
STANDARD_ERRORS = 3
"""By which a slope has to miss those bounds: a run takes thousands of swaps, and noise must not stop one."""
STALE_SLOPE = 0.2
BASE_LIMIT = 0.5
"""Nats a token between engine and trainer on the base model. Arithmetic alone stays far below it, in bfloat16 too."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the probe showed of one swap. Nats a token; `slope` is None where the trainer's change is too small for one."""

    gap: float
    """mean |change in the engine - change in the trainer|"""
    change: float
    """mean |change in the trainer|"""
    slope: float | None
    """Of the engine's change on the trainer's, through the origin: 1 is right, 0 is a swap that never happened."""
    slope_error: float
    """Standard error of the slope; 0 where there is none."""
    floor: float
    """The largest gap that passes here."""

    def failure(self) -> str | None:
        """What is wrong, in one sentence with its likely cause; None where nothing is."""
        if not math.isfinite(self.change):
            return "the trainer's own scores are not finite: its weights are broken; the weight sync is not the cause"
        if not math.isfinite(self.gap):
            return "the engine's scores are not finite: its weights were lost, most likely in sleep"
        if slope_failure := self.slope_failure():
            return slope_failure
        if self.gap > self.floor:
            return (
                f"the probe gap of {self.gap:.2g} nats per token is above its limit {self.floor:.2g}: some layers differ, or "
                "engine and trainer compute in different precision (model.head_dtype=float32 reduces that)"
            )
        return None

    def slope_failure(self) -> str | None:
        """What the slope alone says is wrong."""
        margin = STANDARD_ERRORS * self.slope_error
        if self.slope is None or LOWEST_SLOPE - margin <= self.slope <= HIGHEST_SLOPE + margin:
            return None
        if self.slope < STALE_SLOPE:
            return (
                f"the engine's change does not match the trainer's (slope {self.slope:.2f}): it samples from stale weights, most "
                "likely because the adapter was not pushed, the request names another one, or its prompt cache is stale"
            )
        return (
            f"the engine's change is {self.slope:.2f} times the trainer's: most likely the adapter's scale is wrong, "
            "or some layers were left out"
        )


class Probe:
    """The sequences, both sides' base scores, and the noise between the two sides.

    `noise` starts as the mean gap on the base model and is raised by `calibrate` to what the canary shows.
    """

    def __init__(self, engine_base_N: torch.Tensor, trainer_base_N: torch.Tensor) -> None:
        self._engine_base_N, self._trainer_base_N = engine_base_N, trainer_base_N
        self.base_gap = float((engine_base_N - trainer_base_N).abs().mean())
        self.noise = max(self.base_gap, float(trainer_base_N.abs().mean()) * torch.finfo(torch.float32).eps)

    @property
    def canary_change(self) -> float:
        """Least mean change, nats a token, that the canary has to make."""
        return max(CANARY_TIMES_NOISE * self.noise, CANARY_MIN)

    def calibrate(self, canary: Reading) -> None:
        """Take over how far apart the two sides were on the canary."""
        self.noise = max(self.noise, canary.gap)

    def read(self, engine_N: torch.Tensor, trainer_N: torch.Tensor) -> Reading:
        """Compare both sides' changes since the base. Rounding is relative, so the floor grows with scores and change."""
        engine_change_N, trainer_change_N = engine_N - self._engine_base_N, trainer_N - self._trainer_base_N
        change = float(trainer_change_N.abs().mean())
        slope, slope_error = None, 0.0
        if change > MEASURABLE_TIMES_NOISE * self.noise:
            power = float(trainer_change_N @ trainer_change_N)
            slope = float(engine_change_N @ trainer_change_N) / power
            residual_N = engine_change_N - slope * trainer_change_N
            slope_error = float(residual_N.pow(2).mean() / power) ** 0.5
        growth = max(1.0, float(trainer_N.abs().mean() / self._trainer_base_N.abs().mean()))
        gap = float((engine_change_N - trainer_change_N).abs().mean())
        floor = FLOOR_TIMES_NOISE * self.noise * growth + FLOOR_OF_CHANGE * change
        return Reading(gap, change, slope, slope_error, floor)


def sequences(tokenizer: Any) -> list[tuple[int, ...]]:
    """The fixed texts in a model's tokens."""
    return [tuple(tokenizer(text, add_special_tokens=False)["input_ids"][:MAX_TOKENS]) for text in TEXTS]


def flat(scores: Sequence[torch.Tensor]) -> torch.Tensor:
    """All sequences' scores in one vector, in float64 on the CPU."""
    return torch.cat([score.detach().double().cpu() for score in scores])


def canary(
    model: PreTrainedModel,
    targets: Sequence[str],
    rank: int,
    change_of: Callable[[Mapping[str, LowRank]], float],
    min_change: float,
) -> dict[str, LowRank]:
    """A random adapter of the run's own shape whose change, by `change_of`, lies between `min_change` and four times it.

    Raises ArithmeticError where no strength does, which a model that ignores its own weights would bring about.
    """
    generator = torch.Generator().manual_seed(20)
    factors, size = {}, []
    for name in targets:
        weight_OI = dequantize(model.get_submodule(name).weight)
        out, in_features = weight_OI.shape
        R = min(rank, out, in_features)
        factors[name] = (
            torch.randn(R, in_features, generator=generator) / in_features**0.5,
            torch.randn(out, R, generator=generator) / R**0.5,
        )
        size.append(float(weight_OI.float().norm()) / out**0.5)
    # B A has a Frobenius norm of about sqrt(out): start at a hundredth of the weights' own.
    strength = 0.01 * sum(size) / len(size)
    for _ in range(20):
        pairs = {name: LowRank(A_RI.to(model.device), B_OR.to(model.device), strength) for name, (A_RI, B_OR) in factors.items()}
        change = change_of(pairs)
        if min_change <= change <= 4 * min_change:
            return pairs
        strength *= min(max(2 * min_change / max(change, 1e-30), 0.1), 10.0)
    raise ArithmeticError(f"no scale of the random test adapter changes the scores by {min_change:.2g} nats per token")
