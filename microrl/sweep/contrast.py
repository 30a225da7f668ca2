"""The accuracy of a sweep's settings, and what an axis of two values changes: with and without a KL term, one rule or another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

from microrl.evaluation.answer import Answer
from microrl.evaluation.intervals import Estimate
from microrl.evaluation.result import Result
from microrl.evaluation.seeds import accuracy_of, difference, holm
from microrl.files import BadFile
from microrl.report import several
from microrl.report.history import History
from microrl.run import names
from microrl.sweep.folder import SweepFolder
from microrl.sweep.grid import SEED, key_name
from microrl.sweep.table import Line, label, lines, method


class _Ended(NamedTuple):
    """A trial that has ended, and its evaluation after training."""

    line: Line
    result: Result


@dataclass(frozen=True, slots=True)
class Contrast:
    """A setting with either value of an axis, over the seeds that both have. Accuracy on the held-out problems."""

    axis: str
    values: tuple[str, str]
    setting: str
    seeds: tuple[int, ...]
    accuracy: tuple[Estimate, Estimate]
    difference: Estimate
    """Second value less first, paired by problem; its interval is over seeds and problems."""
    minutes: tuple[float, float]
    """Mean time of a run, evaluations included."""
    p: float | None
    """Of no difference."""
    p_adjusted: float | None = None
    """For the number of settings, by Holm's method."""


def accuracies(folder: SweepFolder) -> list[tuple[str, Estimate]]:
    """Held-out accuracy after training of each setting that has one, with its interval over seeds and problems.

    Raises BadFile for a damaged evaluation.
    """
    by_setting: dict[str, list[Result]] = {}
    for line, result in _ended(folder):
        by_setting.setdefault(method(folder, line.trial), []).append(result)
    return [(name, accuracy) for name, results in by_setting.items() if (accuracy := accuracy_of(results)) is not None]


def answer_of(folder: SweepFolder) -> Answer | None:
    """What the sweep says to its question: its settings against each other; None where it has one only.

    Raises BadFile for a damaged evaluation.
    """
    runs = [
        (method(folder, line.trial), line.trial.values[SEED], result, History.load(folder.trial(line.trial.name)))
        for line, result in _ended(folder)
    ]
    unequal = "Halving has given each setting that it dropped less time than those it kept: the times are not equal."
    return several.answer_of(
        runs,
        "trial",
        planned=Counter(method(folder, trial) for trial in folder.plan.trials),
        notes=[unequal] if folder.plan.strategy == "halving" else [],
    )


def contrasts(folder: SweepFolder) -> list[Contrast]:
    """One for each axis of two values and each setting of the other axes. A configuration that both values come to has none.

    Raises BadFile for a damaged evaluation.
    """
    ended = [(values, one) for one in _ended(folder) for values in (one.line.trial.values, *one.line.trial.also)]
    planned = [values for trial in folder.plan.trials for values in (trial.values, *trial.also)]
    axes = dict.fromkeys(axis for values in planned for axis in values if axis != SEED)
    adjusted_contrasts: list[Contrast] = []
    for axis in axes:
        pair = list(dict.fromkeys(str(values[axis]) for values in planned if axis in values))
        if len(pair) != 2:
            continue
        settings: dict[str, tuple[str, dict[int, _Ended], dict[int, _Ended]]] = {}
        for values, one in ended:
            if axis in values:
                rest = {name: value for name, value in values.items() if name not in (axis, SEED)}
                named = label(folder, rest, one.line.trial, without=axis)
                setting = settings.setdefault(str(rest), (named, {}, {}))
                setting[1 + pair.index(str(values[axis]))][values[SEED]] = one  # type: ignore[index]
        made = [_contrast(axis, (pair[0], pair[1]), named, *sides) for named, *sides in settings.values()]
        known = [one for one in made if one is not None]
        adjusted_contrasts += [replace(one, p_adjusted=p) for one, p in zip(known, holm([one.p for one in known]), strict=True)]
    return adjusted_contrasts


def _contrast(
    axis: str, values: tuple[str, str], setting: str, first: Mapping[int, _Ended], second: Mapping[int, _Ended]
) -> Contrast | None:
    seeds = tuple(seed for seed in first if seed in second and first[seed].line.trial != second[seed].line.trial)
    if not seeds:
        return None
    sides = [[side[seed].result for seed in seeds] for side in (first, second)]
    accuracy, difference_and_p = [accuracy_of(side) for side in sides], difference(sides[0], sides[1])
    if accuracy[0] is None or accuracy[1] is None or difference_and_p is None:
        return None  # no problem in common: their hours were too short
    hours = [fmean(one.hours_spent for seed in seeds if (one := side[seed].line.summary)) for side in (first, second)]
    minutes = (60 * hours[0], 60 * hours[1])
    return Contrast(
        key_name(axis), values, setting, seeds, (accuracy[0], accuracy[1]), difference_and_p[0], minutes, difference_and_p[1]
    )


def _ended(folder: SweepFolder) -> list[_Ended]:
    ended: list[_Ended] = []
    for line in lines(folder):
        path = folder.trial(line.trial.name) / names.EVAL / f"{names.AFTER}.json"
        if line.status in ("done", "stopped") and line.summary is not None and path.is_file():
            try:
                result = Result.read(path)
            except BadFile as error:
                hint = f"delete {path.parent.parent}, then: microrl sweep --resume {folder.path}"
                raise BadFile(error.message, hint) from None
            if result.right:
                ended.append(_Ended(line, result))
    return ended
