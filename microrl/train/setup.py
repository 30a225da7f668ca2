"""Build the components of a run from its configuration, and check the data before the first step."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from microrl.adapters.attach import targets
from microrl.answers import as_integer
from microrl.config import RunConfig, known_models
from microrl.config.engine_rules import Mode
from microrl.config.learning_rate import with_rate
from microrl.data.load import TOO_LONG, Question, Reading, load_questions, split
from microrl.data.prompts import none_fits, render_all, to_prompt
from microrl.data.sampler import CurriculumSampler, PromptSampler
from microrl.data.sft_examples import Solution, load_solutions, to_sft_examples
from microrl.errors import UserError
from microrl.models.load import LoadedModel, load
from microrl.policy.architecture import load_checked
from microrl.policy.policy import Policy
from microrl.quickstart import model as quickstart
from microrl.rewards.judges.judge import refuse_unsound, weakness
from microrl.rewards.own.probe import probe
from microrl.rewards.scorer import RewardScorer, in_words, make_scorer
from microrl.rollout.engine import Engine
from microrl.rollout.factory import make_engine
from microrl.rollout.preflight import select_engine
from microrl.run import data_record
from microrl.run.checkpoint import State
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.run.stopwatch import Stopwatch
from microrl.train import fallback, init_from
from microrl.train.cleaning import (
    BAD_GOLD,
    REPEATED,
    distinct,
    report_left_out,
    report_reading,
    without_contamination,
    without_repeats,
)
from microrl.types import Prompt, Sampling, SftExample

SHOWN = {"probe": "sync check", "probe calibrated": "sync check calibrated", "swap retried": "weight sync retried"}
"""What the console calls these events of the engine."""
PARTS = ("training", "held-out", "validation")
"""In the order of `load.split`."""
HANGING_GOLDS = 8
"""Number of gold answers whose check may hang before the data is refused."""


@dataclass(slots=True)
class Components:
    """Everything a step needs, and the prompts of evaluation and validation."""

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
    """Examples of the supervised phase; empty if there is none or it is over."""


class Questions(NamedTuple):
    """The questions of a run, split by a hash of their text; every gold answer can be checked."""

    training: list[Question]
    held_out: list[Question]
    validation: list[Question]
    solutions: list[Solution] | None
    """None if there is no supervised phase or it is over."""
    left_out: dict[str, Counter[str]]
    """Number of questions left out of each part, by the reason."""


class Prompts(NamedTuple):
    """Questions rendered with the chat template."""

    training: list[Prompt]
    held_out: list[Prompt]
    validation: list[Prompt]
    sft_examples: list[SftExample]


def build(
    config: RunConfig, folder: RunFolder, console: RunConsole, watch: Stopwatch, state: State, *, fresh: bool = True
) -> Components:
    """Read the data, load the model, make engine and policy. Raises UserError, MachineFailure and SyncNotProved.

    `state`: the state of a resumed run, whose reduced cache and micro-batches are kept. `fresh=False`: the adapter will be
    loaded from a checkpoint.
    """
    config = fallback.applied(config, folder)
    if state.max_kv_gb is not None:
        config = config.model_copy(update={"engine": config.engine.model_copy(update={"max_kv_gb": state.max_kv_gb})})
    select_engine(config)  # fails before anything is loaded
    if (weak := weakness()) is not None:
        folder.event("warning", weak)
        console.note(f"warning: {weak}")
    with ExitStack() as undo:
        scorer = make_scorer(config)
        undo.callback(scorer.close)
        scorer.checker.start()
        scorer.own.start()
        # Data first: a wrong path or column is reported before minutes are spent on loading weights.
        questions = read_questions(config, folder, console, scorer, state)
        try_rewards(config, questions.training, scorer, folder, console)
        init = init_from.find(config) if fresh else None
        model, tokenizer = load_model(config, console)
        config = _with_learning_rate(config, model, console)
        targets(model, config.adapter)  # fails before the engine starts
        prompts = render_prompts(questions, tokenizer, config, folder, console)
        console.status("preparing the engine and the adapter")
        engine = open_engine(config, model, tokenizer, folder, console)
        undo.callback(engine.close)
        policy = make_policy(model, config, folder, console, state, init=init, fresh=fresh)
        undo.pop_all()
    sampling = Sampling(config.sampling.group_size, config.sampling.max_completion_tokens, config.sampling.temperature)
    return Components(
        config, engine, policy, scorer, draws(config, prompts.training), sampling, watch, prompts.held_out, prompts.validation,
        prompts.sft_examples,
    )  # fmt: skip


def draws(config: RunConfig, prompts: Sequence[Prompt]) -> PromptSampler[Prompt]:
    """The order in which a run draws its prompts."""
    if config.data.curriculum:
        return CurriculumSampler(prompts, config.seed, config.sampling.group_size)
    return PromptSampler(prompts, config.seed)


def read_questions(config: RunConfig, folder: RunFolder, console: RunConsole, scorer: RewardScorer, state: State) -> Questions:
    """The questions and solutions of a run. Raises UserError for bad data, and if a resumed run's data has changed."""
    console.status("reading the data")
    reading = Reading()
    everything = load_questions(config.data, raw=bool(config.reward.functions), reading=reading)
    report_reading(config, reading, folder, console)
    solutions = load_solutions(config) if config.sft.is_on and not state.sft.is_done else None
    data_record.hold(folder, config, everything, solutions)
    if config.data.answer_kind == "gym":
        refuse_unsound([question.answer for question in everything], console.progress)
    left_out = {"data": reading.left_out}
    parts: list[list[Question]] = []
    for part, questions in zip(PARTS, split(everything, config.data.held_out, config.data.validation), strict=True):
        good = check_golds(questions, scorer, config, folder, console)
        parts.append(without_repeats(good, folder, console))
        left_out[part] = Counter({BAD_GOLD: len(questions) - len(good), REPEATED: len(good) - len(parts[-1])})
    training, held_out, validation = parts
    evaluated = {"held-out": held_out, "validation": validation}
    training, contaminated = without_contamination(config, training, evaluated, folder, console)
    left_out["training"] += contaminated
    if not training:
        raise UserError(
            "no problems are left for training",
            f"for example --set data.held_out=0.05 --set data.validation=0.05 (now {config.data.held_out} and "
            f"{config.data.validation}; their sum must be below 1)",
        )
    return Questions(training, held_out, validation, solutions, left_out)


def try_rewards(
    config: RunConfig, questions: Sequence[Question], scorer: RewardScorer, folder: RunFolder, console: RunConsole
) -> None:
    """Try the run's own reward functions on some questions, and say what the reward is. Raises UserError."""
    if not scorer.own.functions:
        return
    console.status("trying the reward functions")
    silent = probe(scorer.own, [to_prompt(question) for question in questions], config.data.name)
    said = f"reward: {in_words(config.reward)}, normalised {config.reward.normalise}"
    folder.event("reward", said)
    console.note(said)
    for name in silent:
        why = f"the reward `{name}` gave None for every completion that it was tried on, which leaves them out of the update"
        folder.event("warning", why)
        console.note(f"warning: {why}")


def render_prompts(questions: Questions, tokenizer: Any, config: RunConfig, folder: RunFolder, console: RunConsole) -> Prompts:
    """Render the questions with the chat template; held-out and validation questions up to their configured numbers."""
    progress = partial(console.progress, total=len(questions.training), label="rendering prompts")
    training = render_all(questions.training, tokenizer, config.data, progress)
    if not training:
        raise none_fits(config.data)
    held_out = pick_questions(questions.held_out, config.evaluation.problems, config.evaluation.seed)
    if config.evaluation.problems and not held_out:
        missing = "there are no held-out problems, so the gain will not be measured; increase data.held_out, or add data"
        folder.event("warning", missing)
        console.note(f"warning: {missing}")
    validation = pick_questions(questions.validation, config.validation.problems, config.evaluation.seed)
    rendered = training, render_all(held_out, tokenizer, config.data), render_all(validation, tokenizer, config.data)
    for part, given, fits in zip(PARTS, (questions.training, held_out, validation), rendered, strict=True):
        questions.left_out[part][TOO_LONG] += len(given) - len(fits)
    report_left_out(questions.left_out, folder, console)
    return Prompts(
        *rendered,
        [] if questions.solutions is None else _sft_examples(questions.solutions, tokenizer, config, folder, console),
    )


def open_engine(config: RunConfig, model: Any, tokenizer: Any, folder: RunFolder, console: RunConsole) -> Engine:
    """The generation engine; what it measures and what happens to it is kept in the run folder. Raises BadFile."""

    def on_event(kind: str, message: str, **details: Any) -> None:
        folder.event(kind, message, **details)
        console.note(f"{SHOWN.get(kind, kind)}: {message}")

    def on_choice(mode: Mode, why: str, table: list[dict[str, Any]]) -> None:
        on_event("sync chosen", why, table=table)
        with folder.tolerate_write_errors(fallback.SYNC_FILE):
            folder.write_json(fallback.SYNC_FILE, {"mode": mode, "why": why, "table": table})

    measured = fallback.measured_sync(folder)
    return make_engine(config, model, tokenizer, say=console.note, on_event=on_event, measured=measured, on_choice=on_choice)


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
        folder.event("init", f"the adapter starts from {init}")
        console.note(f"the adapter starts from {init}")
    if (start := policy.adapter.start) is not None:
        took = f"{start.seconds:.1f} s, peak memory +{start.peak_gb:.2f} GB" + (", from the cache" if start.cached else "")
        folder.event("adapter start", took, seconds=start.seconds, peak_gb=start.peak_gb, cached=start.cached)
        console.note(f"initialised {config.adapter.name}: {took}")
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
    console.note(f"learning rate {config.optim.lr:.3g} (optim.lr=auto)")
    return config


def _sft_examples(
    solutions: list[Solution], tokenizer: Any, config: RunConfig, folder: RunFolder, console: RunConsole
) -> list[SftExample]:
    progress = partial(console.progress, total=len(solutions), label="rendering solutions")
    examples, left_out = to_sft_examples(solutions, tokenizer, config, progress)
    why = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
    if left_out:
        folder.event("solutions left out", f"{why}; {len(examples)} solutions are used", reasons=left_out)
    console.note(f"SFT: {len(examples)} solutions" + (f"; left out: {why}" if left_out else ""))
    return examples


def load_model(config: RunConfig, console: RunConsole, *, check: bool = True) -> LoadedModel:
    """The model that `--model` names; the quickstart's is pretrained first if it is not cached. Raises as `load` does.

    `check=False` skips the comparison of the training code paths with the model's own logits.
    """
    model_config = config.model
    if model_config.name == known_models.QUICKSTART:
        model_config = model_config.model_copy(update={"name": str(quickstart.ensure_model(console))})
    console.status(f"loading {config.model.name}")
    return load_checked(model_config) if check else load(model_config)


def check_golds(
    questions: list[Question], scorer: RewardScorer, config: RunConfig, folder: RunFolder | None, console: RunConsole
) -> list[Question]:
    """The questions whose gold answer can be checked. Others raise UserError, or are dropped with data.bad_answers=drop.

    Raises UserError in any case if the checks of more than HANGING_GOLDS gold answers hang: thousands would take hours.
    """
    if config.data.answer_kind in ("code", "gym") or all(as_integer(question.answer) is not None for question in questions):
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
                f"{config.data.name}, row {row}: parsing the gold answer `{hanging[0][:80]}` and {HANGING_GOLDS} others takes "
                f"more than {config.reward.deadline_s:g} s each",
                "remove these rows, or compare answers as text: --set data.answer_kind=text",
            )
    bad = [question for question in questions if not checked[question.answer]]
    if bad and config.data.bad_answers == "error":
        raise UserError(
            f"{config.data.name}, row {bad[0].row}: the gold answer `{bad[0].answer[:80]}` does not parse as mathematics"
            + (f" ({len(bad)} rows in total)" if len(bad) > 1 else ""),
            "fix it, or skip such rows: --set data.bad_answers=drop, or compare answers as text: --set data.answer_kind=text",
        )
    if bad:
        said = f"{len(bad)} problems dropped: their gold answers do not parse as mathematics"
        if folder is not None:
            folder.event("warning", said, rows=[q.row for q in bad])
        console.note(f"warning: {said}")
    return [question for question in questions if checked[question.answer]]


def pick_questions(questions: Sequence[Question], count: int, seed: int, *, repeated: bool = False) -> list[Question]:
    """At most `count` problems, distinct ones unless `repeated`; the same ones in the same order for the same seed."""
    pool = sorted(questions if repeated else distinct(questions), key=lambda question: question.text)
    random.Random(seed).shuffle(pool)
    return pool[:count]
