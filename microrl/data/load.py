"""Load questions with gold answers from data sets and files, and split them by a hash of their text."""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from microrl.answers import is_heading, last_boxed
from microrl.config import catalogue
from microrl.config.catalogue import KnownDataset
from microrl.config.data import GYM, DataConfig
from microrl.data import arithmetic, code
from microrl.data.cells import NotText, as_json, as_text, cell, plain
from microrl.data.sources import GENERATED, hub_id, local_rows, rows_of
from microrl.errors import UserError, did_you_mean
from microrl.terminal import counted, is_torn

ARITHMETIC = arithmetic.NAME
QUESTION_COLUMNS = ("question", "problem", "prompt", "input", "instruction")
ANSWER_COLUMNS = ("answer", "final_answer", "solution", "target", "output", "gold")
CLUSTER_COLUMN = "cluster"
LONGEST_TOKEN = 1024
"""Characters; no vocabulary has a longer token. A text of more than this times the token limit is therefore too long."""
LONGEST_ANSWER = 1_000_000
"""Maximum characters of a gold answer, including its solution."""
TOO_LONG = "too long"
"""Why a question is left out."""
LETTERS = "ABCDEFGHIJ"
"""Of multiple-choice options, as many as the answer checker knows."""
_GROUPED = re.compile(r"[^\d,(){}\[\]]*\d{1,3}(?:,\d{3})+(?:\.\d+)?[^\d,(){}\[\]]*")


class Question(NamedTuple):
    """A problem before rendering. `row` counts from 1. `raw` is that row as JSON where it was asked for, else empty.

    `answer` is the gold answer as text. For code it is the JSON of tests (`microrl.data.code`), for procedural tasks that of the
    problem as its scorer needs it (`microrl.data.gym`). `fraction` decides where it belongs in a split; None: a hash of its
    text. `cluster` names the questions that it is like; empty where the data does not say.
    """

    row: int
    text: str
    answer: str
    raw: str = ""
    fraction: float | None = None
    cluster: str = ""


@dataclass(slots=True)
class Reading:
    """What else reading a data set has shown."""

    guessed: dict[str, str] = field(default_factory=dict)
    """Columns that were taken for their names, by their role."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of rows that were left out, by the reason."""


def load_questions(config: DataConfig, *, raw: bool = False, reading: Reading | None = None) -> list[Question]:
    """Every question of the data set, in order. `raw`: with their rows, which takes the memory of the whole data set as text.

    `reading` is filled in.

    Raises UserError for missing or invalid data.
    """
    if config.name in GENERATED:
        generated = GENERATED[config.name]()
        if config.cluster is not None:
            column("cluster", config.cluster, (), generated[0])
        return [
            Question(number, row["question"], row["answer"], as_json(row) if raw else "")
            for number, row in enumerate(generated, 1)
        ]
    if config.name.lower().startswith(GYM):
        from microrl.data import gym

        rows = enumerate(gym.problems(config), 1)
        return [
            Question(
                row, text, answer, as_json({"question": text, "answer": answer}) if raw else "", content_fraction(name), cluster
            )
            for row, (text, answer, name, cluster) in rows
        ]
    reading = Reading() if reading is None else reading
    questions = list(_questions(rows_of(config), config, raw=raw, reading=reading))
    if not questions:
        why = ", ".join(f"{counted(count, 'row')} left out: {reason}" for reason, count in reading.left_out.items())
        raise UserError(
            f"{config.name} contains no problems" + (f" ({why})" if why else ""), "add rows with a question and an answer"
        )
    return questions


def check_source(config: DataConfig, *, columns: bool = True) -> None:
    """Read the first row of local data, which takes no heavy library. Raises UserError for what is wrong with it, and for a name
    that no data set has; whether the hub has it is not asked. Without `columns` the row may be any."""
    if config.name.lower().startswith(GYM):
        from microrl.data import gym

        gym.tasks(config.name)
    elif config.name not in GENERATED:
        if local_rows(config) is not None:
            next(iter(_questions(rows_of(config), config) if columns else rows_of(config)), None)
        else:
            hub_id(config.name)


def first_questions(config: DataConfig, count: int) -> list[Question]:
    """The first questions of a file or of the built-in problems, with their rows, without a heavy library; none of a hub data set
    or of procedural tasks, which take one. Raises UserError for what is wrong with them."""
    if config.name in GENERATED:
        return load_questions(config, raw=True)[:count]
    if not config.name.lower().startswith(GYM) and local_rows(config) is not None:
        return list(islice(_questions(rows_of(config), config, raw=True), count))
    return []


def _questions(
    rows: Iterable[Mapping[str, Any]], config: DataConfig, *, raw: bool = False, reading: Reading | None = None
) -> Iterator[Question]:
    reading = Reading() if reading is None else reading
    if config.answer_kind == "code":
        yield from (question for question, _ in code_questions(rows, config, raw=raw, reading=reading))
        return
    known = catalogue.find(config.name)
    columns: tuple[str, str] | None = None
    seen: set[str] = set()
    for number, row in enumerate(rows, 1):
        if columns is None:
            wanted = (config.question or (known.question if known else None), config.answer or (known.answer if known else None))
            columns = _both(wanted, row)
            reading.guessed = _guessed(columns, wanted, row, config)
        question = _question(row, columns, number, config, known)
        if question is None:
            reading.left_out[TOO_LONG] += 1
            continue
        if known is not None and known.repeats and question.text in seen:
            continue
        if known is not None and known.repeats:
            seen.add(question.text)
        yield question._replace(raw=as_json(row)) if raw else question


def _question(
    row: Mapping[str, Any], columns: tuple[str, str], number: int, config: DataConfig, known: KnownDataset | None
) -> Question | None:
    """The question of a row; None if it is too long and data.long_prompts is drop. Raises UserError."""
    where = f"{config.name}, row {number}"
    text, answer = _cell(row, columns[0], where, as_text), _cell(row, columns[1], where, plain)
    if len(answer) > LONGEST_ANSWER:
        raise UserError(
            f"{where}: `{columns[1]}` has {len(answer):,} characters; the limit is {LONGEST_ANSWER:,}", "remove the row"
        )
    if known is not None and known.wrapper is not None:
        before, after = known.wrapper
        text = text.removeprefix(before).removesuffix(after)
    if known is not None and known.wrong:
        text, answer = lettered(text, answer, [_cell(row, name, where, plain) for name in known.wrong])
    cut = _within_limit(text, where, config)
    return None if cut is None else Question(number, cut, gold_answer(answer), cluster=_cluster(row, config))


def _cluster(row: Mapping[str, Any], config: DataConfig) -> str:
    """The name of the row's cluster; empty where it has none."""
    value = cell(row, config.cluster or CLUSTER_COLUMN)
    if value is None:
        return ""
    try:
        text = plain(value)
    except NotText:
        text = repr(value)
    return text.encode(errors="replace").decode()


def _cell(row: Mapping[str, Any], name: str, where: str, to_text: Callable[[Any], str]) -> str:
    """A cell that has to have text, or a number. Raises UserError."""
    value = cell(row, name)
    if value in (None, ""):
        raise UserError(f"{where}: `{name}` is empty", "fix or remove the row")
    try:
        text = to_text(value)
    except NotText as error:
        raise UserError(f"{where}: `{name}` is {error}", "use text or a plain number, or remove the row") from None
    _refuse_torn(text, where, name)
    return text


def code_questions(
    rows: Iterable[Mapping[str, Any]], config: DataConfig, *, raw: bool = False, reading: Reading | None = None
) -> Iterator[tuple[Question, Mapping[str, Any]]]:
    """Programming problems with their rows. A row without usable tests is an error, or dropped with data.bad_answers=drop.

    Raises UserError.
    """
    reading = Reading() if reading is None else reading
    columns: tuple[str, str] | None = None
    for number, row in enumerate(rows, 1):
        where = f"{config.name}, row {number}"
        if columns is None:
            columns = _code_columns(row, config, where)
            if catalogue.find(config.name) is None:
                reading.guessed = _guessed(columns, (config.question, config.answer), row, config)
        try:
            if row.get(columns[0]) in (None, ""):
                raise code.BadRow(f"`{columns[0]}` is empty", "fix or remove the row")
            problem = code.problem(row, *columns)
        except NotText as error:
            raise UserError(f"{where}: a cell is {error}", "use text, and a list of texts for tests, or remove the row") from None
        except code.BadRow as error:
            if config.bad_answers == "drop":
                reading.left_out["without usable tests"] += 1
                continue
            wrong, hint = error.args
            raise UserError(f"{where}: {wrong}", f"{hint}; or skip such rows: --set data.bad_answers=drop") from None
        _refuse_torn(problem.text, where, columns[0])
        cut = _within_limit(problem.text, where, config)
        if cut is None:
            reading.left_out[TOO_LONG] += 1
        else:
            yield Question(number, cut, problem.answer, as_json(row) if raw else "", cluster=_cluster(row, config)), row


def _guessed(
    columns: tuple[str, str], wanted: tuple[str | None, str | None], row: Mapping[str, Any], config: DataConfig
) -> dict[str, str]:
    """Raises UserError if the column of the cluster is not there."""
    if config.cluster is not None:
        column("cluster", config.cluster, (), row)
    roles = ("question", "answer")
    guessed = {role: name for role, name, given in zip(roles, columns, wanted, strict=True) if given is None}
    return guessed | ({"cluster": CLUSTER_COLUMN} if config.cluster is None and CLUSTER_COLUMN in row else {})


def _code_columns(row: Mapping[str, Any], config: DataConfig, where: str) -> tuple[str, str]:
    usual = code.QUESTION_COLUMNS if config.question is None else ()
    try:
        tests = column("answer", config.answer, code.TEST_COLUMNS, row)
    except UserError as error:
        hint = "code needs tests: a column `test_list` (a list of asserts) or `test`, or " + (error.hint or "")
        raise UserError(f"{where} has no tests: {error.message}", hint) from None
    return column("question", config.question, usual, row), tests


def _refuse_torn(text: str, where: str, name: str) -> None:
    if is_torn(text):
        raise UserError(f"{where}: `{name}` is not valid Unicode (half a surrogate pair)", "fix or remove the row")


def _within_limit(text: str, where: str, config: DataConfig) -> str | None:
    """The question, or the end of it, or None if it is to be dropped. Raises UserError."""
    if not is_far_too_long(text, config):
        return text
    if config.long_prompts == "drop":
        return None
    if config.long_prompts == "error":
        raise UserError(
            f"{where}: the question has {len(text):,} characters; the limit is {config.max_prompt_tokens:,} tokens",
            "remove the row, or skip such rows with --set data.long_prompts=drop (or truncate_left)",
        )
    return text[-config.max_prompt_tokens * LONGEST_TOKEN :]


def is_far_too_long(text: str, config: DataConfig) -> bool:
    """Whether a text certainly exceeds the prompt limit. Needs no tokenizer, which would take minutes for megabytes."""
    return len(text) > config.max_prompt_tokens * LONGEST_TOKEN


def column(role: str, wanted: str | None, usual: Iterable[str], row: Iterable[str], section: str = "data") -> str:
    """The column with this role: `wanted`, or else the first of the usual names that exists. Raises UserError."""
    if wanted is not None:
        if wanted not in row and wanted.partition(".")[0] not in row:
            raise UserError(f"the data has no column `{wanted}`", did_you_mean(wanted, row))
        return wanted
    for name in usual:
        if name in row:
            return name
    listing = ", ".join(str(name)[:40] for name in islice(row, 12))
    hint = f"name it: --set {section}.{role}=COLUMN"
    if role == "answer" and any(name in row for name in code.TEST_COLUMNS):
        hint = f"if these are programming problems with tests: --set data.answer_kind=code; otherwise {hint}"
    raise UserError(f"cannot tell which column is the {role}; the columns are: {listing}", hint)


def _both(wanted: tuple[str | None, str | None], row: Mapping[str, Any]) -> tuple[str, str]:
    """The columns of question and answer. Where neither exists, the error says so of both."""
    columns, errors = [], []
    for role, one, usual in zip(("question", "answer"), wanted, (QUESTION_COLUMNS, ANSWER_COLUMNS), strict=True):
        try:
            columns.append(column(role, one, usual, row))
        except UserError as error:
            errors.append(error)
    if len(errors) == 2:
        messages, hints = [error.message for error in errors], [str(error.hint) for error in errors]
        if all(hint.startswith("name it: ") for hint in hints):
            message = messages[0].replace("is the question;", "is the question, and which the answer;")
            raise UserError(message, f"name them: {' '.join(hint.removeprefix('name it: ') for hint in hints)}")
        raise UserError("; ".join(messages), "; ".join(dict.fromkeys(hints)))
    if errors:
        raise errors[0]
    return columns[0], columns[1]


def gold_answer(raw: str) -> str:
    r"""The final answer in a gold solution: after `####` (GSM8K), inside the last `\boxed{}`, or all of it.

    What stands after the last `####` is the answer where nothing follows its line, and where it is no heading, which begins with
    a word, of a solution with a box. After `####`, thousands separators are removed: 1,234,567 becomes 1234567, but (1,2) is
    unchanged.
    """
    boxed = last_boxed(raw)
    before, marked, answer = raw.rstrip().rpartition("####")
    answer = answer.strip()
    if marked and answer and "\n" not in answer and not before.endswith("#") and (boxed is None or not is_heading(answer)):
        return answer.replace(",", "") if _GROUPED.fullmatch(answer) else answer
    return (boxed if boxed is not None else raw).strip().strip("$").strip()


def content_fraction(text: str) -> float:
    """A hash of the text as a number in [0, 1), uniform over texts; ignores differences in white space."""
    digest = hashlib.sha256(" ".join(text.split()).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


class Split(NamedTuple):
    """Disjoint parts of the questions, by use."""

    training: list[Question]
    held_out: list[Question]
    validation: list[Question]


def split(questions: Iterable[Question], held_out: float, validation: float = 0.0) -> Split:
    """Split off the fractions `held_out` for evaluation and `validation`; the rest is for training.

    A hash of the text decides, so a question never changes sides, and copies of it stay together. Problems of procedural tasks
    are split by their index; copies of one follow the first.
    """
    parts = Split([], [], [])
    fractions: dict[str, float] = {}
    for question in questions:
        own = content_fraction(question.text) if question.fraction is None else question.fraction
        fraction = fractions.setdefault(question.text, own)
        if fraction < held_out:
            parts.held_out.append(question)
        elif fraction < held_out + validation:
            parts.validation.append(question)
        else:
            parts.training.append(question)
    return parts


def lettered(question: str, right: str, wrong: Sequence[str]) -> tuple[str, str]:
    """A multiple-choice question with its options, one a line, and the letter of the right one. The same text always gives the
    same order."""
    options = [right, *wrong]
    assert len(options) <= len(LETTERS), options
    order = list(range(len(options)))
    random.Random(question).shuffle(order)
    lines = [f"({letter}) {options[index].strip()}" for letter, index in zip(LETTERS, order, strict=False)]
    text = f"{question.strip()}\n\n" + "\n".join(lines) + "\n\nThe final answer is the letter of the right option."
    return text, LETTERS[order.index(0)]
