"""Build the components of a run from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from microrl import algorithm
from microrl.adapters.attach import targets
from microrl.config import RunConfig
from microrl.config.engine_rules import Mode
from microrl.config.learning_rate import with_rate
from microrl.data.load import Question
from microrl.data.prompts import no_tools, to_prompt
from microrl.data.sampler import CurriculumSampler, PromptSampler
from microrl.environments.conversation import Environment
from microrl.models import gpu
from microrl.models.forward import stop_tokens
from microrl.models.load import LoadedModel, load
from microrl.models.ways import Ways
from microrl.policy import compiled
from microrl.policy.architecture import load_checked
from microrl.policy.policy import Policy
from microrl.policy.teacher import Teacher
from microrl.quickstart import model as quickstart
from microrl.rewards.custom.probe import probe
from microrl.rewards.judges.judge import weakness
from microrl.rewards.scorer import RewardScorer, in_words, make_scorer
from microrl.rollout.engine import Engine
from microrl.rollout.factory import make_engine
from microrl.rollout.preflight import select_engine
from microrl.run import checkpoint, names
from microrl.run.checkpoint import State
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.run.stopwatch import Stopwatch
from microrl.train import fallback, init_from
from microrl.train.questions import read_questions, render_prompts
from microrl.train.teacher import load_teacher
from microrl.types import Prompt, Sampling, SftExample

SHOWN = {"probe": "sync check", "probe calibrated": "sync check calibrated", "swap retried": "weight sync retried",
         "merge put off": "weight sync"}  # fmt: skip
"""What the console calls these events of the engine."""


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
    decode: Callable[[Sequence[int]], str] | None = None
    """Tokens as text, for the rollouts; None: they hold no single tokens."""
    environment: Environment | None = None
    """Answers to the policy's tool calls; None: every completion is a single turn."""


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
    select_engine(config)  # fails before anything is loaded, and so does what makes the algorithm
    algorithm.make(config)
    if (weak := weakness()) is not None:
        folder.event("warning", weak)
        console.note(f"warning: {weak}")
    with ExitStack() as undo:
        scorer = make_scorer(config)
        undo.callback(scorer.close)
        scorer.checker.start()
        scorer.custom.start()
        environment = None if config.env.target is None else Environment(config.env)
        if environment is not None:
            undo.callback(environment.close)
            console.status("starting the environment")
            environment.start()  # fails before a model is loaded
            scorer.expect(environment.paying)
        # Data first: a wrong path or column is reported before minutes are spent on loading weights.
        questions = read_questions(config, folder, console, scorer, state)
        try_rewards(config, questions.training, scorer, folder, console)
        init = init_from.find(config) if fresh else None
        model, tokenizer = load_model(config, console)
        for slower in Ways.of(model).notes():
            folder.event("slower", slower)
            console.note(slower)
        config = _with_learning_rate(config, model, console)
        targets(model, config.adapter)  # fails before the engine starts
        if environment is not None:
            environment.use_template(tokenizer, config.data, stop_tokens(model, tokenizer))
        prompts = render_prompts(questions, tokenizer, config, folder, console, environment)
        tools = no_tools if environment is None else environment.tools
        teacher = load_teacher(config, model, tokenizer, questions.training, tools, folder, console, init)
        console.status("preparing the engine and the adapter")
        engine = open_engine(config, model, tokenizer, folder, console)
        undo.callback(engine.close)
        policy = make_policy(model, config, folder, console, state, init=init, fresh=fresh, teacher=teacher)
        undo.pop_all()
    sampling = Sampling(config.sampling.group_size, config.sampling.max_completion_tokens, config.sampling.temperature)
    return Components(
        config, engine, policy, scorer, make_prompt_sampler(config, prompts.training), sampling, watch, prompts.held_out,
        prompts.validation, prompts.sft_examples, lambda tokens: str(tokenizer.decode(tokens)), environment,
    )  # fmt: skip


def make_prompt_sampler(config: RunConfig, prompts: Sequence[Prompt]) -> PromptSampler[Prompt]:
    """The order in which a run draws its prompts."""
    if config.data.curriculum:
        return CurriculumSampler(prompts, config.seed, config.sampling.group_size)
    return PromptSampler(prompts, config.seed)


def try_rewards(
    config: RunConfig, questions: Sequence[Question], scorer: RewardScorer, folder: RunFolder, console: RunConsole
) -> None:
    """Try the run's custom reward functions on some questions, and say what the reward is. Raises UserError."""
    if not scorer.custom.functions:
        return
    console.status("trying the reward functions")
    warnings = probe(scorer.custom, [to_prompt(question) for question in questions], config.data.name)
    said = f"{in_words(config.reward, config.env)}, normalised {config.reward.normalise}"
    folder.event("reward", said)
    console.note(f"reward: {said}")
    for why in warnings:
        folder.event("warning", why)
        console.note(f"warning: {why}")


def open_engine(config: RunConfig, model: Any, tokenizer: Any, folder: RunFolder, console: RunConsole) -> Engine:
    """The generation engine; what it measures and what happens to it is kept in the run folder. Raises BadFile."""

    def on_event(kind: str, message: str, **details: Any) -> None:
        folder.event(kind, message, **details)
        console.note(f"{SHOWN.get(kind, kind)}: {message}")

    def on_choice(mode: Mode, why: str, table: list[dict[str, Any]]) -> None:
        on_event("sync chosen", why, table=table)
        with folder.tolerate_write_errors(names.SYNC):
            folder.write_json(names.SYNC, {"mode": mode, "why": why, "table": table})

    measured = fallback.measured_sync(folder)
    if fallback.failures(folder):
        gpu.wait_for_others(console.note)
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
    teacher: Teacher | None = None,
) -> Policy:
    """The adapter on the model, at its start or at that of the checkpoint `init`. `state` as in `build`."""

    def on_event(kind: str, message: str, **details: Any) -> None:
        folder.event(kind, message, **details)
        if kind == compiled.FAILED:
            console.note(f"{kind}: {message}")

    is_fresh = fresh and init is None
    policy = Policy(model, config, on_event, fresh=is_fresh, progress=console.progress, teacher=teacher)
    if init is not None:
        checkpoint.load_adapter(init, policy.adapter)  # with a fresh optimizer state
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
    step_kl = config.optim.step_kl
    how = "optim.lr=auto" if step_kl is None else f"at the start; then steered: each step has a KL of {step_kl:g} nats per token"
    if not config.sft.only:
        console.note(f"learning rate {config.optim.lr:.3g} ({how})")
    elif config.sft.lr is None:
        console.note(f"SFT learning rate {config.optim.lr:.3g} (automatic), falling to 0")
    return config


def load_model(config: RunConfig, console: RunConsole, *, check: bool = True) -> LoadedModel:
    """The model that `--model` names; a quickstart's is pretrained first if it is not cached. Raises as `load` does.

    `check=False` skips the comparison of the training code paths with the model's own logits.
    """
    model_config = quickstart.located(config.model, console)
    console.status(f"loading {config.model.name}")
    return (load_checked if check else load)(model_config, console.progress)
