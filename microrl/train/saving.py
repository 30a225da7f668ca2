"""Checkpoints, the final adapter, and resuming: a run can be killed at any time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from microrl import files
from microrl.adapters.folder import write
from microrl.errors import MachineFailure
from microrl.files import BadFile
from microrl.limits import CHECKPOINTS, checkpoint_interval_s
from microrl.run import checkpoint, heartbeat, names
from microrl.run.checkpoint import State
from microrl.run.folder import RunFolder
from microrl.train.guard import memory_of
from microrl.train.run import Run

DURATIONS = get_args(checkpoint.Duration)


def find_checkpoint(folder: RunFolder) -> tuple[Path | None, State]:
    """(newest usable checkpoint, its state); (None, a fresh state) if there is none.

    Unusable newer checkpoints are renamed; nothing else is changed (see `go_back`). The time up to the last heartbeat counts as
    used. Raises BadFile if there are intact checkpoints, but none of them can be used.
    """
    root = folder.path / names.CHECKPOINTS
    folder.drop_partial_line(names.EVENTS)
    for aside, why_bad in checkpoint.adopt(root):
        _log_bad(folder, aside, why_bad)
    bad: list[tuple[Path, str]] = []
    usable, state, intact = None, State(), None
    for path in reversed(names.saved(root)):
        if (why := checkpoint.find_damage(path)) is None:
            why = checkpoint.ill_typed(path) or _unusable(folder, checkpoint.read_state(path))
            intact = intact or (f"{path}: {why}" if why else None)
        if why is None:
            usable, state = path, checkpoint.read_state(path)
            break
        bad.append((path, why))
    if usable is None and intact is not None:
        raise BadFile(
            f"no checkpoint is usable: {intact}",
            "restore the missing files, or resume with the version of microrl that wrote it, or start a new run: --out DIR",
        )
    for path, why_bad in bad:
        _log_bad(folder, checkpoint.set_aside(path), why_bad)
    last_s = heartbeat.last_s(
        folder.path, lambda why: folder.event("warning", f"the time since the last checkpoint does not count as used: {why}")
    )
    elapsed_s = max(state.elapsed_s, last_s)
    state.phases["lost"] = state.phases.get("lost", 0.0) + elapsed_s - state.elapsed_s
    state.elapsed_s = elapsed_s
    return usable, state


def _unusable(folder: RunFolder, state: State) -> str | None:
    """Why a checkpoint does not match its run folder; None: it matches."""
    try:
        memory_of(state.guard)
    except BadFile as error:
        return error.message
    offset = state.metrics_offset
    if offset > (size := folder.size(names.METRICS)):
        return f"{names.METRICS} has {size} bytes, but {offset} were written before this checkpoint"
    return None if folder.ends_a_line(names.METRICS, offset) else f"byte {offset} of {names.METRICS} is not the end of a line"


def record_is_changed(folder: RunFolder, state: State) -> bool:
    """Whether the metrics before a checkpoint are not those that were written. Its weights are: it is resumed all the same."""
    return state.metrics_sha256 not in (None, folder.metrics_sum.at(state.metrics_offset))


def _log_bad(folder: RunFolder, aside: Path, why: str) -> None:
    folder.event("bad checkpoint", f"renamed to {aside.name} and not used: {why}")


def restore(run: Run, path: Path) -> None:
    """Load a checkpoint into the policy, the guard, the prompts and the clock. Raises UserError where its tensors do not fit this
    policy; nothing is loaded then."""
    checkpoint.restore(path, run.policy)
    run.guard.restore(run.state.guard)
    run.prompts.restore(run.state.sampler_position, run.state.question_history)
    sampled: set[str] = {"step", "validation"} if run.state.engine_failures < run.engine_failures else set()
    for name in run.state.durations.keys() - sampled:  # another engine's durations foretell nothing
        getattr(run.budget, name).recent = run.state.durations[name]


def go_back(folder: RunFolder, path: Path | None, state: State) -> None:
    """Remove what was logged after the checkpoint, since those steps will be repeated."""
    if path is None:
        folder.keep_before()
    folder.rewind(names.METRICS, state.metrics_offset)
    folder.rewind(names.SFT, min(state.sft.offset, folder.size(names.SFT)))
    folder.drop_partial_line(names.SFT)
    folder.forget_rollouts(state.step)
    with folder.tolerate_write_errors(names.BEST):
        _restore_best(folder, state)


def _restore_best(folder: RunFolder, state: State) -> None:
    """Make `best/` match the state: the run may have been killed between writing the two."""
    target = folder.path / names.BEST
    step = state.validation.best_step
    if step is None:
        files.remove(target)
    elif checkpoint.find_corruption(target) is not None or checkpoint.read_state(target).step != step:
        best = checkpoint.best(folder.path / names.CHECKPOINTS, state)
        if best is not None:
            checkpoint.publish(best, target)


def save_checkpoint(run: Run) -> bool:
    """Save a checkpoint; returns whether it was written. If not, the last good one is kept and the run continues."""
    good = [f"{path.name} is the last good one" for path in names.saved(run.folder.path / names.CHECKPOINTS)[-1:]]
    what = f"checkpoints ({good[0] if good else 'there is none yet'})"
    saved = False
    with run.console.doing("saving a checkpoint"), run.watch.phase("save"), run.folder.tolerate_write_errors(what, run.announce):
        _retry_on_a_full_disk(run, lambda: _save(run))
        saved = True
    return saved


def _save(run: Run) -> None:
    state, folder = run.state, run.folder
    for name in (names.METRICS, names.SFT):
        folder.flush(name)
        if folder.size(name):
            with (folder.path / name).open("rb") as file:
                os.fsync(file.fileno())
    began = run.budget.elapsed_s()
    state.elapsed_s, state.metrics_offset, state.sft.offset = began, folder.size(names.METRICS), folder.size(names.SFT)
    state.metrics_sha256 = folder.metrics_sum.at(state.metrics_offset)
    state.phases, state.guard = dict(run.watch.totals), run.guard.state()
    state.engine_failures = run.engine_failures
    state.durations = {name: getattr(run.budget, name).recent for name in DURATIONS}
    policy = run.policy
    state.tokens_per_microbatch, state.checkpoints_activations = policy.max_tokens, policy.checkpoints_activations
    checkpoint.save(folder.path / names.CHECKPOINTS, policy, state, keep_every=run.config.checkpoints.keep_every)
    run.budget.save.add(run.budget.elapsed_s() - began)


def _retry_on_a_full_disk(run: Run, work: Callable[[], None]) -> None:
    """If the disk is full, delete the older checkpoint and try once more; and then, if it is full still, those that were kept."""
    for keep_every in dict.fromkeys((run.config.checkpoints.keep_every, None)):
        try:
            work()
            return
        except Exception as error:
            if not files.is_full(error):
                raise
            checkpoint.prune(run.folder.path / names.CHECKPOINTS, kept=1, keep_every=keep_every)
    work()


def save_if_due(run: Run, *, step: int, steps: int | None) -> None:
    """Save a checkpoint if one is due after `step` of `steps` steps (None: bounded by time)."""
    by_step = steps is not None and step % max(steps // CHECKPOINTS, 1) == 0
    every, done = run.config.checkpoints.keep_every, run.state.step  # 0 in the supervised phase
    is_kept = every is not None and done > 0 and done % every == 0
    interval_s = checkpoint_interval_s(run.budget.hours, run.budget.save.typical_s())
    if by_step or is_kept or run.budget.elapsed_s() - run.saved_s >= interval_s:
        save_checkpoint(run)
        run.saved_s = run.budget.elapsed_s()


def publish_best(run: Run) -> None:
    """Make `best/` a copy of the checkpoint with the best validation accuracy."""
    with run.watch.phase("save"), run.folder.tolerate_write_errors(f"{names.BEST}/", run.announce):
        best = checkpoint.best(run.folder.path / names.CHECKPOINTS, run.state)
        if best is not None:
            checkpoint.publish(best, run.folder.path / names.BEST)


def save_final(run: Run) -> None:
    """Write the current adapter to `final/`. Raises MachineFailure if it cannot be written."""

    def work() -> None:
        with files.whole_folder(run.folder.path / names.FINAL) as temporary:
            if not (run.folder.path / names.CONFIG).exists():  # somebody has deleted the folder under the run
                run.folder.write_config(run.config.model_dump(mode="json"))
            write(temporary, run.policy.adapter)

    run.console.status("saving the adapter")
    with run.watch.phase("save"):
        try:
            _retry_on_a_full_disk(run, work)
        except Exception as error:
            if not files.is_refused(error):
                raise
            raise _not_written(run, "the final adapter", error) from error


def flush_lines(run: Run) -> None:
    """Write all metrics and events that the disk refused so far. Raises MachineFailure if it still does."""
    try:
        _retry_on_a_full_disk(run, run.folder.flush_all)
    except OSError as error:
        raise _not_written(run, "the last lines of the metrics or events", error) from error


def _not_written(run: Run, what: str, error: Exception) -> MachineFailure:
    full = files.is_full(error)
    return MachineFailure(
        (f"the disk is full: no room for {what}" if full else f"cannot write {what} into {run.folder.path}") + f" ({error})",
        ("free some space" if full else "make it writable")
        + f" and resume from the last good checkpoint: {run.resume_command()}",
    )


def save_consistent_state(run: Run) -> None:
    """Save checkpoint and adapter after another error, unless an update was interrupted halfway. Before the first update there is
    no adapter to save: in `final/`, the untouched model would pass for a trained one.

    Its own failures are only logged, so that they do not hide that error.
    """
    try:
        if run.policy.is_consistent and save_checkpoint(run) and run.policy.version:
            save_final(run)
    except Exception as error:
        run.announce("warning", f"the last steps could not be saved: {type(error).__name__}: {error}")
