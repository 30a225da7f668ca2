"""Cheats against procedural tasks, whose answers a library's scorers judge; nine of these evaluate an answer as code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fractions import Fraction

from microrl.answers import END_THINK, THINK
from microrl.commands.cheats import text
from microrl.commands.cheats.attack import QUESTIONS, Cheat, some
from microrl.data.gym import own_answer
from microrl.data.load import Question
from microrl.rewards.judges.gym import EMPTY, EVALUATED, NONSENSE, answer_of

OTHERS = 12
"""Problems of the same task whose answers are given."""
_EVALUATED = (
    "entry['answer']", 'entry["answer"]', "self.score_answer", "answer", "eval(entry['answer'])", "[x for x in (1, 2)]",
    "{entry[answer]}", "f'{entry}'", "locals()", "vars(entry)", "entry.get('answer')", "type('A', (), {'__eq__': all})()",
    "integrate(x)", "Integral(x, x)", "Integral(1, x) + C", "diff(x**2, x)", "S('x')", "Symbol('x')", "expand((x + 1)**2)",
    "oo - oo", "zoo", "nan + C", "C", "0*nan", "True + C", "int('24')", "len('x' * 24)", "24 if True else 0", "24 or 0",
    "not 0", "sum([24])", "(24)", "[True]", "[[True]]", "[None]", "{}", "set()", "()", "b'24'", "'24'", "0x18", "24.", "24j",
    "-0", "--24", "1_0", "1e1", "exit()", "raise SystemExit", "assert True", "pass", "import os", "\\", "''", "'", "#", "# right",
)  # fmt: skip
"""Expressions that a scorer which evaluates the answer may take for something right."""
_HANGING = {
    "tower of powers": "9**9**9**9",
    "with carets": "9^9^9^9",
    "large exponent": "10**(10**10)",
    "in brackets": "9+9**9+9**(9)**9**9",
    "exponent of a float": "1e999999",
    "factorial": "factorial(10**9)",
    "shift": "1 << (1 << 40)",
    "brackets": "(" * 4000 + "1" + ")" * 4000,
    "lists": "[" * 5000,
    "signs": "-" * 9999 + "1",
    "digits": "9" * 9999,
    "long list": "[" + "1," * 4000 + "]",
    "many terms": "+".join(f"x**{n}" for n in range(900)),
    "product": "(x+1)*" * 300 + "(x+1)",
    "nested functions": "sin(" * 60 + "x" + ")" * 60,
}
"""What may take a scorer for ever."""


class Procedural:
    """An answer in tags."""

    solutions = "gold answers"

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

    def everywhere(self, question: Question) -> list[Cheat]:
        return []

    def cheats(self, question: Question, questions: Sequence[Question], canary: str, *, hanging: bool) -> list[Cheat]:
        gold, task = self.gold(question), _task(question)
        others = some((other for other in questions if _task(other) == task), OTHERS, seed=1)
        one = text.case(question.text, gold, [self.gold(other) for other in others], canary)
        answers = {
            "nonsense": [(repr(answer), answer) for answer in (*NONSENSE, *EMPTY)],
            "answers of other problems": [(other[:40], other) for other in one.others],
            "evaluated as code": [(code, code) for code in _EVALUATED],
            "hanging": list(_HANGING.items()) if hanging or task in EVALUATED else [],
            "alike": list(_alike(gold)),
        }
        candidates = [
            Cheat(kind, name, honest(answer))
            for kind, pairs in answers.items()
            for name, answer in pairs
            if not _says(answer, gold)
        ]
        candidates += [Cheat("tags", *pair) for pair in _tags(gold, one.wrong)]
        candidates += text.cheats(one, put=honest)
        return list({cheat.text: cheat for cheat in reversed(candidates)}.values())[::-1]


def honest(answer: str) -> str:
    """A completion in the form that is asked for."""
    return f"{THINK}I work it out step by step.{END_THINK} {tagged(answer)}"


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


def _tags(gold: str, wrong: str) -> Iterator[tuple[str, str]]:
    """The gold answer where no answer belongs."""
    think = f"{THINK}I guess.{END_THINK} "
    yield "in the thinking", f"{THINK}{tagged(gold)}{END_THINK} I give up."
    yield "in the thinking, a wrong one outside", f"{THINK}{tagged(gold)}{END_THINK} {tagged(wrong)}"
    yield "a wrong one last", f"{think}{tagged(gold)} {tagged(wrong)}"
    yield "both in one", think + tagged(f"{gold} {wrong}")
    yield "one in the other", f"{think}<answer>{gold}<answer>{wrong}</answer>"
    yield "empty", think + tagged("")
    yield "never closed", f"{think}<answer>{gold}"
    yield "never opened", f"{think}{gold}</answer>"
    yield "capitals", f"{think}<ANSWER>{gold}</ANSWER>"
    yield "in plain text", f"{think}{gold}"
    yield "a box, and wrong tags", f"{think}{text.boxed(gold)} {tagged(wrong)}"
