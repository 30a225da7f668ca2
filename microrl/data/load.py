"""Known data sets and local files to questions with gold answers, and the split by content hash."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from microrl.answers import last_boxed
from microrl.config.paths import is_data_file
from microrl.config.schema import DataConfig
from microrl.data import arithmetic
from microrl.data.cells import NotText, as_text, plain
from microrl.data.read import rows_of_file
from microrl.errors import UserError, did_you_mean
from microrl.models import hub

ARITHMETIC = "arithmetic"
QUESTION_COLUMNS = ("question", "problem", "prompt", "input", "instruction")
ANSWER_COLUMNS = ("answer", "final_answer", "solution", "target", "output", "gold")
LONGEST_TOKEN = 1024
"""Characters; no vocabulary has a longer one. So a text of more than this times the limit cannot be within the limit."""
LONGEST_ANSWER = 1_000_000
"""Characters of a gold answer, its solution included."""
_HALF_SURROGATE = re.compile("[\ud800-\udfff]")
_GROUPED = re.compile(r"[^\d,(){}\[\]]*\d{1,3}(?:,\d{3})+(?:\.\d+)?[^\d,(){}\[\]]*")


class Question(NamedTuple):
    """One problem before it is rendered. `row` counts from 1, as an editor shows a file."""

    row: int
    text: str
    answer: str


class KnownDataset(NamedTuple):
    hub_id: str
    subset: str | None
    question: str
    answer: str


KNOWN = {
    "open-rs": KnownDataset("knoveleng/open-rs", None, "problem", "answer"),
    "dapo-math-17k": KnownDataset("open-r1/DAPO-Math-17k-Processed", "all", "prompt", "solution"),
    "gsm8k": KnownDataset("openai/gsm8k", "main", "question", "answer"),
}


def load_questions(config: DataConfig) -> list[Question]:
    """Every question of the data set, in its own order. Raises UserError for what a person can mend."""
    if config.name == ARITHMETIC:
        return [Question(row, *pair) for row, pair in enumerate(arithmetic.problems(), 1)]
    questions = list(_questions(rows_of(config), config, KNOWN.get(config.name.lower())))
    if not questions:
        raise UserError(f"{config.name} holds no questions", "a row needs a question and an answer")
    return questions


def rows_of(config: DataConfig) -> Iterable[Mapping[str, Any]]:
    """The rows of a file or of a hub data set, as they are. Raises UserError."""
    if is_data_file(config.name) or os.path.isdir(config.name):
        return rows_of_file(Path(config.name))
    return _hub_rows(config, KNOWN.get(config.name.lower()))


def _hub_rows(config: DataConfig, known: KnownDataset | None) -> Iterable[Mapping[str, Any]]:
    hub_id = known.hub_id if known else config.name
    if not known and "/" not in hub_id:
        raise UserError(
            f"unknown data set `{config.name}`",
            did_you_mean(config.name, [*KNOWN, ARITHMETIC]) + "; or a hub id like owner/name, or a .jsonl file",
        )
    hub.reachable()
    from datasets import disable_progress_bars, load_dataset

    disable_progress_bars()
    try:
        return load_dataset(hub_id, config.subset or (known.subset if known else None), split=config.split)
    except ValueError as error:  # an unknown configuration or split; the library's message lists what there is
        raise UserError(f"data set {hub_id}: {str(error).splitlines()[0]}", "see data.subset and data.split") from error
    except Exception as error:  # the hub client's many ways to say that it is not there
        raise hub.missing("data set", hub_id, error) from error


def _questions(rows: Iterable[Mapping[str, Any]], config: DataConfig, known: KnownDataset | None) -> Iterator[Question]:
    columns: tuple[str, str] | None = None
    for number, row in enumerate(rows, 1):
        if columns is None:
            wanted = (config.question or (known.question if known else None), config.answer or (known.answer if known else None))
            columns = (
                column("question", wanted[0], QUESTION_COLUMNS, row),
                column("answer", wanted[1], ANSWER_COLUMNS, row),
            )
        if (question := _question(row, columns, number, config)) is not None:
            yield question


def _question(row: Mapping[str, Any], columns: tuple[str, str], number: int, config: DataConfig) -> Question | None:
    """A row's question; None for one that is too long and to be dropped. Raises UserError."""
    where, cells = f"{config.name}, row {number}", []
    for name, to_text in zip(columns, (as_text, plain), strict=True):
        if row.get(name) in (None, ""):
            raise UserError(f"{where}: `{name}` is empty", "mend the row or leave it out")
        try:
            text = to_text(row[name])
        except NotText as error:
            raise UserError(f"{where}: `{name}` is {error}", "write text or a plain number there, or leave the row out") from None
        if is_torn(text):
            raise UserError(f"{where}: `{name}` is not valid text (half a surrogate pair)", "mend the row")
        cells.append(text)
    text, answer = cells
    if len(answer) > LONGEST_ANSWER:
        raise UserError(f"{where}: `{columns[1]}` has {len(answer):,} characters", "leave the row out")
    if is_far_too_long(text, config):
        if config.long_prompts == "drop":
            return None
        if config.long_prompts == "error":
            raise UserError(
                f"{where}: the question has {len(text):,} characters, and the limit is {config.max_prompt_tokens:,} tokens",
                "leave the row out, or such rows with --set data.long_prompts=drop (or truncate_left)",
            )
        text = text[-config.max_prompt_tokens * LONGEST_TOKEN :]
    return Question(number, text, gold_answer(answer))


def is_far_too_long(text: str, config: DataConfig) -> bool:
    """Whether a text is over the prompt's limit for certain, told without a tokenizer, which would take minutes for megabytes."""
    return len(text) > config.max_prompt_tokens * LONGEST_TOKEN


def column(role: str, wanted: str | None, usual: Iterable[str], row: Iterable[str], section: str = "data") -> str:
    """Which of a row's columns has this role: the one that is `wanted`, or the first of the usual names. Raises UserError."""
    if wanted is not None:
        if wanted not in row:
            raise UserError(f"the data has no column `{wanted}`", did_you_mean(wanted, row))
        return wanted
    for name in usual:
        if name in row:
            return name
    listing = ", ".join(str(name)[:40] for name in islice(row, 12))
    raise UserError(f"no column of the data looks like the {role}: it has {listing}", f"name it: --set {section}.{role}=COLUMN")


def is_torn(text: str) -> bool:
    """Whether a text holds half a surrogate pair, which no tokenizer takes."""
    return _HALF_SURROGATE.search(text) is not None


def gold_answer(raw: str) -> str:
    r"""The final answer in a gold solution: after `####` (GSM8K), inside the last `\boxed{}`, or all of it.

    After `####` the commas between a number's groups of digits go: 1,234,567 is 1234567, while (1,2) stays as it is.
    """
    if "####" in raw:
        answer = raw.rpartition("####")[2].strip()
        return answer.replace(",", "") if _GROUPED.fullmatch(answer) else answer
    boxed = last_boxed(raw)
    return (boxed if boxed is not None else raw).strip().strip("$").strip()


def content_share(text: str) -> float:
    """A number in [0, 1) that follows from the text alone (white space aside), evenly spread over texts."""
    digest = hashlib.sha256(" ".join(text.split()).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


class Split(NamedTuple):
    """Questions by what they are for; no question is in two parts."""

    training: list[Question]
    held_out: list[Question]
    validation: list[Question]


def split(questions: Iterable[Question], held_out: float, validation: float = 0.0) -> Split:
    """Shares of the questions for the final evaluation and for validation, the rest for training.

    The text's hash decides, so a question never changes sides, nor its copies.
    """
    parts = Split([], [], [])
    for question in questions:
        fraction = content_share(question.text)
        if fraction < held_out:
            parts.held_out.append(question)
        elif fraction < held_out + validation:
            parts.validation.append(question)
        else:
            parts.training.append(question)
    return parts
