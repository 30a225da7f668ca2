"""Which trial is next, and how long it may take: how a sweep's hours are divided.

Every strategy is a sequence of rungs. In a rung the trials that are left share the time up to its end equally; after it some of
them are dropped. `equal` and `seeds-first` have one rung. Successive halving (Jamieson & Talwalkar 2016, arXiv 1502.07943) has as
many as it takes to halve the settings down to one; all its rungs take equally long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean

from microrl.files import BadFile
from microrl.run import follow, heartbeat, names, summary
from microrl.sweep.folder import BASES, LOST, OVER, PlannedTrial, SweepFolder
from microrl.sweep.grid import rounds, setting_of

SPARE = 1.05
"""A trial gets at most so many equal shares, where others have ended early: trials are compared at equal time."""
STARTED, RUNG = "started", "rung"
"""Events of a trial that was given its hours, and of the end of a rung."""


@dataclass(frozen=True, slots=True)
class NextTrial:
    """A trial that is to be started or resumed. `hours`: its limit, earlier time included; None: its own bounds."""

    trial: PlannedTrial
    hours: float | None
    rung: int = 0


def next_trial(folder: SweepFolder, elapsed_s: float) -> NextTrial | None:
    """The trial that is to be started or resumed now, where one is made at a time; None if all is done.

    `elapsed_s`: seconds of the sweep so far. A rung that has ended is recorded, with what it keeps. Raises OSError.
    """
    if (current_rung := _rung(folder)) is None:
        return None
    # What has failed is tried again after all others, so that it does not hold them up.
    trial = min(current_rung.left, key=lambda one: (len(folder.failures(one.name)), one.name not in current_rung.given))
    if folder.plan.hours is None or trial.name in current_rung.given:
        return NextTrial(trial, current_rung.given.get(trial.name), current_rung.number)
    return NextTrial(trial, _share(folder, elapsed_s, current_rung), current_rung.number)


def side_by_side(folder: SweepFolder) -> list[NextTrial]:
    """The trials that are to be started or resumed now, where each has a machine of its own; empty if all is done.

    The hours are then those of all machines together, and each has an equal part of them. Otherwise as `next_trial`.
    """
    if (current_rung := _rung(folder)) is None:
        return []
    bases = (path.parent for path in (folder.path / BASES).glob("*/config.json"))
    hours = None if folder.plan.hours is None else folder.plan.hours - sum(map(heartbeat.last_s, bases)) / 3600
    fresh = None if hours is None else hours / rungs(folder) / current_rung.count
    before = {one.name: heartbeat.last_s(folder.trial(one.name)) / 3600 for one in current_rung.left}
    return [
        NextTrial(one, current_rung.given.get(one.name, None if fresh is None else before[one.name] + fresh), current_rung.number)
        for one in current_rung.left
    ]


@dataclass(frozen=True, slots=True)
class _Rung:
    """The rung in progress: its number, trials that are not over, hours of those that have begun, and how many trials it has."""

    number: int
    left: list[PlannedTrial]
    given: dict[str, float | None]
    count: int


def _rung(folder: SweepFolder) -> _Rung | None:
    alive = list(folder.plan.trials)
    for rung in range(rungs(folder)):
        events = folder.events()
        kept = next((one.kept for one in events if one.kind == RUNG and one.rung == rung and one.kept is not None), None)
        if kept is not None:  # closed for good: whoever was killed in a later rung has no summary, but has been through this one
            alive = [one for one in alive if one.name in kept]
            continue
        given = {one.trial: one.hours for one in events if one.kind == STARTED and one.rung == rung}
        left = [one for one in alive if not _is_over(folder, one.name, given)]
        if left:
            return _Rung(rung, left, given, len(alive))
        if rung + 1 < rungs(folder):
            alive = _halved(folder, alive, rung)
    return None


def rungs(folder: SweepFolder) -> int:
    """How many rungs the strategy has."""
    return rounds((one.values for one in folder.plan.trials), folder.plan.strategy)


def _is_over(folder: SweepFolder, name: str, given: dict[str, float | None]) -> bool:
    """Whether a trial has used the hours that this rung gave it, or will get no others."""
    status = folder.status(name)
    if status != "done" or folder.plan.hours is None:
        return status in OVER
    hours, ended = given.get(name), folder.ended_with(name)
    return hours is not None and ended is not None and ended >= hours  # more: those of a later rung


def _share(folder: SweepFolder, elapsed_s: float, current_rung: _Rung) -> float:
    """Hours of a trial that begins now, in all: an equal part of what the rung has left, beside the hours of earlier rungs."""
    assert folder.plan.hours is not None
    left, given = current_rung.left, current_rung.given
    whole_s = folder.plan.hours * 3600 / rungs(folder)
    begun_s = sum((given[one.name] or 0.0) * 3600 - heartbeat.last_s(folder.trial(one.name)) for one in left if one.name in given)
    waiting = [one for one in left if one.name not in given]
    share_s = ((current_rung.number + 1) * whole_s - elapsed_s - begun_s) / len(waiting)
    spent_s = heartbeat.last_s(folder.trial(waiting[0].name))
    return (spent_s + max(min(share_s, SPARE * whole_s / current_rung.count), 1.0)) / 3600


def _halved(folder: SweepFolder, alive: Sequence[PlannedTrial], rung: int) -> list[PlannedTrial]:
    """The trials of the better half of the settings, by the mean of the seeds' validation accuracy. Failed trials do not count,
    and a trial that the guard has stopped counts but gets no more time."""
    scores: dict[str, list[float]] = {}
    able: set[str] = set()
    for one in alive:
        scored = scores.setdefault(setting_of(one.values), [])
        if folder.status(one.name) not in LOST:
            able.add(setting_of(one.values))
            scored.extend([] if (accuracy := validation(folder, one.name)) is None else [accuracy])
    means = {setting: fmean(values) if values else -1.0 for setting, values in scores.items()}
    # A setting may not have been validated yet, but one that can be trained goes before one that cannot.
    best = sorted(means, key=lambda setting: (-means[setting], setting not in able))[: math.ceil(len(means) / 2)]
    kept = [one for one in alive if setting_of(one.values) in best]
    said = f"{len(best)} of {len(means)} settings go on"
    folder.event("", RUNG, said, rung=rung, kept=[one.name for one in kept], validation=means)
    return kept


def validation(folder: SweepFolder, name: str) -> float | None:
    """The accuracy of a trial's last validation: where it has ended, that of its final weights. None if there is none."""
    with suppress(BadFile):
        if (ended := summary.read_if_there(folder.trial(name))) is not None and ended.validated is not None:
            return ended.validated.accuracy
    rows = follow.JsonlReader(folder.trial(name) / names.METRICS).new()
    accuracies = [row["validate/accuracy"] for row in rows if isinstance(row.get("validate/accuracy"), float)]
    return accuracies[-1] if accuracies else None
