"""One training step: sample and score groups, compute advantages, update by the loss, record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from microrl import clock
from microrl.algorithm.batch import Batch, assemble
from microrl.config import RunConfig
from microrl.models.gpu import peak_gb
from microrl.policy.schedule import learning_rate
from microrl.policy.update_metrics import Update
from microrl.run import metrics
from microrl.train import guard
from microrl.train.refill import MayRefill, Refill, RoundTimer, always, may_refill, missing
from microrl.train.run import Run
from microrl.train.setup import Components
from microrl.types import Group

Progress = Callable[[Iterable[tuple[int, Group]], int], Iterator[tuple[int, Group]]]


def training_step(run: Run, step: int, accuracy: float | None) -> None:
    """Sample, score, update, record. `accuracy`: validation accuracy of the weights that this step samples with, if measured.

    Until the update only the position in the data changes, and whoever catches an exception resets it. From the update to the
    end, signals are held back. Raises OutOfTime,
    KeyboardInterrupt, SwapNotProved and MachineFailure.
    """
    budget, began_s = run.budget, run.budget.elapsed_s()
    run.watch.restart()
    lr = learning_rate(run.config.optim, budget.progress(step), after=budget.progress(step + 1)) * run.guard.lr_factor
    show = partial(run.console.sampling, label=f"step {step + 1}: sampling")
    groups, sampled = run.with_smaller_cache_if_needed(lambda: sample_groups(run, step, show, may_refill(run, step)))
    run.console.status(f"step {step + 1}: update")
    with run.signals.held("this micro-batch"):
        with run.watch.phase("update"):
            batch = to_batch(run.config, groups)
            update = run.policy.update(batch, lr, run.check_deadline, progress=budget.progress(step))
        row = record(run, step, groups, sampled, update, lr=lr, accuracy=accuracy, began_s=began_s)
        run.state.step, run.state.sampler_position = step + 1, run.prompts.position
        guard.act(run, row, step)  # part of the step: a checkpoint never contains a row that the guard has not seen
        run.policy.is_consistent = True  # weights, row and guard belong together again: they may be saved
    if not run.state.is_stopped:
        budget.step.add(budget.elapsed_s() - began_s)
        run.forecast.stepped(step, row["length/mean"])


def sample_groups(
    parts: Components, step: int, show: Progress, may_refill: MayRefill = always
) -> tuple[list[Group], list[Group]]:
    """(groups to train on, all sampled groups), scored. They differ with DAPO's dynamic sampling, which drops and refills.

    Waking the engine sends it the current adapter and proves the swap. Answers are scored while others are still decoded.
    """
    began, refill = clock.now_s(), Refill(parts.config, may_refill)
    parts.scorer.renew()
    with parts.engine.awake(parts.policy.snapshot(), trial=True) as sampler:
        while asked := refill.next_round():
            prompts, timer = parts.prompts.draw(asked), RoundTimer(parts.watch)
            stream = (parts.config.seed, step, refill.rounds)
            groups = timer.decoding(sampler.groups(prompts, parts.sampling, stream=stream))
            scored = parts.scorer.score(show(groups, len(prompts)))
            refill.add(scored, timer.stop())
    sleep_wake_s = parts.engine.report.wake_s + parts.engine.report.sleep_s
    parts.watch.add("sleep_wake", sleep_wake_s)
    parts.watch.add("sync", clock.now_s() - began - refill.seconds - sleep_wake_s)  # push, proof and overhead
    return refill.batch, refill.sampled


def to_batch(config: RunConfig, groups: list[Group]) -> Batch:
    """The groups as a batch with advantages, as configured by the loss."""
    return assemble(groups, scale_by_std=config.loss.scale_by_std, mask_truncated=config.loss.mask_truncated)


def record(
    run: Run,
    step: int,
    groups: list[Group],
    sampled: list[Group],
    update: Update,
    *,
    lr: float,
    accuracy: float | None,
    began_s: float,
) -> dict[str, Any]:
    """Write the step's metrics, events and rollouts; returns the row of metrics."""
    budget, state, folder = run.budget, run.state, run.folder
    with run.watch.phase("log"):
        if state.entropy_start is None:
            state.entropy_start = update.entropy
        lacking = missing(run.config, groups)
        row = metrics.row(
            metrics.of_groups(sampled)
            | update.metrics(state.entropy_start)
            | metrics.of_times(run.watch.restart(), budget.elapsed_s() - began_s)
            | metrics.of_sync(run.engine.report)
            | {
                "step": step,
                "optim/lr": lr,
                "validate/accuracy": accuracy,
                "groups/missing": lacking,
                "memory/peak_gb": peak_gb(),
                "budget/elapsed_s": budget.elapsed_s(),
                "budget/left_s": budget.left_s(),
                "budget/cost_usd": budget.cost_usd(),
            }
        )
        folder.append("metrics.jsonl", row)
        run.console.step(row, progress=budget.progress(step + 1), expected=run.forecast.steps)
        if update.reason:
            folder.event("update skipped", update.reason, step=step)
        if row["reward/killed"]:
            folder.event("checks killed", run.scorer.why_killed(row["reward/killed"]), step=step)
        if lacking:
            wanted = run.config.sampling.prompts_per_step
            said = f"only {wanted - lacking} of {wanted} groups have both right and wrong answers, after {len(sampled)} prompts"
            folder.event("batch not full", said, step=step, missing=lacking)
    with run.watch.phase("save"), folder.tolerate_write_errors("rollouts", run.announce):
        folder.log_rollouts(step, sampled)
    return row
