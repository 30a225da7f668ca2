"""Means and gains over several runs of one configuration: both the seeds and the questions are samples. And of what has no
questions, the mean and deviation over seeds alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from microrl.evaluation.intervals import TAIL, Estimate, gain_interval, mean_share, named, spread
from microrl.evaluation.result import Result
from microrl.evaluation.result import clusters as clusters_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

Run = Mapping[str, float]
"""A run's value by question."""
Interval = Callable[[float], Estimate]
"""An estimate with its interval, by the probability beyond either end of it."""
SMALLEST = 1e-9
"""p-values below this are not told apart."""


def hierarchical(runs: Sequence[Run], *, samples: int, k: int = 1, clusters: Mapping[str, str] | None = None) -> Estimate | None:
    """Mean over runs and over the questions that all of them answered, with its interval; None where there are none.

    The variance has two parts: what the seeds' means vary, and what the questions' means vary beyond the scatter that is in the
    seeds' means already (two-way random effects). Each part has its own t quantile, weighted by the parts (Cochran and Cox 1957):
    with 2 to 5 runs Satterthwaite's degrees of freedom cover only 88 to 96 %, and this covers 94 to 98 % (30 to 500 questions,
    8 samples, deviations between seeds of 0 to 1 logits; the 94 is at 2 seeds that differ by much). It is never
    narrower than the interval of the questions' means. `samples` and `k` are a single run's, `clusters` as for `paired_gain`.
    """
    shared = _shared(runs)
    if not shared:
        return None
    labels = named(shared, clusters)
    table_SQ = _table(runs, shared)
    means = table_SQ.mean(axis=0)
    within = mean_share(means.clip(0, 1).tolist(), samples=samples * len(runs), k=k, clusters=labels)
    parts = _parts(questions_part(means, labels), _of_seeds([table_SQ], labels), TAIL)
    total = sum(variance for variance, _ in parts)
    half = sum(variance * quantile for variance, quantile in parts) / math.sqrt(total) if total else 0.0
    return _widened(within, half, bounds=(0.0, 1.0))


def hierarchical_gain(
    before: Sequence[Run],
    after: Sequence[Run],
    *,
    samples: int,
    k: int = 1,
    clusters: Mapping[str, str] | None = None,
    is_fixed: bool = False,
) -> Interval | None:
    """Gain between two groups of runs, which need not have the same seeds or size; as `hierarchical`, paired by question. None
    without questions in common.

    `is_fixed`: `before` is one set of weights with no seeds of its own, as an untouched model's. Otherwise a group of one run is
    taken to vary between seeds as much as the other group. Between single runs the gain is of these weights alone.

    The squared half width is the sum of the parts of the variance, each times the square of its t quantile, which covers what it
    says whatever the parts are (Banerjee 1960). Groups of equal size are one part with Welch's degrees of freedom; of others, the
    smaller may vary more and by chance not look like it. `tests/evaluation/test_estimators.py` has the coverage.
    """
    shared = _shared([*before, *after])
    if not shared:
        return None
    labels = named(shared, clusters)
    tables = [_table(group, shared) for group in (before, after)]
    differences_Q = tables[1].mean(axis=0) - tables[0].mean(axis=0)
    within = gain_interval(differences_Q.tolist(), labels, samples=samples * min(len(before), len(after)), k=k)
    of_seeds = _of_seeds(tables[1:] if is_fixed else tables, labels)
    of_questions = questions_part(differences_Q, labels)

    def interval(tail: float) -> Estimate:
        squared = sum(variance * quantile**2 for variance, quantile in _parts(of_questions, of_seeds, tail))
        return _widened(within(tail), math.sqrt(squared), bounds=(-1.0, 1.0))

    return interval


def accuracy_of(results: Sequence[Result], k: int | None = None) -> Estimate | None:
    """`hierarchical` of the accuracy, or of pass@k, of evaluated runs."""
    values = [one.by_question(k) for one in results]
    return hierarchical(values, samples=results[0].samples, k=k or 1, clusters=clusters_of(results))


def difference(
    before: Sequence[Result], after: Sequence[Result], k: int | None = None, *, is_fixed: bool = False
) -> tuple[Estimate, float] | None:
    """`hierarchical_gain` of the accuracy, or of pass@k, and its `p_value`, between two groups of evaluated runs."""
    sides = [[one.by_question(k) for one in group] for group in (before, after)]
    clusters = clusters_of([*before, *after])
    interval = hierarchical_gain(sides[0], sides[1], samples=after[0].samples, k=k or 1, clusters=clusters, is_fixed=is_fixed)
    return None if interval is None else (interval(TAIL), p_value(interval))


def p_value(interval: Interval) -> float:
    """Two-sided p-value of "no gain": 1 minus the highest level at which the interval leaves out 0. At least 1e-9.

    It is below 0.05 exactly where the 95 % interval leaves out 0, and claims what the interval does.
    """

    def leaves_out_0(log_tail: float) -> bool:
        low, high = interval(math.exp(log_tail)).ci95
        return low > 0 or high < 0

    low, high, middle = math.log(SMALLEST / 2), math.log(0.5), math.log(TAIL)
    if leaves_out_0(low):
        return SMALLEST
    if not leaves_out_0(high):
        return 1.0
    for _ in range(40):
        low, high = (low, middle) if leaves_out_0(middle) else (middle, high)
        middle = (low + high) / 2
    return 2 * math.exp(middle)


def holm(p_values: Sequence[float | None], family: int | None = None) -> list[float | None]:
    """These p-values adjusted for their number (Holm 1979): that one of equal methods is told from another by an adjusted one
    below 0.05 happens in at most 5 % of families. `family`: number of comparisons that these were chosen from, if more."""
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    left, last = max(family or 0, len(known)), 0.0
    for rank, (p, index) in enumerate(known):
        adjusted[index] = last = max(last, min((left - rank) * p, 1.0))
    return adjusted


@dataclass(frozen=True, slots=True)
class OverSeeds:
    """The mean over seeds, and the standard deviation; None with one seed."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float | None]) -> OverSeeds | None:
        """None if a seed has no value."""
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return None
        return cls(fmean(known), stdev(known) if len(known) > 1 else None)


def over_runs(shares: Sequence[Estimate]) -> Estimate:
    """The mean of one part of a gain over runs that answered the same questions, with its 95 % interval.

    What the questions add does not shrink with more runs: the widest of the runs' own intervals stands for it. What the seeds add
    is the t interval of the runs' means. The half widths are added in squares.
    """
    from scipy import special

    means, count = [one.mean for one in shares], len(shares)
    mean = fmean(means)
    of_seeds = float(special.stdtrit(count - 1, 1 - TAIL)) * stdev(means) / math.sqrt(count) if count > 1 else 0.0
    below, above = (max(abs(one.ci95[end] - one.mean) for one in shares) for end in (0, 1))
    return Estimate(mean, (max(mean - math.hypot(below, of_seeds), -1.0), min(mean + math.hypot(above, of_seeds), 1.0)))


def _shared(runs: Sequence[Run]) -> list[str]:
    if not runs:
        raise ValueError("no runs")
    return [question for question in runs[0] if all(question in run for run in runs)]


def _table(runs: Sequence[Run], questions: Sequence[str]) -> NDArray:
    import numpy as np

    return np.array([[run[question] for question in questions] for run in runs])


def _of_seeds(tables: Sequence[NDArray], clusters: Sequence[Hashable] | None) -> tuple[list[tuple[float, float]], float]:
    """([(variance, degrees of freedom)], part of it that is the questions' scatter within runs) of what seeds do to the mean of a
    group or to the difference of two, as arrays by seed and question. A single run is taken to vary as the other group's do."""
    groups = [(len(table_SQ), *_between(table_SQ, clusters)) for table_SQ in tables if len(table_SQ) > 1]
    single = 1 if groups and len(groups) < len(tables) else 0
    parts = [(between * (1 / seeds + single), seeds - 1.0) for seeds, between, _ in groups]
    scatter = math.fsum(scatter * (1 / seeds + single) for seeds, _, scatter in groups)
    if len(parts) == 2 and parts[0][1] == parts[1][1] and (total := parts[0][0] + parts[1][0]):
        parts = [(total, total**2 / math.fsum(variance**2 / freedom for variance, freedom in parts))]
    return parts, scatter


def _between(table_SQ: NDArray, clusters: Sequence[Hashable] | None) -> tuple[float, float]:
    """(variance of the seeds' means, what the questions' scatter within runs contributes to it)."""
    import numpy as np

    seeds, count = table_SQ.shape
    rest_SQ = table_SQ - table_SQ.mean(axis=0) - table_SQ.mean(axis=1, keepdims=True) + table_SQ.mean()
    squares, equivalent = count, float(count)
    if clusters is not None:  # what a seed does to a question, it does to its whole cluster
        _, cluster_Q, sizes = np.unique([str(one) for one in clusters], return_inverse=True, return_counts=True)
        rest_SQ = np.array([np.bincount(cluster_Q, weights=rest_Q) for rest_Q in rest_SQ])
        squares = int((sizes**2).sum())
        equivalent = count * count / squares
    scatter = float((rest_SQ**2).sum()) / ((seeds - 1) * (equivalent - 1)) / squares if equivalent > 1 else 0.0
    return float(table_SQ.mean(axis=1).var(ddof=1)), scatter


def questions_part(values_Q: NDArray, clusters: Sequence[Hashable] | None) -> tuple[float, float]:
    """(variance of the mean over questions, degrees of freedom)."""
    if clusters is None:
        return float(values_Q.var(ddof=1)) / len(values_Q) if len(values_Q) > 1 else math.inf, len(values_Q) - 1
    question_spread = spread(values_Q.tolist(), clusters)
    return question_spread.variance / max(question_spread.number - 1, 1e-9), question_spread.number - 1


def _parts(
    of_questions: tuple[float, float], of_seeds: tuple[list[tuple[float, float]], float], tail: float
) -> list[tuple[float, float]]:
    """(variance, t quantile) of the questions and of the seeds; none where seeds add nothing, or questions tell nothing."""
    from scipy import special

    between, scatter = of_seeds
    if not any(variance for variance, _ in between) or math.isinf(of_questions[0]):
        return []
    parts = [(max(of_questions[0] - scatter, 0.0), of_questions[1]), *between]
    return [(variance, float(special.stdtrit(freedom, 1 - tail))) for variance, freedom in parts]


def _widened(within: Estimate, half: float, *, bounds: tuple[float, float]) -> Estimate:
    """The interval of the questions, made at least so wide."""
    low, high = max(within.mean - half, bounds[0]), min(within.mean + half, bounds[1])
    return Estimate(within.mean, (min(low, within.ci95[0]), max(high, within.ci95[1])))
