"""Carry out a sweep on this machine: one trial after the other, each in a process of its own."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from microrl import clock, files
from microrl.config import RunConfig
from microrl.evaluation.result import Result
from microrl.files import BadFile
from microrl.processes import how_it_ended
from microrl.run import child, data_record, names
from microrl.run.folder import RunFolder
from microrl.sweep.display import Display
from microrl.sweep.folder import BASES, FAILED, REFUSED, PlannedTrial, SweepFolder
from microrl.sweep.schedule import STARTED, NextTrial, next_trial

OK, USAGE, STOPPED, INTERRUPTED = 0, 2, 3, 130
"""Exit statuses of a run that has ended well, was refused, was stopped by the guard, and was interrupted and saved."""
CLOCK_S = 2.0
"""Seconds between two records of the sweep's clock."""
SHARED = ("model", "data", "evaluation", "engine", "reward", "sampling")
"""Sections that decide how the untouched model answers the held-out problems; the seed of training is not among them."""


class Work(NamedTuple):
    """What a trial's process does, as the command line has it. Both return an exit status."""

    train: Callable[[Path, float | None, bool], int]
    """(run folder, hours, whether it has just been made): start the run or resume it, with these hours if it has others."""
    evaluate_base: Callable[[str, str], int]
    """(run folder, configuration as JSON): evaluate the untouched model into it."""


def run_trials(folder: SweepFolder, work: Work, show: Display, *, started: float) -> None:
    """Start or resume trials until all are over. `started`: when this process began, on the clock of `clock.now_s`.

    Raises KeyboardInterrupt after a signal, when the trial in progress has been saved, and OSError.
    """
    before_s, recorded = folder.elapsed_s(), [0.0]

    def elapsed_s() -> float:
        return before_s + clock.now_s() - started

    def on_wait() -> None:
        if elapsed_s() - recorded[0] > CLOCK_S:
            recorded[0] = elapsed_s()
            folder.save_clock(recorded[0])
        show.waiting()

    while (upcoming := next_trial(folder, elapsed_s())) is not None:
        if not _evaluate_base(folder, upcoming, work, show, on_wait):  # which takes time: the trial's share is another then
            _make(folder, upcoming, work, show, on_wait)
    folder.save_clock(elapsed_s())


def _make(folder: SweepFolder, upcoming: NextTrial, work: Work, show: Display, on_wait: Callable[[], None]) -> None:
    name, path = upcoming.trial.name, folder.trial(upcoming.trial.name)
    show.started(upcoming, folder.status(name))
    is_fresh = make_ready(folder, upcoming)
    status = _in_child(folder, name, lambda: work.train(path, upcoming.hours, is_fresh), on_wait)
    if status == INTERRUPTED:
        raise KeyboardInterrupt
    end(folder, upcoming.trial, status, "" if status in (OK, STOPPED) else last_error(folder.log(name), status), show)


def make_ready(folder: SweepFolder, upcoming: NextTrial) -> bool:
    """Note that a trial starts, and make its run folder; returns whether there was none."""
    name, path = upcoming.trial.name, folder.trial(upcoming.trial.name)
    if not any(one.kind == STARTED and (one.trial, one.rung) == (name, upcoming.rung) for one in folder.events()):
        folder.event(name, STARTED, hours=upcoming.hours, rung=upcoming.rung)
    if RunFolder.is_one(path):
        return False
    files.remove(path)  # killed before its configuration was written
    config = folder.config(upcoming.trial)
    RunFolder.create(path, bounded(folder, config, upcoming.hours).model_dump(mode="json"))
    give_base(folder, config, path)
    return True


def end(folder: SweepFolder, trial: PlannedTrial, status: int, why: str, show: Display) -> None:
    """Record and tell how an attempt at a trial ended: with an exit status, and what went wrong. Raises OSError."""
    if status == USAGE:  # of the user's input: another attempt would end as this one
        why = why.removesuffix(f" ({how_it_ended(status)})")
        folder.event(trial.name, REFUSED, why, hint=_last(folder.log(trial.name), "hint: "), status=status)
    else:
        folder.event(trial.name, FAILED if why else "ended", why, status=status)
    show.ended(trial, why)


def bounded(folder: SweepFolder, config: RunConfig, hours: float | None) -> RunConfig:
    """A trial's configuration with its part of the sweep's hours, if the sweep has any."""
    if folder.plan.hours is None:
        return config
    return config.model_copy(update={"budget": config.budget.model_copy(update={"hours": hours})})


def _in_child(folder: SweepFolder, name: str, work: Callable[[], int], on_wait: Callable[[], None]) -> int:
    """Carry out `work` in a process of its own, which prints into the trial's log; returns its exit status."""
    status = child.in_child(on_wait)
    if status is not None:
        return status
    with folder.log(name).open("ab", buffering=0) as log, open(os.devnull, "rb") as nothing:
        for source, descriptor in ((nothing.fileno(), 0), (log.fileno(), 1), (log.fileno(), 2)):
            os.dup2(source, descriptor)
    status = 1
    try:
        status = work()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


def last_error(log: Path, status: int) -> str:
    """Why a trial failed: the last error that it printed, or how it died."""
    said, died = _last(log, "error: ") if status > 0 else "", how_it_ended(status)
    return f"{said} ({died})" if said else died


def _last(log: Path, label: str) -> str:
    """The last of a log's lines that begin so, without that; empty if none does."""
    lines = log.read_bytes()[-20_000:].decode(errors="replace").splitlines() if log.exists() else []
    return next((line.removeprefix(label) for line in reversed(lines) if line.startswith(label)), "")


# ---- the base model's evaluation


def base_key(config: RunConfig) -> str:
    """What runs have in common for which the untouched model answers the held-out problems alike."""
    tree = config.model_dump(mode="json")
    shared = {name: tree[name] for name in SHARED}
    shared["sampling"] = {"max_completion_tokens": tree["sampling"]["max_completion_tokens"]}
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Base:
    """An untouched model that is to be evaluated, into the run folder `path`."""

    path: Path
    config: RunConfig


def bases_to_evaluate(folder: SweepFolder, hours: float | None) -> list[Base]:
    """The untouched models that are to be evaluated before trials of `hours` begin: all, before the first of them.

    Each within half of what the evaluation before training may take, as its time is reserved twice in every trial. The questions
    that are answered then are those of all trials: where several models manage different numbers, the least of them holds.
    """
    sharing: dict[str, list[RunConfig]] = {}
    for trial in folder.plan.trials:
        config = bounded(folder, folder.config(trial), hours)
        if config.evaluation.problems:
            sharing.setdefault(base_key(config), []).append(config)
    has_begun = any(RunFolder.is_one(folder.trial(trial.name)) for trial in folder.plan.trials)
    answered_counts = {key: _answered(folder.path / BASES / key) for key in sharing}
    least = min((count for count in answered_counts.values() if count), default=None)
    bases = []
    for key, configs in sharing.items():
        config = min(configs, key=lambda one: math.inf if one.budget.hours is None else one.budget.hours)
        is_bounded = config.budget.hours is not None
        if len(configs) < 2 and not (is_bounded and len(folder.plan.trials) > 1):
            continue
        is_due = not answered_counts[key] or (is_bounded and least is not None and answered_counts[key] > least and not has_begun)
        if not is_due or folder.failures(base_name(key)) or _have_all_begun(folder, key):
            continue
        if is_bounded and least is not None:
            problems = min(config.evaluation.problems, least)
            config = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"problems": problems})})
        bases.append(Base(folder.path / BASES / key, config))
    return bases


def base_name(key: str) -> str:
    """What the evaluation of an untouched model is called in logs and events."""
    return f"base-{key}"


def end_base(folder: SweepFolder, base: Base, status: int, show: Display) -> None:
    """Tell how the evaluation of an untouched model ended: with an exit status, and its result or none. Raises OSError."""
    name = base_name(base.path.name)
    if status != OK or not _before(base.path):
        why = last_error(folder.log(name), status)
        folder.event(name, FAILED, why, status=status)
        show.note(f"could not evaluate the base model: {why} (see {folder.log(name)}); each trial will do it itself")
        return
    count, wanted = _answered(base.path), base.config.evaluation.problems
    if count < wanted and base.config.budget.hours is not None:
        show.note(
            f"every trial is evaluated on the same {count} problems (at most {wanted}), and reserves twice the time for them"
        )


def _have_all_begun(folder: SweepFolder, key: str) -> bool:
    """Whether every trial that shares this untouched model has begun: then none is left to be given its evaluation."""
    trials = [trial for trial in folder.plan.trials if base_key(folder.config(trial)) == key]
    return all(RunFolder.is_one(folder.trial(trial.name)) for trial in trials)


def _answered(base: Path) -> int:
    """On how many questions an untouched model has been evaluated; 0 if it has not, or if that cannot be read."""
    with suppress(BadFile):
        return len(Result.read(base / names.EVAL / f"{names.BEFORE}.json").right) if _before(base) else 0
    return 0


def _evaluate_base(folder: SweepFolder, upcoming: NextTrial, work: Work, show: Display, on_wait: Callable[[], None]) -> bool:
    """Evaluate an untouched model, if one has to be; returns whether it was."""
    bases = bases_to_evaluate(folder, upcoming.hours)
    if not bases:
        return False
    base = bases[0]
    show.note("evaluating the base model, for all trials that share it")
    arguments = str(base.path), base.config.model_dump_json()
    status = _in_child(folder, base_name(base.path.name), lambda: work.evaluate_base(*arguments), on_wait)
    if status == INTERRUPTED:
        raise KeyboardInterrupt
    end_base(folder, base, status, show)
    return True


def _before(base: Path) -> list[Path]:
    """The files of an evaluation of the untouched model that has ended."""
    return sorted((base / names.EVAL).glob(f"{names.BEFORE}.*")) if (base / names.SUMMARY).exists() else []


def give_base(folder: SweepFolder, config: RunConfig, path: Path) -> None:
    """Copy the evaluation of the untouched model into a new run folder, and what it says of the data that it was made with."""
    base = folder.path / BASES / base_key(config)
    evaluation_files = _before(base)
    if evaluation_files:  # without that record the run would not trust the evaluation
        data_record.hand_on(RunFolder.open(base), RunFolder.open(path))
    for file in evaluation_files:
        target = path / file.relative_to(base)
        target.parent.mkdir(exist_ok=True)
        with files.written_whole(target) as temporary:
            shutil.copyfile(file, temporary)
