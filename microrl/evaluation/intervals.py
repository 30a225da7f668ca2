"""95 % intervals of means and paired gains over questions, and a permutation test.

Samples of one question are not independent, so the question is the unit. Both intervals are quantiles of the Bayesian bootstrap
(Rubin 1981): the questions' values are weighted by Dirichlet(1, ..., 1). For the lower end an imagined value below all others
gets a weight too, and for the upper end one above. With weight 1 and the imagined values at 0 and 1 this is Gaffke's interval
(2005; Learned-Miller and Thomas 2019, arXiv:1905.06208), which for zeros and ones is Clopper and Pearson's and which held
for every bounded distribution that anyone has tried. It is too wide where values lie close together, so here the weight is
smaller, and the imagined value lies no further out than the values' spread makes likely. The weighted mean's distribution is
replaced by the beta distribution with its mean and variance (for zeros and ones it is that distribution).

Arrays have one entry a repetition (R), so that simulations run at numpy's speed; `mean_share` and `paired_gain` have R = 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray
TAIL = 0.025
EXACT = 16
"""Most non-zero differences whose sign patterns are all tried."""
FLIPS = 20_000
"""Random sign patterns where there are more."""


class Estimate(NamedTuple):
    mean: float
    ci95: tuple[float, float]

    def to_json(self) -> dict[str, float | list[float]]:
        return {"mean": self.mean, "ci95": list(self.ci95)}


def mean_share(values: Sequence[float], *, samples: int, k: int = 1) -> Estimate:
    """Mean of one value in [0, 1] a question and its interval. `k` is that of pass@k; 1 stands for avg@samples.

    Coverage of the mean over the population that the questions were drawn from, simulated with 30, 64 and 500 questions, 8 to
    32 samples, k up to 16, and beta-distributed success rates (`tests/test_estimators.py`): 94.7 to 97.2 % where the truth is
    between 0.1 and 0.9, and 95.3 to 99.7 % beyond. Exceptions: 97.5 % at 30 questions where nearly all have one success rate
    above 0.8 or below 0.2 (98 to 99 %) and at 10 questions (94 to 99.5 %); 93.5 % at 30 questions where one in twenty differs
    from all others by much and may be missing from the sample (82 %). For a fixed set of questions the interval is too wide: it
    includes the choice of the questions.
    Raises ValueError for no values, and for values outside [0, 1].
    """
    import numpy as np

    if not values:
        raise ValueError("the mean of no values")
    if not all(0 <= value <= 1 for value in values):
        raise ValueError("shares outside [0, 1]")
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
    low, high = share_bounds(np.array([mean]), np.array([variance]), count=len(values), samples=samples, k=k)
    return Estimate(mean, (float(low[0]), float(high[0])))


def share_bounds(mean_R: Floats, variance_R: Floats, *, count: int, samples: int, k: int = 1) -> tuple[Floats, Floats]:
    """Ends of the intervals of means of `count` values in [0, 1], from their means and variances (divided by `count`).

    The imagined value has the weight (1 + k / samples) / 2. Single samples, and pass@k of k samples, are zeros and ones: then the
    interval is Clopper and Pearson's. The finer the values, the less has to be added.
    """
    import numpy as np

    weight = (1 + k / samples) / 2

    def low(mean_R: Floats) -> Floats:
        centre_R = (count * mean_R + 0.5) / (count + 1)
        spread_R = np.sqrt(variance_R + 1.1 * centre_R * (1 - centre_R) / count)
        # Standard deviations are divided by 1 - mean: near the ceiling failures are rare and deep. Zeros and ones give 0.
        imagined_R = np.maximum(mean_R - 0.7 * spread_R / (1 - centre_R), 0.0)
        bound_R = _low_quantile(mean_R, variance_R, imagined_R, count=count, weight=weight)
        return np.where(mean_R > 0, np.clip(bound_R, 0.0, mean_R), 0.0)

    return low(mean_R), 1 - low(1 - mean_R)


def paired_gain(before: Mapping[str, float], after: Mapping[str, float], *, samples: int, k: int = 1) -> Estimate | None:
    """Mean difference over the questions that both sides answered, and its interval; None where there are none.

    Coverage in the same simulations, for a gain of two fifths of p (1 - p): 94.7 to 97.2 % off the ceiling, 94.7 % or more
    at it.
    The width is at most 1.1 times the plain t interval's where enough questions differ. Where the success rates of 30 questions
    are nearly all 0 or 1, few of them do: pass@16 of 32 samples then takes 1.35 times the width. At the ceiling it is several
    times as wide, since the t interval of hardly any change covers as little as 1 %. A few questions in twenty that leap while
    the others stand still are beyond any interval of this width: at 30 questions it may cover 70 %.
    """
    import numpy as np

    differences = [after[key] - before[key] for key in before if key in after]
    if not differences:
        return None
    count = len(differences)
    moments = (math.fsum(abs(d) ** power for d in differences) / count for power in (1, 2))
    mean = math.fsum(differences) / count
    low, high = gain_bounds(np.array([mean]), *(np.array([moment]) for moment in moments), count=count, samples=samples, k=k)
    return Estimate(mean, (float(low[0]), float(high[0])))


def gain_bounds(
    mean_R: Floats, absolute_R: Floats, square_R: Floats, *, count: int, samples: int, k: int = 1
) -> tuple[Floats, Floats]:
    """Ends of the intervals of mean differences, from the means of the differences, their absolute values and their squares.

    The imagined difference has the weight 1/2 and lies two standard deviations out, and further where few questions differ,
    which says little about the spread: the number that counts is (sum of |d|)^2 / (sum of d^2), n for equal differences.
    0.85 n^(1/2) of them are few: 5 of 30, 19 of 500. The variance includes one difference of the smallest size that can be
    seen, k / samples.
    """
    import numpy as np

    variance_R = np.maximum(square_R - mean_R**2, 0.0)
    spread_R = np.sqrt(variance_R + (k / samples) ** 2 / count)
    telling_R = np.maximum(count * absolute_R**2 / np.maximum(square_R, 1e-300), 1e-3)
    reach_R = (2 + (0.85 * count**0.5 / telling_R) ** 4) * spread_R

    def low(mean_R: Floats) -> Floats:
        imagined_R = np.maximum(mean_R - reach_R, -1.0)
        halves = ((mean_R + 1) / 2, variance_R / 4, (imagined_R + 1) / 2)  # differences as shares
        return np.clip(2 * _low_quantile(*halves, count=count, weight=0.5) - 1, -1.0, mean_R)

    return low(mean_R), -low(-mean_R)


def _low_quantile(mean_R: Floats, variance_R: Floats, imagined_R: Floats, *, count: int, weight: float) -> Floats:
    """2.5 % quantile of the Dirichlet-weighted mean of values in [0, 1] and an imagined one, by the beta with its moments."""
    import numpy as np
    from scipy import special

    total = count + weight
    centre_R = np.clip((count * mean_R + weight * imagined_R) / total, 1e-12, 1 - 1e-12)
    scatter_R = (count * (variance_R + (mean_R - centre_R) ** 2) + weight * (imagined_R - centre_R) ** 2) / total
    # A beta's variance is mean * (1 - mean) / (trials + 1).
    trials_R = np.maximum(centre_R * (1 - centre_R) * (total + 1) / np.maximum(scatter_R, 1e-18) - 1, 1e-6)
    return np.asarray(special.betaincinv(centre_R * trials_R, (1 - centre_R) * trials_R, TAIL))


def permutation_p(before: Mapping[str, float], after: Mapping[str, float]) -> float | None:
    """Two-sided p-value of "no difference" for paired questions, by flipping the differences' signs; None without pairs.

    Exact for at most 16 questions that differ; otherwise (b + 1) / (m + 1) for m random sign patterns from a fixed seed, of
    which b give at least the observed difference (Phipson and Smyth 2010).
    """
    import numpy as np

    shared = [after[key] - before[key] for key in before if key in after]
    if not shared:
        return None
    differences = np.array([d for d in shared if d != 0])
    count = len(differences)
    limit = abs(math.fsum(differences)) - 1e-9  # sums that differ by rounding are equal
    if count <= EXACT:
        signs = 1 - 2 * (np.arange(2**count)[:, None] >> np.arange(count) & 1)
        return float(np.mean(np.abs(signs @ differences) >= limit))
    draw = np.random.default_rng(0)
    hits = 0
    for _ in range(FLIPS // 1000):
        hits += int(np.sum(np.abs(draw.choice((-1.0, 1.0), (1000, count)) @ differences) >= limit))
    return (hits + 1) / (FLIPS + 1)
