"""The run: evaluate, warm up, train within the budget, save, evaluate again, sum up."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

from microrl import clock
from microrl.config import RunConfig
from microrl.errors import SwapNotProved, UserError
from microrl.limits import MIN_EVALUATION
from microrl.policy.schedule import learning_rate
from microrl.run import checkpoint, metrics
from microrl.run.budget import Budget
from microrl.run.checkpoint import State
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.run.forecast import Forecast
from microrl.run.heartbeat import Heartbeat
from microrl.run.signals import Interrupts
from microrl.run.stopwatch import Stopwatch
from microrl.train import planning, refill, saving, setup, validation
from microrl.train.guard import Guard, Verdict
from microrl.train.run import OutOfTime, Run
from microrl.train.sft import supervised_phase
from microrl.train.step import describe, gpu_name, sample, to_batch
from microrl.train.summary import summary_of


class StoppedByGuard(Exception):
    """The guard has ended the run."""


def train(
    config: RunConfig, folder: RunFolder, *, started: float, resume: bool = False, is_extended: bool = False
) -> dict[str, Any]:
    """Carry a run out and return its summary, which also stands in `summary.json`.

    `started` is when the process was created, on the clock of `clock.now_s`. `is_extended` says that a resumed run was given more
    hours or steps than it had. Raises KeyboardInterrupt after a clean save.
    """
    while True:
        try:
            return _train(config, folder, started=started, resume=resume, is_extended=is_extended)
        except saving.SetAside:
            pass  # there is a checkpoint before it, and fewer at every turn


def _train(config: RunConfig, folder: RunFolder, *, started: float, resume: bool, is_extended: bool) -> dict[str, Any]:
    measured = validation.measured_before(folder, config) if resume else None
    place, state = saving.find_checkpoint(folder) if resume else (None, State())
    state.is_stopped = state.is_stopped and not is_extended
    state.is_by_steps = None if is_extended else state.is_by_steps
    state.sft.is_done = state.sft.is_done and not (is_extended and config.sft.only)
    before_s, watch, bounds = state.elapsed_s, Stopwatch(state.phases), config.budget
    watch.add("load", clock.now_s() - started)
    with (
        Heartbeat(folder.path, lambda: before_s + clock.now_s() - started),
        RunConsole(title=f"microrl  {folder.path}", total_steps=bounds.steps, log=folder.log) as console,
        Interrupts(folder.log) as interrupts,
        ExitStack() as closing,
    ):
        with watch.phase("load"):
            parts = setup.build(config, folder, console, state, fresh=place is None)
            closing.callback(parts.engine.close)
            closing.callback(parts.scorer.close)
            config = parts.config
            plan = planning.of_model(config, parts, before_s + clock.now_s() - started)
        budget = Budget(hours=bounds.hours, steps=bounds.steps, price=plan.price, started=started, before_s=before_s)
        if state.is_by_steps is None:  # with both bounds: the one that the plan sees ending the run
            state.is_by_steps = bounds.steps is not None and (bounds.hours is None or plan.steps >= bounds.steps - state.step)
        budget.is_by_steps = state.is_by_steps
        guard, forecast = Guard(config.guard), Forecast(plan, budget, done=state.step)
        guard.completions = (state.validation.questions or 0) * config.validation.samples
        if place is not None:
            saving.restore(folder, place, parts.policy)
            guard.restore(state.guard)
            parts.prompts.position = state.sampler_position
            for name, seconds in state.durations.items():
                getattr(budget, name).recent = seconds
        if resume:
            saving.go_back(folder, place, state)
        run = Run(config, folder, budget, console, interrupts, watch, parts, state, guard, forecast, measured)
        return _carry_out(run, resume=resume)


def _carry_out(run: Run, *, resume: bool) -> dict[str, Any]:
    with run.watch.phase("load"):
        _begin(run, resume=resume)
    status = "failed"
    try:
        validation.before(run)
        _refuse_without_room_for_a_step(run)
        supervised_phase(run)
        ended = _steps(run)
        saving.save_checkpoint(run)  # a finished run can be given more steps or hours
        saving.save_final(run)
        validation.after(run)
        saving.flush_lines(run)
        status = ended  # not before all of it has been done
    except KeyboardInterrupt:
        status = "interrupted"
        with run.interrupts.held("saving"):
            saving.save_consistent_state(run)
            run.folder.event("interrupted", f"stopped by a signal before step {run.state.step}")
        raise
    except SwapNotProved as error:
        status = "unproved"
        run.folder.event("swap not proved", error.message, hint=error.hint, step=run.state.step)
        saving.save_consistent_state(run)
        raise
    except Exception as error:
        run.folder.event("failed", f"{type(error).__name__}: {error}", step=run.state.step)
        saving.save_consistent_state(run)
        error.add_note(f"go on with: {run.resume_command()}")
        raise
    finally:
        summary = summary_of(run, status)
        with run.folder.tolerate_write_errors("summary.json", run.tell):
            run.folder.write_json("summary.json", summary)
    return summary


def _begin(run: Run, *, resume: bool) -> None:
    """Say what is run, and refuse what cannot be: a budget that the loading alone has spent.

    A run that has made steps is ended as well as can be.
    """
    budget, state = run.budget, run.state
    needed_s = budget.min_reserve_s() + MIN_EVALUATION * budget.evaluation_s  # before training and after it
    left = budget.left_s()
    first = budget.sft_step if run.config.sft.only else budget.step
    if left is not None and left < needed_s and state.step == 0 and not state.sft.steps:
        raise UserError(
            f"{budget.hours:g} hours are too few: {budget.elapsed_s():.0f} s are spent now that everything is loaded, and "
            f"evaluating and saving take at least {needed_s:.1f} s more",
            f"--hours {budget.min_hours(needed_s + first.forecast_s()):g}",
        )
    policy = run.parts.policy
    adapter = policy.adapter.described()
    (run.folder.path / "summary.json").unlink(missing_ok=True)
    with run.folder.tolerate_write_errors("environment.json", run.tell):
        run.folder.log_environment(
            engine=run.parts.engine.name, trainable_params=policy.trainable, gpu=gpu_name(), adapter=adapter
        )
    run.console.note(f"{adapter['name']}: {adapter['line']}")
    if resume:
        is_warming_up = run.config.sft.is_on and not state.sft.is_done
        at = f"supervised step {state.sft.steps}" if is_warming_up else f"step {state.step}"
        run.tell("resumed", f"going on at {at}", elapsed_s=state.elapsed_s)


def _refuse_without_room_for_a_step(run: Run) -> None:
    budget = run.budget
    if run.config.sft.only:  # which looks for itself
        return
    if run.state.step == 0 and not budget.fits_a_step():
        missing_s = budget.step.forecast_s() + budget.min_reserve_s()
        raise UserError(
            f"{budget.hours:g} hours have no room for a single step: it may take {budget.step.forecast_s():.1f} s, saving and "
            f"a part of the final evaluation {budget.min_reserve_s():.1f} s, and {budget.left_s():.1f} s are left",
            f"microrl train --resume {run.folder.path} --hours {budget.min_hours(missing_s):g}",
        )


def _steps(run: Run) -> str:
    """Train until the budget, the guard or the end of the steps says stop; returns the status that the run ends with."""
    budget, state, parts = run.budget, run.state, run.parts
    saved_s = budget.elapsed_s()
    if state.is_stopped:
        return "stopped"  # and killed before its end
    if run.config.sft.only:
        return "done"
    parts.engine.check_deadline = parts.scorer.check_deadline = run.check_deadline
    try:
        for step in budget.steps(start=state.step):
            accuracy = validation.validate_if_due(run, step)
            began = budget.elapsed_s()
            row = _step(run, step, accuracy)
            budget.step.add(budget.elapsed_s() - began)
            run.forecast.stepped(step, row["length/mean"])
            saved_s = saving.save_if_due(run, saved_s, state.step, budget.max_steps)
        if state.step == budget.max_steps:
            validation.validate_if_due(run, state.step)  # of the weights that no step samples with any more
    except OutOfTime:
        parts.prompts.position = state.sampler_position
        if state.step == 0:
            budget.step.guess_s = max(budget.step.guess_s, budget.elapsed_s() - saved_s)
            _refuse_without_room_for_a_step(run)
        run.tell("warning", f"the time is up, and what was begun after step {state.step} was given up")
    except StoppedByGuard:
        return "stopped"
    finally:
        parts.engine.check_deadline = parts.scorer.check_deadline = lambda: None
    return "done"


def _step(run: Run, step: int, accuracy: float | None) -> dict[str, Any]:
    """Sample, judge, update, log. Before the update nothing is changed; from then on to the end nothing comes between.

    Raises StoppedByGuard behind the step that the guard ends the run with.
    """
    parts, state, watch = run.parts, run.state, run.watch
    began = clock.now_s()
    watch.lap()
    lr = learning_rate(run.config.optim, run.budget.progress(step), after=run.budget.progress(step + 1)) * run.guard.lr_factor
    progress = partial(run.console.sampling, label=f"step {step + 1}: sampling")
    may_refill = refill.may_refill(run, step)
    groups, sampled = run.sampled(lambda: sample(parts, step, watch, progress, parts.sampling, may_refill))
    run.console.status(f"step {step + 1}: update")
    with run.interrupts.held("this micro-batch"):
        with watch.phase("update"):
            update = parts.policy.update(to_batch(parts, groups), lr, run.check_deadline, progress=run.budget.progress(step))
        with watch.phase("log"):
            if state.entropy_start is None:
                state.entropy_start = update.entropy
            row = describe(
                step, sampled, update, parts.engine.report, lr=lr, entropy_start=state.entropy_start, phase_seconds=watch.lap(),
                seconds=clock.now_s() - began,
            )  # fmt: skip
            missing = refill.missing(run.config, groups)
            row = _log(run, step, row | {"validate/accuracy": accuracy, "groups/missing": missing}, update.reason)
            if missing:
                wanted = run.config.sampling.prompts_per_step
                said = f"{wanted - missing} of {wanted} groups have mixed accuracy after {len(sampled)} prompts"
                run.folder.event("batch not full", said, step=step, missing=missing)
        with watch.phase("save"), run.folder.tolerate_write_errors("rollouts", run.tell):
            run.folder.log_rollouts(step, sampled)
        state.step, state.sampler_position = step + 1, parts.prompts.position
        verdict = run.guard.check(row)  # part of the step: a checkpoint never holds a row that the guard has not seen
        if verdict is not None:
            _act(run, verdict, step)
        parts.policy.is_consistent = True
    if state.is_stopped:
        raise StoppedByGuard
    return row


def _log(run: Run, step: int, values: dict[str, Any], reason: str | None) -> dict[str, Any]:
    budget = run.budget
    values |= {"budget/elapsed_s": budget.elapsed_s(), "budget/left_s": budget.left_s(), "budget/cost_usd": budget.cost_usd()}
    row = metrics.row(values)
    run.folder.append("metrics.jsonl", row)
    run.console.step(row, progress=budget.progress(step + 1), expected=run.forecast.steps)
    if reason:
        run.folder.event("update skipped", reason, step=step)
    if row["reward/killed"]:
        run.folder.event("checks killed", _killed(run, row["reward/killed"]), step=step)
    return row


def _killed(run: Run, count: int) -> str:
    allowance, deadline_s = run.parts.scorer.allowance, run.config.reward.deadline_s
    why = f"the checks of {len(allowance.killed)} different answers were killed after {deadline_s:g} s"
    if allowance.refused:
        why += f", and {len(allowance.refused)} more were not checked to the end, since that is all that a step may wait for"
    return f"{count} completions count as wrong: {why}"


def _act(run: Run, verdict: Verdict, step: int) -> None:
    """Do what the guard says about the weights: a run that it stops ends with its best ones, too."""
    details = {"rule": verdict.rule, "action": verdict.action, "value": verdict.value, "limit": verdict.limit, "step": step}
    run.folder.event("guard", verdict.message, **details)
    run.console.note(f"guard, {verdict.rule}: {verdict.message}; {verdict.action}")
    run.state.is_stopped = verdict.action == "stop"
    if verdict.action in ("rollback", "stop"):
        best = checkpoint.best(run.folder.path / saving.FOLDER, run.state)
        if best is None:
            run.tell("warning", "no checkpoint has been validated: there is none to roll back to", step=step)
        else:
            try:
                with run.watch.phase("save"):
                    checkpoint.load_weights(best, run.parts.policy)
                run.tell("rolled back", f"the weights are those of {best.name} again", step=step)
            except UserError as error:
                run.tell("warning", f"{best.name} cannot be rolled back to: {error.message}", step=step)
