"""The evaluations before and after training, and the validations during it, which choose the best checkpoint."""

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
    """What a resumed run has measured of the untouched model; None where it has not yet.

    Raises BadFile where that cannot be read, or was measured with other settings than the run's.
    """
    path = folder.path / f"eval/{HELD_OUT}-before.json"
    if not path.is_file():
        return None
    hint = f"remove it, and the untouched model is evaluated again: rm {path}"
    try:
        found = Result.read(path)
    except BadFile as error:
        raise BadFile(error.message, hint) from None
    settings = _sampling(config, config.sampling.max_completion_tokens, None)
    if (found.sampling, found.seed) != (settings, config.evaluation.seed):
        raise BadFile(f"{path} was measured with other settings than this run's: {found.sampling}, seed {found.seed}", hint)
    return found


def before(run: Run) -> None:
    """The untouched model on the held-out problems; a resumed run takes what it measured the first time.

    Raises UserError where that was measured on other questions.
    """
    if run.before is not None:
        _refuse_other_questions(run, run.before)
    else:
        left = run.budget.left_s()
        run.before = _evaluate(run, BASE, "before", run.held_out, lambda: None if left is None else left * BEFORE_FRACTION)
        if run.before is None and run.held_out:
            run.announce("warning", "the evaluation before training had no result when its time was up: nothing is compared")
    run.forecast.evaluated(run.before)


def _refuse_other_questions(run: Run, measured: Result) -> None:
    """Raise UserError where the evaluation before asked other questions than the one after would: no pair can come of them."""
    asked = {prompt.question for prompt in run.held_out[: len(measured.right)]}
    if asked != measured.right.keys():
        shared = len(asked & measured.right.keys())
        raise UserError(
            f"{run.folder.path}/eval/{HELD_OUT}-before.json is about other questions: of its {len(measured.right)} "
            f"this run holds out {shared}",
            "put the old data and settings back, or start a new run: --out DIR",
        )


def after(run: Run) -> None:
    """The trained model on the problems that the untouched one has answered, as many as there is time for."""
    asked = run.held_out[: len(run.before.right)] if run.before else []
    run.after = _evaluate(run, run.policy.snapshot(), "after", asked, run.budget.deadline_s)
    if run.before and (run.after is None or len(run.after.right) < len(asked)):
        count = len(run.after.right) if run.after else 0
        run.announce("warning", f"the time was up: the final evaluation has {count} of {len(asked)} problems, and compares those")


def _evaluate(
    run: Run, snapshot: AdapterSnapshot, name: str, prompts: Sequence[Prompt], deadline_s: Callable[[], float | None]
) -> Result | None:
    if not prompts:
        return None
    # Before anything was measured a guess must not keep the first questions from being asked.
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
            run.announce("warning", f"{name}: {result.killed} answers count as wrong: their checks hung", killed=result.killed)
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
    """Accuracy of one snapshot on these problems, with the run's evaluation settings. Waking and proving count as its time."""
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
    """Accuracy of the weights that `step` samples with, on the validation split, where it is time for that; else None.

    A new best is saved as a checkpoint and published as `best/`.
    """
    state = run.state.validation
    if state.step == step:  # resumed from the checkpoint right behind it
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
            state.best_step, state.best_accuracy = best  # what could not be kept cannot be gone back to
    return state.accuracy


def validate_last(run: Run) -> None:
    """Validate the weights that no step samples with any more, behind the last of a given number of steps."""
    if run.state.step == run.budget.max_steps:
        validate_if_due(run, run.state.step)


def _validate(run: Run) -> Result | None:
    config, hours = run.config.validation, run.budget.hours
    questions, deadline_s = run.state.validation.questions, None
    if run.budget.is_by_steps:
        questions = questions or by_steps(run.config, len(run.validation))[0]
    elif questions is None and hours is not None:
        # The first one may take what several later ones will: it settles how many questions they ask.
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
    # Not at the price of the training step that it belongs to.
    return run.budget.fits(run.budget.validation.forecast_s() + run.budget.step.forecast_s())


def by_steps(config: RunConfig, available: int) -> tuple[int, int]:
    """(questions a validation, steps from one to the next) in a run bounded by steps, where the clock must decide nothing.

    Validation takes its share of the run's completions at the most: less than that of its time, since only a step's are
    trained on. There is one at the start and one at the end, or there is none.
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
    """Seconds from the end of a validation that took so long to the next one."""
    config, hours = run.config.validation, run.budget.hours
    if config.every_minutes is not None:
        return max(config.every_minutes * 60 - seconds, 0.0)
    return max(seconds * (1 / config.fraction - 1), (hours or 0.0) * 3600 / VALIDATIONS)
