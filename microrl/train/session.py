"""Opening or resuming a run, refusing a budget that is too small, and recording how the run ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields

from microrl import clock
from microrl.config import RunConfig
from microrl.errors import Explained, SyncNotProved, UserError
from microrl.limits import MIN_EVALUATION
from microrl.models import gpu
from microrl.report.history import CHANGED
from microrl.run import environment, names
from microrl.run.budget import Budget
from microrl.run.checkpoint import State
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.run.forecast import Forecast
from microrl.run.heartbeat import Heartbeat
from microrl.run.signals import Interrupts
from microrl.run.stopwatch import Stopwatch
from microrl.train import fallback, planning, saving, setup
from microrl.train.guard import Guard
from microrl.train.held_out import measured_before, refuse_other_questions
from microrl.train.run import OutOfTime, Run
from microrl.train.summary import summary_of
from microrl.train.watchdog import OnHang, Watchdog

SHORT_ANSWER = 256
"""Tokens of a completion limit that is suggested where a higher one takes more time than there is."""


@contextmanager
def opened(
    config: RunConfig, folder: RunFolder, *, started: float, resume: bool, is_extended: bool, on_hang: OnHang = lambda error: None
) -> Iterator[Run]:
    """A loaded run, restored to its last state; closed at the end of the block. Arguments and errors as in `loop.train`."""
    before = measured_before(folder, config)
    checkpoint, state = saving.find_checkpoint(folder) if resume else (None, State())
    if is_extended:
        state.extend(sft_only=config.sft.only)
    spent_s, bounds = state.elapsed_s, config.budget
    watch = Stopwatch(state.phases)
    watch.add("load", clock.now_s() - started)
    budget_s = None if bounds.hours is None else bounds.hours * 3600

    def elapsed_s() -> float:
        return spent_s + clock.now_s() - started

    watchdog = Watchdog(folder, on_hang)
    heartbeat = Heartbeat(folder.path, elapsed_s, budget_s=budget_s, on_hang=watchdog.end)
    console = RunConsole(
        title=f"microrl  {folder.path}", total_steps=bounds.steps, budget_s=budget_s, elapsed_s=elapsed_s, log=folder.log,
        on_status=heartbeat.begin,
    )  # fmt: skip
    heartbeat.on_silence, watchdog.console = console.silence, console
    with heartbeat, console, ExitStack() as closing:
        if not state.step and (plan := planning.of_config(config, is_at_hand=True)) is not None:
            console.expect(plan.hours * 3600)
        signals = closing.enter_context(Interrupts(folder.log))
        with watch.phase("load"):
            components = setup.build(config, folder, console, watch, state, fresh=checkpoint is None)
            components.engine.check_deadline = components.scorer.check_deadline = heartbeat.worked
            closing.callback(components.engine.close)
            closing.callback(components.scorer.close)
            if components.environment is not None:
                closing.callback(components.environment.close)
            plan = planning.of_model(components, spent_s + clock.now_s() - started)
        budget = Budget(
            hours=bounds.hours, steps=bounds.steps, price=plan.price, started=started, before_s=spent_s,
            is_trial=folder.is_in_sweep,
        )  # fmt: skip
        if state.is_by_steps is None:  # with both bounds: the one that the plan expects to end the run
            state.is_by_steps = bounds.steps is not None and (bounds.hours is None or plan.steps >= bounds.steps - state.step)
        budget.is_by_steps = state.is_by_steps
        failures = fallback.failures(folder)
        guard = Guard(components.config.guard)
        guard.counts_accuracy = bool(components.config.reward.accuracy_weight)
        guard.is_steered = components.config.optim.step_kl is not None
        guard.completions = (state.validation.questions or 0) * config.validation.samples
        run = Run(
            **{one.name: getattr(components, one.name) for one in fields(components)},
            folder=folder, budget=budget, console=console, signals=signals, state=state, guard=guard,
            forecast=Forecast(plan, budget, done=state.step, is_same_engine=not failures), heartbeat=heartbeat, before=before,
            engine_failures=len(failures),
        )  # fmt: skip
        heartbeat.forecast_s, watchdog.run = plan.step_s, run
        refuse_other_questions(run)
        if checkpoint is not None:
            saving.restore(run, checkpoint)
        if resume:  # nothing is deleted before all is read
            saving.go_back(folder, checkpoint, state)
        with watch.phase("load"):
            _begin(run, resume=resume)
        yield run
        console.status("closing the engine")


def _begin(run: Run, *, resume: bool) -> None:
    """Record the environment and announce the run. Raises UserError if loading has used up the budget before the first step."""
    _require_time_to_evaluate(run)
    adapter = run.policy.adapter.summary()
    stale = [names.SUMMARY, *(f"{names.EVAL}/{names.AFTER}{suffix}" for suffix in (".json", ".jsonl.gz"))]
    for name in stale:  # of weights that an earlier process of the run ended with
        (run.folder.path / name).unlink(missing_ok=True)
    with run.folder.tolerate_write_errors(names.ENVIRONMENT, run.announce):
        path, trainable = run.folder.path / names.ENVIRONMENT, run.policy.trainable
        engine, card = run.engine.name, gpu.name()
        warning = environment.record(path, engine=engine, gpu=card, trainable_params=trainable, adapter=adapter)
        if warning is not None:
            run.announce("warning", warning)
    run.console.note(f"{adapter['name']}: {adapter['line']}")
    run.expect_end()
    if resume:
        run.folder.step = run.state.step
        sft = run.state.sft
        at = f"SFT step {sft.steps + 1}" if _is_in_sft(run) else f"step {run.state.step + 1}"
        if saving.record_is_changed(run.folder, run.state):
            run.announce("warning", f"{CHANGED}. Training is not affected")
        run.announce("resumed", f"continuing at {at}", elapsed_s=run.state.elapsed_s, step=run.state.step)


def _is_in_sft(run: Run) -> bool:
    return run.config.sft.is_on and not run.state.sft.is_done


def _require_time_to_evaluate(run: Run) -> None:
    budget, state = run.budget, run.state
    needed_s = budget.min_reserve_s() + MIN_EVALUATION * budget.evaluation_s  # before training and after it
    first = budget.sft_step if run.config.sft.only else budget.step
    left = budget.left_s()
    if left is not None and left < needed_s and state.step == 0 and not state.sft.steps:
        raise UserError(
            f"{budget.limit()} is too short: loading took {budget.elapsed_s():.0f} s, and "
            f"evaluating and saving need at least {needed_s:.1f} s more",
            f"{_with_shorter_answers(run, needed_s + first.forecast_s())}"
            f"pass at least --hours {budget.min_hours(needed_s + first.forecast_s()):g}",
        )


def _with_shorter_answers(run: Run, needed_s: float) -> str:
    """What to pass where a lower completion limit saves much of the time; it grows about as the limit does."""
    limit, hours = run.config.sampling.max_completion_tokens, run.budget.hours
    if limit < 4 * SHORT_ANSWER or hours is None:
        return ""
    enough = max(hours, run.budget.min_hours(needed_s * SHORT_ANSWER / limit))
    shorter = f"--set sampling.max_completion_tokens={SHORT_ANSWER} --hours {enough:g}"
    return f"shorten the completions, which may have {limit:,} tokens: {shorter}; or else "


def require_time_for_a_step(run: Run) -> None:
    """Raises UserError if there is no time for a first step. SFT alone has its own check."""
    budget = run.budget
    if run.config.sft.only or run.state.step or budget.fits(budget.step.forecast_s(), barely=True):
        return
    missing_s = budget.step.forecast_s() + budget.min_reserve_s() + run.watch.totals["load"]  # a resumed run loads again
    left_s = budget.left_s() or 0.0
    left = f"only {left_s:.1f} s are left" if left_s > 0 else "no time is left"
    raise UserError(
        f"{budget.limit()} is too short for a single step: a step may take {budget.step.forecast_s():.1f} s, saving and "
        f"a part of the final evaluation {budget.min_reserve_s():.1f} s, but {left}",
        f"microrl train --resume {run.folder.path} --hours {budget.min_hours(missing_s):g}",
    )


@contextmanager
def until_time_is_up(run: Run) -> Iterator[None]:
    """The block ends when time is up, whatever it is doing: sampling, scoring and update check the deadline. The unfinished
    step is discarded."""
    run.engine.check_deadline = run.scorer.check_deadline = run.check_deadline
    run.saved_s = run.budget.elapsed_s()
    try:
        yield
    except OutOfTime:
        run.prompts.restore(run.state.sampler_position, run.state.question_history)
        if run.state.step == 0:
            run.budget.step.guess_s = max(run.budget.step.guess_s, run.budget.elapsed_s() - run.saved_s)
            require_time_for_a_step(run)
        run.announce("time is up", f"the unfinished work after step {run.state.step} was discarded")
    finally:
        run.engine.check_deadline = run.scorer.check_deadline = run.heartbeat.worked


@contextmanager
def recorded(run: Run) -> Iterator[None]:
    """Write `summary.json` however the block ends. After an error, save the last finished step and say how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        run.status = "interrupted"
        with run.signals.held("saving"):
            saving.save_consistent_state(run)
            done = f"{run.state.sft.steps} finished SFT steps" if _is_in_sft(run) else f"{run.state.step} finished steps"
            run.folder.event("interrupted", f"stopped by a signal after {done}", resume=run.resume_command(), step=run.state.step)
        raise
    except SyncNotProved as error:
        run.status = "unproved"
        run.folder.event("sync check failed", error.message, hint=error.hint, step=run.state.step)
        saving.save_consistent_state(run)
        raise
    except Exception as error:
        hint = {"hint": error.hint} if isinstance(error, Explained) and error.hint else {}
        reason = error.message if isinstance(error, Explained) else f"{type(error).__name__}: {error}"
        run.folder.event("failed", reason, **hint, resume=run.resume_command(), step=run.state.step)
        saving.save_consistent_state(run)
        error.add_note(f"resume with: {run.resume_command()}")
        raise
    finally:
        run.summary = summary_of(run)
        with run.folder.tolerate_write_errors(names.SUMMARY, run.announce):
            run.folder.write_json(names.SUMMARY, run.summary)
