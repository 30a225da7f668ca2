"""MaxRL (Tajwar et al. 2026, arXiv 2602.02710, algorithm 1) follows the gradient of the logarithm of the pass rate, as far as
a group's number of completions allows, where others follow that of the pass rate: a right answer counts more the rarer it is."""

from __future__ import annotations

from collections.abc import Sequence

from microrl.algorithm import dapo
from microrl.algorithm.advantages import of_groups
from microrl.types import Group

MIN_MEAN = 1e-6
"""Rewards that cancel out have a mean of about 1e-17 by rounding, and would be divided by it."""


class Algorithm(dapo.Algorithm):
    def advantages(self, groups: Sequence[Group]) -> list[list[float]]:
        """(R - mean) / mean within each group; 0 where the mean is not above 0, as where no answer is right."""
        centred_PG = of_groups(groups, scale_by_std=False)
        return [_divided(centred_G, group) for centred_G, group in zip(centred_PG, groups, strict=True)]


def _divided(centred_G: list[float], group: Group) -> list[float]:
    rewards = [score.total for score in group.scores if score.is_valid]
    mean = sum(rewards) / max(len(rewards), 1)
    return [centred / mean if mean > MIN_MEAN else 0.0 for centred in centred_G]
