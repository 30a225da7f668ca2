"""What a sweep or a comparison says to its question: which method is better, by how much, and what that rests on."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance
from typing import Any

from microrl.evaluation.intervals import Estimate, named
from microrl.evaluation.power import SEED_SD
from microrl.evaluation.result import Result, clusters, in_clusters
from microrl.evaluation.seeds import difference, holm, questions_part
from microrl.terminal import counted

SEEDS = 5
"""Seeds for which the answer says what they would detect; twice as many as there are, if there are so many."""
LEVEL = 0.05
"""Adjusted p-value below which two methods are told apart."""
ONE_WAY = "To compare them, evaluate each on the same unseen problems: microrl eval RUN --data FILE"
POWER_Z = 1.2816
"""90 % quantile of the normal distribution: a difference is detected nine times in ten."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method (a sweep's setting) and its evaluated runs by seed; `planned`: number of runs that it was to have."""

    name: str
    results: Mapping[int, Result]
    planned: int = 0
    is_untrained: bool = False
    """Whether none of its runs changed a weight, and so each is the untouched model."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two methods on the questions that all their runs answered. `difference`: second less first; None: no such question."""

    first: str
    second: str
    seeds: tuple[int, int]
    questions: int
    difference: Estimate | None
    clusters: int = 0
    """Of the questions; as many as these where none are alike."""
    p: float | None = None
    """Of no difference; agrees with the interval."""
    p_adjusted: float | None = None
    """For the number of pairs that there are of all methods, by Holm's method. What is told apart goes by it."""
    detectable: tuple[int, float] | None = None
    """(seeds, difference that so many would show nine times in ten); None where it cannot be told."""

    @property
    def is_told_apart(self) -> bool:
        return self.p_adjusted is not None and self.p_adjusted < LEVEL

    def to_json(self) -> dict[str, Any]:
        return {
            "first": self.first, "second": self.second, "seeds": list(self.seeds), "questions": self.questions,
            "clusters": self.clusters, "difference": self.difference and self.difference.to_json(),
            "p": self.p, "p_adjusted": self.p_adjusted,
            "told_apart": self.is_told_apart,
            "detectable": self.detectable and {"seeds": self.detectable[0], "difference": self.detectable[1]},
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """`text`: one sentence, and what qualifies it. `pairs`: the first method with each other one, then each with the best."""

    text: str
    pairs: tuple[Pair, ...]
    best: str | None

    def to_json(self) -> dict[str, Any]:
        return {"text": self.text, "best": self.best, "pairs": [one.to_json() for one in self.pairs]}


def answer(methods: Sequence[Method], *, notes: Sequence[str] = ()) -> Answer | None:
    """The answer, in accuracy; None where there are no two methods. `notes`: other sentences of what it rests on."""
    if len(methods) < 2:
        return None
    names = {f"`{one.name}`" if "," in one.name else one.name: one.name for one in methods}  # a comma also separates names
    said = _answer([replace(one, name=name) for name, one in zip(names, methods, strict=True)], notes)
    pairs = tuple(replace(one, first=names[one.first], second=names[one.second]) for one in said.pairs)
    return Answer(said.text, pairs, said.best and names[said.best])


def _answer(methods: Sequence[Method], notes: Sequence[str]) -> Answer:
    measured = [one for one in methods if one.results]
    remarks = [*_gaps(methods), *notes]
    idle = [one.name for one in measured if one.is_untrained]
    if len(measured) < 2:
        reason = f"only {measured[0].name} was evaluated" if measured else "no trial was evaluated"
        return Answer(" ".join([f"Nothing can be compared: {reason}.", *remarks]), (), None)
    if not (means := _means(measured)):
        many = "The runs" if len(measured) > 2 else f"{_capital(measured[0].name)} and {measured[1].name}"
        return Answer(" ".join([f"{many} have no problem in common. {ONE_WAY}.", *remarks]), (), None)
    best = max(means, key=lambda name: means[name])
    pairs = _pairs(measured, best)
    if len(idle) == len(measured):
        return Answer(" ".join([f"Nothing was trained, so {_listed(idle)} cannot be compared.", *remarks]), pairs, None)
    text = _of_two(pairs[0]) if len(measured) == 2 else _of_many(best, measured[0].name, pairs, len(measured))
    untrained = (
        [f"{_capital(_listed(idle))} learned nothing: no step changed a weight, so this is the untouched model."] if idle else []
    )
    return Answer(" ".join([*untrained, text, *_seeds(measured), *remarks]), pairs, best)


def _pairs(methods: Sequence[Method], best: str) -> tuple[Pair, ...]:
    """The first method with each other one, then each with the best one, which was chosen from all: so all pairs count."""
    first, *others = methods
    chosen = [(first, other) for other in others]
    chosen += [(other, one) for one in others if one.name == best for other in others if other is not one]
    pairs = [_pair(*pair) for pair in chosen]
    adjusted = holm([one.p for one in pairs], len(methods) * (len(methods) - 1) // 2)
    return tuple(replace(one, p_adjusted=p) for one, p in zip(pairs, adjusted, strict=True))


def _of_two(pair: Pair) -> str:
    first, second = pair.first, pair.second
    assert pair.difference is not None
    least, most = sorted(pair.seeds)
    rests = f"{counted(most, 'seed')} each" if least == most else f"{least} and {most} seeds"
    rests += f", {counted(pair.questions, 'problem')}{in_clusters(pair.questions, pair.clusters)}"
    if not pair.is_told_apart:
        text = f"{_capital(first)} and {second} cannot be told apart ({second} has {pair.difference.points()}; {rests})"
        if pair.detectable is not None:
            text += f"; {pair.detectable[0]} seeds on these problems would detect about {100 * pair.detectable[1]:.1f} points"
        return f"{text}."
    better, worse = (second, first) if pair.difference.mean > 0 else (first, second)
    return f"{_capital(better)} is better than {worse} by {_lead(pair, better).points()} ({rests})."


def _of_many(best: str, first: str, pairs: Sequence[Pair], count: int) -> str:
    with_best = [one for one in pairs if best in (one.first, one.second)]
    names = {id(one): one.second if one.first == best else one.first for one in with_best}
    worse = [f"{names[id(one)]} (by {_lead(one, best).points()})" for one in with_best if one.is_told_apart]
    level = [one for one in with_best if not one.is_told_apart]
    text = f"{_capital(best)} has the highest accuracy"
    text += f" and is better than {_listed(worse)}" if worse else ""
    text += f", but cannot be told apart from {_listed([names[id(one)] for one in level])}" if level else ""
    known = [one.detectable for one in level if one.detectable is not None]
    if known:
        text += f"; {known[0][0]} seeds on these problems would detect about {100 * max(size for _, size in known):.1f} points"
    apart = [one.second for one in pairs if one.first == first != best and one.second != best and one.is_told_apart]
    others = f"Of the others, {_listed(apart)} can be told apart from the first, {first}. " if apart else ""
    return (
        f"{text}. {others}This goes by p-values adjusted for {count * (count - 1) // 2} comparisons (Holm); the intervals are "
        "each pair's own."
    )


def _lead(pair: Pair, better: str) -> Estimate:
    """The difference as the lead of one of the two."""
    assert pair.difference is not None
    low, high = pair.difference.ci95
    return pair.difference if better == pair.second else Estimate(-pair.difference.mean, (-high, -low))


def _pair(first: Method, second: Method) -> Pair:
    groups = [list(method.results.values()) for method in (first, second)]
    sides = [[one.by_question() for one in group] for group in groups]
    seeds = len(sides[0]), len(sides[1])
    shared = set.intersection(*(set(run) for side in sides for run in side))
    labels = named(sorted(shared), clusters([*groups[0], *groups[1]]))
    estimate, p = difference(groups[0], groups[1]) or (None, None)
    detectable = _detectable(sides, sorted(shared), labels, seeds)
    count = len(set(labels)) if labels is not None else len(shared)
    return Pair(first.name, second.name, seeds, len(shared), estimate, count, p, detectable=detectable)


def _detectable(
    sides: Sequence[Sequence[Mapping[str, float]]],
    shared: Sequence[str],
    labels: Sequence[Hashable] | None,
    seeds: tuple[int, int],
) -> tuple[int, float] | None:
    """(seeds a method, difference that they would show nine times in ten on these questions, in these clusters).

    From the scatter of the questions' differences, as it is with today's seeds, which is careful; and from the deviation between
    seeds, as measured or as `power.SEED_SD` assumes, whichever is larger. Quantiles are Student's, as in the interval.
    """
    import numpy as np
    from scipy import special

    if len(shared) < 2:
        return None
    planned = SEEDS if max(seeds) < SEEDS else 2 * max(seeds)
    means = [[fmean(run[question] for run in side) for question in shared] for side in sides]
    changes_Q = np.array([after - before for before, after in zip(*means, strict=True)])
    variance_of_mean, freedom = questions_part(changes_Q, labels)
    if not freedom > 0:
        return None
    between = 0.0
    for side in sides:
        by_seed = [fmean(run[question] for question in shared) for run in side]
        between += max(variance(by_seed) if len(by_seed) > 1 else 0.0, SEED_SD**2) / planned
    quantiles = (float(special.stdtrit(freedom, 0.975)), float(special.stdtrit(2 * (planned - 1), 0.975)))
    half = math.sqrt(variance_of_mean * quantiles[0] ** 2 + between * quantiles[1] ** 2)
    size = half + POWER_Z * math.sqrt(variance_of_mean + between)
    return (planned, size) if size < 1 else None


def _means(methods: Sequence[Method]) -> dict[str, float]:
    """Accuracy on the questions that all runs of all methods answered; empty where there are none."""
    runs = {method.name: [one.by_question() for one in method.results.values()] for method in methods}
    shared = set.intersection(*(set(run) for some in runs.values() for run in some))
    return {name: fmean(run[question] for run in some for question in shared) for name, some in runs.items()} if shared else {}


def _seeds(methods: Sequence[Method]) -> list[str]:
    single = [method.name for method in methods if len(method.results) == 1]
    if not single:
        return []
    if len(single) == len(methods):
        return ["As each method has one seed only, this is said of these runs, and nothing can be said of other seeds."]
    has, each = ("has", "it is") if len(single) == 1 else ("have", "each is")
    said = f"As {_listed(single)} {has} one seed only, {each} taken to vary between seeds as much as what it is compared with"
    between = "; between two of one seed, this is said of these runs alone, and nothing of other seeds"
    return [f"{said}{between if len(single) > 1 else ''}."]


def _gaps(methods: Sequence[Method]) -> list[str]:
    planned, there = sum(one.planned for one in methods), sum(len(one.results) for one in methods)
    remarks = [f"{planned - there} of {planned} trials have no result."] if planned > there else []
    counts = [len(result.right) for method in methods for result in method.results.values()]
    if counts and min(counts) < max(counts):
        remarks.append(f"Between {min(counts)} and {max(counts)} problems were evaluated; differences are over those in common.")
    return remarks


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]
