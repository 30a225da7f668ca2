"""Examples for supervised fine-tuning: prompts with the tokens of their worked solutions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from microrl.config import RunConfig, catalogue
from microrl.config.data import GYM, DataConfig
from microrl.config.paths import is_taught
from microrl.data import arithmetic, code, gym, taught
from microrl.data.cells import NotText, as_json, as_text
from microrl.data.load import (
    ARITHMETIC,
    LONGEST_TOKEN,
    QUESTION_COLUMNS,
    code_questions,
    column,
    content_fraction,
    is_far_too_long,
    load_questions,
    split,
)
from microrl.data.prompts import Tools, render
from microrl.data.sources import rows_of
from microrl.data.tokens import plain_ids
from microrl.errors import UserError
from microrl.terminal import is_torn
from microrl.types import Prompt, SftExample

MESSAGES = "messages"
SOLUTION_COLUMNS = ("solution", "completion", "response", "trace", "reasoning", "generation", "output", MESSAGES)


Converse = Callable[[SftExample, Sequence[dict[str, Any]]], SftExample | str]
"""An example with these turns as its completion, or why there is none, as the end of a sentence."""


class Solution(NamedTuple):
    """A question's worked solution, as text; or `messages`, the turns of a conversation behind the question; or a `stored` one,
    as tokens."""

    question: str
    text: str
    messages: tuple[dict[str, Any], ...] = ()
    stored: taught.Stored | None = None

    @property
    def identity(self) -> str:
        """What tells it from other solutions of the question."""
        return self.stored.key if self.stored else self.text or (json.dumps(self.messages) if self.messages else "")


class Examples(NamedTuple):
    """Training examples, and the number of skipped rows by reason."""

    examples: list[SftExample]
    left_out: dict[str, int]


def load_solutions(config: RunConfig) -> list[Solution]:
    """Every row of the SFT data, with an empty text if it has no solution. Raises UserError."""
    settings, data = config.sft, config.data
    if settings.data is not None and (config.has_stored_teacher or is_taught(settings.data)):  # even if it is gone
        return [Solution(line.question, line.text, stored=one) for line, one in taught.stored(Path(settings.data), config)]
    if settings.data is not None and settings.data != data.name:
        # In another data set, only the question column may have the same name.
        data = DataConfig(name=settings.data, question=data.question)  # of another kind, perhaps
    if data.name == ARITHMETIC:
        return [Solution(question, arithmetic.solve(question).worked) for question, _ in arithmetic.problems()]
    if data.name.lower().startswith(GYM):
        return [Solution(question.text, gym.solution(question.answer)) for question in load_questions(data)]
    if data.answer_kind == "code" and settings.solution is None:
        return [Solution(question.text, code.worked(row)) for question, row in code_questions(rows_of(data), data)]
    rows = list(rows_of(data))
    columns = list(dict.fromkeys(name for row in rows for name in row))
    known = catalogue.find(data.name)
    usual = SOLUTION_COLUMNS if known is None else (known.solution,) if known.solution is not None else ()
    if next((name for name in (settings.solution, *usual) if name in columns), None) == MESSAGES:
        return [_conversation(row, f"{data.name}, row {number}") for number, row in enumerate(rows, 1)]
    if known is not None:
        question = known.question
    else:
        is_there = data.question in columns or data.name == config.data.name
        question = column("question", data.question if is_there else None, QUESTION_COLUMNS, columns)
    try:
        solution = column("solution", settings.solution, usual, columns, "sft")
    except UserError as error:
        raise UserError(f"SFT needs worked solutions, and {data.name} has none: {error.message}", error.hint) from None
    return [
        Solution(_text(row, question, f"{data.name}, row {number}"), _text(row, solution, f"{data.name}, row {number}"))
        for number, row in enumerate(rows, 1)
    ]


def _conversation(row: Mapping[str, Any], where: str) -> Solution:
    """A row's `messages` as the question, which is the user's first message, and what follows. A system message is left out: the
    prompts of training have that of `data.system`."""
    messages = json.loads(as_json(row))[MESSAGES]
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise UserError(f"{where}: `{MESSAGES}` is not a list of messages", "each has a `role` and a `content`")
    turns = [message for message in messages if message.get("role") != "system"]
    if not turns or turns[0].get("role") != "user" or not isinstance(turns[0].get("content"), str):
        return Solution("", "")
    return Solution(turns[0]["content"].strip(), "", tuple(turns[1:]))


def _text(row: Mapping[str, Any], name: str, where: str) -> str:
    value = row.get(name)
    try:
        return "" if value is None else as_text(value).strip()
    except NotText as error:
        raise UserError(f"{where}: `{name}` is {error}", "use text, or remove the row") from None


def to_sft_examples(
    solutions: Sequence[Solution],
    tokenizer: Any,
    config: RunConfig,
    progress: Callable[[Iterable], Iterable] = iter,
    tools: Tools = (),
    converse: Converse | None = None,
    refused: Mapping[str, str] = {},
) -> Examples:
    """The solutions that may be trained on and fit, rendered like the training prompts.

    `tools`: as for `render`. `converse` makes an example of a conversation; None: only one of a single turn is trained on.
    Held-out and validation questions are never included: the hash of the text decides, as in `load.split`. `refused`: questions
    that are not included either, and why. Raises UserError if no solution is left.
    """
    data, examples, left_out = config.data, [], Counter[str]()
    is_held_out = _held_out(data)
    stored = _as_stored(solutions[0].stored, tokenizer, config) if solutions and solutions[0].stored else None

    @lru_cache(maxsize=1)  # a teacher's completions of a question lie side by side
    def asked(question: str) -> Prompt:
        return render(question, "", tokenizer, data.system, data.system_role, thinking=data.thinking, tools=tools)

    for solution in progress(solutions):
        if converse is None and solution.messages:
            solution = _single(solution)
        if not solution.question or not solution.identity or is_torn(_all_text(solution)):
            left_out["without a solution"] += 1
        elif is_far_too_long(solution.question, data):
            left_out["with a prompt that is too long"] += 1
        elif len(solution.text) > config.sampling.max_completion_tokens * LONGEST_TOKEN:
            left_out["with a solution that is too long"] += 1
        elif is_held_out(solution.question):
            left_out["held out"] += 1
        elif solution.question in refused:
            left_out[refused[solution.question]] += 1
        else:
            prompt = asked(solution.question)
            if stored is not None and solution.stored is not None:
                one = stored(prompt, solution.stored)
            else:
                made = sft_example(prompt, solution.text, tokenizer)
                one = converse(made, solution.messages) if converse is not None and solution.messages else made
            if isinstance(one, str):
                left_out[one] += 1
            elif len(one.prompt.token_ids) > data.max_prompt_tokens:
                left_out["with a prompt that is too long"] += 1
            elif len(one.token_ids) > config.sampling.max_completion_tokens:
                left_out["with a solution that is too long"] += 1
            else:
                examples.append(one)
    if not examples:
        why = ", ".join(f"{count} {reason}" for reason, count in left_out.items()) or "the file is empty"
        raise UserError(
            f"no usable solution in {config.sft.data or data.name}: {why}",
            f"if solutions are too long: --set sampling.max_completion_tokens=N (now {config.sampling.max_completion_tokens}); "
            f"if prompts are: --set data.max_prompt_tokens=N (now {data.max_prompt_tokens}); if all are held out: lower "
            f"data.held_out (now {data.held_out}) or data.validation (now {data.validation})"
            + (f"; if scores are broken: make the folder again, {taught.NEW}" if stored is not None else ""),
        )
    return Examples(examples, dict(left_out))


def _as_stored(first: taught.Stored, tokenizer: Any, config: RunConfig) -> Callable[[Prompt, taught.Stored], SftExample | str]:
    """Makes an example of a teacher's completion as it is; or says why there is none, as the end of a sentence. Raises UserError
    where the teacher's tokens or prompts are not those of this run."""
    taught.refuse_other_tokens(str(config.sft.data), first.tokenizer, tokenizer)
    beyond = max(tokenizer.get_vocab().values()) + 1

    def example(prompt: Prompt, one: taught.Stored) -> SftExample | str:
        if len(prompt.token_ids) <= config.data.max_prompt_tokens:
            taught.refuse_other_prompt(str(config.sft.data), one, prompt, tokenizer)
        taught.refuse_unknown_tokens(str(config.sft.data), one, prompt, beyond)
        return taught.BROKEN if one.is_broken else SftExample(prompt, one.token_ids, targets=one.targets)

    return example


def _single(solution: Solution) -> Solution:
    """A conversation of one turn as its text; without one where it has more."""
    only = solution.messages[0] if len(solution.messages) == 1 else {}
    is_plain = only.get("role") == "assistant" and not only.get("tool_calls")
    return Solution(solution.question, str(only.get("content") or "").strip() if is_plain else "")


def _all_text(solution: Solution) -> str:
    return solution.question + solution.text + json.dumps(solution.messages, ensure_ascii=False)


def _held_out(data: DataConfig) -> Callable[[str], bool]:
    """Whether a question is held out or for validation. Problems of procedural tasks are not split by their text."""
    if not data.name.lower().startswith(GYM):
        return lambda question: content_fraction(question) < data.held_out + data.validation
    parts = split(load_questions(data), data.held_out, data.validation)
    held = {question.text for question in (*parts.held_out, *parts.validation)}
    return held.__contains__


def sft_example(prompt: Prompt, solution: str, tokenizer: Any) -> SftExample:
    """A prompt and the tokens of its solution. If the chat template has already opened <think>, it is not opened again."""
    if prompt.text.rstrip().endswith("<think>"):
        solution = solution.removeprefix("<think>").lstrip("\n")
    ids = plain_ids(solution, tokenizer)
    return SftExample(prompt, (*ids, tokenizer.eos_token_id))
