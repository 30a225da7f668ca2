"""The evaluations of the untouched and of the trained model on held-out problems; their difference is the gain."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from microrl import clock
from microrl.config import RunConfig
from microrl.errors import UserError
from microrl.evaluation.benchmark import sampling_of
from microrl.evaluation.evaluate import evaluate
from microrl.evaluation.gain_parts import KEY as PARTS_KEY
from microrl.evaluation.record import write_completions
from microrl.evaluation.result import Result, clusters, in_clusters
from microrl.files import BadFile
from microrl.limits import TRIAL_EVALUATION
from microrl.report.transcripts import gain_parts
from microrl.run import idle, names
from microrl.run.console import FAIR
from microrl.run.folder import RunFolder
from microrl.terminal import counted
from microrl.train.run import Run
from microrl.types import BASE, AdapterSnapshot, Group, Prompt

CUT = 0.1
"""Fraction of truncated completions from which an evaluation's line says so."""
TO_REFUSE = 16
"""Completions that must have been evaluated before a run is refused for what they are like."""
LABELS = {"before": "before training", "after": "after training"}


def measured_before(folder: RunFolder, config: RunConfig) -> Result | None:
    """The evaluation before training, by an earlier process of the run or by its sweep; None if there is none yet.

    Raises BadFile if it cannot be read or was measured with other settings than the run's.
    """
    path = folder.path / f"{names.EVAL}/{names.BEFORE}.json"
    if not path.is_file():
        return None
    hint = f"remove it to evaluate the untouched model again: rm {path}"
    try:
        result = Result.read(path)
    except BadFile as error:
        raise BadFile(error.message, hint) from None
    asked = config.evaluation
    if (result.sampling, result.seed, result.question_seed) != (sampling_of(config), asked.seed, asked.question_seed):
        then = result.sampling
        raise BadFile(
            f"{path} was measured with different settings: with {then.group_size} samples of up to {then.max_tokens} tokens at "
            f"temperature {then.temperature:g}, top_p {then.top_p:g}, seed {result.seed}, question seed {result.question_seed}",
            hint,
        )
    return result


def evaluate_before(run: Run) -> None:
    """Evaluate the untouched model on the held-out problems, unless an earlier process of the run has."""
    if run.before is None:
        left, fraction = run.budget.left_s(), run.budget.before_fraction
        run.before = _evaluate(run, BASE, "before", run.held_out, lambda: None if left is None else left * fraction)
        if run.before is None and run.held_out:
            said = "there was no time for the evaluation before training: no gain will be measured"
            run.announce("evaluation cut", said, side="before", questions=0)
        elif run.before is not None and len(run.before.right) < len(run.held_out):
            run.announce(
                "evaluation cut",
                f"before training, only {len(run.before.right)} of {len(run.held_out)} questions were evaluated, since that may "
                f"take at most {run.budget.before_fraction:.0%} of the time; the gain is measured on those",
                side="before", questions=len(run.before.right),
            )  # fmt: skip
    run.forecast.evaluated(run.before)
    run.expect_end()
    if run.state.step == 0:
        _refuse_truncated(run)


def _refuse_truncated(run: Run) -> None:
    """Raise UserError if nearly all completions reach the length limit and nearly none is right: training samples alike, and its
    rewards would teach nothing. `guard.truncated=none` allows it, and so does what may change it: SFT, or another reward."""
    before, config = run.before, run.config
    if before is None or config.guard.truncated is None or config.guard.action == "warn":
        return
    if config.sft.is_on or config.reward.functions or config.env.target is not None or not config.reward.accuracy_weight:
        return
    limit, is_enough = before.sampling.max_tokens, len(before.right) * before.samples >= TO_REFUSE
    cannot_learn = before.truncated > idle.NEARLY_ALL and before.accuracy().mean < 1 - idle.NEARLY_ALL
    if is_enough and cannot_learn and limit >= config.sampling.max_completion_tokens:
        raise UserError(
            f"before training, {before.truncated:.0%} of the completions reach the limit of {limit} tokens, and "
            f"{before.accuracy().mean:.1%} of them are right: there is nothing to learn from",
            f"raise the limit: --set sampling.max_completion_tokens={4 * limit} (in a new run); or train nevertheless: "
            "--set guard.truncated=none",
        )


def refuse_other_questions(run: Run) -> None:
    """Raise UserError if the evaluation after training would use other questions than that of an earlier process before it."""
    measured = run.before
    if measured is None:
        return
    asked = {prompt.question for prompt in run.held_out[: len(measured.right)]}
    if asked != measured.right.keys():
        shared = len(asked & measured.right.keys())
        raise UserError(
            f"{run.folder.path}/{names.EVAL}/{names.BEFORE}.json has other problems than this run: only {shared} of its "
            f"{len(measured.right)} are held out now",
            "restore the old data and settings, or start a new run: --out DIR",
        )


def evaluate_after(run: Run) -> None:
    """Evaluate the trained model on the problems that the untouched one has answered, as many as time allows."""
    asked = run.held_out[: len(run.before.right)] if run.before else []
    run.after = _evaluate(run, run.policy.snapshot(), "after", asked, run.budget.deadline_s)
    if run.before and run.after:
        _record_gain_parts(run, run.before, run.after)
    if run.before and (run.after is None or len(run.after.right) < len(asked)):
        count = len(run.after.right) if run.after else 0
        run.announce(
            "evaluation cut",
            f"after training, there was time for only {count} of {len(asked)} questions"
            + ("; the gain is measured on those" if count else f"; to evaluate the adapter: microrl eval {run.folder.path}"),
            side="after", questions=count,
        )  # fmt: skip


def _record_gain_parts(run: Run, before: Result, after: Result) -> None:
    """Store with the evaluation after training where its gain comes from, if there is time to find out."""
    notes: list[str] = []
    base, trained = (run.folder.path / f"{names.EVAL}/{name}.jsonl.gz" for name in (names.BEFORE, names.AFTER))
    left_s = None if run.budget.left_s() is None else lambda: run.budget.deadline_s() or 0.0
    if base.exists() and trained.exists():  # a full disk may have kept them out
        parts_of_gain = gain_parts(base, trained, run.scorer, notes, clusters([before, after]), left_s)
        if parts_of_gain is not None:
            with run.folder.tolerate_write_errors("evaluations", run.announce):
                run.folder.write_json(
                    f"{names.EVAL}/{names.AFTER}.json",
                    after.to_json() | {PARTS_KEY: parts_of_gain.model_dump(mode="json")},
                )
    for note in notes:
        run.console.note(f"warning: {note}")


def _evaluate(
    run: Run, snapshot: AdapterSnapshot, name: str, prompts: Sequence[Prompt], deadline_s: Callable[[], float | None]
) -> Result | None:
    if not prompts:
        return None
    # Before anything is measured, a guess must not prevent the first questions.
    expected_s = run.budget.evaluation_s if run.before is not None else 0.0
    if run.budget.is_trial:  # of which twice as much is reserved, so that all questions can start at once
        expected_s /= TRIAL_EVALUATION

    scored: list[Group] = []

    def work() -> Result | None:
        scored.clear()
        return evaluate_snapshot(
            run, snapshot, name, deadline_s(), prompts=prompts, expected_s=expected_s, on_scored=scored.extend
        )

    with run.watch.phase("evaluate"):
        result = run.with_smaller_cache_if_needed(work)
    if result is not None:
        with run.folder.tolerate_write_errors("evaluations", run.announce):
            run.folder.write_json(f"{names.EVAL}/{names.HELD_OUT}-{name}.json", result.to_json())
        with run.folder.tolerate_write_errors("answers to held-out questions", run.announce):
            write_completions(run.folder.path / f"{names.EVAL}/{names.HELD_OUT}-{name}.jsonl.gz", scored)
        accuracy, is_cut = result.accuracy(), result.truncated > CUT
        clusters = in_clusters(len(result.right), result.cluster_count)
        limit = f"; {result.truncated:.0%} of the completions reach the limit of {result.sampling.max_tokens} tokens"
        run.console.note(
            f"{LABELS[name]}: accuracy {accuracy.mean:.3f} 95 % CI [{accuracy.ci95[0]:.3f}, {accuracy.ci95[1]:.3f}] on "
            f"{counted(len(result.right), 'held-out problem')}{clusters}, {counted(run.config.evaluation.samples, 'sample')} each"
            + (limit if is_cut else "")
        )
        if result.killed:
            said = f"{LABELS[name]}: {result.killed_said(run.config.reward.deadline_s)}"
            run.announce("warning", said, killed=result.killed)
    return result


def evaluate_snapshot(
    run: Run,
    snapshot: AdapterSnapshot,
    name: str,
    deadline_s: float | None,
    *,
    prompts: Sequence[Prompt],
    samples: int | None = None,
    expected_s: float = 0.0,
    on_scored: Callable[[Sequence[Group]], None] = lambda groups: None,
) -> Result | None:
    """Evaluate a snapshot on these problems with the run's evaluation settings; None if there was no time for any.

    `deadline_s` and `expected_s` are in seconds; waking the engine and proving the swap count.
    """
    began = clock.now_s()
    config = run.config.evaluation
    run.console.count(0, len(prompts), LABELS.get(name, name), " problems")
    with run.engine.awake(snapshot) as sampler:
        result = evaluate(
            sampler,
            run.scorer,
            prompts,
            sampling_of(run.config, samples=samples),
            seed=config.seed,
            pass_k=config.pass_k if samples is None else (),
            deadline_s=None if deadline_s is None else deadline_s - (clock.now_s() - began),
            expected_s=expected_s,
            on_scored=on_scored,
            on_progress=lambda done, total: run.console.count(
                done, total, LABELS.get(name, name), " problems", at_once=FAIR * total
            ),
            environment=run.environment,
        )
    if result is not None:
        result.seconds, result.question_seed = clock.now_s() - began, config.question_seed
    return result
