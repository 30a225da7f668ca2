"""The embedded defaults: tiny models warm-started on generated sums, made once and kept in the user's cache."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from microrl import files
from microrl.config import known_models
from microrl.config.reward import RewardConfig
from microrl.config.schema import ModelConfig
from microrl.data import arithmetic
from microrl.data.load import content_fraction
from microrl.errors import MachineFailure
from microrl.evaluation.evaluate import evaluate
from microrl.files import one_at_a_time
from microrl.models import tiny
from microrl.models.hub import cache_folder
from microrl.quickstart.lessons import Calling, Working
from microrl.quickstart.pretrain import PretrainingSettings, pretrain
from microrl.rewards.scorer import RewardScorer
from microrl.rollout.transformers import TransformersEngine
from microrl.run.console import RunConsole
from microrl.types import BASE, Prompt, Sampling, SftExample

SETTINGS = PretrainingSettings()
TRAIN_FROM, VALIDATE_FROM = 0.5, 0.3
"""Shares of the content hash: the run's held-out questions come from below data.held_out, these never meet them."""
GOOD_SHARE = 0.37
"""Fraction of the pretraining's solutions that are the good ones: about the maximum accuracy it can reach."""
SAMPLES = 2
STEPS = 220
"""Steps that the pretraining usually takes."""
LESSONS: dict[str, type[Working]] = {known_models.QUICKSTART: Working, known_models.QUICKSTART_TOOLS: Calling}


def ensure_model(name: str, console: RunConsole) -> Path:
    """The folder of the warm-started model of this name in `LESSONS`; if this recipe's is not in the cache, it is made now, in
    about 20 s on one core.

    Raises MachineFailure where the cache cannot be written, and leaves nothing half written there.
    """
    lesson = LESSONS[name]()
    parts = [asdict(SETTINGS), GOOD_SHARE, lesson.validation, SAMPLES, lesson.max_tokens, *lesson.words, torch.__version__]
    folder = cache_folder() / f"{name}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]}"
    if (folder / "config.json").is_file():
        return folder
    with one_at_a_time(folder, lambda: console.status(f"waiting for the model of {name}, which another process is making")):
        return folder if (folder / "config.json").is_file() else _made(name, lesson, folder, console)


def located(config: ModelConfig, console: RunConsole) -> ModelConfig:
    """The model, by its folder where it is one that is made here; see `ensure_model`."""
    if config.name not in known_models.TINY:
        return config
    return config.model_copy(update={"name": str(ensure_model(config.name, console))})


def _made(name: str, lesson: Working, folder: Path, console: RunConsole) -> Path:
    with _kept_in(folder.parent), files.whole_folder(folder) as temporary, lesson.begun() as tokenizer:
        model = _make(f"pretraining the model of {name} (once; the result is cached)", lesson, tokenizer, console)
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
    return folder


@contextmanager
def _kept_in(cache: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not files.is_refused(error):
            raise
        raise MachineFailure(
            f"cannot write the quickstart's model to {cache}: {error}",
            "free some space, or use another folder: XDG_CACHE_HOME=DIR microrl train quickstart",
        ) from error


def _make(doing: str, lesson: Working, tokenizer: Any, console: RunConsole) -> PreTrainedModel:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = tiny.build_model(tokenizer, seed=SETTINGS.seed)
    problems = arithmetic.problems()
    training = [problem for problem in problems if content_fraction(problem[0]) >= TRAIN_FROM]
    unseen = [problem for problem in problems if VALIDATE_FROM <= content_fraction(problem[0]) < TRAIN_FROM]

    @cache
    def prompt_of(problem: tuple[str, str]) -> Prompt:
        question, answer = problem
        return lesson.prompt(question, answer, tokenizer)

    validation = [prompt_of(problem) for problem in random.Random(SETTINGS.seed).sample(unseen, lesson.validation)]
    scorer = RewardScorer(RewardConfig())

    def draw(rng: random.Random, count: int) -> list[SftExample]:
        chosen, good = rng.sample(training, count), round(count * GOOD_SHARE)
        return [(lesson.good if at < good else lesson.lazy)(prompt_of(problem), tokenizer) for at, problem in enumerate(chosen)]

    def accuracy(candidate: PreTrainedModel) -> float:
        engine, sampling = TransformersEngine(candidate, tokenizer, max_kv_gb=1.0), Sampling(SAMPLES, lesson.max_tokens)
        with engine.awake(BASE) as sampler:
            result = evaluate(
                sampler, scorer, validation, sampling, seed=SETTINGS.seed, pass_k=(), environment=lesson.environment
            )  # fmt: skip
        assert result is not None
        return result.accuracy().mean

    def progress(step: int, reached: float) -> None:
        console.count(step, max(STEPS, step), doing, f" steps, accuracy {reached:.2f}")

    try:
        progress(0, 0.0)
        model, steps, reached = pretrain(model, draw, accuracy, SETTINGS, progress)
    finally:
        scorer.close()
        torch.set_num_threads(threads)
    console.note(f"pretraining: {steps} steps, validation accuracy {reached:.2f}")
    transformers_logging.disable_progress_bar()
    return model
