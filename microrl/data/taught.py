"""A folder of `microrl teach`: a teacher's completions of training questions, with verdicts and scores, in parts."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import ValidationError

from microrl import files
from microrl.config import RunConfig
from microrl.config.paths import TEACH
from microrl.config.resolve import as_set
from microrl.data.fingerprint import Fingerprint
from microrl.errors import UserError
from microrl.files import BadFile, Count, Fraction, Strict
from microrl.types import Finish, Prompt, SoftTargets

if TYPE_CHECKING:
    import numpy as np

LOGPROBS, IDS, TOP = "logprobs", "top_ids", "top_logprobs"
"""Tensors of a part's scores, over the tokens of all its completions: [N] float32, and with soft targets [N, K] int32 and
float32."""
NEW = "microrl teach --teacher MODEL --data DATA --out DIR"
RESTORE = "restore the file from a copy, or sample it again: delete it, then microrl teach --resume FOLDER"
BROKEN = "with log-probabilities that are not finite, or positive"
SLACK = 1e-4
"""By how much rounding may lift a log-probability above 0."""


class Content(Strict):
    """What a file holds."""

    bytes: Count
    sha256: str


class Part(Strict):
    """What became of some questions. `kept` completions with `tokens` tokens lie in `lines`, and their scores in `scores`; those
    of `broken` completions are not finite, or positive. `cut` of the kept ones reached the token limit."""

    questions: Count
    sampled: Count
    right: Count
    kept: Count
    tokens: Count
    broken: Count = 0
    cut: Count = 0
    lines: Content
    scores: Content


class Teacher(Strict):
    """`sha256` is that of its weights; None: of an untouched model, and written before those had one."""

    name: str
    model: str
    sha256: str | None
    is_rl: bool | None = None
    """Whether microrl has trained it by its rewards; None: not known."""


class Chat(Strict):
    """The keys of `data` that make a prompt of a question."""

    system: str | None
    system_role: str
    thinking: bool | None


class Tokenizer(Strict):
    """`sha256` is that of the tokens with their ids, `end` the id of the end-of-text token."""

    tokens: Count
    sha256: str
    end: int | None


class Sampled(Strict):
    samples: Count
    temperature: float
    top_p: float
    max_tokens: Count
    seed: int
    engine: str


class Record(Strict):
    """`teach.json`. `prompts_sha256` is that of all rendered prompts and gold answers. `scored_at` is the
    temperature of the scores, `top_k` the most tokens that they have at a position. With `is_done` nothing is left to do, or the
    time limit was reached. `config` and `adapter` are what a resumed teacher needs."""

    format: Literal[1] = 1
    teacher: Teacher
    data: Fingerprint
    chat: Chat
    tokenizer: Tokenizer
    sampling: Sampled
    scored_at: float
    top_k: Count
    only_right: bool
    questions: Count
    prompts_sha256: str
    is_done: bool
    parts: list[Part]
    config: dict[str, Any]
    adapter: str | None


class Line(Strict):
    """One completion. `accuracy` and `format` are the parts of the reward, `extracted` the answer that was judged."""

    row: Count
    question: str
    prompt_ids: tuple[int, ...]
    sample: Count
    token_ids: tuple[int, ...]
    text: str
    accuracy: Fraction
    format: Fraction
    extracted: str | None
    finish: Finish


class Stored(NamedTuple):
    """A completion to learn as it is. `targets` are None where the tokens alone are learned; `key` tells it from others.
    `is_broken`: a log-probability is not finite, or positive."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    targets: SoftTargets | None
    is_broken: bool
    key: str
    tokenizer: Tokenizer


def part_files(folder: Path, number: int) -> tuple[Path, Path]:
    """Lines and scores of a part, counted from 0."""
    stem = f"part-{number + 1:05d}"
    return folder / f"{stem}.jsonl", folder / f"{stem}.safetensors"


def read_record(folder: Path) -> Record:
    """Raises BadFile."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}", f"begin one: {NEW}")
    try:
        return files.read_json(folder / TEACH, Record)
    except BadFile as error:
        raise BadFile(error.message, f"restore the file from a copy, or make a new folder: {NEW}") from None


def chat_of(config: RunConfig) -> Chat:
    return Chat(system=config.data.system or None, system_role=config.data.system_role, thinking=config.data.thinking)


def tokenizer_of(tokenizer: Any) -> Tokenizer:
    vocabulary = tokenizer.get_vocab()
    digest = hashlib.sha256(json.dumps(sorted(vocabulary.items())).encode("utf-8", "surrogatepass")).hexdigest()
    return Tokenizer(tokens=len(vocabulary), sha256=digest, end=tokenizer.eos_token_id)


def cut_short(folder: Path, number: int, part: Part) -> str | None:
    """What is missing of a part, as its files' sizes say; None: nothing."""
    for path, content in zip(part_files(folder, number), (part.lines, part.scores), strict=True):
        size = path.stat().st_size if path.is_file() else None
        if size != content.bytes:
            return f"{path.name} " + ("is missing" if size is None else f"has {size:,} bytes instead of {content.bytes:,}")
    return None


def refuse_cut_short(folder: Path) -> Record:
    """The record of a folder that is whole, as the sizes of its files say. Raises UserError for any other."""
    record = read_record(folder)
    again = f"microrl teach --resume {folder}"
    for number, part in enumerate(record.parts):
        if (missing := cut_short(folder, number, part)) is not None:
            raise UserError(f"{folder}: {missing}", f"restore the file from a copy, or sample it again: {again}")
    if not record.is_done:
        done = sum(part.questions for part in record.parts)
        raise UserError(f"{folder} is not finished: it has {done:,} of {record.questions:,} questions", f"finish it: {again}")
    if not any(part.kept for part in record.parts):
        raise UserError(
            f"{folder} has no completion" + none_right(record),
            f"make a new one, with more --samples or without --only-right: {NEW}",
        )
    return record


def none_right(record: Record) -> str:
    sampled = sum(part.sampled for part in record.parts)
    return f": none of the teacher's {sampled:,} is right, and only right ones were to be kept" if record.only_right else ""


def refuse_other_settings(folder: Path, config: RunConfig) -> None:
    """Raise UserError where a run would ask its questions in another way than the teacher was asked, or learns at another
    temperature than that of the scores."""
    record, ours = read_record(folder), chat_of(config)
    theirs = record.chat
    for key, given in theirs.model_dump().items():
        if (own := getattr(ours, key)) != given:
            raise UserError(
                f"{folder}: the teacher was asked with data.{key}={as_set(given)}, and this run asks with {as_set(own)}",
                f"{_setting(key, given)}, or let the teacher answer this run's prompts: {NEW} {_setting(key, own)}",
            )
    if config.has_stored_teacher and not record.top_k:
        raise UserError(
            f"{folder} has no soft targets to distil from: it was made with --top-k 0",
            f"learn its tokens: --sft-data {folder} --sft-minutes M; or make another folder, with --top-k 16: {NEW}",
        )
    if config.has_stored_teacher and record.scored_at != config.sampling.temperature:
        raise UserError(
            f"{folder}: the scores are at the temperature {record.scored_at:g}, and this run trains at "
            f"{config.sampling.temperature:g}",
            f"--set sampling.temperature={record.scored_at:g}, or --sft-data {folder} to learn the tokens alone",
        )


def _setting(key: str, value: Any) -> str:
    """What sets a key of `data` to this value."""
    return shlex.quote(f"--set=data.{key}={as_set(value)}")


def other_data(folder: Path, sha256: str) -> str | None:
    """What is worth saying where a run's questions are not those of the folder's data."""
    data = read_record(folder).data
    return None if data.sha256 == sha256 else f"{folder} has answers to questions of other data: {data.name}, {data.rows:,} rows"


def stored(folder: Path, config: RunConfig) -> Iterator[tuple[Line, Stored]]:
    """Every completion. Raises UserError, as what it calls does, and BadFile for a part that is not what was recorded."""
    record = refuse_cut_short(folder)
    refuse_other_settings(folder, config)
    for number, part in enumerate(record.parts):
        lines, scores = (
            _read(path, content) for path, content in zip(part_files(folder, number), (part.lines, part.scores), strict=True)
        )
        try:
            completions = [Line.model_validate_json(line) for line in lines.splitlines()]
        except ValidationError as error:
            raise BadFile(f"{part_files(folder, number)[0]} is damaged: {files.said_first(error)}", RESTORE) from None
        tensors = _tensors(scores, part_files(folder, number)[1], sum(len(line.token_ids) for line in completions))
        start = 0
        for line in completions:
            span, start = slice(start, start + len(line.token_ids)), start + len(line.token_ids)
            mine = {name: tensor[span] for name, tensor in tensors.items()} if config.has_stored_teacher else {}
            targets = SoftTargets(mine[IDS], mine[TOP]) if IDS in mine else None
            broken = is_broken(*(mine[name] for name in (LOGPROBS, TOP) if name in mine))
            key = f"{part.lines.sha256} {part.scores.sha256} {start}"
            yield line, Stored(line.prompt_ids, line.token_ids, targets, broken, key, record.tokenizer)


def _read(path: Path, content: Content) -> bytes:
    file_bytes = files.read_bytes(path, content.bytes)
    if hashlib.sha256(file_bytes).hexdigest() != content.sha256:
        raise BadFile(f"{path} is not what the record says: its sha256 differs", RESTORE)
    return file_bytes


def _tensors(content: bytes, path: Path, tokens: int) -> dict[str, np.ndarray]:
    """Raises BadFile where they are not of so many tokens."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(content)
    except SafetensorError as error:
        raise BadFile(f"{path} is damaged: {error}", RESTORE) from None
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    has_top = shapes.keys() == {LOGPROBS, IDS, TOP} and len(shapes[IDS]) == 2 and shapes[IDS] == shapes[TOP]
    if not (has_top or shapes.keys() == {LOGPROBS}) or any(shape[0] != tokens for shape in shapes.values()):
        raise BadFile(f"{path} does not have scores for {tokens:,} tokens, but {shapes}", RESTORE)
    return tensors


def is_broken(*scores: np.ndarray) -> bool:
    """Whether one of these log-probabilities is not finite, or positive."""
    return not all(((logprobs <= SLACK) & (logprobs > -float("inf"))).all() for logprobs in scores)


def refuse_other_tokens(name: str, theirs: Tokenizer, tokenizer: Any) -> None:
    """Raise UserError where a folder's tokens are not the student's."""
    own = tokenizer_of(tokenizer)
    if theirs.sha256 != own.sha256:
        raise UserError(
            f"{name}: the teacher has a different vocabulary, of {theirs.tokens:,} tokens; the student's has {own.tokens:,}",
            "choose a teacher with the student's tokenizer, usually one of the same model family",
        )
    if theirs.end != own.end:
        raise UserError(
            f"{name}: the teacher ends a text with the token {tokenizer.convert_ids_to_tokens(theirs.end)!a}, and the student "
            f"with {tokenizer.eos_token!a}",
            "choose a teacher and a student of one family that are both base models, or both instruct models",
        )


def refuse_other_prompt(name: str, one: Stored, prompt: Prompt, tokenizer: Any) -> None:
    """Raise UserError where the teacher was asked with other tokens than those that the run renders."""
    ours, theirs = prompt.token_ids, one.prompt_ids
    if ours != theirs:
        at = next((at for at, (mine, other) in enumerate(zip(ours, theirs)) if mine != other), min(len(ours), len(theirs)))
        here, there = (tokenizer.decode(ids[at : at + 8]) for ids in (ours, theirs))
        raise UserError(
            f"{name}: the teacher was asked in another way: the prompt of the question {prompt.question[:40]!a} differs from "
            f"token {at} on: the teacher's {there!a}, this run's {here!a}",
            "give both the same chat template and tools, or let a teacher with this template answer: " + NEW,
        )


def refuse_unknown_tokens(name: str, one: Stored, prompt: Prompt, beyond: int) -> None:
    """Raise UserError for tokens with an id of `beyond` or more, or below 0, which the student has not."""
    top = () if one.targets is None else (int(one.targets.ids_TK.max(initial=0)), int(one.targets.ids_TK.min(initial=0)))
    unknown = next((token for token in (*one.token_ids, *top) if not 0 <= token < beyond), None)
    if unknown is not None:
        where = "begins with 0" if unknown < 0 else f"ends before {beyond}"
        raise UserError(
            f"{name}: an answer to the question {prompt.question[:40]!a} has the token {unknown}, and the student's vocabulary "
            f"{where}",
            f"make a new folder with a teacher that has the student's tokens: {NEW}",
        )
