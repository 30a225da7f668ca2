"""One training step: sample and score groups, compute advantages, update, record. The loss is in `algorithm/loss.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from microrl import algorithm
from microrl.algorithm.advantages import shuffled
from microrl.algorithm.batch import Batch, assemble
from microrl.config import RunConfig
from microrl.config.reward import gdpo_weights
from microrl.environments.transcript import as_text
from microrl.errors import first_line
from microrl.models import gpu
from microrl.policy.optimizer import LARGEST_RATE, scheduled
from microrl.policy.update_metrics import Update
from microrl.run import metrics, names, rollouts
from microrl.terminal import counted
from microrl.train import guard
from microrl.train.guard_rules import SCHEDULED
from microrl.train.refill import MayRefill, Refill, SamplingTimer, always, difficulty, may_refill, missing
from microrl.train.run import Run
from microrl.train.setup import Components
from microrl.types import Group

Show = Callable[[Iterable[tuple[int, Group]], int], Iterator[tuple[int, Group]]]
"""Passes groups on as they arrive and shows how many of the total have; each has the position of its prompt."""


def training_step(run: Run, step: int, accuracy: float | None) -> None:
    """Sample, score, update, record. `accuracy`: validation accuracy of the weights that this step samples with, if measured.

    Until the update only the position in the data changes, and whoever catches an exception resets it. From the update on, a
    signal waits for the end of a micro-batch or of the step. Raises OutOfTime, KeyboardInterrupt, SyncNotProved and
    MachineFailure.
    """
    budget, began_s = run.budget, run.budget.elapsed_s()
    run.folder.step = step
    progress = budget.progress(step)
    optim, steering = run.config.optim, run.state.steering
    peak = steering.rate or float(optim.lr)
    fraction = scheduled(optim.schedule, progress, after=budget.progress(step + 1))
    lr = peak * fraction * run.guard.lr_factor
    run.watch.restart()
    run.console.status(f"step {step + 1}: sampling")
    show = partial(run.console.sampling, label=f"step {step + 1}: sampling")
    groups, sampled = run.with_smaller_cache_if_needed(lambda: sample_groups(run, step, show, may_refill(run, step)))
    with run.signals.held("this micro-batch"):
        run.console.status(f"step {step + 1}: update")
        with run.watch.phase("update"):
            batch = with_advantages(run.config, groups, step)
        diagnosed = diagnose(run, batch, step)
        with run.watch.phase("update"):
            measures_kl = steering.is_due(step, is_steered=optim.step_kl is not None)
            target_kl = None if optim.step_kl is None else optim.step_kl * (lr / peak) ** 2
            update = run.policy.update(
                batch, lr, run.check_deadline, progress=progress, measures_kl=measures_kl, target_kl=target_kl
            )
        if update.fraction < 1:
            peak, lr = peak * update.fraction, lr * update.fraction
            said = f"it was far larger than optim.step_kl, so most of it was taken back and the learning rate lowered to {lr:.2g}"
            run.announce("step shrunk", said, fraction=update.fraction)
        row = record(run, step, groups, sampled, update, lr=lr, accuracy=accuracy, began_s=began_s, diagnosed=diagnosed)
        with run.watch.phase("save"), run.folder.tolerate_write_errors("rollouts", run.announce):
            run.folder.log_rollouts(step, rollouts.lines(sampled, advantages_by_group(groups, batch), run.decode))
        run.prompts.learn([(group.prompt, difficulty(run.config, group), len(group.scores)) for group in sampled])
        run.state.step, run.state.sampler_position = step + 1, run.prompts.position
        run.state.question_history = dict(run.prompts.history)
        target, moved = optim.step_kl, update.step_kl
        if target is not None and moved is not None and lr > 0 and steering.learn(peak, lr, moved, target):
            said = f"the steered learning rate has reached its cap, {LARGEST_RATE:g}: the KL of a step stays below optim.step_kl"
            run.announce("rate at its cap", said)
        # Part of the step: a checkpoint never contains a row that the guard has not seen.
        guard.act(run, row | {SCHEDULED: fraction}, step)
        run.policy.is_consistent = True  # weights, row and guard belong together again: they may be saved
    if not run.state.is_stopped:
        budget.step.add(budget.elapsed_s() - began_s)
        run.forecast.stepped(step, row["length/mean"])


def sample_groups(parts: Components, step: int, show: Show, may_refill: MayRefill = always) -> tuple[list[Group], list[Group]]:
    """(groups to train on, all sampled groups), scored. They differ with DAPO's dynamic sampling, which drops and refills.

    Groups stream through: the answers of one are scored while others are still decoded.
    """
    timer, rounds = SamplingTimer(parts.watch), Refill(parts.config, may_refill)
    parts.scorer.reset_allowance()
    # The engine wakes up with the current adapter, verified; it sleeps again at the end of the block.
    with parts.engine.awake(parts.policy.snapshot(), is_training=True) as sampler:
        while asked := rounds.next_round():
            prompts = parts.prompts.draw(asked)
            stream = (parts.config.seed, step, rounds.count)
            decoding = sampler.groups(prompts, parts.sampling, stream=stream, environment=parts.environment)
            scored = parts.scorer.score(show(timer.decoding(decoding), len(prompts)))
            rounds.add(scored, timer.round_ended())
    timer.ended(parts.engine.report)
    return rounds.batch, rounds.sampled


def with_advantages(config: RunConfig, groups: list[Group], step: int) -> Batch:
    """The groups as a batch: one row a completion, with its group-relative advantage."""
    if config.reward.shuffle:
        groups = shuffled(groups, f"{config.seed}/{step}")
    return assemble(groups, algorithm.make(config))


def diagnose(run: Run, batch: Batch, step: int) -> dict[str, Any]:
    """The metrics that `diagnostics` asks for in this step, of the weights that sampled. The loss does not see them."""
    every = run.config.diagnostics.kl_ref_every
    if every is None or step % every or run.config.loss.beta > 0:
        return {}
    try:
        with run.watch.phase("diagnostics"):
            return {"policy/kl_ref": run.policy.kl_to_base(batch)}
    except Exception as error:
        if not gpu.is_out_of_memory(error):
            raise
        why = first_line(error)
    # A diagnostic must not end training, and must not change its micro-batches either.
    gpu.empty_cache()
    run.announce("out of memory", "in the diagnostics: this step has no policy/kl_ref", error=why)
    return {}


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
    diagnosed: Mapping[str, Any],
) -> dict[str, Any]:
    """Write the step's metrics and events; returns the row of metrics."""
    budget, state, folder = run.budget, run.state, run.folder
    with run.watch.phase("log"):
        if state.entropy_start is None:
            state.entropy_start = update.entropy
        missing_groups = missing(run.config, groups)
        row = metrics.row(
            metrics.of_groups(sampled, gdpo_weights(run.config.reward, run.config.env))
            | update.metrics(state.entropy_start)
            | metrics.of_times(run.watch.restart(), budget.elapsed_s() - began_s)
            | metrics.of_sync(run.engine.report)
            | {
                "step": step,
                "optim/lr": lr,
                "validate/accuracy": accuracy,
                "groups/missing": missing_groups,
                "memory/peak_gb": gpu.peak_gb(),
                "budget/elapsed_s": budget.elapsed_s(),
                "budget/left_s": budget.left_s(),
                "budget/cost_usd": budget.cost_usd(),
            }
            | dict(diagnosed),
            run.scorer.parts,
        )
        folder.append(names.METRICS, row)
        first = sampled[0].completions[0]
        said = first.text if first.transcript is None else as_text(first.transcript)
        run.console.step(
            row,
            progress=budget.progress(step + 1),
            expected=run.forecast.expected(step + 1, budget.elapsed_s() - began_s),
            completion=said,
            rest_s=budget.reserve_s(),
        )
        if update.reason:
            folder.event("update skipped", update.reason, step=step)
        if impossible := update.teacher_impossible:
            share = f"{impossible:,} of {update.tokens:,} drawn tokens ({impossible / update.tokens:.1%})"
            said = f"the teacher's log-probability is not finite for {share}; there, the teacher's term is 0"
            run.announce("impossible tokens", said, step=step, count=impossible)
        if row["reward/killed"]:
            folder.event("checks killed", run.scorer.why_killed(row["reward/killed"]), step=step)
        for why, count in metrics.deaths(sampled).most_common():
            number = f"{count} of {sum(len(group.completions) for group in sampled)} episodes"
            said = f"{number} were cut short because the environment's process was killed or exited: {why}"
            folder.event("episodes cut short", said, step=step, count=count)
            run.console.note_once(f"warning: {said}")
        for lack in run.scorer.custom.missing.values():
            why = f"`{lack.name}` gave no value for {counted(lack.count, 'completion')}, left out; row {lack.row}: {lack.why}"
            folder.event("reward failed", why, step=step, function=lack.name, count=lack.count)
            run.console.note_once(f"reward failed: {why}")
        if missing_groups:
            wanted = run.config.sampling.prompts_per_step
            shortage = f"only {wanted - missing_groups} of {wanted} groups have both right and wrong answers"
            folder.event("batch not full", f"{shortage}, after {len(sampled)} prompts", step=step, missing=missing_groups)
    return row


def advantages_by_group(groups: list[Group], batch: Batch) -> list[tuple[Group, list[float]]]:
    """The groups that were trained on, each with the advantages of its completions."""
    by_group: list[tuple[Group, list[float]]] = [(group, []) for group in groups]
    for row in batch.rows:
        by_group[row.group][1].append(row.advantage)
    return by_group
