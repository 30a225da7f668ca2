"""Evaluations with one engine, in this process or in one of their own: load the model, sample, score, and keep every answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from microrl import clock
from microrl.commands.weights import awake_throughout, environment_of, opened, trained
from microrl.config import RunConfig
from microrl.config.schema import EngineConfig
from microrl.data.load import Question
from microrl.data.prompts import ToolsOf, no_tools, none_fits, render_all
from microrl.environments.conversation import Environment
from microrl.errors import UserError
from microrl.evaluation.benchmark import Benchmark
from microrl.evaluation.evaluate import evaluate
from microrl.evaluation.record import CUT, FileJournal, folder_sha256, free_stem, prompts_sha256, write_completions
from microrl.evaluation.result import Result
from microrl.models.forward import stop_tokens
from microrl.rewards.scorer import make_scorer
from microrl.rollout.engine import Engine
from microrl.run import environment as machine
from microrl.run.apart import Report
from microrl.run.console import RunConsole
from microrl.train.setup import load_model
from microrl.types import BASE, AdapterSnapshot, Group, Prompt


@dataclass(frozen=True, slots=True)
class Weights:
    """What is evaluated: the model of `config`, and on top of it the adapter in a folder, if any. `name` stands in messages."""

    name: str
    config: RunConfig
    adapter: Path | None


@dataclass(slots=True)
class Prepared:
    """A benchmark with its questions, and what the record says of the data."""

    benchmark: Benchmark
    questions: list[Question]
    data: dict[str, Any]
    stem: str
    """The name of the files; what it replaces is known with the prompts and weights."""

    @property
    def tokens(self) -> int:
        """The most that are sampled from one model."""
        sampling = self.benchmark.sampling()
        return len(self.questions) * sampling.group_size * sampling.max_tokens


@dataclass(slots=True)
class Measured:
    """The result of one model on one benchmark, what its record says beside it, and the name of its files."""

    result: Result
    details: dict[str, Any]
    stem: str

    def to_json(self) -> dict[str, Any]:
        return {**self.result.to_json(), **self.details}


@dataclass(frozen=True, slots=True)
class Task:
    """One model on one benchmark. `is_base`: another one is compared with it, and its files lie beside the other's."""

    weights: Weights
    prepared: Prepared
    is_base: bool


@dataclass(frozen=True, slots=True)
class Job:
    """The tasks of one engine, in order: a model with at most one adapter, and the model without it.

    `until_s` is when they and those of later jobs end, which may take `tokens_after` tokens; None: no limit.
    """

    tasks: Sequence[Task]
    engine: EngineConfig
    place: Path
    until_s: float | None
    tokens_after: int

    def share_s(self, number: int) -> float | None:
        """Seconds for a task: its share of what is left, by the tokens that each may take."""
        if self.until_s is None:
            return None
        tokens = [task.prepared.tokens for task in self.tasks[number:]]
        return max(self.until_s - clock.now_s(), 0.0) * tokens[0] / max(sum(tokens) + self.tokens_after, 1)


class _Relayed(RunConsole):
    """Reports its lines to the process that shows them."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self._report = report

    def note(self, text: str) -> None:
        self._report(("note", text))

    def status(self, text: str) -> None:
        self._report(("status", text))


def evaluate_apart(job: Job, report: Report) -> None:
    """`evaluate_job` in its own process. Reports each `Measured`, and ("note", TEXT) and ("status", TEXT) of the console."""
    evaluate_job(job, _Relayed(report), report)


def evaluate_job(job: Job, console: RunConsole, on_measured: Callable[[Measured], None]) -> None:
    """Evaluate, with one engine; `on_measured` gets each task's result as soon as it is there. Raises UserError."""
    first = job.tasks[0].weights  # the one with an adapter, if any
    with environment_of(first.config, console) as environment:
        model, tokenizer = load_model(first.config, console)
        snapshot = BASE if first.adapter is None else trained(first.adapter, first.config, model)
        model_sha256 = _model_sha256(model)
        rendered = _rendered(
            [task.prepared for task in job.tasks], tokenizer, no_tools if environment is None else environment.tools
        )
        config = for_all(first.config, [task.prepared.benchmark for task in job.tasks], list(rendered.values()))
        config = awake_throughout(config.model_copy(update={"engine": job.engine}))
        with opened(config, model, tokenizer, console) as engine:
            for number, task in enumerate(job.tasks):
                weights, one = task.weights, task.prepared
                prompts, update = rendered[one.benchmark.name], BASE if weights.adapter is None else snapshot
                about = {
                    "model": weights.config.model.name,
                    "model_sha256": model_sha256,
                    "adapter_sha256": None if weights.adapter is None else folder_sha256(weights.adapter),
                    **({} if environment is None else {"env": first.config.env.label}),
                }
                if not task.is_base:
                    own = {**about, "prompts_sha256": prompts_sha256(prompts), "data": one.data["sha256"]}
                    one.stem = free_stem(job.place, one.benchmark.stem, own)
                if environment is not None:  # each benchmark has a system message and a limit of its own
                    environment.use_template(tokenizer, one.benchmark.config.data, stop_tokens(model, tokenizer))
                on_measured(_evaluate(job, number, prompts, about, engine, update, console, environment))


def _rendered(prepared: Sequence[Prepared], tokenizer: PreTrainedTokenizerBase, tools: ToolsOf) -> dict[str, list[Prompt]]:
    """The prompts of each benchmark. Raises UserError where none fits."""
    rendered: dict[str, list[Prompt]] = {}
    for one in prepared:
        data, name = one.benchmark.config.data, one.benchmark.name
        if name not in rendered and not rendered.setdefault(name, render_all(one.questions, tokenizer, data, tools=tools)):
            raise none_fits(data)
    return rendered


def for_all(config: RunConfig, benchmarks: Sequence[Benchmark], prompts: Sequence[Sequence[Prompt]]) -> RunConfig:
    """The configuration from which an engine gets the lengths and the rows of the largest benchmark."""
    longest = max(len(prompt.token_ids) for some in prompts for prompt in some)
    if config.env.target is not None:  # which may add to each of them
        longest = max(benchmark.config.data.max_prompt_tokens for benchmark in benchmarks)
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


def _evaluate(
    job: Job,
    number: int,
    prompts: Sequence[Prompt],
    about: dict[str, Any],
    engine: Engine,
    snapshot: AdapterSnapshot,
    console: RunConsole,
    environment: Environment | None,
) -> Measured:
    """Carry out a job's task of this number within its share. Raises UserError where that is too short for a single question."""
    task, share_s = job.tasks[number], job.share_s(number)
    benchmark, whole = task.prepared.benchmark, task.prepared.stem + "-base" * task.is_base
    config, sampling = benchmark.config, benchmark.sampling()
    details = {**about, "engine": engine.name, "prompts_sha256": prompts_sha256(prompts), "packages": machine.packages()}
    header = {
        **details, "data": task.prepared.data["sha256"], "samples": sampling.group_size, "temperature": sampling.temperature,
        "top_p": sampling.top_p, "max_tokens": sampling.max_tokens, "seed": config.evaluation.seed,
    }  # fmt: skip
    label = f"{benchmark.name}: {task.weights.name}"
    journal = FileJournal(job.place / f".{whole}.partial.jsonl", header, prompts, console.note)
    if journal.saved():
        console.note(f"{label}: continuing an evaluation that was killed after {len(journal.saved())} of {len(prompts)} problems")
    began = clock.now_s()

    def stem(answered: int) -> str:
        return whole + (CUT if answered < len(prompts) else "")

    def keep(groups: Sequence[Group]) -> None:
        attempt(partial(write_completions, job.place / f"{stem(len(groups))}.jsonl.gz", groups), console)

    with closing(make_scorer(config)) as scorer, engine.awake(snapshot) as sampler:
        result = evaluate(
            sampler,
            scorer,
            prompts,
            sampling,
            seed=config.evaluation.seed,
            pass_k=config.evaluation.pass_k,
            deadline_s=share_s,
            on_progress=lambda done, total: console.status(f"evaluating {label}: {done}/{total} problems"),
            on_scored=keep,
            journal=journal,
            environment=environment,
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
        console.note(f"warning: {label}: {result.killed_said(config.reward.deadline_s)}")
    return Measured(result, {**details, "questions_planned": len(prompts)}, stem(len(result.right)))


def attempt(write: Callable[[], None], console: RunConsole) -> None:
    """Write, or say that it could not be written."""
    try:
        write()
    except OSError as error:
        console.note(f"warning: the result could not be stored: {error}")


@torch.no_grad()
def _model_sha256(model: PreTrainedModel) -> str:
    """A hash of every tensor's name and shape, and of a thousand of its values.

    It is not to be compared with `fingerprint.weights_sha256`, which is of blocks of the files on the disk.
    """
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        flat = tensor.detach().flatten()
        sample = flat[:: max(len(flat) // 1000, 1)].float().cpu().numpy()
        digest.update(f"{name} {tuple(tensor.shape)}".encode() + sample.tobytes())
    return digest.hexdigest()
