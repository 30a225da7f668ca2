"""Carry out a sweep on this machine: one trial after the other, each in a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from microrl import clock, files
from microrl.config import RunConfig
from microrl.run import child
from microrl.run.folder import RunFolder
from microrl.sweep.folder import BASES, PlannedTrial, SweepFolder
from microrl.sweep.schedule import STARTED, Next, following

OK, STOPPED, INTERRUPTED = 0, 3, 130
"""Exit statuses of a run that is over, and of one that was interrupted and saved."""
CLOCK_S = 2.0
"""Seconds between two records of the sweep's clock."""
SHARED = ("model", "data", "evaluation", "engine", "reward", "sampling")
"""Sections that decide how the untouched model answers the held-out problems; the seed of training is not among them."""


class Work(Protocol):
    """What a trial's process does, as the command line has it. Both return an exit status."""

    def train(self, path: Path, hours: float | None, *, is_fresh: bool) -> int:
        """Start the run whose folder has been made, or resume it, with `hours` where they are not those it has."""

    def evaluate_base(self, path: Path, config: RunConfig) -> int:
        """Evaluate the untouched model into the run folder `path`."""


class Show(Protocol):
    """What the sweep tells of itself."""

    def started(self, following: Next, status: str) -> None: ...

    def waiting(self) -> None: ...

    def ended(self, trial: PlannedTrial, status: int, why: str) -> None: ...

    def note(self, text: str) -> None: ...


def carry_out(folder: SweepFolder, work: Work, show: Show, *, started: float) -> None:
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

    while (found := following(folder, elapsed_s())) is not None:
        if not _evaluate_base(folder, found, work, show, on_wait):  # which takes time: the trial's share is another then
            _make(folder, found, work, show, on_wait)
    folder.save_clock(elapsed_s())


def _make(folder: SweepFolder, found: Next, work: Work, show: Show, on_wait: Callable[[], None]) -> None:
    name, path = found.trial.name, folder.trial(found.trial.name)
    if not any(one.kind == STARTED and (one.trial, one.rung) == (name, found.rung) for one in folder.events()):
        folder.event(name, STARTED, hours=found.hours, rung=found.rung)
    show.started(found, folder.status(name))
    if is_fresh := not RunFolder.is_one(path):
        folder.forget(name)  # killed before its configuration was written
        config = folder.config(found.trial)
        RunFolder.create(path, bounded(folder, config, found.hours).model_dump(mode="json"))
        _give_base(folder, config, path)
    status = _in_child(folder, name, lambda: work.train(path, found.hours, is_fresh=is_fresh), on_wait)
    if status == INTERRUPTED:
        raise KeyboardInterrupt
    why = "" if status in (OK, STOPPED) else last_error(folder.log(name), status)
    folder.event(name, "failed" if why else "ended", why, status=status)
    show.ended(found.trial, status, why)


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
    lines = log.read_bytes()[-20_000:].decode(errors="replace").splitlines() if log.exists() else []
    said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    killed = " (often: out of memory)" if status == -signal.SIGKILL else ""
    died = f"killed by signal {-status}{killed}" if status < 0 else f"exit status {status}"
    return f"{said[-1]} ({died})" if said and status > 0 else died


# ---- the base model's evaluation


def base_key(config: RunConfig) -> str:
    """What runs have in common for which the untouched model answers the held-out problems alike."""
    tree = config.model_dump(mode="json")
    shared = {name: tree[name] for name in SHARED}
    shared["sampling"] = {"max_completion_tokens": tree["sampling"]["max_completion_tokens"]}
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:12]


def _evaluate_base(folder: SweepFolder, found: Next, work: Work, show: Show, on_wait: Callable[[], None]) -> bool:
    """Evaluate the untouched model, if this trial and others need it and it has not been done; returns whether it was."""
    config = folder.config(found.trial)
    key = base_key(config)
    base, name = folder.path / BASES / key, f"base-{key}"
    if (
        RunFolder.is_one(folder.trial(found.trial.name))
        or not config.evaluation.problems
        or _before(base)
        or folder.failures(name)
    ):
        return False
    if sum(base_key(folder.config(one)) == key for one in folder.plan.trials) < 2:
        return False
    show.note("evaluating the base model, for all trials that share it")
    files.remove(base)
    limited = bounded(folder, config, found.hours)
    status = _in_child(folder, name, lambda: work.evaluate_base(base, limited), on_wait)
    if status == INTERRUPTED:
        raise KeyboardInterrupt
    if status != OK or not _before(base):
        folder.event(name, "failed", last_error(folder.log(name), status), status=status)
        show.note(f"could not evaluate the base model (see {folder.log(name)}): each trial will do it itself")
    return True


def _before(base: Path) -> list[Path]:
    """The files of an evaluation of the untouched model that has ended."""
    return sorted((base / "eval").glob("held-out-before.*")) if (base / "summary.json").exists() else []


def _give_base(folder: SweepFolder, config: RunConfig, path: Path) -> None:
    """Copy the evaluation of the untouched model into a new run folder, and what it says of the data that it was made with."""
    base = folder.path / BASES / base_key(config)
    found = _before(base)
    for file in [base / "data.json", *found] if found else []:  # without that record the run would not trust the evaluation
        target = path / file.relative_to(base)
        target.parent.mkdir(exist_ok=True)
        with files.written_whole(target) as temporary:
            shutil.copyfile(file, temporary)
