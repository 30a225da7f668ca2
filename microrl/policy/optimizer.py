"""AdamW, in float32 or with its moments in 8 bits, and the learning rate over a run's progress."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import ConfigDict, Field

from microrl.config.schema import CosineSchedule, LinearSchedule, OptimConfig, ScheduleConfig
from microrl.errors import INSTALL_GPU, UserError
from microrl.files import STRICT
from microrl.limits import EVERY, FIRST, FIXED


def build_optimizer(groups: list[dict[str, Any]], config: OptimConfig) -> torch.optim.Optimizer:
    """AdamW over parameter groups whose `factor` multiplies the rate. Its moments exist from the start, so that memory is
    taken when it is planned for. Raises UserError where bitsandbytes is missing.
    """
    settings: dict[str, Any] = {"lr": 0.0, "betas": config.betas, "eps": config.eps, "weight_decay": config.weight_decay}
    if config.name == "adamw_8bit":
        return _in_8_bits(groups, settings)
    optimizer = torch.optim.AdamW(groups, fused=True, **settings)  # the faster one on a CPU, too
    for parameter in (parameter for group in groups for parameter in group["params"]):
        moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.zeros((), device=parameter.device), **moments}
    return optimizer


def _in_8_bits(groups: list[dict[str, Any]], settings: dict[str, Any]) -> torch.optim.Optimizer:
    """Block-wise 8-bit moments (Dettmers et al. 2021, arXiv 2110.02861); tensors below 4,096 numbers keep theirs in float32."""
    try:
        import bitsandbytes
    except ImportError as error:
        raise UserError("optim.name=adamw_8bit: bitsandbytes is not installed", INSTALL_GPU) from error
    optimizer = bitsandbytes.optim.AdamW8bit(groups, **settings)
    optimizer.check_overrides()
    for number, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            optimizer.init_state(group, parameter, number, index)
    optimizer.initialized = True
    return optimizer


def scheduled(schedule: ScheduleConfig, progress: float, *, after: float) -> float:
    """The fraction of the peak rate when the fraction `progress` (0 to 1) of the budget is spent: a linear warm-up, then
    constant, half a cosine, or a line.

    `after` is the fraction of the budget when the step ends, as far as that is known. A warm-up follows it: of W steps, step t
    has (t + 1) / W of the rate, and none has 0.
    """
    if progress < schedule.warmup:
        return min(after / schedule.warmup, 1.0)
    left = 1 - (progress - schedule.warmup) / max(1 - schedule.warmup, 1e-9)
    if isinstance(schedule, CosineSchedule):
        return schedule.floor + (1 - schedule.floor) * (1 - math.cos(math.pi * left)) / 2
    if isinstance(schedule, LinearSchedule):
        return schedule.floor + (1 - schedule.floor) * left
    return 1.0


LARGEST_RATE = 0.2
"""A steered rate never exceeds it. Of the adapters of the tiny model, IA3 needs the highest, 0.05."""
LARGEST_CHANGE = 2.0
"""Factor by which a steered rate changes from one step to the next at most."""
NEWEST = 0.25
"""Weight of the newest measurement in the average that steers the rate: one step's KL, from few completions, is noisy."""


@dataclass(slots=True)
class Steering:
    """What `optim.step_kl` has found out: the peak rate of the next step, and the KL of a step in nats a token over the square of
    its rate, averaged over the latest measurements. Both None before the first update."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    rate: Annotated[float, Field(gt=0, le=LARGEST_RATE)] | None = None
    sensitivity: Annotated[float, Field(ge=0)] | None = None

    def is_due(self, step: int, *, is_steered: bool = True) -> bool:
        """Whether this step is to be measured. Where nothing has been learned yet, always: the rate may be far off."""
        if not is_steered:
            return FIXED ** round(math.log(step + 1, FIXED)) == step + 1
        return self.sensitivity is None or step < FIRST or step % EVERY == 0

    def learn(self, peak: float, lr: float, moved: float, target: float) -> bool:
        """After a step at the rate `lr`, which the schedule has made of `peak`, has moved the policy by `moved` nats a token.
        Returns whether the rate has now come to its cap. Where `moved` is not finite, it tells no size: the rate falls.

        The KL of a small step grows with the square of its rate, so the peak that moves it by `target` is the root of target over
        sensitivity. Robotics steers a rate by the KL likewise, in fixed factors (rsl_rl's "adaptive"); PPO steers a penalty
        (Schulman et al. 2017, section 4).
        """
        if not math.isfinite(moved):
            self.rate = peak / LARGEST_CHANGE
            return False
        seen = moved / lr**2
        self.sensitivity = seen if self.sensitivity is None else (1 - NEWEST) * self.sensitivity + NEWEST * seen
        wanted = math.sqrt(target / self.sensitivity) if self.sensitivity > 0 else math.inf
        self.rate = min(max(wanted, peak / LARGEST_CHANGE), peak * LARGEST_CHANGE, LARGEST_RATE)
        return peak < self.rate == LARGEST_RATE
