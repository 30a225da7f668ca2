"""A teacher's completions of training questions, judged and scored (`microrl teach`)."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save

from microrl import clock, files
from microrl.algorithm.batch import Row
from microrl.commands.evaluation_job import for_all
from microrl.commands.weights import opened, trained
from microrl.config import RunConfig, override
from microrl.config.paths import TEACH
from microrl.config.resolve import leaves
from microrl.data import taught
from microrl.data.load import Reading, load_questions, split
from microrl.data.prompts import none_fits, render_all
from microrl.data.taught import Content, Line, Part, Record
from microrl.errors import MachineFailure, UserError, first_line
from microrl.evaluation.benchmark import Benchmark, sampling_of
from microrl.evaluation.record import prompts_sha256
from microrl.limits import QUESTIONS_A_STEP
from microrl.models import gpu
from microrl.policy.microbatch import pad, plan
from microrl.policy.soft_targets import TopScores
from microrl.policy.teacher import Teacher
from microrl.rewards.judges.judge import weakness
from microrl.rewards.scorer import RewardScorer, make_scorer
from microrl.rollout.engine import Engine
from microrl.rollout.preflight import select_engine
from microrl.run import data_record
from microrl.run.console import FAIR, RunConsole
from microrl.run.teacher import RAW
from microrl.terminal import counted
from microrl.train.cleaning import named_benchmarks, nearly_the_same, report_reading
from microrl.train.questions import check_golds, pick_questions
from microrl.train.setup import load_model
from microrl.train.teacher import teacher_sha256
from microrl.types import BASE, AdapterSnapshot, Group, Prompt

STREAM = 0x7EAC
"""First word of the random streams, which keeps them apart from training's and the evaluation's."""
PART = 512
"""Completions that are sampled, scored and written together."""
MICROBATCH = 4096
"""Tokens that are scored at once."""


def teach(
    config: RunConfig,
    name: str,
    adapter: Path | None,
    folder: Path,
    *,
    top_k: int,
    only_right: bool,
    until_s: float | None,
    is_resumed: bool,
    is_rl: bool | None,
) -> Record:
    """Write a teacher's completions into a folder; returns its record.

    The teacher is the model of `config` with the update in the folder `adapter`, if any; `name` is what was given for it, and
    `is_rl` whether microrl has trained it by its rewards (None: not known).
    `config.evaluation` says how many questions are asked and how; the scores are at the training temperature. A part that does
    not end by `until_s` is discarded, but the folder's first is always written. Raises UserError.
    """
    given = config
    if is_resumed:  # by the engine that wrote the first parts, which may have been chosen by `auto`
        config = override(config.model_dump(), {"engine.kind": taught.read_record(folder).sampling.engine}, ())
    engine_name = select_engine(config)  # fails before anything is loaded
    with RunConsole() as console, closing(make_scorer(config)) as scorer:
        if (weak := weakness()) is not None:
            console.note(f"warning: {weak}")
        if is_rl is False:
            console.note(f"warning: {RAW}")
        console.status("reading the data")
        everything = load_questions(config.data, reading=(reading := Reading()))
        report_reading(config, reading, None, console)
        pool = split(everything, config.data.held_out, config.data.validation).training
        near = nearly_the_same([question.text for question in pool], named_benchmarks(config))
        for why, count in (reading.left_out + Counter(near.values())).items():
            console.note(f"{counted(count, 'question')} left out: {why}")
        pool = [question for question in pool if question.text not in near]
        if near and not pool:
            raise UserError("no question is left: see above", "remove the benchmark from data.decontaminate, or use other --data")
        questions = check_golds(pick_questions(pool, config.evaluation.problems, config.seed), scorer, config, None, console)
        model, tokenizer = load_model(config, console)
        snapshot = BASE if adapter is None else trained(adapter, config, model)
        prompts = render_all(questions, tokenizer, config.data)
        if not prompts:
            raise none_fits(config.data)
        if too_long := len(questions) - len(prompts):
            why = f"with a prompt of more than {config.data.max_prompt_tokens} tokens (data.max_prompt_tokens)"
            console.note(f"{counted(too_long, 'question')} left out: {why}")
        sampling = sampling_of(config)
        begun = taught.read_record(folder) if is_resumed else None
        size = begun.parts[0].questions if begun is not None and begun.parts else max(PART // sampling.group_size, 1)
        parts = [prompts[start : start + size] for start in range(0, len(prompts), size)]
        record = Record(
            teacher=taught.Teacher(
                name=name, model=config.model.name, sha256=teacher_sha256(config.model, adapter, console), is_rl=is_rl
            ),
            data=data_record.of_questions(config.data, everything),
            chat=taught.chat_of(config),
            tokenizer=taught.tokenizer_of(tokenizer),
            sampling=taught.Sampled(
                samples=sampling.group_size, temperature=sampling.temperature, top_p=sampling.top_p,
                max_tokens=sampling.max_tokens, seed=config.seed, engine=engine_name,
            ),
            scored_at=config.sampling.temperature, top_k=top_k, only_right=only_right, questions=len(prompts),
            prompts_sha256=prompts_sha256(prompts), is_done=False, parts=[],
            config=given.model_dump(mode="json"), adapter=adapter and str(adapter),
        )  # fmt: skip
        missing = list(range(len(parts)))
        if begun is not None:
            _refuse_another(folder, begun, record)
            # Until something is added, the folder is what it was: one that had ended in time can be trained on.
            record.parts, record.is_done = begun.parts, begun.is_done
            missing = [
                number for number in missing
                if number >= len(begun.parts) or taught.cut_short(folder, number, begun.parts[number]) is not None
            ]  # fmt: skip
            if not missing:
                record.is_done = True  # perhaps the process was killed before it could say so
                _write_record(folder, record)
                return record
        else:
            _write_record(folder, record)
        one = Teacher(
            model, snapshot, temperature=config.sampling.temperature, fp32_head=config.model.head_dtype == "float32"
        )  # before an engine changes the model
        with opened(for_all(config, [Benchmark(name, "", config)], parts), model, tokenizer, console) as engine:
            teaching = _Teaching(folder, record, config, snapshot, one, max(tokenizer.get_vocab().values()) + 1, console)
            teaching.go_on(parts, missing, engine, scorer, until_s)
    return record


@dataclass(slots=True)
class _Teaching:
    """What writes the parts. The scored tokens have ids below `vocabulary`; `check` is called between micro-batches."""

    folder: Path
    record: Record
    config: RunConfig
    snapshot: AdapterSnapshot
    teacher: Teacher
    vocabulary: int
    console: RunConsole
    check: Callable[..., None] = lambda needed_s=0.0: None

    def go_on(
        self,
        parts: Sequence[Sequence[Prompt]],
        missing: Sequence[int],
        engine: Engine,
        scorer: RewardScorer,
        until_s: float | None,
    ) -> None:
        """Write the missing parts; the record names each as soon as it is there. The folder's first has all the time it takes.
        Of the others, none begins that is likely to end after `until_s`, and one that does not end by then is discarded."""
        longest_s = 0.0
        for done, number in enumerate(missing, len(parts) - len(missing)):
            began = clock.now_s()
            if self.record.parts and until_s is not None:
                engine.check_deadline = scorer.check_deadline = self.check = partial(_refuse_after, until_s)
            try:
                self.check(longest_s)
                part = self._part(number, number * len(parts[0]), parts[number], engine, scorer)
            except _TimeIsUp:
                self.console.note(f"the time is up: {done} of {len(parts)} parts are written")
                break
            self.record.parts[number : number + 1] = [part]
            self.record.is_done = False
            _write_record(self.folder, self.record)
            longest_s = max(longest_s, clock.now_s() - began)
        self.record.is_done = True
        _write_record(self.folder, self.record)

    def _part(self, number: int, first: int, prompts: Sequence[Prompt], engine: Engine, scorer: RewardScorer) -> Part:
        """The part of this number, whose first question is the `first` of all, counted from 0."""
        while True:
            try:
                groups = self._sampled(first, prompts, engine, scorer)
                break
            except Exception as error:
                if not gpu.is_out_of_memory(error):
                    raise
            gpu.empty_cache()  # only out here, where the exception keeps no tensors alive
            self.console.note(f"out of memory while sampling: the KV cache is reduced to {engine.shrink():.3g} GB")
        scores = [score for group in groups for score in group.scores]
        if killed := sum(score.killed for score in scores):
            self.console.note(f"warning: {scorer.why_killed(killed)}")
        lines = [
            Line(
                row=group.prompt.row, question=group.prompt.question, prompt_ids=group.prompt.token_ids, sample=sample,
                token_ids=one.token_ids, text=one.text, accuracy=score.accuracy, format=score.format, extracted=score.extracted,
                finish=one.finish,
            )
            for group in groups
            for sample, (one, score) in enumerate(zip(group.completions, group.scores, strict=True))
            if score.accuracy == 1 or not self.record.only_right
        ]  # fmt: skip
        content = "".join(json.dumps(line.model_dump(), ensure_ascii=False) + "\n" for line in lines)
        of_lines, of_scores = taught.part_files(self.folder, number)
        scored, broken = self._scored(lines)
        return Part(
            questions=len(groups),
            sampled=len(scores),
            right=sum(score.accuracy == 1 for score in scores),
            kept=len(lines),
            tokens=sum(len(line.token_ids) for line in lines),
            broken=broken,
            cut=sum(line.finish == "length" for line in lines),
            lines=_written(of_lines, content.encode()),
            scores=_written(of_scores, scored),
        )

    def _sampled(self, first: int, prompts: Sequence[Prompt], engine: Engine, scorer: RewardScorer) -> list[Group]:
        """The scored groups of a part. A question's random numbers follow from the seed and its place among all of them."""
        scorer.reset_allowance(math.ceil(len(prompts) / QUESTIONS_A_STEP))

        def shown(groups: Iterator[tuple[int, Group]]) -> Iterator[tuple[int, Group]]:
            for done, group in enumerate(groups, first + 1):
                yield group
                self.console.count(done, self.record.questions, "questions answered", at_once=FAIR * len(prompts))

        with engine.awake(self.snapshot) as sampler:
            groups = sampler.groups(
                prompts, sampling_of(self.config), stream=(STREAM, self.config.seed),
                positions=range(first, first + len(prompts)),
            )  # fmt: skip
            return scorer.score(shown(groups), accuracy_only=True)

    def _scored(self, lines: Sequence[Line]) -> tuple[bytes, int]:
        """The teacher's scores as a file's content, and how many completions have broken ones.

        The micro-batches follow from the lines alone, and so do the last bits, unless memory runs out.
        """
        rows = [Row(line.prompt_ids, line.token_ids, (), 0.0, True, number) for number, line in enumerate(lines)]
        scores_by_row: dict[int, tuple[torch.Tensor, ...]] = {}
        batches = plan(rows, MICROBATCH, share_prompts=True)
        for positions in self.console.progress(batches, len(batches), "scoring completions, micro-batches"):
            self.check()
            scores = self._top([rows[position] for position in positions])
            lengths = [rows[position].length for position in positions]
            scores_by_row |= zip(positions, zip(*(tensor.cpu().split(lengths) for tensor in scores), strict=True), strict=True)
        if not rows:
            scores_by_row = {0: (torch.zeros(0), torch.zeros(0, self.record.top_k), torch.zeros(0, self.record.top_k))}
        broken = sum(taught.is_broken(own.numpy(), top.numpy()) for own, _, top in scores_by_row.values())
        logprobs, ids, top = (
            torch.cat(parts) for parts in zip(*(scores_by_row[number] for number in sorted(scores_by_row)), strict=True)
        )
        has_top = {taught.IDS: ids.int(), taught.TOP: top.float()} if self.record.top_k else {}
        return save({taught.LOGPROBS: logprobs.float(), **has_top}), broken

    def _top(self, rows: Sequence[Row]) -> TopScores:
        """The teacher's scores of some rows, one after another; where memory runs out, half of them at a time."""
        try:
            batch = pad(rows, tuple(range(len(rows))), self.teacher.device, share_prompts=True)
            return self.teacher.top(batch, self.record.top_k, self.vocabulary)
        except Exception as error:
            if not gpu.is_out_of_memory(error):
                raise
            if len(rows) == 1:
                raise MachineFailure(
                    f"out of memory while the teacher scores one completion at a time: {first_line(error)}",
                    "begin another folder (--out) with a lower --max-tokens or --set model.quant=nf4",
                ) from error
        gpu.empty_cache()  # only out here, where the exception keeps no tensors alive
        halves = [self._top(half) for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :])]
        return TopScores(*(torch.cat(parts) for parts in zip(*halves, strict=True)))


class _TimeIsUp(Exception):
    """A part would end too late."""


def _refuse_after(until_s: float, needed_s: float = 0.0) -> None:
    if clock.now_s() + needed_s > until_s:
        raise _TimeIsUp


def _refuse_another(folder: Path, begun: Record, record: Record) -> None:
    """Raise UserError where the teacher, its questions or its prompts are not those that the folder was begun with."""
    before, now = (dict(leaves(one.model_dump(exclude={"parts", "is_done", "config"}))) for one in (begun, record))
    differing = [
        f"{key} changed" if key.endswith("sha256") else f"{key} was {before.get(key)} and is {value}"
        for key, value in now.items()
        if value != before.get(key)
    ]
    if differing:
        raise UserError(
            f"{folder} cannot be continued: {'; '.join(differing)}",
            f"restore what has changed, or begin another folder: {taught.NEW}",
        )


def _write_record(folder: Path, record: Record) -> None:
    files.write_json(folder / TEACH, record.model_dump(mode="json"))


def _written(path: Path, content: bytes) -> Content:
    """Write a file under a temporary name, flush it and rename it. Raises OSError."""
    with files.written_whole(path) as temporary, temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return Content(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
