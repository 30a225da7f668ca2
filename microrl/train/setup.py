"""From a configuration to the components of a run, checked before the first step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from microrl.adapters.attach import targets
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
from microrl.policy.architecture import load_checked
from microrl.policy.policy import Policy
from microrl.quickstart import model as quickstart
from microrl.rewards import RewardScorer
from microrl.rollout.engine import Engine
from microrl.rollout.factory import make_engine
from microrl.rollout.preflight import select_engine
from microrl.rollout.sync import Mode
from microrl.run import data_record
from microrl.run.checkpoint import State
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.run.stopwatch import Stopwatch
from microrl.train import init_from
from microrl.types import Prompt, Sampling, SftExample

SYNC_FILE = "sync.json"
HANGING_GOLDS = 8
"""Gold answers whose check may hang until its deadline before the data is refused."""


@dataclass(slots=True)
class Components:
    """Everything a step needs, and the prompts that a run is measured on."""

    config: RunConfig
    engine: Engine
    policy: Policy
    scorer: RewardScorer
    prompts: PromptSampler[Prompt]
    sampling: Sampling
    watch: Stopwatch
    held_out: list[Prompt] = field(default_factory=list)
    validation: list[Prompt] = field(default_factory=list)
    sft_examples: list[SftExample] = field(default_factory=list)
    """What the supervised phase learns from; empty without one, and where it is over."""


class _Measured(BaseModel):
    """What is read of `sync.json`: which way of handing adapters over was cheaper. The rest says why."""

    mode: Mode


class Questions(NamedTuple):
    """The data of a run, split by a hash of each question's text; every gold answer can be checked."""

    training: list[Question]
    held_out: list[Question]
    validation: list[Question]
    solutions: list[Solution] | None
    """None without a supervised phase, and where it is over."""


class Prompts(NamedTuple):
    """Questions as the model will see them."""

    training: list[Prompt]
    held_out: list[Prompt]
    validation: list[Prompt]
    sft_examples: list[SftExample]


def build(
    config: RunConfig, folder: RunFolder, console: RunConsole, watch: Stopwatch, state: State, *, fresh: bool = True
) -> Components:
    """Read the data, load the model, make engine and policy. Raises UserError for what a person can fix.

    `state` is where a resumed run stands: what it has found out about memory counts from the start.
    Not `fresh`: the adapter's state will be loaded from a checkpoint.
    """
    if state.max_kv_gb is not None:
        config = config.model_copy(update={"engine": config.engine.model_copy(update={"max_kv_gb": state.max_kv_gb})})
    select_engine(config)  # what cannot run here is said before anything is loaded
    with ExitStack() as undo:
        scorer = make_scorer(config)
        undo.callback(scorer.close)
        scorer.checker.start()
        # Data first: a wrong path or column is said before minutes are spent on weights.
        questions = read_questions(config, folder, console, scorer, state)
        init = init_from.find(config) if fresh else None
        model, tokenizer = load_model(config, console)
        config = _with_learning_rate(config, model, console)
        targets(model, config.adapter)  # what does not fit is said before an engine starts
        prompts = render_prompts(questions, tokenizer, config, folder, console)
        console.status("preparing the engine and the adapter")
        engine = open_engine(config, model, tokenizer, folder, console)
        undo.callback(engine.close)
        policy = make_policy(model, config, folder, console, state, init=init, fresh=fresh)
        undo.pop_all()
    sampling = Sampling(config.sampling.group_size, config.sampling.max_completion_tokens, config.sampling.temperature)
    draws = PromptSampler(prompts.training, config.seed)
    return Components(
        config, engine, policy, scorer, draws, sampling, watch, prompts.held_out, prompts.validation, prompts.sft_examples
    )


def read_questions(config: RunConfig, folder: RunFolder, console: RunConsole, scorer: RewardScorer, state: State) -> Questions:
    """The questions and solutions of a run. Raises UserError where a resumed run's are others than they were."""
    console.status("reading the data")
    everything = load_questions(config.data)
    solutions = load_solutions(config) if config.sft.is_on and not state.sft.is_done else None
    data_record.hold(folder, config, everything, solutions)
    training, held_out, validation = split(everything, config.data.held_out, config.data.validation)
    training = check_golds(training, scorer, config, folder, console)
    held_out = check_golds(_unique(held_out), scorer, config, folder, console)
    validation = check_golds(_unique(validation), scorer, config, folder, console)
    if not training:
        raise UserError(
            "no questions are left to train on",
            f"data.held_out is {config.data.held_out} and data.validation {config.data.validation}: lower them",
        )
    return Questions(training, held_out, validation, solutions)


def render_prompts(questions: Questions, tokenizer: Any, config: RunConfig, folder: RunFolder, console: RunConsole) -> Prompts:
    """The questions in the model's chat template, and of those that a run is measured on as many as are configured."""
    progress = partial(console.progress, total=len(questions.training), label="rendering prompts")
    training = render_all(questions.training, tokenizer, config.data, progress)
    if not training:
        raise none_fits(config.data)
    held_out = pick_questions(questions.held_out, config.evaluation.problems, config.evaluation.seed)
    if config.evaluation.problems and not held_out:
        folder.event("warning", "no held-out questions: nothing is evaluated; raise data.held_out")
        console.note("warning: no held-out questions, so nothing is evaluated; raise data.held_out")
    validation = pick_questions(questions.validation, config.validation.problems, config.evaluation.seed)
    return Prompts(
        training,
        render_all(held_out, tokenizer, config.data),
        render_all(validation, tokenizer, config.data),
        [] if questions.solutions is None else _sft_examples(questions.solutions, tokenizer, config, folder, console),
    )


def open_engine(config: RunConfig, model: Any, tokenizer: Any, folder: RunFolder, console: RunConsole) -> Engine:
    """The generation engine; what it measures and what happens to it is kept in the run folder. Raises BadFile."""

    def on_event(kind: str, message: str, **details: Any) -> None:
        folder.event(kind, message, **details)
        console.note(f"{kind}: {message}")

    def on_choice(mode: Mode, why: str, table: list[dict[str, Any]]) -> None:
        on_event("sync chosen", why, table=table)
        with folder.tolerate_write_errors(SYNC_FILE):
            folder.write_json(SYNC_FILE, {"mode": mode, "why": why, "table": table})

    measured = measured_sync(folder)
    return make_engine(config, model, tokenizer, say=console.note, on_event=on_event, measured=measured, on_choice=on_choice)


def measured_sync(folder: RunFolder) -> Mode | None:
    """The cheaper of swap and merge, as an earlier process of the run has measured; None: not yet. Raises BadFile."""
    if not (folder.path / SYNC_FILE).is_file():
        return None
    measured: _Measured = folder.read_json(SYNC_FILE, _Measured)
    return measured.mode


def make_policy(
    model: Any,
    config: RunConfig,
    folder: RunFolder,
    console: RunConsole,
    state: State,
    *,
    init: Path | None = None,
    fresh: bool = True,
) -> Policy:
    """The adapter on the model, at its start or at that of the checkpoint `init`. `state` as in `build`."""
    policy = Policy(model, config, folder.event, fresh=fresh and init is None, progress=console.progress)
    if init is not None:
        init_from.load_adapter(init, policy)
        folder.event("init", f"the adapter starts as in {init}")
        console.note(f"the adapter starts as in {init}")
    if (start := policy.adapter.start) is not None:
        took = f"{start.seconds:.1f} s, at most {start.peak_gb:.2f} GB more" + (", from the cache" if start.cached else "")
        folder.event("adapter start", took, seconds=start.seconds, peak_gb=start.peak_gb, cached=start.cached)
        console.note(f"start of {config.adapter.name}: {took}")
    for note in policy.adapter.notes:
        folder.event("warning", note)
        console.note(f"warning: {note}")
    policy.max_tokens = state.tokens_per_microbatch or policy.max_tokens
    if state.checkpoints_activations and not policy.checkpoints_activations:
        policy.checkpoint_activations()
    return policy


def _with_learning_rate(config: RunConfig, model: Any, console: RunConsole) -> RunConfig:
    """The configuration with `optim.lr=auto` as a number."""
    if config.optim.lr != "auto":
        return config
    config = with_rate(config, hidden=model.config.hidden_size, model_type=model.config.model_type)
    console.note(f"learning rate {config.optim.lr:.3g}, by the scaling law")
    return config


def _sft_examples(
    solutions: list[Solution], tokenizer: Any, config: RunConfig, folder: RunFolder, console: RunConsole
) -> list[SftExample]:
    progress = partial(console.progress, total=len(solutions), label="rendering solutions")
    examples, left_out = to_sft_examples(solutions, tokenizer, config, progress)
    if left_out:
        why = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        folder.event("solutions left out", f"{why}; {len(examples)} are left to learn from", reasons=left_out)
    console.note(f"warm-up: {len(examples)} solutions to learn from")
    return examples


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
    return load_checked(model_config) if check else load(model_config)


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
            "fix it, or leave such rows out with --set data.bad_answers=drop, or compare text: --set data.answer_kind=text",
        )
    if bad and folder is not None:
        folder.event(
            "warning", f"{len(bad)} questions dropped: their gold answers are not mathematics", rows=[q.row for q in bad]
        )
    return [question for question in questions if checked[question.answer]]


def pick_questions(questions: Sequence[Question], count: int, seed: int) -> list[Question]:
    """At most `count` problems: the same ones for the same seed, in the same order."""
    pool = sorted(_unique(questions), key=lambda question: question.text)
    random.Random(seed).shuffle(pool)
    return pool[:count]


def _unique(questions: Sequence[Question]) -> list[Question]:
    return list({question.text: question for question in questions}.values())
