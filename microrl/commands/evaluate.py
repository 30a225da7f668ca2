"""Evaluate runs and models on problem sets (`microrl eval`)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from microrl import clock, files
from microrl.commands.evaluation_data import about_data
from microrl.commands.weights import awake_throughout, opened, trained
from microrl.config import RunConfig, known_models
from microrl.config.schema import TransformersEngineConfig
from microrl.data.load import Question, Reading, load_questions, split
from microrl.data.prompts import none_fits, render_all
from microrl.errors import Explained, UserError
from microrl.evaluation.benchmark import Benchmark
from microrl.evaluation.evaluate import evaluate
from microrl.evaluation.record import CUT, FileJournal, folder_sha256, free_stem, prompts_sha256, write_completions
from microrl.evaluation.result import Result, gains
from microrl.evaluation.seeds import difference
from microrl.models import gpu
from microrl.models.load import load_tokenizer
from microrl.rewards.judges.judge import weakness
from microrl.rewards.scorer import RewardScorer, make_scorer
from microrl.rollout.engine import Engine
from microrl.rollout.preflight import select_engine
from microrl.run import environment
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.train.questions import check_golds, pick_questions
from microrl.train.setup import load_model
from microrl.types import BASE, AdapterSnapshot, Group, Prompt


@dataclass(frozen=True, slots=True)
class Weights:
    """What is evaluated: the model of `config`, and on top of it the adapter in a folder, if any.

    `run` is the run that it belongs to; `name` stands in messages.
    """

    name: str
    config: RunConfig
    run: RunFolder | None
    adapter: Path | None


@dataclass(slots=True)
class Prepared:
    """A benchmark with its questions, the scorer of their answers, and what the record says of the data."""

    benchmark: Benchmark
    questions: list[Question]
    scorer: RewardScorer
    data: dict[str, Any]
    stem: str
    """The name of the files; what it replaces is known with the prompts and weights."""

    @property
    def tokens(self) -> int:
        """The most that are sampled."""
        sampling = self.benchmark.sampling()
        return len(self.questions) * sampling.group_size * sampling.max_tokens


@dataclass(slots=True)
class Measured:
    """The result of one side on one benchmark, what its record says beside it, and the name of its files."""

    result: Result
    details: dict[str, Any]
    stem: str

    def to_json(self) -> dict[str, Any]:
        return {**self.result.to_json(), **self.details}


def measure(
    weights: Weights, benchmarks: Sequence[Benchmark], base: Weights | None, place: Path, deadline_s: float | None = None
) -> dict[str, Any]:
    """Evaluate on every benchmark: `{"benchmarks": {NAME: {...}}}`.

    With `base`, that model is evaluated on the same questions and the paired difference added. `deadline_s`: seconds for all of
    it; the benchmarks share them by the tokens that they may take. Every result is stored in the folder `place` as soon as it is
    there. Raises UserError.
    """
    if not all(benchmark.config.evaluation.problems for benchmark in benchmarks):
        raise UserError("evaluation.problems is 0: there is nothing to evaluate", "pass --problems N")
    began = clock.now_s()
    sides = [weights, *([base] if base is not None else [])]
    for side in sides:
        select_engine(side.config)  # fails before anything is loaded
    if base is not None and base.config.model.name not in (weights.config.model.name, known_models.QUICKSTART):
        load_tokenizer(base.config.model)  # a wrong name is found before the other side is sampled
    found: dict[str, Any] = {}
    ours: dict[str, Measured] = {}
    with ExitStack() as until_done, RunConsole() as console:
        if not files.is_writable(place):
            console.note(f"note: {place} is not writable; the result is printed but not stored")
        if (weak := weakness()) is not None:
            console.note(f"warning: {weak}")
        prepared = []
        for benchmark in benchmarks:
            scorer = make_scorer(benchmark.config)
            until_done.callback(scorer.close)
            prepared.append(_prepared(benchmark, scorer, weights.run, console))
        time = _Time(deadline_s, began, sum(one.tokens for one in prepared) * len(sides))
        for side in sides:
            for one, measured in _side(side, prepared, place, time, console, is_base=side is base):
                name = one.benchmark.name
                if side is weights:
                    ours[name] = measured
                    found[name] = {**measured.to_json(), "data": one.data}
                else:
                    found[name] |= _paired(ours[name], measured, console)
                path, value = place / f"{ours[name].stem}.json", found[name]
                _attempt(partial(files.write_json, path, value), console)
    return {"benchmarks": found}


class _Time:
    """Shares a time limit between the evaluations to come."""

    def __init__(self, limit_s: float | None, began_s: float, tokens: int) -> None:
        self._limit_s, self._began_s, self._tokens = limit_s, began_s, tokens

    def share_s(self, tokens: int) -> float | None:
        """Seconds for the next evaluation, of at most so many tokens."""
        if self._limit_s is None:
            return None
        left_s = max(self._limit_s - (clock.now_s() - self._began_s), 0.0)
        # One that is asked again, after the engine failed, has been subtracted before.
        share_s, self._tokens = left_s * tokens / max(self._tokens, tokens, 1), self._tokens - tokens
        return share_s


def _prepared(benchmark: Benchmark, scorer: RewardScorer, run: RunFolder | None, console: RunConsole) -> Prepared:
    """Raises UserError."""
    config = benchmark.config
    reading = Reading()
    everything = load_questions(config.data, reading=reading)
    data = about_data(benchmark, everything, reading, run, console)
    pool = split(everything, config.data.held_out).held_out
    is_whole = config.data.held_out == 1  # a benchmark is what it is, repeated questions and all
    chosen = pick_questions(pool, config.evaluation.problems, config.evaluation.question_seed, repeated=is_whole)
    questions = check_golds(chosen, scorer, config, None, console)
    if not questions:
        raise UserError("there is nothing to evaluate: the held-out part is empty", "pass a file: --data FILE.jsonl")
    return Prepared(benchmark, questions, scorer, data, benchmark.stem)


def _side(
    side: Weights,
    prepared: Sequence[Prepared],
    place: Path,
    time: _Time,
    console: RunConsole,
    *,
    is_base: bool,
) -> Iterator[tuple[Prepared, Measured]]:
    """Evaluate one model on every benchmark, with one engine."""
    model, tokenizer = load_model(side.config, console)
    snapshot = BASE if side.adapter is None else trained(side.adapter, side.config, model)
    about = {
        "model": side.config.model.name,
        "model_sha256": _model_sha256(model),
        "adapter_sha256": None if side.adapter is None else folder_sha256(side.adapter),
    }
    left = [(one, render_all(one.questions, tokenizer, one.benchmark.config.data)) for one in prepared]
    for one, prompts in left:
        if not prompts:
            raise none_fits(one.benchmark.config.data)
        if not is_base:
            own = {**about, "prompts_sha256": prompts_sha256(prompts), "data": one.data["sha256"]}
            one.stem = free_stem(place, one.benchmark.stem, own)

    def evaluated(config: RunConfig) -> Iterator[tuple[Prepared, Measured]]:
        with opened(awake_throughout(config), model, tokenizer, console) as engine:
            while left:
                one, prompts = left[0]
                task = _Task(side.name, one, prompts, place, one.stem + ("-base" if is_base else ""), about)
                measured = _evaluate(task, engine, snapshot, time.share_s(one.tokens), console)
                del left[0]
                yield one, measured

    config = _for_all(side.config, [one.benchmark for one in prepared], [prompts for _, prompts in left])
    try:
        yield from evaluated(config)
        return
    except Explained as error:
        if error.fault is None or config.engine.kind != "auto":
            raise
        console.note(f"engine fallback: {error.message}; evaluating with the transformers engine, which is slower")
    gpu.empty_cache()  # outside of the handler, which holds the failed engine's memory
    transformers = TransformersEngineConfig(max_kv_gb=config.engine.max_kv_gb)
    yield from evaluated(config.model_copy(update={"engine": transformers}))


def _for_all(config: RunConfig, benchmarks: Sequence[Benchmark], prompts: Sequence[Sequence[Prompt]]) -> RunConfig:
    """The configuration from which an engine gets the lengths and the rows of the largest benchmark."""
    longest = max(len(prompt.token_ids) for some in prompts for prompt in some)
    rows = max(map(len, prompts))
    samplings = [benchmark.sampling() for benchmark in benchmarks]
    limit = max(sampling.max_tokens for sampling in samplings)
    samples = max(sampling.group_size for sampling in samplings)
    changes: dict[str, dict[str, Any]] = {
        "data": {"max_prompt_tokens": longest},
        "evaluation": {"max_completion_tokens": limit, "samples": samples},
        "sampling": {"max_completion_tokens": limit, "prompts_per_step": rows, "group_size": samples},
    }
    return config.model_copy(update={name: getattr(config, name).model_copy(update=section) for name, section in changes.items()})


@dataclass(frozen=True, slots=True)
class _Task:
    """One evaluation: the benchmark's questions as this model's prompts, and where its record goes."""

    name: str
    prepared: Prepared
    prompts: Sequence[Prompt]
    place: Path
    stem: str
    about: dict[str, Any]


def _evaluate(task: _Task, engine: Engine, snapshot: AdapterSnapshot, share_s: float | None, console: RunConsole) -> Measured:
    """Evaluate within `share_s` seconds. Raises UserError where they are too short for a single question."""
    benchmark, prompts = task.prepared.benchmark, task.prompts
    config, sampling = benchmark.config, benchmark.sampling()
    details = {
        **task.about,
        "engine": engine.name,
        "prompts_sha256": prompts_sha256(prompts),
        "packages": environment.packages(),
    }
    header = {
        **details, "data": task.prepared.data["sha256"], "samples": sampling.group_size, "temperature": sampling.temperature,
        "top_p": sampling.top_p, "max_tokens": sampling.max_tokens, "seed": config.evaluation.seed,
    }  # fmt: skip
    label = f"{benchmark.name}: {task.name}"
    journal = FileJournal(task.place / f".{task.stem}.partial.jsonl", header, prompts, console.note)
    if journal.saved():
        console.note(f"{label}: continuing an evaluation that was killed after {len(journal.saved())} of {len(prompts)} problems")
    began = clock.now_s()

    def stem(answered: int) -> str:
        return task.stem + (CUT if answered < len(prompts) else "")

    def keep(groups: Sequence[Group]) -> None:
        _attempt(partial(write_completions, task.place / f"{stem(len(groups))}.jsonl.gz", groups), console)

    with engine.awake(snapshot) as sampler:
        result = evaluate(
            sampler,
            task.prepared.scorer,
            prompts,
            sampling,
            seed=config.evaluation.seed,
            pass_k=config.evaluation.pass_k,
            deadline_s=share_s,
            on_progress=lambda done, total: console.status(f"evaluating {label}: {done}/{total} problems"),
            on_scored=keep,
            journal=journal,
        )
    if result is None:
        raise UserError(
            f"{label}: no problem was finished in {share_s or 0:.0f} s, the time that was left for it within --hours",
            "pass larger --hours, or fewer --samples or a lower --max-tokens",
        )
    result.question_seed = config.evaluation.question_seed
    journal.remove()
    console.note(f"{label}: evaluated in {clock.now_s() - began:.1f} s")
    if len(result.right) < len(prompts):
        console.note(f"warning: {label}: there was time for {len(result.right)} of {len(prompts)} problems")
    if result.killed:
        console.note(
            f"warning: {label}: {result.killed} answers count as wrong because checking them timed out (reward.deadline_s = "
            f"{config.reward.deadline_s:g} s)"
        )
    return Measured(result, {**details, "questions_planned": len(prompts)}, stem(len(result.right)))


def _paired(measured: Measured, base: Measured, console: RunConsole) -> dict[str, Any]:
    """What is added to a result where a base was evaluated on the same questions."""
    ours, theirs = measured.result, base.result
    if theirs.right.keys() != ours.right.keys():
        console.note(
            f"warning: the two models answered {len(ours.right)} and {len(theirs.right)} problems; the gain is measured on the "
            f"{len(theirs.right.keys() & ours.right.keys())} that both answered"
        )
    change = None
    if theirs.entropy and ours.entropy is not None:
        change = (ours.entropy - theirs.entropy) / theirs.entropy * 100
    _, p = difference([theirs], [ours]) or (None, None)
    return {"base": base.to_json(), **gains(theirs, ours), "paired_gain_p": p, "entropy_change_pct": change}


def _attempt(write: Callable[[], None], console: RunConsole) -> None:
    try:
        write()
    except OSError as error:
        console.note(f"warning: the result could not be stored: {error}")


@torch.no_grad()
def _model_sha256(model: PreTrainedModel) -> str:
    """A hash of every tensor's name and shape, and of a thousand of its values."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        flat = tensor.detach().flatten()
        sample = flat[:: max(len(flat) // 1000, 1)].float().cpu().numpy()
        digest.update(f"{name} {tuple(tensor.shape)}".encode() + sample.tobytes())
    return digest.hexdigest()
