"""From a group's rewards to advantages, and which groups are worth keeping. Pure functions."""

from __future__ import annotations

import torch

from microrl.types import Group

STD_FLOOR = 1e-4


def advantages(rewards_PG: torch.Tensor, *, scale_by_std: bool) -> torch.Tensor:
    """(R - mean) / (std + 1e-4) within each row, or R - mean (Dr. GRPO).

    The standard deviation is the unbiased one, as the incumbents take it; DeepSeekMath (eq. 21 there) leaves this open.
    Shapes: [prompts, group] in and out. A row of equal rewards gives exactly 0, and so does a row of one.
    """
    centred_PG = rewards_PG - rewards_PG.mean(dim=1, keepdim=True)
    all_equal_P1 = (rewards_PG == rewards_PG[:, :1]).all(dim=1, keepdim=True)
    # The mean of equal floats can be off by one rounding, and dividing by 1e-4 would blow that up.
    centred_PG = centred_PG.masked_fill(all_equal_P1, 0.0)
    if not scale_by_std:
        return centred_PG
    freedom = min(1, rewards_PG.shape[1] - 1)  # a single reward has no unbiased deviation
    return centred_PG / (rewards_PG.std(dim=1, keepdim=True, correction=freedom) + STD_FLOOR)


def has_mixed_accuracy(group: Group) -> bool:
    """DAPO's filter (dynamic sampling): some completions are right and some are not."""
    return len({score.accuracy for score in group.scores}) > 1
