"""The embedded default: a tiny model warm-started on generated arithmetic, made once and kept in the user's cache.

Half of the solutions it sees work the sum out, half blurt out the (correct) answer. Sampled, the model therefore guesses
about half the time, and guessing is mostly wrong: what GRPO has to find out is that working it out pays.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from microrl import files
from microrl.config.reward import RewardConfig
from microrl.data import arithmetic
from microrl.data.load import content_share
from microrl.data.prompts import render
from microrl.data.sft_examples import sft_example
from microrl.errors import MachineFailure
from microrl.evaluation.evaluate import evaluate
from microrl.files import one_at_a_time
from microrl.models import tiny
from microrl.models.hub import cache_folder
from microrl.quickstart.pretrain import PretrainingSettings, pretrain
from microrl.rewards.scorer import RewardScorer
from microrl.rollout.transformers import TransformersEngine
from microrl.run.console import RunConsole
from microrl.types import BASE, Sampling, SftExample

SETTINGS = PretrainingSettings()
TRAIN_FROM, VALIDATE_FROM = 0.5, 0.3
"""Shares of the content hash: the run's held-out questions come from below data.held_out, these never meet them."""
WORKED_SHARE = 0.37
"""Fraction of the pretraining's solutions that are worked out: about the maximum accuracy it can reach."""
VALIDATION, SAMPLES, MAX_TOKENS = 512, 2, 32
STEPS = 220
"""Steps that the pretraining usually takes."""
PRETRAINING = "pretraining the quickstart's model (once; the result is cached)"


def ensure_model(console: RunConsole) -> Path:
    """The folder of the warm-started model; made now if this recipe's is not in the cache (about 20 s on one core).

    Raises MachineFailure where the cache cannot be written, and leaves nothing half written there.
    """
    parts = [asdict(SETTINGS), WORKED_SHARE, VALIDATION, SAMPLES, tiny.WORDS, tiny.CHAT_TEMPLATE, torch.__version__]
    recipe = json.dumps(parts)
    folder = cache_folder() / f"quickstart-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    if (folder / "config.json").is_file():
        return folder
    with one_at_a_time(folder, lambda: console.status("waiting for the quickstart's model, which another process is making")):
        return folder if (folder / "config.json").is_file() else _made(folder, console)


def _made(folder: Path, console: RunConsole) -> Path:
    with _kept_in(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".quickstart-", dir=folder.parent))
    try:
        model, tokenizer = _make(console)
        with _kept_in(folder.parent):
            model.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
            _rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _rename(temporary: Path, folder: Path) -> None:
    try:
        temporary.replace(folder)
    except OSError:
        if not (folder / "config.json").is_file():  # another process may have been faster
            raise


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


def _make(console: RunConsole) -> tuple[PreTrainedModel, Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    tokenizer = tiny.build_tokenizer()
    model = tiny.build_model(tokenizer, seed=SETTINGS.seed)
    prompts = {q: render(q, answer, tokenizer, None) for q, answer in arithmetic.problems()}
    training = [prompt for question, prompt in prompts.items() if content_share(question) >= TRAIN_FROM]
    validation = [prompt for question, prompt in prompts.items() if VALIDATE_FROM <= content_share(question) < TRAIN_FROM]
    validation = random.Random(SETTINGS.seed).sample(validation, VALIDATION)
    scorer = RewardScorer(RewardConfig())

    def draw(rng: random.Random, count: int) -> list[SftExample]:
        chosen = [(prompt, arithmetic.solve(prompt.question)) for prompt in rng.sample(training, count)]
        worked = round(count * WORKED_SHARE)
        solutions = [solved.worked for _, solved in chosen[:worked]] + [solved.guessed for _, solved in chosen[worked:]]
        return [sft_example(prompt, solution, tokenizer) for (prompt, _), solution in zip(chosen, solutions, strict=True)]

    def accuracy(candidate: PreTrainedModel) -> float:
        engine = TransformersEngine(candidate, tokenizer, max_kv_gb=1.0)
        with engine.awake(BASE) as sampler:
            result = evaluate(sampler, scorer, validation, Sampling(SAMPLES, MAX_TOKENS), seed=SETTINGS.seed, pass_k=())
        assert result is not None
        return result.accuracy().mean

    def progress(step: int, reached: float) -> None:
        console.count(step, max(STEPS, step), PRETRAINING, f" steps, accuracy {reached:.2f}")

    try:
        progress(0, 0.0)
        model, steps, reached = pretrain(model, draw, accuracy, SETTINGS, progress)
    finally:
        scorer.close()
        torch.set_num_threads(threads)
    console.note(f"pretraining: {steps} steps, validation accuracy {reached:.2f}")
    transformers_logging.disable_progress_bar()
    return model, tokenizer
