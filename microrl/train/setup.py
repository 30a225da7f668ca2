"""From a configuration to the parts of a run, checked before the first step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from microrl.adapters.targets import targets
from microrl.algorithm.loss import soft_overlong_penalty
from microrl.answers import as_integer
from microrl.config import RunConfig, models
from microrl.config.learning_rate import with_rate
from microrl.data.load import Question, load_questions, split
from microrl.data.prompts import none_fits, render_all
from microrl.data.sampler import PromptSampler
from microrl.data.sft_examples import Solution, load_solutions, to_sft_examples
from microrl.errors import UserError
from microrl.models.load import LoadedModel, load
from microrl.policy.policy import Policy
from microrl.quickstart import model as quickstart
from microrl.rewards import RewardScorer
from microrl.rollout.engine import Engine
from microrl.rollout.factory import make_engine
from microrl.rollout.preflight import choose as choose_engine
from microrl.run import data_record
from microrl.run.checkpoint import State
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.train import init_from
from microrl.types import Prompt, Sampling, SftExample

HANGING_GOLDS = 8
"""Gold answers whose check may hang until its deadline before the data is refused."""


@dataclass(slots=True)
class Parts:
    """Everything a step needs."""

    config: RunConfig
    engine: Engine
    policy: Policy
    scorer: RewardScorer
    prompts: PromptSampler[Prompt]
    held_out: list[Prompt]
    sampling: Sampling
    validation: list[Prompt] = field(default_factory=list)
    traces: list[SftExample] = field(default_factory=list)
    """What the warm-up plan_sft; empty without one, and where it is over."""


def build(config: RunConfig, folder: RunFolder, console: RunConsole, state: State, *, fresh: bool = True) -> Parts:
    """Load the model and the data, and check both. Raises UserError for what a person can mend.

    `state` is where a resumed run stands: what it has found out about memory counts from the start.
    Not `fresh`: the adapter's state will be loaded from a checkpoint.
    """
    if state.max_kv_gb is not None:
        config = config.model_copy(update={"engine": config.engine.model_copy(update={"max_kv_gb": state.max_kv_gb})})
    choose_engine(config)  # what cannot run here is said before anything is loaded
    scorer = make_scorer(config)
    scorer.checker.start()
    try:
        console.status("reading the data")
        # Data first: a wrong path or column is said before minutes are spent on weights.
        questions = load_questions(config.data)
        solutions = load_solutions(config) if config.sft.is_on and not state.sft.is_done else None
        data_record.hold(folder, config, questions, solutions)
        training, held_out, validation = split(questions, config.data.held_out, config.data.validation)
        training = check_golds(training, scorer, config, folder, console)
        held_out = check_golds(_unique(held_out), scorer, config, folder, console)
        validation = check_golds(_unique(validation), scorer, config, folder, console)
        start = init_from.find(config) if fresh else None
        if not training:
            raise UserError(
                "no questions are left to train on",
                f"data.held_out is {config.data.held_out} and data.validation {config.data.validation}: lower them",
            )
        model, tokenizer = load_model(config, console)
        rate, config = config.optim.lr, with_rate(config, hidden=model.config.hidden_size, model_type=model.config.model_type)
        if rate == "auto":
            console.note(f"learning rate {config.optim.lr:.3g}, by the scaling law")
        targets(model, config.adapter)  # what does not fit is said before an engine starts
        progress = partial(console.progress, total=len(training), label="rendering prompts")
        prompts = render_all(training, tokenizer, config.data, progress)
        if not prompts:
            raise none_fits(config.data)
        chosen = choose(held_out, config.evaluation.problems, config.evaluation.seed)
        if config.evaluation.problems and not chosen:
            folder.event("warning", "no held-out questions: nothing is evaluated; raise data.held_out")
            console.note("warning: no held-out questions, so nothing is evaluated; raise data.held_out")
        held_out_prompts = render_all(chosen, tokenizer, config.data)
        asked = choose(validation, config.validation.problems, config.evaluation.seed)
        validation_prompts = render_all(asked, tokenizer, config.data)
        traces = _traces(solutions, tokenizer, config, folder, console) if solutions is not None else []
        console.status("preparing the engine and the adapter")
        engine = make_engine(config, model, tokenizer, folder=folder, console=console)
        policy = Policy(model, config, folder.event, fresh=fresh and start is None, progress=console.progress)
        if start is not None:
            init_from.begin_at(start, policy)
            folder.event("init", f"the adapter starts as in {start}")
            console.note(f"the adapter starts as in {start}")
        if (begun := policy.adapter.start) is not None:
            took = f"{begun.seconds:.1f} s, at most {begun.peak_gb:.2f} GB more" + (", from the cache" if begun.cached else "")
            folder.event("adapter start", took, seconds=begun.seconds, peak_gb=begun.peak_gb, cached=begun.cached)
            console.note(f"start of {config.adapter.name}: {took}")
        for note in policy.adapter.notes:
            folder.event("warning", note)
            console.note(f"warning: {note}")
        policy.max_tokens = state.tokens_per_microbatch or policy.max_tokens
        if state.checkpoints_activations and not policy.checkpoints_activations:
            policy.checkpoint_activations()
    except BaseException:
        scorer.close()
        raise
    sampling = Sampling(config.sampling.group_size, config.sampling.max_completion_tokens, config.sampling.temperature)
    sampler = PromptSampler(prompts, config.seed)
    return Parts(config, engine, policy, scorer, sampler, held_out_prompts, sampling, validation_prompts, traces)


def _traces(
    solutions: list[Solution], tokenizer: Any, config: RunConfig, folder: RunFolder, console: RunConsole
) -> list[SftExample]:
    progress = partial(console.progress, total=len(solutions), label="rendering solutions")
    found = to_sft_examples(solutions, tokenizer, config, progress)
    if found.left_out:
        said = ", ".join(f"{count} {why}" for why, count in found.left_out.items())
        folder.event("solutions left out", f"{said}; {len(found.traces)} are left to imitate", reasons=found.left_out)
    console.note(f"warm-up: {len(found.traces)} solutions to imitate")
    return found.traces


def make_scorer(config: RunConfig) -> RewardScorer:
    """The reward as configured."""
    overlong = config.reward.overlong
    limit = config.sampling.max_completion_tokens
    penalty = partial(soft_overlong_penalty, limit=limit, buffer=overlong.buffer, factor=overlong.factor) if overlong else None
    return RewardScorer(config.reward, answer_kind=config.data.answer_kind, penalty=penalty)


def load_model(config: RunConfig, console: RunConsole, *, check: bool = True) -> LoadedModel:
    """The model that `--model` names; the quickstart's is made first, if it is not in the cache. `check` as in `load`."""
    model_config = config.model
    if model_config.name == models.QUICKSTART:
        model_config = model_config.model_copy(update={"name": str(quickstart.ensure_model(console))})
    console.status(f"loading {config.model.name}")
    return load(model_config, check=check)


def check_golds(
    questions: list[Question], scorer: RewardScorer, config: RunConfig, folder: RunFolder | None, console: RunConsole
) -> list[Question]:
    """Questions whose gold answer can be checked; the first that cannot is an error, or all such are dropped.

    More than HANGING_GOLDS whose check hangs are an error in any case: waiting for thousands would take hours.
    """
    if all(as_integer(question.answer) is not None for question in questions):
        return questions
    golds = list(dict.fromkeys(question.answer for question in questions))
    checked: dict[str, bool | None] = {}
    hanging = []
    for gold, good in zip(golds, console.progress(scorer.parse(golds), len(golds), "checking gold answers"), strict=True):
        checked[gold] = good
        hanging += [gold] if good is None else []
        if len(hanging) > HANGING_GOLDS:
            row = next(question.row for question in questions if question.answer == hanging[0])
            raise UserError(
                f"{config.data.name}, row {row}: the gold answer `{hanging[0][:80]}` and {HANGING_GOLDS} others take more than "
                f"{config.reward.deadline_s:g} s each to read",
                "remove such rows, or compare text: --set data.answer_kind=text",
            )
    bad = [question for question in questions if not checked[question.answer]]
    if bad and config.data.bad_answers == "error":
        raise UserError(
            f"{config.data.name}, row {bad[0].row}: the gold answer `{bad[0].answer[:80]}` is not mathematics"
            + (f" ({len(bad)} rows are like this)" if len(bad) > 1 else ""),
            "mend it, or leave such rows out with --set data.bad_answers=drop, or compare text: --set data.answer_kind=text",
        )
    if bad and folder is not None:
        folder.event(
            "warning", f"{len(bad)} questions dropped: their gold answers are not mathematics", rows=[q.row for q in bad]
        )
    return [question for question in questions if checked[question.answer]]


def choose(questions: Sequence[Question], count: int, seed: int) -> list[Question]:
    """At most `count` problems: the same ones for the same seed, in the same order."""
    pool = sorted(_unique(questions), key=lambda question: question.text)
    random.Random(seed).shuffle(pool)
    return pool[:count]


def _unique(questions: Sequence[Question]) -> list[Question]:
    return list({question.text: question for question in questions}.values())
