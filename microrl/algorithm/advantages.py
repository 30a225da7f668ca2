"""From a group's rewards to advantages. Pure functions."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from microrl.types import Group

STD_FLOOR = 1e-4


def advantages(rewards_PG: torch.Tensor, *, scale_by_std: bool, counts_PG: torch.Tensor | None = None) -> torch.Tensor:
    """(R - mean) / (std + 1e-4) within each row, or R - mean (Dr. GRPO).

    The standard deviation is the unbiased one, as the incumbents take it; DeepSeekMath (eq. 21 there) leaves this open.
    Shapes: [prompts, group] in and out. A row of equal rewards gives exactly 0, and so does a row of one.
    `counts_PG` is False for completions that are left out: their advantage is 0, and mean and deviation are those of the others.
    """
    if counts_PG is not None and not counts_PG.all():
        return _of_those_that_count(rewards_PG, counts_PG, scale_by_std=scale_by_std)
    centred_PG = rewards_PG - rewards_PG.mean(dim=1, keepdim=True)
    all_equal_P1 = (rewards_PG == rewards_PG[:, :1]).all(dim=1, keepdim=True)
    # The mean of equal floats can be off by one rounding, and dividing by 1e-4 would blow that up.
    centred_PG = centred_PG.masked_fill(all_equal_P1, 0.0)
    if not scale_by_std:
        return centred_PG
    freedom = min(1, rewards_PG.shape[1] - 1)  # a single reward has no unbiased deviation
    return centred_PG / (rewards_PG.std(dim=1, keepdim=True, correction=freedom) + STD_FLOOR)


def _of_those_that_count(rewards_PG: torch.Tensor, counts_PG: torch.Tensor, *, scale_by_std: bool) -> torch.Tensor:
    """Row by row, as if the others had not been sampled. A row of which fewer than two are left gives 0."""
    advantages_PG = torch.zeros_like(rewards_PG)
    for rewards_G, counts_G, advantages_G in zip(rewards_PG, counts_PG, advantages_PG, strict=True):
        if counts_G.any():
            advantages_G[counts_G] = advantages(rewards_G[counts_G][None], scale_by_std=scale_by_std)[0]
    return advantages_PG


def gdpo_advantages(parts_KPG: torch.Tensor, weights: Sequence[float], *, counts_PG: torch.Tensor | None = None) -> torch.Tensor:
    """GDPO (Liu et al. 2026, arXiv 2601.05242): each part of the reward is normalised within its group, then their sum.

    A_k = (r_k - mean(r_k)) / (std(r_k) + 1e-4) within each row (eq. 4), A = sum_k w_k A_k (eq. 5, with the weights of its section
    on priorities), and A / (std over the batch of A + 1e-4) (eq. 6). Eq. 6 also subtracts the batch's mean, which is 0: that of
    each row is. Not subtracting it keeps rows whose parts are all equal at exactly 0.
    Shapes: [parts, prompts, group] in, [prompts, group] out; `counts_PG` as in `advantages`. Deviations are unbiased.
    """
    total_PG = torch.zeros_like(parts_KPG[0])
    for weight, part_PG in zip(weights, parts_KPG, strict=True):
        total_PG = total_PG + weight * advantages(part_PG, scale_by_std=True, counts_PG=counts_PG)
    counted_N = total_PG.flatten() if counts_PG is None else total_PG[counts_PG]
    if counted_N.numel() < 2:
        return total_PG
    return total_PG / (counted_N.std() + STD_FLOOR)


def of_groups(groups: Sequence[Group], *, scale_by_std: bool, weights: Mapping[str, float] | None = None) -> list[list[float]]:
    """The advantage of every completion, group by group; 0 for those whose score does not count.

    `weights`: those of the parts of the reward, to normalise the parts apart (GDPO); None: their sums are normalised.
    Every group has the same number of completions.
    """
    counts_PG = torch.tensor([[score.is_valid for score in group.scores] for group in groups])
    if weights is None:
        rewards_PG = torch.tensor([[score.total for score in group.scores] for group in groups], dtype=torch.float64)
        return advantages(rewards_PG, scale_by_std=scale_by_std, counts_PG=counts_PG).tolist()
    parts = {name: weight for name, weight in weights.items() if weight}
    # A part without a weight may be missing where the completion counts; one with a weight may not.
    parts_KPG = torch.tensor(
        [[[score.part(name) or 0.0 for score in group.scores] for group in groups] for name in parts] or [counts_PG.tolist()],
        dtype=torch.float64,
    )
    return gdpo_advantages(parts_KPG, [*parts.values()] or [0.0], counts_PG=counts_PG).tolist()


def shuffled(groups: Sequence[Group], seed: str) -> list[Group]:
    """The groups, each with its scores in a random order: the same rewards, which say nothing about the completions any more."""
    draw = random.Random(seed)
    return [replace(group, scores=tuple(draw.sample(group.scores, len(group.scores)))) for group in groups]
