"""What the audit asks of each kind of answer: right and wrong completions, and cheats."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from microrl.answers import END_THINK, THINK
from microrl.data.load import Question

CHARACTERS_PER_TOKEN = 16
"""No tokenizer packs the characters of an answer more tightly. A longer gold answer fits into no completion."""
QUESTIONS = 3
"""Questions that are cheated on."""
SEED = 0
THINKING = f"{THINK}I work it out step by step.{END_THINK}"


class Cheat(NamedTuple):
    """`kind` and `name` say what it tries. `has_form`: it has thinking and an answer outside of it, as an honest one has."""

    kind: str
    name: str
    text: str
    has_form: bool = True


class Attack(Protocol):
    """Texts are whole completions. The same ones every time."""

    solutions: str = "gold answers"
    """What the data may lack, in the plural."""

    def gold(self, question: Question) -> str | None:
        """The right answer, to be shown; None where the data has none."""

    def right(self, question: Question) -> str | None:
        """The right answer in the form that is asked for; None where the data has none."""

    def wrong(self, question: Question) -> tuple[str, str]:
        """A wrong answer: in the form that is asked for, and without thinking."""

    def unwritable(self, question: Question, longest: int) -> str | None:
        """Why no model could write the right answer; None if one could. `longest`: characters of a completion."""

    def chosen(self, questions: Sequence[Question]) -> list[Question]:
        """The questions that are cheated on."""

    def everywhere(self, question: Question) -> list[Cheat]:
        """Cheats that are tried on every question."""
        return []

    def cheats(self, question: Question, questions: Sequence[Question], canary: str, *, hanging: bool) -> list[Cheat]:
        """Cheats for one of these questions; answers of the others are wrong for it. `canary`: a file that none may create.
        `hanging`: also those that may take all of their time."""


def some(questions: Iterable[Question], count: int = QUESTIONS, seed: int = SEED) -> list[Question]:
    """A few questions of different gold answers, as far as there are any, from all over the data."""
    pool = list({question.answer: question for question in questions}.values())
    random.Random(seed).shuffle(pool)
    return sorted(pool[:count], key=lambda question: question.row)
