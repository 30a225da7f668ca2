"""Evaluations before and after training, and validation during training, which selects the best checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from microrl import clock
from microrl.config import RunConfig
from microrl.errors import UserError
from microrl.evaluation.evaluate import Result, evaluate
from microrl.files import BadFile
from microrl.limits import BEFORE_FRACTION, VALIDATIONS
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.train import saving
from microrl.train.run import Run
from microrl.train.setup import Components
from microrl.types import BASE, AdapterSnapshot, Prompt, Sampling

HELD_OUT = "held-out"


def measured_before(folder: RunFolder, config: RunConfig) -> Result | None:
    """The evaluation before training of a resumed run; None if there is none yet.

    Raises BadFile if it cannot be read or was measured with other settings than the run's.
    """
    path = folder.path / f"eval/{HELD_OUT}-before.json"
    if not path.is_file():
        return None
    hint = f"remove it to evaluate the untouched model again: rm {path}"
    try:
        found = Result.read(path)
    except BadFile as error:
        raise BadFile(error.message, hint) from None
    settings = _sampling(config, config.sampling.max_completion_tokens, None)
    if (found.sampling, found.seed) != (settings, config.evaluation.seed):
        raise BadFile(f"{path} was measured with different settings: {found.sampling}, seed {found.seed}", hint)
    return found


def before(run: Run) -> None:
    """Evaluate the untouched model on the held-out problems, unless an earlier process of the run has.

    Raises UserError if that one used other questions.
    """
    if run.before is not None:
        _refuse_other_questions(run, run.before)
    else:
        left = run.budget.left_s()
        run.before = _evaluate(run, BASE, "before", run.held_out, lambda: None if left is None else left * BEFORE_FRACTION)
        if run.before is None and run.held_out:
            run.announce("warning", "the evaluation before training ran out of time without a result; no gain will be measured")
    run.forecast.evaluated(run.before)


def _refuse_other_questions(run: Run, measured: Result) -> None:
    """Raise UserError if the evaluations before and after training would use different questions."""
    asked = {prompt.question for prompt in run.held_out[: len(measured.right)]}
    if asked != measured.right.keys():
        shared = len(asked & measured.right.keys())
        raise UserError(
            f"{run.folder.path}/eval/{HELD_OUT}-before.json has other questions than this run: only {shared} of its "
            f"{len(measured.right)} are held out now",
            "restore the old data and settings, or start a new run: --out DIR",
        )


def after(run: Run) -> None:
    """Evaluate the trained model on the problems that the untouched one has answered, as many as time allows."""
    asked = run.held_out[: len(run.before.right)] if run.before else []
    run.after = _evaluate(run, run.policy.snapshot(), "after", asked, run.budget.deadline_s)
    if run.before and (run.after is None or len(run.after.right) < len(asked)):
        count = len(run.after.right) if run.after else 0
        run.announce(
            "warning",
            f"time is up: the final evaluation has only {count} of {len(asked)} problems; the gain is measured on those",
        )


def _evaluate(
    run: Run, snapshot: AdapterSnapshot, name: str, prompts: Sequence[Prompt], deadline_s: Callable[[], float | None]
) -> Result | None:
    if not prompts:
        return None
    # Before anything is measured, a guess must not prevent the first questions.
    expected_s = run.budget.evaluation_s if run.before is not None else 0.0

    def work() -> Result | None:
        return evaluate_snapshot(run, snapshot, run.console, name, deadline_s(), prompts=prompts, expected_s=expected_s)

    with run.watch.phase("evaluate"):
        result = run.with_smaller_cache_if_needed(work)
    if result is not None:
        with run.folder.tolerate_write_errors("evaluations", run.announce):
            run.folder.write_json(f"eval/{HELD_OUT}-{name}.json", result.to_json())
        accuracy = result.accuracy()
        run.console.note(
            f"{name}: accuracy {accuracy.mean:.3f} [{accuracy.ci95[0]:.3f}, {accuracy.ci95[1]:.3f}] on {len(result.right)} "
            f"held-out problems, {run.config.evaluation.samples} samples each"
        )
        if result.killed:
            run.announce(
                "warning", f"{name}: {result.killed} answers count as wrong because their checks hung", killed=result.killed
            )
    return result


def evaluate_snapshot(
    parts: Components,
    snapshot: AdapterSnapshot,
    console: RunConsole,
    name: str,
    deadline_s: float | None,
    *,
    prompts: Sequence[Prompt],
    samples: int | None = None,
    expected_s: float = 0.0,
) -> Result | None:
    """Evaluate a snapshot on these problems with the run's evaluation settings; None if there was no time for any.

    `deadline_s` and `expected_s` are in seconds; waking the engine and proving the swap count.
    """
    began = clock.now_s()
    config = parts.config.evaluation
    with parts.engine.awake(snapshot) as sampler:
        result = evaluate(
            sampler,
            parts.scorer,
            prompts,
            _sampling(parts.config, parts.sampling.max_tokens, samples),
            seed=config.seed,
            pass_k=config.pass_k if samples is None else (),
            deadline_s=None if deadline_s is None else deadline_s - (clock.now_s() - began),
            expected_s=expected_s,
            on_progress=lambda done, total: console.status(f"{name}: {done}/{total} problems"),
        )
    if result is not None:
        result.seconds = clock.now_s() - began
    return result


def _sampling(config: RunConfig, max_tokens: int, samples: int | None) -> Sampling:
    settings = config.evaluation
    limit = settings.max_completion_tokens or max_tokens
    return Sampling(samples or settings.samples, limit, settings.temperature, settings.top_p)


# ---- validation


def validate_if_due(run: Run, step: int) -> float | None:
    """Validation accuracy of the weights that `step` samples with, if a validation is due; else None.

    A new best is saved as a checkpoint and copied to `best/`.
    """
    state = run.state.validation
    if state.step == step:  # resumed from the checkpoint right after it
        return state.accuracy
    if not run.validation or not _is_due(run, step):
        return None
    result = _validate(run)
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


def validate_last(run: Run) -> None:
    """Validate the final weights of a run bounded by steps, with which no step samples."""
    if run.state.step == run.budget.max_steps:
        validate_if_due(run, run.state.step)


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
            run.console,
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
