"""Generated problems for the quickstart: all 8,100 sums of two two-digit numbers, with correct solutions of two kinds."""

from __future__ import annotations

import re
from typing import NamedTuple

NAME = "arithmetic"
_QUESTION = re.compile(r"What is (\d+) \+ (\d+)\?")


class Solved(NamedTuple):
    """A problem with two correct solutions: one works it out, the other states the answer directly."""

    question: str
    answer: str
    worked: str
    guessed: str


def problems() -> list[tuple[str, str]]:
    """Every (question, answer)."""
    return [(f"What is {a} + {b}?", str(a + b)) for a in range(10, 100) for b in range(10, 100)]


def rows() -> list[dict[str, str]]:
    """The problems as a data set's rows."""
    return [{"question": question, "answer": answer} for question, answer in problems()]


def solve(question: str) -> Solved:
    """Both solutions of one of these problems: units first, then tens with the carry."""
    match = _QUESTION.fullmatch(question)
    assert match, question
    a, b = int(match[1]), int(match[2])
    units = a % 10 + b % 10
    carry = units // 10
    tens = f"{a // 10}+{b // 10}{'+1' * carry}={a // 10 + b // 10 + carry}"
    boxed = f"\\boxed{{{a + b}}}"
    return Solved(
        question, str(a + b), f"<think>{a % 10}+{b % 10}={units} {tens}</think> {boxed}", f"<think>guess</think> {boxed}"
    )
