"""Estimators apart from the sampling around them: pass@k, means and paired gains with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Z95 = 1.959963984540054


class Estimate(NamedTuple):
    mean: float
    ci95: tuple[float, float]

    def to_json(self) -> dict[str, float | list[float]]:
        return {"mean": self.mean, "ci95": list(self.ci95)}


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of k samples is right, unbiased, from n samples with c right: 1 - C(n-c, k) / C(n, k).

    Chen et al. 2021, eq. 1. Raises ValueError for k > n, where no unbiased estimate exists.
    """
    if not 1 <= k <= n or not 0 <= c <= n:
        raise ValueError(f"pass@{k} from {n} samples with {c} right")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mean_share(values: Sequence[float]) -> Estimate:
    """Mean of one value in [0, 1] a question, with a Wilson interval.

    Samples of one question are not independent, so the question is the unit: the interval is Wilson's for as many
    independent trials as would have this mean's standard error. Where every value is the same 0 or 1 the standard
    error says nothing, and the number of questions is taken.
    """
    count = len(values)
    if count == 0:
        raise ValueError("the mean of no values")
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / max(count - 1, 1) / count
    trials = mean * (1 - mean) / variance if variance > 0 else float(count)
    centre = (mean + Z95**2 / (2 * trials)) / (1 + Z95**2 / trials)
    half = Z95 / (1 + Z95**2 / trials) * math.sqrt(max(mean * (1 - mean), 0.0) / trials + Z95**2 / (4 * trials**2))
    return Estimate(mean, (max(centre - half, 0.0), min(centre + half, 1.0)))


def paired_gain(before: Mapping[str, float], after: Mapping[str, float]) -> Estimate | None:
    """Mean difference over the questions that both sides answered; None where there are none.

    The interval is Agresti and Min's (2005) for matched proportions: the normal one after half an observation of +1, half
    of -1 and one of 0 are added. Where both sides share their random numbers nearly all differences are 0, and the plain
    normal interval would take a handful of changed answers, or none at all, for certainty.
    """
    differences = [after[key] - before[key] for key in before if key in after]
    if not differences:
        return None
    count = len(differences) + 2
    total = math.fsum(differences)
    centre = total / count
    variance = (math.fsum(d * d for d in differences) + 1) / count - centre**2
    half = Z95 * math.sqrt(variance / count)
    return Estimate(total / len(differences), (max(centre - half, -1.0), min(centre + half, 1.0)))
