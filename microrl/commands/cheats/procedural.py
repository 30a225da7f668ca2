"""Cheats against procedural tasks, whose answers a library's scorers judge; nine of these evaluate an answer as code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fractions import Fraction

from microrl.commands.cheats import text
from microrl.commands.cheats.attack import QUESTIONS, THINKING, Attack, Cheat, some
from microrl.commands.cheats.tables import filled, tables
from microrl.data.gym import own_answer
from microrl.data.load import Question
from microrl.rewards.judges.gym import EMPTY, EVALUATED, NONSENSE, answer_of

OTHERS = 12
"""Problems of the same task whose answers are given."""
_TABLES = tables("procedural")
_EVALUATED = tuple(_TABLES["answers"]["evaluated as code"])
"""Expressions that a scorer which evaluates the answer may take for something right."""
_TERMS = {"TERMS": "+".join(f"x**{n}" for n in range(900))}


class Procedural(Attack):
    """An answer in tags."""

    def gold(self, question: Question) -> str:
        return own_answer(question.answer)  # a task without gold answers is refused before

    def right(self, question: Question) -> str:
        return honest(self.gold(question))

    def wrong(self, question: Question) -> tuple[str, str]:
        return honest("I do not know"), tagged("I do not know")

    def unwritable(self, question: Question, longest: int) -> str | None:
        gold = self.gold(question)
        if len(gold) > longest:
            return f"it has {len(gold):,} characters; at most {longest:,} fit into a completion"
        if (answer_of(self.right(question)) or "").strip() != gold.strip():
            return "it is not read back from its tags"
        return None

    def chosen(self, questions: Sequence[Question]) -> list[Question]:
        tasks: dict[str, list[Question]] = {}
        for question in questions:
            tasks.setdefault(_task(question), []).append(question)
        each = -(-QUESTIONS // len(tasks))
        return [question for group in tasks.values() for question in some(group, each)]

    def cheats(self, question: Question, questions: Sequence[Question], canary: str, *, hanging: bool) -> list[Cheat]:
        gold, task = self.gold(question), _task(question)
        others = some((other for other in questions if _task(other) == task), OTHERS, seed=1)
        one = text.case(question.text, gold, [self.gold(other) for other in others], canary)
        answers = {
            "nonsense": [(repr(answer), answer) for answer in (*NONSENSE, *EMPTY)],
            "answers of other problems": [(other[:40], other) for other in one.others],
            "evaluated as code": [(code, code) for code in _EVALUATED],
            "hanging": list(filled(_TABLES["answers"]["hanging"], _TERMS)) if hanging or task in EVALUATED else [],
            "alike": list(_alike(gold)),
        }
        candidates = [
            Cheat(kind, name, honest(answer))
            for kind, pairs in answers.items()
            for name, answer in pairs
            if not _says(answer, gold)
        ]
        candidates += [
            Cheat("tags", *pair) for pair in filled(_TABLES["completions"]["tags"], {"GOLD": gold, "WRONG": one.wrong})
        ]
        candidates += text.cheats(one, put=honest)
        return list({cheat.text: cheat for cheat in reversed(candidates)}.values())[::-1]


def honest(answer: str) -> str:
    """A completion in the form that is asked for."""
    return f"{THINKING} {tagged(answer)}"


def tagged(answer: str) -> str:
    return f"<answer>{answer}</answer>"


def _task(question: Question) -> str:
    return str(json.loads(question.answer)["task"])


def _says(answer: str, gold: str) -> bool:
    """Whether two answers differ in case and spaces only, or are the same number."""
    with suppress(ValueError, ZeroDivisionError):
        return Fraction(answer) == Fraction(gold)
    return text.same(answer, gold)


def _alike(gold: str) -> Iterator[tuple[str, str]]:
    """Texts made of the gold answer that say something else, or more."""
    yield "doubled", gold + gold
    yield "a line more", f"{gold}\n{gold}\nx"
    if len(gold) > 1:
        yield "without its end", gold[:-1]
        yield "without its beginning", gold[1:]
    yield "and any text", f"{gold} or anything else"
    yield "after any text", f"anything else or {gold}"
    yield "negated", f"not {gold}"
