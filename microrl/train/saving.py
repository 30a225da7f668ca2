"""What a run writes down so that it can be killed at any instant, and how it finds its place again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from microrl import checkpoint
from microrl.adapters.folder import write
from microrl.budget import CHECKPOINTS, checkpoint_interval_s
from microrl.checkpoint import State
from microrl.errors import MachineFailure
from microrl.tracking import disk, heartbeat
from microrl.tracking.run_folder import RunFolder
from microrl.train.run import Run

METRICS, EVENTS, WARMUP = "metrics.jsonl", "events.jsonl", "warmup.jsonl"
DURATIONS = ("step", "save", "validation", "imitation")
FOLDER, BEST, FINAL = checkpoint.FOLDER, "best", "final"


def find_place(folder: RunFolder) -> tuple[Path | None, State]:
    """The newest whole checkpoint and where the run stood then; the start where there is none.

    What was logged after it is forgotten, since those steps will be run again. The time until the last heartbeat is spent.
    """

    def on_bad(path: Path, why: str) -> None:
        folder.event("bad checkpoint", f"{path.name} is what it is called now, and it is not used: {why}")

    folder.mend(EVENTS)
    place = checkpoint.newest(folder.path / FOLDER, folder.size(METRICS), on_bad)
    path, state = place if place is not None else (None, State())
    elapsed_s = max(state.elapsed_s, heartbeat.last_s(folder.path))
    state.phases["lost"] = state.phases.get("lost", 0.0) + elapsed_s - state.elapsed_s
    state.elapsed_s = elapsed_s
    if path is None and folder.size(METRICS):
        shutil.copyfile(folder.path / METRICS, folder.path / f"{METRICS}.before")  # all of it is begun again: keep what was seen
    folder.rewind(METRICS, state.metrics_offset)
    folder.rewind(WARMUP, min(state.warmup.offset, folder.size(WARMUP)))
    folder.forget_rollouts(state.step)
    with folder.left_out_if_full(BEST):
        _mend_best(folder, state)
    return path, state


def _mend_best(folder: RunFolder, state: State) -> None:
    """Make `best/` what the state says it is: it may have been killed between the two."""
    target = folder.path / BEST
    step = state.validation.best_step
    if step is None:
        shutil.rmtree(target, ignore_errors=True)
    elif checkpoint.fault(target) is not None or checkpoint.read_state(target).step != step:
        found = checkpoint.best(folder.path / FOLDER, state)
        if found is not None:
            checkpoint.publish(found, target)


def save_checkpoint(run: Run) -> bool:
    """Write down where the run stands. Where the disk is full the last good one stays, and the run goes on: False."""
    run.console.status("saving a checkpoint")
    good = [path.name for path in checkpoint.all_in(run.folder.path / FOLDER)[-1:]] or ["none"]
    saved = False
    with run.watch.phase("save"), run.folder.left_out_if_full(f"checkpoints ({good[0]} is the last good one)", run.tell):
        _make_room_and(run, lambda: _save(run))
        saved = True
    return saved


def _save(run: Run) -> None:
    state, folder = run.state, run.folder
    for name in (METRICS, WARMUP):
        if not folder.flush(name):
            raise OSError(28, f"{name} is not written")
        if folder.size(name):
            with (folder.path / name).open("rb") as file:
                os.fsync(file.fileno())
    began = run.budget.elapsed_s()
    state.elapsed_s, state.metrics_offset, state.warmup.offset = began, folder.size(METRICS), folder.size(WARMUP)
    state.phases, state.guard = dict(run.watch.totals), run.guard.state()
    state.durations = {name: getattr(run.budget, name).recent for name in DURATIONS}
    policy = run.parts.policy
    state.tokens_per_microbatch, state.checkpoints_activations = policy.max_tokens, policy.checkpoints_activations
    checkpoint.save(folder.path / FOLDER, policy, state)
    run.budget.save.add(run.budget.elapsed_s() - began)


def _make_room_and(run: Run, work: Callable[[], None]) -> None:
    """On a full disk, once more without the older checkpoint."""
    try:
        work()
    except Exception as error:
        if not disk.is_full(error):
            raise
        checkpoint.prune(run.folder.path / FOLDER, kept=1)
        work()


def save_if_due(run: Run, saved_s: float, step: int, steps: int | None) -> float:
    """A checkpoint where it is time for one, `step` of `steps` having been made.

    `saved_s` is the elapsed time of the last; returns that of the now last.
    """
    by_step = steps is not None and step % max(steps // CHECKPOINTS, 1) == 0
    interval_s = checkpoint_interval_s(run.config.budget.checkpoint_minutes, run.budget.hours, run.budget.save.typical_s())
    if not by_step and run.budget.elapsed_s() - saved_s < interval_s:
        return saved_s
    save_checkpoint(run)
    return run.budget.elapsed_s()


def publish_best(run: Run) -> None:
    """Let `best/` be the checkpoint that scored best."""
    with run.watch.phase("save"), run.folder.left_out_if_full(f"{BEST}/"):
        found = checkpoint.best(run.folder.path / FOLDER, run.state)
        if found is not None:
            checkpoint.publish(found, run.folder.path / BEST)


def save_final(run: Run) -> None:
    """The adapter as it stands, under `final/`. Raises MachineFailure where the disk has no room even for that."""

    def work() -> None:
        target, temporary = run.folder.path / FINAL, run.folder.path / f".{FINAL}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir()
            write(temporary, run.parts.policy.adapter)
            checkpoint.flush(temporary)
            shutil.rmtree(target, ignore_errors=True)
            temporary.replace(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    run.console.status("saving the adapter")
    with run.watch.phase("save"):
        try:
            _make_room_and(run, work)
        except Exception as error:
            if not disk.is_full(error):
                raise
            raise MachineFailure(
                f"the disk is full: no room for the final adapter ({error})",
                f"free some and go on from the last good checkpoint: microrl train --resume {run.folder.path}",
            ) from error


def save_what_is_whole(run: Run) -> None:
    """Checkpoint and adapter as of the last finished step; nothing where an update was cut, and the last checkpoint stands.

    It is called when something else has gone wrong, which is what must be heard of: its own failures are events.
    """
    try:
        if run.parts.policy.is_whole and save_checkpoint(run):
            save_final(run)
    except Exception as error:
        run.tell("warning", f"the last steps could not be saved: {type(error).__name__}: {error}")
