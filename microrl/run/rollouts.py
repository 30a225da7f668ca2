"""A step's rollouts on disk, one line a completion: all that a reward needs to be computed again, and what it was."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from microrl.files import STRICT, BadFile, Count, read_lines, said_first
from microrl.run import names
from microrl.types import Completion, Finish, Group, Prompt, Score

TOKEN_GROUPS = 4
MAX_FLOAT16 = 65504.0
MAX_CHARACTER = 4
"""Bytes, and so tokens, of a character at most."""
NAME = re.compile(r"step-(\d{6,15})\.jsonl\.gz")


def name(step: int) -> str:
    """The name of a step's file."""
    return f"step-{step:06d}.jsonl.gz"


def lines(
    groups: Sequence[Group],
    trained: Sequence[tuple[Group, Sequence[float]]] = (),
    decode: Callable[[Sequence[int]], str] | None = None,
) -> Iterator[dict[str, Any]]:
    """A step's completions with their scores, group by group.

    `trained`: the groups of the update, with the advantages of their completions. `decode`: tokens as text. With it, two
    completions each of the first TOKEN_GROUPS groups of the update are written token by token: those with the largest and the
    smallest advantage.
    """
    advantages_by_group = {id(group): advantages for group, advantages in trained}
    with_tokens = {id(group) for group, _ in trained[:TOKEN_GROUPS]} if decode is not None else set()
    for group in groups:
        advantages = advantages_by_group.get(id(group))
        chosen = (
            {advantages.index(max(advantages)), advantages.index(min(advantages))}
            if advantages and id(group) in with_tokens
            else set()
        )
        for number, (completion, score) in enumerate(zip(group.completions, group.scores, strict=True)):
            line = _line(group.prompt if number == 0 else replace(group.prompt, text="", raw=""), completion, score)
            line["advantage"] = None if advantages is None else round(advantages[number], 6)
            if number in chosen and decode is not None:
                line["pieces"] = pieces(completion.token_ids, decode)
                line["logprobs"] = [
                    float16(value) if is_drawn else None
                    for value, is_drawn in zip(completion.logprobs, completion.drawn or repeat(True))
                ]
            yield line


def pieces(tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[str]:
    """The text of each token. Of tokens that are one character together, the last has it, and the others are empty."""
    texts, waiting = [], []
    for number, token in enumerate(tokens):
        waiting.append(token)
        text = decode(waiting)
        if text.endswith("\ufffd") and len(waiting) < MAX_CHARACTER and number + 1 < len(tokens):
            texts.append("")
        else:
            texts.append(text)
            waiting = []
    return texts


def float16(value: float) -> float | None:
    """The value to the precision of float16, about three digits; None where it is not finite."""
    if not math.isfinite(value):
        return None
    (near,) = struct.unpack("e", struct.pack("e", max(value, -MAX_FLOAT16)))
    return float(f"{near:.5g}")  # as many digits as tell two of them apart


def _line(prompt: Prompt, completion: Completion, score: Score) -> dict[str, Any]:
    """`prompt` and `row` are in the first line of a group only. `row` is the data's raw row where a custom reward function
    reads it, else null."""
    return {
        "question": prompt.question,
        "answer": prompt.answer,
        "completion": completion.text,
        "tokens": completion.length,
        "finish": completion.finish,
        "version": completion.version,
        "reward": score.total,
        "accuracy": score.accuracy,
        "format": score.format,
        "overlong": score.overlong,
        "parts": dict(score.parts),
        "counts": score.is_valid,
        "killed": score.killed,
        "extracted": score.extracted,
        "prompt": prompt.text,
        "row_number": prompt.row,
        "row": json.loads(prompt.raw) if prompt.raw else None,
        **({} if completion.transcript is None else {"transcript": completion.transcript}),
    }


class _Line(BaseModel):
    """A line as it is read back. What runs before these keys existed did not write has a default."""

    model_config = STRICT | {"extra": "ignore"}
    question: str
    answer: str
    completion: str
    tokens: Count
    finish: Finish
    version: int
    reward: float
    accuracy: float
    format: float
    overlong: float | None = None
    parts: dict[str, float | None] = {}
    counts: bool = True
    killed: bool = False
    extracted: str | None = None
    prompt: str = ""
    row_number: Count = 0
    row: dict[str, Any] | None = None
    advantage: float | None = None
    pieces: list[str] | None = None
    logprobs: list[float | None] | None = None
    transcript: str | None = None


def steps(root: Path) -> list[tuple[int, Path]]:
    """The steps of a run folder that have rollouts, in order, with their files."""
    matches = [(NAME.fullmatch(path.name), path) for path in (root / names.ROLLOUTS).glob("step-*.jsonl.gz")]
    return sorted((int(match[1]), path) for match, path in matches if match)


def read(path: Path, group_size: int) -> list[Group]:
    """A step's groups with their scores. Their completions have neither token ids, but for their number, nor log-probabilities.

    Raises BadFile for a file that is damaged, or whose groups have another size.
    """
    lines: list[_Line] = []
    try:
        for text in read_lines(path):
            lines.append(_Line.model_validate_json(text))
    except ValidationError as error:
        raise BadFile(f"{path} is damaged: line {len(lines) + 1}: {said_first(error)}") from None
    groups = [lines[start : start + group_size] for start in range(0, len(lines), group_size)]
    for number, group in enumerate(groups, 1):
        if len(group) != group_size or len({(one.question, one.answer) for one in group}) > 1:
            raise BadFile(f"{path} is damaged: group {number} is not {group_size} completions of one question")
    return [_group(group) for group in groups]


def _group(lines: Sequence[_Line]) -> Group:
    first = lines[0]
    raw = json.dumps(first.row) if first.row is not None else ""
    prompt = Prompt(first.question, first.answer, first.prompt, (), first.row_number, raw)
    return Group(
        prompt,
        tuple(
            Completion((0,) * one.tokens, (), one.finish, one.version, one.completion, transcript=one.transcript) for one in lines
        ),
        tuple(
            Score(one.reward, one.format, one.accuracy, one.overlong, one.killed, one.parts, one.counts, one.extracted)
            for one in lines
        ),
    )
