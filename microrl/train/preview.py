"""`--dry-run`: the resolved configuration, three rendered prompts with their gold answers, and a forecast."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from microrl.config import RunConfig, models
from microrl.config.schema import DataConfig
from microrl.data.load import ARITHMETIC, Question, load_questions, split
from microrl.data.prompts import messages, render
from microrl.errors import UserError
from microrl.train.setup import make_judge

SHOWN = 3

# What the forecast assumes. Decoding is bound by memory and the update by arithmetic; a card reaches these shares of its
# data sheet's numbers in practice, and a CPU core about this much.
GPU = ("an A40", 696e9, 150e12)
CPU_CORE_FLOPS, CPU_BYTES_S = 50e9, 12e9
MEMORY_SHARE, ARITHMETIC_SHARE = 0.6, 0.35
LENGTH_SHARE = 0.5
CPU_MODELS_TO = 0.5e9


def preview(config: RunConfig) -> str:
    """All of it as text. Without a network it shows what can be shown, and says what could not."""
    parts = ["configuration", json.dumps(config.model_dump(mode="json"), indent=2), "", *_prompts(config), "", *_forecast(config)]
    return "\n".join(parts)


def _prompts(config: RunConfig) -> list[str]:
    lines: list[str] = []
    try:
        questions = split(load_questions(config.data), config.data.held_out, config.data.validation).training
        origin = config.data.name
    except UserError as error:
        if "hub cannot be reached" not in error.message:
            raise
        lines += [f"note: {error.message}", f"hint: {error.hint}"]
        questions, origin = load_questions(DataConfig(name=ARITHMETIC)), "generated arithmetic in its place"
    try:
        tokenizer = _tokenizer(config)
    except UserError as error:
        if "hub cannot be reached" not in error.message:
            raise
        lines += [f"note: {error.message}", f"hint: {error.hint}", "note: messages are shown before the model's chat template"]
        tokenizer = None
    judge = make_judge(config)
    try:
        for question in questions[:SHOWN]:
            parsed = "parses" if judge.checker.parses(question.answer) else "DOES NOT PARSE"
            lines += [
                f"--- row {question.row} of {origin}, gold answer {question.answer!r} ({parsed})",
                _shown(question, tokenizer, config),
            ]
    finally:
        judge.close()
    return ["prompts", *lines]


def _shown(question: Question, tokenizer: Any, config: RunConfig) -> str:
    if tokenizer is None:
        return "\n".join(f"[{message['role']}] {message['content']}" for message in messages(question.text, config.data.system))
    prompt = render(question.text, question.answer, tokenizer, config.data.system)
    return f"{prompt.text.rstrip()}\n({len(prompt.token_ids)} tokens, the limit is {config.data.max_prompt_tokens})"


def _tokenizer(config: RunConfig) -> Any:
    if config.model.name == models.QUICKSTART:
        from microrl.policy.tiny import build_tokenizer

        return build_tokenizer()
    from microrl.policy.load import load_tokenizer

    return load_tokenizer(config.model)


def _forecast(config: RunConfig) -> list[str]:
    """Seconds a step from a roofline: each decoded token reads the weights once for the whole batch, each trained token
    costs 4 to 6 operations a parameter (the base is frozen). A first estimate: a run measures its own."""
    sampling, budget = config.sampling, config.budget
    rows = sampling.prompts_per_step * sampling.group_size
    length = sampling.max_completion_tokens * LENGTH_SHARE
    lines = ["forecast", f"{rows} completions a step, up to {rows * sampling.max_completion_tokens:,} tokens"]
    parameters = _parameters(config)
    if parameters is None:
        return [*lines, "seconds a step: unknown, since the model's size is neither here nor in its name"]
    machine, bandwidth, flops, width = _machine(parameters)
    decode = max(
        length * parameters * width / (bandwidth * MEMORY_SHARE), 2 * parameters * rows * length / (flops * ARITHMETIC_SHARE)
    )
    update = (
        5 * parameters * rows * (length + config.data.max_prompt_tokens / 2 / sampling.group_size) / (flops * ARITHMETIC_SHARE)
    )
    step = decode + update
    lines.append(
        f"about {step:.3g} s a step on {machine} ({decode:.3g} s sampling, {update:.3g} s update), if completions reach "
        f"{LENGTH_SHARE:.0%} of their limit; {parameters / 1e9:.3g} billion parameters"
    )
    steps = budget.steps
    if budget.hours is not None:
        fitting = int(budget.hours * 3600 * 0.9 / step)
        steps = min(fitting, steps) if steps else fitting
    assert steps is not None
    hours = budget.hours if budget.hours is not None else steps * step / 3600
    lines.append(f"about {steps} steps in {hours:.3g} h" + (f", ${hours * budget.price:.2f}" if budget.price else ""))
    return lines


def _parameters(config: RunConfig) -> float | None:
    """The number of parameters, from the model's own folder or its name."""
    path = Path(config.model.name)
    if config.model.name == models.QUICKSTART:
        return 0.33e6
    weights = [path] if path.is_file() else list(path.glob("*.safetensors")) if path.is_dir() else []
    if weights:
        bytes_each = 0.6 if path.suffix == ".gguf" else 2
        return sum(file.stat().st_size for file in weights) / bytes_each
    found = re.search(r"(\d+(?:\.\d+)?)\s*([bm])\b", config.model.name, re.IGNORECASE)
    return float(found[1]) * (1e9 if found[2].lower() == "b" else 1e6) if found else None


def _machine(parameters: float) -> tuple[str, float, float, int]:
    """(name, bytes a second, operations a second, bytes a weight).

    Models above half a billion parameters are reckoned on the papers' card, since nobody trains them on a CPU by choice.
    """
    if parameters > CPU_MODELS_TO:
        return GPU[0], GPU[1], GPU[2], 2
    cores = os.cpu_count() or 1
    return f"this machine's {cores} cores", CPU_BYTES_S, CPU_CORE_FLOPS * cores, 4
