"""The run: evaluate, train within the budget, save, evaluate again, sum up."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from microrl import checkpoint
from microrl.budget import Budget
from microrl.checkpoint import State
from microrl.config import RunConfig
from microrl.errors import SwapNotProved
from microrl.evaluation.evaluate import Result, evaluate, gains
from microrl.policy.schedule import learning_rate
from microrl.rollout.engine import Engine
from microrl.tracking import metrics
from microrl.tracking.console import RunConsole
from microrl.tracking.run_folder import RunFolder
from microrl.tracking.stopwatch import Stopwatch
from microrl.train import setup
from microrl.train.interrupts import Interrupts
from microrl.train.setup import Parts
from microrl.train.step import describe, gpu_name, sample, to_batch
from microrl.types import BASE, AdapterSnapshot, Sampling

HELD_OUT = "held-out"
SAVE_S = 2.0
"""Reserve for writing the final adapter."""
EVALUATION_SHARE = 0.3
"""Most of what is left after loading that the evaluation before training may take."""


@dataclass(slots=True)
class Run:
    """A run in progress."""

    config: RunConfig
    folder: RunFolder
    budget: Budget
    console: RunConsole
    interrupts: Interrupts
    watch: Stopwatch
    parts: Parts
    state: State
    before: Result | None = None
    after: Result | None = None
    updating: bool = False
    """Between the first changed weight and the logged row: what stands in memory is no whole step."""


def train(config: RunConfig, folder: RunFolder, *, started: float, resume: bool = False) -> dict[str, Any]:
    """Carry a run out and return its summary, which also stands in `summary.json`.

    `started` is when the process was created (seconds since the epoch). Raises KeyboardInterrupt after a clean save.
    """
    saved = checkpoint.all_in(folder.path / "checkpoints")[-1:] if resume else []
    watch = Stopwatch()
    watch.add("load", time.time() - started)
    total = config.budget.steps
    with RunConsole(title=f"microrl  {folder.path}", total_steps=total) as console, Interrupts() as interrupts:
        with watch.phase("load"):
            parts = setup.build(config, folder, console)
        try:
            state = checkpoint.restore(saved[0], parts.policy) if saved else State()
            budget = Budget(
                hours=config.budget.hours, steps=total, price=config.budget.price, started=started, before_s=state.elapsed_s
            )
            run = Run(config, folder, budget, console, interrupts, watch, parts, state)
            return _carry_out(run, resume=resume)
        finally:
            parts.judge.close()
            parts.engine.close()


def _carry_out(run: Run, *, resume: bool) -> dict[str, Any]:
    run.parts.prompts.position = run.state.sampler_position
    if resume:
        _rewind_metrics(run)
    policy = run.parts.policy
    run.folder.log_environment(engine=run.parts.engine.name, trainable_params=policy.trainable, gpu=gpu_name())
    run.console.note(f"{run.config.adapter.kind} rank {run.config.adapter.rank}: {policy.trainable:,} trainable parameters")
    status = "failed"
    try:
        run.before = _evaluate_before(run)
        _steps(run)
        if run.state.step == 0:
            run.folder.event("warning", "the budget had no room for a single step")
            run.console.note("warning: the budget had no room for a single step: give it more --hours")
        _save_final(run)
        _save_checkpoint(run)  # a finished run can be given more steps or hours
        run.after = _evaluate(run, policy.snapshot(), "after", run.budget.deadline_s())
        status = "done"
    except KeyboardInterrupt:
        status = "interrupted"
        with run.interrupts.held():
            _save_what_is_whole(run)
            run.folder.event("interrupted", f"stopped by a signal before step {run.state.step}")
        raise
    except SwapNotProved as error:
        status = "unproved"
        run.folder.event("swap not proved", error.message, hint=error.hint, step=run.state.step)
        _save_what_is_whole(run)
        raise
    except Exception as error:
        run.folder.event("failed", f"{type(error).__name__}: {error}", step=run.state.step)
        _save_what_is_whole(run)
        raise
    finally:
        summary = _summary(run, status)
        run.folder.write_json("summary.json", summary)
    return summary


def _steps(run: Run) -> None:
    config, parts, watch = run.config, run.parts, run.watch
    saved_at = time.monotonic()
    for step in run.budget.steps(start=run.state.step):
        began = time.perf_counter()
        watch.lap()
        lr = learning_rate(config.optim, run.budget.share(step))

        def progress(groups, total, step=step):  # type: ignore[no-untyped-def]
            return run.console.sampling(groups, total, f"step {step + 1}: sampling")

        groups, sampled = sample(parts, step, watch, progress, parts.sampling)
        run.console.status(f"step {step + 1}: update")
        with run.interrupts.held():  # from the first changed weight to the logged row nothing comes between
            run.updating = True
            with watch.phase("update"):
                update = parts.policy.update(to_batch(parts, groups), lr)
            if run.state.entropy_start is None:
                run.state.entropy_start = update.entropy
            row = describe(
                step, sampled, update, parts.engine.report, lr=lr, entropy_start=run.state.entropy_start, laps=watch.lap(),
                seconds=time.perf_counter() - began,
            )  # fmt: skip
            _log(run, step, row, update.reason)
            with watch.phase("save"):
                run.folder.log_rollouts(step, sampled)
            run.state.step, run.state.sampler_position = step + 1, parts.prompts.position
            run.updating = False
        if time.monotonic() - saved_at >= config.budget.checkpoint_minutes * 60:
            _save_checkpoint(run)
            saved_at = time.monotonic()


def _log(run: Run, step: int, values: dict[str, Any], reason: str | None) -> None:
    budget = run.budget
    values |= {"budget/elapsed_s": budget.elapsed_s(), "budget/left_s": budget.left_s(), "budget/cost_usd": budget.cost_usd()}
    row = metrics.row(values)
    run.folder.append("metrics.jsonl", row)
    run.console.step(row)
    if reason:
        run.folder.event("update skipped", reason, step=step)


def _evaluate_before(run: Run) -> Result | None:
    """The untouched model on the held-out problems; a resumed run takes what it measured the first time."""
    stored = run.folder.path / "eval" / f"{HELD_OUT}-before.json"
    left = run.budget.left_s()
    result: Result | None
    if stored.is_file():
        result = Result.from_json(run.folder.read_json(f"eval/{stored.name}"))
    else:
        result = _evaluate(run, BASE, "before", None if left is None else left * EVALUATION_SHARE)
    if result is not None:
        run.budget.reserve(SAVE_S + result.seconds)
    return result


def _evaluate(run: Run, snapshot: AdapterSnapshot, name: str, deadline_s: float | None) -> Result | None:
    config = run.config.evaluation
    if not run.parts.held_out:
        return None
    with run.watch.phase("evaluate"):
        result = evaluate_snapshot(run.parts.engine, run.parts, snapshot, run.console, name, deadline_s)
    if result is not None:
        run.folder.write_json(f"eval/{HELD_OUT}-{name}.json", result.to_json())
        accuracy = result.accuracy()
        run.console.note(
            f"{name}: accuracy {accuracy.mean:.3f} [{accuracy.ci95[0]:.3f}, {accuracy.ci95[1]:.3f}] on {len(result.right)} "
            f"held-out problems, {config.samples} samples each"
        )
    return result


def evaluate_snapshot(
    engine: Engine, parts: Parts, snapshot: AdapterSnapshot, console: RunConsole, name: str, deadline_s: float | None
) -> Result | None:
    """Accuracy of one snapshot on the held-out problems, with the run's evaluation settings."""
    config = parts.config.evaluation
    sampling = Sampling(
        config.samples, config.max_completion_tokens or parts.sampling.max_tokens, config.temperature, config.top_p
    )
    with engine.awake(snapshot) as sampler:
        return evaluate(
            sampler,
            parts.judge,
            parts.held_out,
            sampling,
            seed=config.seed,
            pass_k=config.pass_k,
            deadline_s=deadline_s,
            on_progress=lambda done, total: console.status(f"evaluating {name}: {done}/{total} problems"),
        )


def _save_checkpoint(run: Run) -> None:
    path = run.folder.path / "metrics.jsonl"
    run.state.elapsed_s = run.budget.elapsed_s()
    run.state.metrics_offset = path.stat().st_size if path.exists() else 0
    with run.watch.phase("save"):
        checkpoint.save(run.folder.path / "checkpoints", run.parts.policy, run.state)


def _save_what_is_whole(run: Run) -> None:
    """Checkpoint and adapter as of the last finished step; nothing where an update was cut, and the last checkpoint stands."""
    if not run.updating:
        _save_checkpoint(run)
        _save_final(run)


def _save_final(run: Run) -> None:
    with run.watch.phase("save"):
        final: Path = run.folder.path / "final"
        final.mkdir(exist_ok=True)
        checkpoint.save_adapter(final, run.parts.policy)


def _rewind_metrics(run: Run) -> None:
    """Forget what was logged after the checkpoint: those steps are run again."""
    (run.folder.path / "summary.json").unlink(missing_ok=True)
    path = run.folder.path / "metrics.jsonl"
    if path.exists():
        with path.open("r+b") as file:
            file.truncate(run.state.metrics_offset)
    run.folder.event("resumed", f"going on at step {run.state.step}", elapsed_s=run.state.elapsed_s)


def _summary(run: Run, status: str) -> dict[str, Any]:
    elapsed = run.budget.elapsed_s()
    phases = {name: round(seconds, 3) for name, seconds in run.watch.totals.items()}
    summary: dict[str, Any] = {
        "status": status,
        "steps": run.state.step,
        "hours_budget": run.budget.hours,
        "hours_spent": elapsed / 3600,
        "seconds_by_phase": {**phases, "idle": round(max(run.budget.process_s() - sum(phases.values()), 0.0), 3)},
        "cost_usd": run.budget.cost_usd(),
        "trainable_params": run.parts.policy.trainable,
        "eval": {
            "before": run.before.summary() if run.before else None,
            "after": run.after.summary() if run.after else None,
            **(gains(run.before, run.after) if run.before and run.after else {"paired_gain": None}),
        },
    }
    return summary
