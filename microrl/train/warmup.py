"""A short supervised phase on correct solutions, which stops as soon as the model is right some of the time."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

IGNORED = -100


@dataclass(frozen=True, slots=True)
class WarmupSettings:
    """Full-parameter AdamW with a falling rate. What is measured and kept is a moving average of the weights."""

    seed: int = 7
    lr: float = 3e-3
    weight_decay: float = 0.01
    batch: int = 64
    rising_steps: int = 20
    falling_steps: int = 350
    floor: float = 0.2
    average: float = 0.95
    first_check: int = 100
    check_every: int = 20
    most_steps: int = 800
    stop_between: tuple[float, float] = (0.31, 0.37)


Example = tuple[Sequence[int], Sequence[int]]
"""Token ids of a prompt and of its solution, end of sequence included."""


def warm_up(
    model: PreTrainedModel,
    draw: Callable[[random.Random, int], list[list[Example]]],
    accuracy: Callable[[PreTrainedModel], float],
    settings: WarmupSettings,
    on_progress: Callable[[int, float | None], None] = lambda step, accuracy: None,
) -> tuple[int, float]:
    """Train `model` until its sampled accuracy lies in `stop_between`; return (steps, accuracy).

    `draw(rng, count)` gives a batch as lists of examples, each list padded together. Where one interval between two
    checks jumps over the band, the phase goes back to its start and checks twice as often. Raises RuntimeError where
    the band is not reached.
    """
    low, high = settings.stop_between
    rng = random.Random(settings.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, betas=(0.9, 0.95), weight_decay=settings.weight_decay)
    averaged = copy.deepcopy(model).eval()
    step, interval = 0, settings.check_every
    before = _keep(step, model, averaged, optimizer, rng)
    for _ in range(settings.most_steps // interval + 20):
        for _ in range(settings.first_check if step == 0 else interval):
            _step(model, averaged, optimizer, draw(rng, settings.batch), step, settings)
            step += 1
        reached = accuracy(averaged)
        on_progress(step, reached)
        if low <= reached <= high:
            model.load_state_dict(averaged.state_dict())
            return step, reached
        if reached > high:
            step = _put_back(before, model, averaged, optimizer, rng)
            interval = max(interval // 2, 1)
        else:
            before = _keep(step, model, averaged, optimizer, rng)
    raise RuntimeError(f"the warm start did not reach an accuracy in [{low}, {high}] within {step} steps")


def _step(
    model: PreTrainedModel,
    averaged: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    lists: list[list[Example]],
    step: int,
    settings: WarmupSettings,
) -> None:
    rising = min((step + 1) / settings.rising_steps, 1.0)
    for group in optimizer.param_groups:
        group["lr"] = settings.lr * rising * max(settings.floor, 1 - step / settings.falling_steps)
    tokens = sum(len(solution) for examples in lists for _, solution in examples)
    optimizer.zero_grad()
    for examples in lists:
        ids_BL, labels_BL = _pad(examples)
        # Padding stands on the right, where causal attention does not look: no mask is needed.
        logits_BLV = model(input_ids=ids_BL, use_cache=False).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(
            logits_BLV.flatten(0, 1), labels_BL[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
        )
        (loss / tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    share = 1 - min(settings.average, (step + 1) / (step + 11))
    with torch.no_grad():
        for mean, parameter in zip(averaged.parameters(), model.parameters(), strict=True):
            mean.lerp_(parameter, share)


def _pad(examples: list[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, labels), [B, L] each: right-padded, with labels on the solutions only."""
    width = max(len(prompt) + len(solution) for prompt, solution in examples)
    ids_BL = torch.zeros(len(examples), width, dtype=torch.long)
    labels_BL = torch.full((len(examples), width), IGNORED)
    for row, (prompt, solution) in enumerate(examples):
        end = len(prompt) + len(solution)
        ids_BL[row, :end] = torch.tensor([*prompt, *solution])
        labels_BL[row, len(prompt) : end] = torch.tensor([*solution])
    return ids_BL, labels_BL


def _keep(step: int, model: Any, averaged: Any, optimizer: Any, rng: random.Random) -> tuple[Any, ...]:
    states = (model.state_dict(), averaged.state_dict(), optimizer.state_dict())
    return step, copy.deepcopy(states), rng.getstate()


def _put_back(kept: tuple[Any, ...], model: Any, averaged: Any, optimizer: Any, rng: random.Random) -> int:
    step, (weights, means, moments), state = kept
    model.load_state_dict(weights)
    averaged.load_state_dict(means)
    optimizer.load_state_dict(copy.deepcopy(moments))
    rng.setstate(state)
    return step
