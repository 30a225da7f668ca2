"""`--dry-run`: the resolved configuration, three rendered prompts with their gold answers, and a forecast."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from microrl.config import RunConfig, known_models
from microrl.config.schema import DataConfig, ModelConfig
from microrl.data import taught
from microrl.data.load import ARITHMETIC, Question, load_questions, split
from microrl.data.prompts import ToolsOf, messages, no_tools, render, to_prompt
from microrl.environments.conversation import Environment
from microrl.environments.process import tokens_of
from microrl.errors import UserError
from microrl.models import driver
from microrl.plan import here, make
from microrl.plan.show import brief
from microrl.plan.source import shape_of
from microrl.rewards.custom.probe import probe
from microrl.rewards.scorer import in_words, make_scorer
from microrl.run.teacher import find, naming, shares_base, size

Value = TypeVar("Value")
SHOWN = 3


def preview(config: RunConfig) -> str:
    """The whole preview as text. Without network it shows what it can, with notes on the rest. Raises UserError, also where
    torch sees no GPU beside an NVIDIA driver, as the run would."""
    driver.require_gpu()
    prompts, tool_tokens = _prompts(config)
    settings = json.dumps(config.model_dump(mode="json"), indent=2)
    return "\n".join(["configuration", settings, "", *prompts, "", *_forecast(config, tool_tokens)])


def _prompts(config: RunConfig) -> tuple[list[str], int]:
    lines: list[str] = []
    raw = bool(config.reward.functions or config.env.target)
    if (everything := _at_hand(lambda: load_questions(config.data, raw=raw), lines)) is not None:
        questions, origin = split(everything, config.data.held_out, config.data.validation).training, config.data.name
    else:
        questions, origin = load_questions(DataConfig(name=ARITHMETIC)), "generated arithmetic, as a stand-in"
    if (tokenizer := _at_hand(lambda: _tokenizer(config.model), lines)) is None:
        lines += ["note: without the model's chat template, the plain messages are shown"]
    tools, tool_tokens = _tools(config, tokenizer)
    with closing(make_scorer(config)) as scorer:
        if config.reward.functions:
            probe(scorer.custom, [to_prompt(question) for question in questions], origin)
        lines += _teacher(config, tokenizer, questions, tools)
        lines += [f"reward {in_words(config.reward, config.env)}"]
        for question in questions[:SHOWN]:
            parsed = "parses" if scorer.checker.parses(question.answer) else "DOES NOT PARSE"
            lines += [
                f"--- row {question.row} of {origin}, gold answer {question.answer!r} ({parsed})",
                _shown(question, tokenizer, config, tools),
            ]
    return ["prompts", *lines], tool_tokens


def _at_hand(read: Callable[[], Value], notes: list[str]) -> Value | None:
    """What is read; None, with notes, where it is on the hub alone, which cannot be reached."""
    try:
        return read()
    except UserError as error:
        if "hub cannot be reached" not in error.message:
            raise
        notes += [f"note: {error.message}", f"hint: {error.hint}"]
        return None


def _tools(config: RunConfig, tokenizer: Any) -> tuple[ToolsOf, int]:
    """What the model is told of its tools, and about how many tokens that takes at most. Raises UserError for a chat template
    that cannot continue a conversation."""
    if config.env.target is None:
        return no_tools, 0
    with closing(Environment(config.env)) as environment:
        environment.start()
        if tokenizer is not None:
            environment.use_template(tokenizer, config.data)
        return environment.tools, max(tokens_of(kind.interface.tools) for kind in environment.kinds.values())


def _shown(question: Question, tokenizer: Any, config: RunConfig, tools: ToolsOf) -> str:
    data = config.data
    if tokenizer is None:
        chat = messages(question.text, data.system, data.system_role)
        return "\n".join(f"[{message['role']}] {message['content']}" for message in chat)
    prompt = render(
        question.text, question.answer, tokenizer, data.system, data.system_role, thinking=data.thinking,
        tools=tools(question),
    )  # fmt: skip
    return f"{prompt.text.rstrip()}\n({len(prompt.token_ids)} tokens, the limit is {data.max_prompt_tokens})"


def _tokenizer(model: ModelConfig) -> Any:
    if model.name in known_models.TINY:
        from microrl.models.tiny import build_tokenizer

        return build_tokenizer(calls=model.name == known_models.QUICKSTART_TOOLS)
    from microrl.models.load import load_tokenizer

    return load_tokenizer(model)


def _teacher(config: RunConfig, tokenizer: Any, questions: Sequence[Question], tools: ToolsOf) -> list[str]:
    """What can be said of the teacher without its weights. Raises UserError as the run would."""
    if (name := config.distill.teacher) is None:
        return []
    from microrl.train import teacher

    if config.has_stored_teacher:
        if tokenizer is not None:
            taught.refuse_other_tokens(name, taught.read_record(Path(name)).tokenizer, tokenizer)
        return [f"teacher {name}: stored scores" + (", of the student's tokens" if tokenizer is not None else "")]
    source = find(name)
    if shares_base(source, config):
        return [f"teacher {name}: it shares the weights of the base model"]
    if tokenizer is None:
        return [f"note: without the model's tokenizer, that of the teacher {name} is not compared"]
    notes: list[str] = []
    with naming(name):
        theirs = _at_hand(lambda: _tokenizer(config.model.model_copy(update={"name": source.model})), notes)
    if theirs is None:
        return notes
    teacher.refuse_other_tokens(name, theirs, tokenizer, teacher.rendering(config, questions, tools))
    return [f"teacher {name}: a second model, with the same tokens and prompts as the student"]


def _forecast(config: RunConfig, tool_tokens: int) -> list[str]:
    """A short `microrl plan` for this machine's GPU, or else for the device on which the model is likely to be trained."""
    try:
        shape, teacher = shape_of(config.model.name), size(config)
    except UserError as error:
        return ["forecast", f"note: {error.message}", f"hint: {error.hint}", "time per step: unknown without the model's size"]
    gpu = here.gpu()
    card, free_gb = gpu or here.instead_of_gpu(shape)
    note = [] if gpu else [f"note: no GPU was found on this machine; the forecast is for: {card.label}"]
    plan = make(config, shape, card, free_gb=free_gb, tool_tokens=tool_tokens, teacher=teacher)
    return ["forecast", *note, *brief(config, plan)]
