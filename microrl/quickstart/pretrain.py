"""The quickstart's pretraining: supervised steps until the model is right some of the time, and no further."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from microrl.config import resolve
from microrl.policy.policy import Policy
from microrl.policy.sft import sft_step
from microrl.types import SftExample


@dataclass(frozen=True, slots=True)
class PretrainingSettings:
    """Full-parameter AdamW with a falling rate. What is measured and kept is a moving average of the weights."""

    seed: int = 7
    lr: float = 3e-3
    weight_decay: float = 0.01
    batch: int = 64
    tokens_per_microbatch: int = 1400
    """Splits a batch into its short and its long solutions, so that little is padded."""
    rising_steps: int = 20
    falling_steps: int = 350
    floor: float = 0.2
    average: float = 0.95
    first_check: int = 100
    check_every: int = 20
    max_steps: int = 800
    stop_between: tuple[float, float] = (0.31, 0.37)

    def rate(self, step: int) -> float:
        """Learning rate of a step: up in a line, then down in one to its floor."""
        return self.lr * min((step + 1) / self.rising_steps, 1.0) * max(self.floor, 1 - step / self.falling_steps)


def pretrain(
    model: PreTrainedModel,
    draw: Callable[[random.Random, int], Sequence[SftExample]],
    accuracy: Callable[[PreTrainedModel], float],
    settings: PretrainingSettings,
    on_progress: Callable[[int, float], None] = lambda step, accuracy: None,
) -> tuple[PreTrainedModel, int, float]:
    """Train until the averaged model's sampled accuracy lies in `stop_between`; return (averaged model, steps, accuracy).

    `draw(rng, count)` gives a batch; `model` is used up. `on_progress` gets every step, with the accuracy as last measured. Where
    one interval between two checks jumps over the band, the phase goes back to its start and checks twice as often. Raises
    RuntimeError where the band is not reached.
    """
    low, high = settings.stop_between
    rng = random.Random(settings.seed)
    averaged = copy.deepcopy(model).eval().requires_grad_(False)
    policy = Policy(model, _config(settings))
    step, interval, reached = 0, settings.check_every, 0.0
    before = _keep(step, policy, averaged, rng)
    for _ in range(settings.max_steps // interval + 20):
        for _ in range(settings.first_check if step == 0 else interval):
            sft_step(policy, draw(rng, settings.batch), settings.rate(step))
            _average(averaged, policy, 1 - min(settings.average, (step + 1) / (step + 11)))
            step += 1
            on_progress(step, reached)
        reached = accuracy(averaged)
        if low <= reached <= high:
            return averaged, step, reached
        if reached > high:
            step = _put_back(before, policy, averaged, rng)
            interval = max(interval // 2, 1)
        else:
            before = _keep(step, policy, averaged, rng)
    raise RuntimeError(f"the pretraining did not reach an accuracy in [{low}, {high}] within {step} steps")


def _config(settings: PretrainingSettings) -> Any:
    flags = {
        "adapter.kind": "full", "optim.betas": (0.9, 0.95), "optim.weight_decay": settings.weight_decay,
        "optim.tokens_per_microbatch": settings.tokens_per_microbatch, "model.dtype": "float32",
    }  # fmt: skip
    return resolve((), flags)


@torch.no_grad()
def _average(averaged: PreTrainedModel, policy: Policy, progress: float) -> None:
    """Move the averaged weights towards the trained ones by this share of the way."""
    means = [mean for _, mean in averaged.named_parameters()]
    torch._foreach_lerp_(means, [parameter.detach() for parameter in policy.parameters], progress)


def _keep(step: int, policy: Policy, averaged: PreTrainedModel, rng: random.Random) -> tuple[Any, ...]:
    states = (policy.adapter.state(), averaged.state_dict(), policy.optimizer.state_dict())
    return step, copy.deepcopy(states), rng.getstate()


def _put_back(kept: tuple[Any, ...], policy: Policy, averaged: PreTrainedModel, rng: random.Random) -> int:
    step, (weights, means, moments), state = kept
    policy.adapter.load(weights, "what was kept")
    averaged.load_state_dict(means)
    policy.optimizer.load_state_dict(copy.deepcopy(moments))
    rng.setstate(state)
    return step
