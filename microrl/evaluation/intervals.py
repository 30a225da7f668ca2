"""95 % intervals of means and paired gains over questions.

Samples of one question are not independent, so the question is the unit; where questions come in clusters, the cluster is. Both
intervals are quantiles of the Bayesian bootstrap (Rubin 1981): the questions' values are weighted by Dirichlet(1, ..., 1). For
the lower end an imagined value below all others gets a weight too, and for the upper end one above. With weight 1 and the
imagined values at 0 and 1 this is Gaffke's interval (2005; Learned-Miller and Thomas 2019, arXiv:1905.06208), which for zeros
and ones is Clopper and Pearson's and which held for every bounded distribution that anyone has tried. It is too wide where
values lie close together, so here the weight is smaller, and the imagined value lies no further out than the values' spread
makes likely. The weighted mean's distribution is replaced by the beta distribution with its mean and variance (for zeros and
ones it is that distribution).

The mean stays that over questions. Its variance over clusters is the delete-one-cluster jackknife's, which for clusters of one
question is the usual one, and they count as (sum of n)^2 / (sum of n^2) of equal size n.

Arrays have one entry a repetition (R), so that simulations run at numpy's speed; `mean_share` and `paired_gain` have R = 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pydantic import FiniteFloat

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray
TAIL = 0.025
"""Probability beyond either end of a 95 % interval."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its 95 % interval; finite where it is read from a file."""

    mean: FiniteFloat
    ci95: tuple[FiniteFloat, FiniteFloat]

    def to_json(self) -> dict[str, float | list[float]]:
        return {"mean": self.mean, "ci95": list(self.ci95)}

    def text(self, form: str, factor: float = 1.0, unit: str = "") -> str:
        """As `0.3 [0.1, 0.5]`, each number times `factor` and in this form."""
        mean, low, high = (format(factor * value, form) for value in (self.mean, *self.ci95))
        return f"{mean}{unit} [{low}, {high}]"

    def points(self) -> str:
        """Of a difference in accuracy, in per cent."""
        return self.text("+.1f", 100, " points")


class Spread(NamedTuple):
    """How values scatter: their number, variance (divided by the number), and the means of absolute values and squares.

    Of clusters, `number` is the equivalent number of equal size, and the rest are those of the clusters' means. `crowding` is the
    fraction of the questions that counts for nothing, 1 - number / questions: 0 without clusters.
    """

    number: float
    variance: float
    absolute: float
    square: float
    crowding: float = 0.0


def spread(values: Sequence[float], clusters: Sequence[Hashable] | None = None) -> Spread:
    """The spread of one value a question. `clusters` says of each question to which cluster it belongs; None: each to its own.

    Raises ValueError for no values.
    """
    if not values:
        raise ValueError("the mean of no values")
    count = len(values)
    mean = math.fsum(values) / count
    sizes = Counter(range(count) if clusters is None else clusters)
    if len(sizes) == count:
        variance = math.fsum((value - mean) ** 2 for value in values) / count
        absolute, square = (math.fsum(abs(value) ** power for value in values) / count for power in (1, 2))
        return Spread(count, variance, absolute, square)
    assert clusters is not None
    if len(sizes) == 1:  # one cluster says nothing about others
        return Spread(1, math.inf, abs(mean), math.inf, 1 - 1 / count)
    sums: dict[Hashable, float] = dict.fromkeys(sizes, 0.0)
    for value, cluster in zip(values, clusters, strict=True):
        sums[cluster] += value
    squares = sum(size * size for size in sizes.values())
    equivalent = count * count / squares
    # Without a cluster, the mean differs by its residual over the number of the other questions.
    left_out = math.fsum(((sums[one] - size * mean) / (count - size)) ** 2 for one, size in sizes.items())
    variance = (len(sizes) - 1) / len(sizes) * left_out * (equivalent - 1)
    absolute = math.fsum(abs(sums[one]) * size for one, size in sizes.items()) / squares
    return Spread(equivalent, variance, absolute, variance + mean**2, 1 - equivalent / count)


def mean_share(values: Sequence[float], *, samples: int, k: int = 1, clusters: Sequence[Hashable] | None = None) -> Estimate:
    """Mean of one value in [0, 1] a question and its interval. `k` is that of pass@k; 1 stands for avg@samples.
    `clusters` as for `spread`.

    Coverage of the mean over the population that the questions were drawn from, simulated with 30, 64 and 500 questions, 8 to
    32 samples, k up to 16, and beta-distributed success rates (`tests/evaluation/test_estimators.py`): 94.7 to 97.2 % where the
    truth is between 0.1 and 0.9, and 95.3 to 99.7 % beyond. Exceptions: 97.5 % at 30 questions where nearly all have one
    success rate above 0.8 or below 0.2 (98 to 99 %) and at 10 questions (94 to 99.5 %); 93.5 % at 30 questions where one in
    twenty differs from all others by much and may be missing from the sample (82 %). For a fixed set of questions the interval
    is too wide: it includes the choice of the questions.
    Of 8 to 32 clusters that are alike within, of 2, 4 or unequal numbers of questions: 95 to 100 %; as if they were independent,
    as little as 13 %.
    Raises ValueError for no values, and for values outside [0, 1].
    """
    import numpy as np

    if not all(0 <= value <= 1 for value in values):
        raise ValueError("shares outside [0, 1]")
    value_spread = spread(values, clusters)
    mean = math.fsum(values) / len(values)
    if math.isinf(value_spread.variance):
        return Estimate(mean, (0.0, 1.0))
    moments = np.array([mean]), np.array([value_spread.variance])
    low, high = share_bounds(*moments, count=value_spread.number, samples=samples, k=k, crowding=value_spread.crowding)
    return Estimate(mean, (float(low[0]), float(high[0])))


def share_bounds(
    mean_R: Floats, variance_R: Floats, *, count: float, samples: int, k: int = 1, crowding: float = 0.0
) -> tuple[Floats, Floats]:
    """Ends of the intervals of means of `count` values in [0, 1], from their means and variances (divided by `count`).

    The imagined value has the weight (1 + k / samples) / 2. Single samples, and pass@k of k samples, are zeros and ones: then the
    interval is Clopper and Pearson's. The finer the values, the less has to be added; at a `crowding` of 1/2, never less than
    3/4, since clusters of unequal sizes are worth less than their number.
    """
    import numpy as np

    weight = (1 + max(k / samples, min(crowding, 0.5))) / 2

    def low(mean_R: Floats) -> Floats:
        centre_R = (count * mean_R + 0.5) / (count + 1)
        spread_R = np.sqrt(variance_R + 1.1 * centre_R * (1 - centre_R) / count)
        # Standard deviations are divided by 1 - mean: near the ceiling failures are rare and deep. Zeros and ones give 0.
        imagined_R = np.maximum(mean_R - 0.7 * spread_R / (1 - centre_R), 0.0)
        bound_R = _low_quantile(mean_R, variance_R, imagined_R, count=count, weight=weight)
        return np.where(mean_R > 0, np.clip(bound_R, 0.0, mean_R), 0.0)

    return low(mean_R), 1 - low(1 - mean_R)


def paired_gain(
    before: Mapping[str, float],
    after: Mapping[str, float],
    *,
    samples: int,
    k: int = 1,
    clusters: Mapping[str, str] | None = None,
) -> Estimate | None:
    """Mean difference over the questions that both sides answered, and its interval; None where there are none. `clusters` has
    the clusters of questions that are not independent of others.

    Coverage in the same simulations, for a gain of two fifths of p (1 - p): 94.7 to 97.2 % off the ceiling, 94.7 % or more
    at it.
    The width is at most 1.1 times the plain t interval's where enough questions differ. Where the success rates of 30 questions
    are nearly all 0 or 1, few of them do: pass@16 of 32 samples then takes 1.35 times the width. At the ceiling it is several
    times as wide, since the t interval of hardly any change covers as little as 1 %. A few questions in twenty that leap while
    the others stand still are beyond any interval of this width: at 30 questions it may cover 70 %.
    """
    shared = [question for question in before if question in after]
    if not shared:
        return None
    differences = [after[question] - before[question] for question in shared]
    return gain_interval(differences, named(shared, clusters), samples=samples, k=k)(TAIL)


def named(questions: Sequence[str], clusters: Mapping[str, str] | None) -> list[Hashable] | None:
    """The cluster of each question, for `spread`, where any two share one; what `clusters` does not name is one of its own."""
    labels: list[Hashable] = [(clusters or {}).get(question, (question,)) for question in questions]
    return labels if len(set(labels)) < len(labels) else None


def gain_interval(
    differences: Sequence[float], clusters: Sequence[Hashable] | None, *, samples: int, k: int
) -> Callable[[float], Estimate]:
    """The mean difference with its interval, by the probability beyond either end."""
    import numpy as np

    difference_spread = spread(differences, clusters)
    mean = math.fsum(differences) / len(differences)
    moments = [np.array([moment]) for moment in (mean, difference_spread.absolute, difference_spread.square)]

    def at(tail: float) -> Estimate:
        if math.isinf(difference_spread.variance):
            return Estimate(mean, (-1.0, 1.0))
        low, high = gain_bounds(
            *moments, count=difference_spread.number, samples=samples, k=k, crowding=difference_spread.crowding, tail=tail
        )
        return Estimate(mean, (float(low[0]), float(high[0])))

    return at


def gain_bounds(
    mean_R: Floats,
    absolute_R: Floats,
    square_R: Floats,
    *,
    count: float,
    samples: int,
    k: int = 1,
    crowding: float = 0.0,
    tail: float = TAIL,
) -> tuple[Floats, Floats]:
    """Ends of the intervals of mean differences, from the means of the differences, their absolute values and their squares.

    The imagined difference has the weight 1/2 and lies two standard deviations out, and further where few questions differ,
    which says little about the spread: the number that counts is (sum of |d|)^2 / (sum of d^2), n for equal differences.
    0.85 n^(1/2) of them are few: 5 of 30, 19 of 500. The variance includes one difference of the smallest size that can be
    seen, k / samples. Clusters are few, and their means hide less of a skewed spread behind the noise of samples: at a `crowding`
    of 1/2 the weight is 1, and the distance three standard deviations.
    """
    import numpy as np

    doubt = min(2 * crowding, 1.0)
    variance_R = np.maximum(square_R - mean_R**2, 0.0)
    spread_R = np.sqrt(variance_R + (k / samples) ** 2 / count)
    telling_R = np.maximum(count * absolute_R**2 / np.maximum(square_R, 1e-300), 1e-3)
    reach_R = (2 + doubt + (0.85 * count**0.5 / telling_R) ** 4) * spread_R

    def low(mean_R: Floats) -> Floats:
        imagined_R = np.maximum(mean_R - reach_R, -1.0)
        halves = ((mean_R + 1) / 2, variance_R / 4, (imagined_R + 1) / 2)  # differences as shares
        bound_R = _low_quantile(*halves, count=count, weight=(1 + doubt) / 2, tail=tail)
        return np.clip(2 * bound_R - 1, -1.0, mean_R)

    return low(mean_R), -low(-mean_R)


def _low_quantile(
    mean_R: Floats, variance_R: Floats, imagined_R: Floats, *, count: float, weight: float, tail: float = TAIL
) -> Floats:
    """Quantile of the Dirichlet-weighted mean of values in [0, 1] and an imagined one, by the beta with its moments."""
    import numpy as np
    from scipy import special

    total = count + weight
    centre_R = np.clip((count * mean_R + weight * imagined_R) / total, 1e-12, 1 - 1e-12)
    scatter_R = (count * (variance_R + (mean_R - centre_R) ** 2) + weight * (imagined_R - centre_R) ** 2) / total
    # A beta's variance is mean * (1 - mean) / (trials + 1).
    trials_R = np.maximum(centre_R * (1 - centre_R) * (total + 1) / np.maximum(scatter_R, 1e-18) - 1, 1e-6)
    return np.asarray(special.betaincinv(centre_R * trials_R, (1 - centre_R) * trials_R, tail))
