"""Validation during training, which selects the best checkpoint. Its problems are neither trained on nor held out."""

from __future__ import annotations

import math

from microrl.config import RunConfig
from microrl.evaluation.result import Result
from microrl.limits import VALIDATIONS
from microrl.train import saving
from microrl.train.held_out import evaluate_snapshot
from microrl.train.run import Run


def validate_if_due(run: Run, step: int) -> float | None:
    """Validation accuracy of the weights that `step` samples with, if a validation is due; else None.

    A new best is saved as a checkpoint and copied to `best/`.
    """
    state = run.state.validation
    if state.step == step:  # resumed from the checkpoint right after it
        return state.accuracy
    return _record(run, step) if run.validation and _is_due(run, step) else None


def validate_last(run: Run) -> None:
    """Validate the final weights, with which no step samples: of a run bounded by steps, and of a sweep's trial, since successive
    halving ranks by them."""
    step, is_timed_trial = run.state.step, run.budget.is_trial and not run.budget.is_by_steps
    if is_timed_trial and run.validation and run.state.validation.step != step and run.budget.fits(0.0):
        _record(run, step)
    elif step == run.budget.max_steps:
        validate_if_due(run, step)


def _record(run: Run, step: int) -> float | None:
    state, result = run.state.validation, _validate(run)
    if result is None:
        return None
    state.step, state.accuracy, state.questions = step, result.accuracy().mean, len(result.right)
    run.guard.completions = len(result.right) * result.samples
    state.due_s = run.budget.elapsed_s() + _pause_s(run, result.seconds)
    run.forecast.validated(result.seconds, len(result.right) * result.samples)
    best = (state.best_step, state.best_accuracy)
    if state.best_accuracy is None or state.accuracy > state.best_accuracy:
        state.best_step, state.best_accuracy = step, state.accuracy
        if saving.save_checkpoint(run):
            saving.publish_best(run)
            run.folder.event("best", f"accuracy {state.accuracy:.3f} on {state.questions} validation problems", step=step)
        else:
            state.best_step, state.best_accuracy = best  # what was not saved cannot be restored
    return state.accuracy


def _validate(run: Run) -> Result | None:
    config, hours = run.config.validation, run.budget.hours
    questions, deadline_s = run.state.validation.questions, None
    if run.budget.is_by_steps:
        questions = questions or by_steps(run.config, len(run.validation))[0]
    elif questions is None and hours is not None:
        # The first validation may take longer: it decides how many questions the later ones ask.
        deadline_s = config.fraction * hours * 3600 / 4

    def work() -> Result | None:
        return evaluate_snapshot(
            run,
            run.policy.snapshot(),
            "validation",
            deadline_s,
            prompts=run.validation[:questions],
            samples=config.samples,
        )

    with run.watch.phase("validate"):
        return run.with_smaller_cache_if_needed(work)


def _is_due(run: Run, step: int) -> bool:
    if run.budget.is_by_steps:
        questions, every = by_steps(run.config, len(run.validation))
        if not questions or (step % every and step != run.config.budget.steps):
            return False
    elif run.budget.elapsed_s() < run.state.validation.due_s:
        return False
    # Only if the training step that it belongs to still fits.
    return run.budget.fits(run.budget.validation.forecast_s() + run.budget.step.forecast_s())


def by_steps(config: RunConfig, available: int) -> tuple[int, int]:
    """(questions per validation, steps between validations) of a run bounded by steps, where the clock must not decide.

    Validation takes at most `validation.fraction` of the run's completions, which is less than that fraction of its time,
    since completions of a step are also trained on. There are at least two, at the start and at the end, or none.
    """
    steps, samples = config.budget.steps, config.validation.samples
    assert steps is not None
    limit = config.sampling.max_completion_tokens
    longer = max((config.evaluation.max_completion_tokens or limit) / limit, 1.0)
    batch = config.sampling.prompts_per_step * config.sampling.group_size
    allowed = config.validation.fraction * steps * batch / (samples * longer)  # questions in the whole run
    questions = min(available, int(allowed / 2))
    pauses = min(int(allowed / questions) - 1, VALIDATIONS) if questions else 1
    return questions, math.ceil(steps / pauses)


def _pause_s(run: Run, seconds: float) -> float:
    """Seconds from the end of a validation of `seconds` to the next one."""
    config, hours = run.config.validation, run.budget.hours
    if config.every_minutes is not None:
        return max(config.every_minutes * 60 - seconds, 0.0)
    return max(seconds * (1 / config.fraction - 1), (hours or 0.0) * 3600 / VALIDATIONS)
