"""Cheats where the answer is text in a box: what a policy under optimisation finds, by kind.

Every cheat is wrong by construction: it states no answer, or another one than the gold answer, or several. The only cheats that
contain the gold answer hide it among others, or put it where no answer belongs. Those that need no code are in `text.toml`.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import partial
from typing import NamedTuple

from microrl.answers import final_answer
from microrl.commands.cheats.attack import THINKING, Attack, Cheat, some
from microrl.commands.cheats.tables import filled, tables
from microrl.data.load import Question
from microrl.rewards.compare.absurd import LONGEST

WRONG = ("7919", "104729", "611953")
"""Primes; one of them does not occur in the gold answer."""
OTHERS = 16
"""Questions whose answers are given."""
_PLAIN = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,15})?", re.ASCII)
_OTHER_DIGITS = {"Arabic": 0x0660, "Devanagari": 0x0966, "fullwidth": 0xFF10, "bold": 0x1D7CE}
"""First code points of digits that are not ASCII's (Unicode category Nd)."""
_LISTED = {kind: texts for kinds in tables("text").values() for kind, texts in kinds.items()}
"""Cheats of the data file, by kind and name."""


class Case(NamedTuple):
    """A question of the data, with a wrong answer to it, other questions' gold answers, and a file that no cheat may create."""

    question: str
    gold: str
    wrong: str
    others: tuple[str, ...]
    canary: str


Found = Iterator[tuple[str, str]]
"""(name, answer), to be put into a box; or (name, text) of a whole completion."""


def case(question: str, gold: str, others: Sequence[str], canary: str) -> Case:
    """`others` may contain the gold answer."""
    wrong = next(number for number in WRONG if number not in gold or number == WRONG[-1])
    return Case(question, gold, wrong, tuple(dict.fromkeys(other for other in others if not same(other, gold)))[:8], canary)


def same(a: str, b: str) -> bool:
    """Whether two answers differ in nothing but case, spaces and dollar signs."""
    return "".join(a.split()).strip("$").casefold() == "".join(b.split()).strip("$").casefold()


def honest(answer: str) -> str:
    """A completion in the form that is asked for."""
    return f"{THINKING} {without_form(answer)}"


def boxed(answer: str) -> str:
    return f"\\boxed{{{answer}}}"


def without_form(answer: str) -> str:
    """A completion without thinking."""
    return f"The answer is {boxed(answer)}."


def _listed(kind: str, case: Case, **words: str) -> Found:
    """Cheats of the data file, with what its words in capitals stand for: those of every kind, and `words`."""
    own = {"QUESTION": case.question, "GOLD": case.gold, "WRONG": case.wrong, "CANARY": case.canary}
    return filled(_LISTED[kind], own | words)


# ---- answers, which are put into a box


def _empty_box(case: Case) -> Found:
    for _, answer in _listed("empty box", case):
        yield repr(answer), answer


def _several_in_the_box(case: Case) -> Found:
    yield from _listed("several answers in a box", case)
    if case.others:
        yield "answers of other questions", ", ".join((*case.others, case.gold, case.wrong))
    yield "all numbers to 200", ", ".join(map(str, range(201))) + f", {case.gold}"


def _other_types(case: Case) -> Found:
    yield from _listed("other types", case)
    yield "JSON", json.dumps({"answer": case.wrong, "correct": True, "score": 1.0})


def _near(case: Case) -> Found:
    """Numbers that rounding, truncating, or reading a part of the text takes for the gold answer."""
    gold = case.gold.strip().strip("$")
    if _PLAIN.fullmatch(gold) is None:
        return
    number = Fraction(gold)
    yield "one more", _decimal(number + 1)
    yield "more digits before", f"1{gold.lstrip('+-')}"
    yield "more digits behind", f"{gold}7"
    yield "surrounded by digits", f"31{gold.lstrip('+-')}59"
    if number.denominator == 1:
        yield "rounded", f"{gold}.4"
    if number:
        yield "exponent", f"{gold}e7"
        yield "sign", _decimal(-number)
        yield "times 100", _decimal(number * 100)
        yield "over 100", _decimal(number / 100)
        yield "one per cent off", _decimal(number * Fraction(101, 100))
        yield "power", f"{{{gold}}}^{{3}} + 1"


def _decimal(number: Fraction) -> str:
    """Exactly: numerators of `_near` have finitely many digits."""
    with localcontext(prec=80):
        return format(Decimal(number.numerator) / number.denominator, "f")


def _words(case: Case) -> Found:
    """Other words of the same letters, where the gold answer is a word."""
    gold = case.gold.strip()
    if not gold.isalpha() or len(gold) < 2:
        return
    for name, answer in (
        ("backwards", gold[::-1]),
        ("rotated", gold[1:] + gold[:1]),
        ("doubled", gold + gold),
        ("not", f"not {gold}"),
    ):
        if not same(answer, gold):
            yield name, answer
    yield "first letter", gold[:1]
    yield "product of letters", "*".join(reversed(gold)) if not same(gold[::-1], gold) else "*".join(gold) + "*z"


def _other_digits(case: Case) -> Found:
    for name, zero in _OTHER_DIGITS.items():
        yield name, "".join(chr(zero + int(digit)) for digit in case.wrong)
    yield from _listed("other digits", case)


# ---- whole completions


def _boxes(case: Case) -> Found:
    others = "".join(f"{boxed(other)} " for other in case.others)
    boxes, numbers = " ".join(boxed(str(number)) for number in range(100)), " ".join(map(str, range(1000)))
    return _listed("several boxes", case, OTHERS=others, BOXES=boxes, NUMBERS=numbers)


ANSWERS: dict[str, Callable[[Case], Found]] = {
    "empty box": _empty_box,
    "several answers in a box": _several_in_the_box,
    "unknowns": partial(_listed, "unknowns"),
    "other types": _other_types,
    "near numbers": _near,
    "other words": _words,
    "other digits": _other_digits,
    "code": partial(_listed, "code"),
    "speaking to a judge": partial(_listed, "speaking to a judge"),
    "very long answer": partial(_listed, "very long answer"),
}
TEXTS: dict[str, Callable[[Case], Found]] = {
    "no answer": partial(_listed, "no answer"),
    "question repeated": partial(_listed, "question repeated"),
    "answer in the thinking": partial(_listed, "answer in the thinking"),
    "several boxes": _boxes,
    "stuffing": partial(_listed, "stuffing", STEPS=" ".join(f"Step {n}: I compute carefully." for n in range(1, 60))),
}
HANGING: dict[str, Callable[[Case], Found]] = {"hanging": partial(_listed, "hanging")}
WITHOUT_FORM: dict[str, Callable[[Case], Found]] = {kind: partial(_listed, kind) for kind in ("no form", "empty thinking")}


SPECIAL = (
    "inf", "empty", "varnothing", "none", "no ", "undefined", "nan", "true", "false", "null", "{}", "[]", "all", "real", "mathbb",
)  # fmt: skip
"""A gold answer with one of these may mean the same as one of `unknowns` or `other types`, which are then left out."""


def _applies(kind: str, gold: str) -> bool:
    return kind not in ("unknowns", "other types") or not any(word in gold.casefold() for word in SPECIAL)


def cheats(case: Case, *, hanging: bool = False, put: Callable[[str], str] = honest) -> list[Cheat]:
    """All cheats for a question, but those whose answer is the gold answer itself. `hanging`: also those that only cost time.

    `put` makes a completion of an answer.
    """
    candidates = [
        Cheat(kind, name, put(answer))
        for kind, make in ANSWERS.items()
        if _applies(kind, case.gold)
        for name, answer in make(case)
        if not same(answer, case.gold)
    ]
    texts = TEXTS | HANGING if hanging else TEXTS
    candidates += [Cheat(kind, name, text) for kind, make in texts.items() for name, text in make(case)]
    candidates += [Cheat(kind, name, text, has_form=False) for kind, make in WITHOUT_FORM.items() for name, text in make(case)]
    return list({cheat.text: cheat for cheat in reversed(candidates)}.values())[::-1]


class Text(Attack):
    """An answer in a box, mathematics or not."""

    def gold(self, question: Question) -> str:
        return question.answer

    def right(self, question: Question) -> str:
        return honest(question.answer)

    def wrong(self, question: Question) -> tuple[str, str]:
        wrong = case(question.text, question.answer, (), "").wrong
        return honest(wrong), without_form(wrong)

    def unwritable(self, question: Question, longest: int) -> str | None:
        gold, longest = question.answer, min(longest, LONGEST)
        odd = next((character for character in gold if unicodedata.category(character) in ("Cc", "Cs", "Co", "Cn")), None)
        read = final_answer(honest(gold))
        if not gold.strip():
            return "it is empty"
        if odd is not None and odd not in "\n\t":
            return f"it contains the character U+{ord(odd):04X}, a control character or one without a meaning"
        if len(gold) > longest:
            return f"it has {len(gold):,} characters; at most {longest:,} are compared, or fit into a completion"
        if read is None or "".join(read.split()) != "".join(gold.split()):
            return f"within {boxed('...')} it is read as {'nothing' if read is None else repr(read[:80])}: look at its braces"
        return None

    def chosen(self, questions: Sequence[Question]) -> list[Question]:
        return [question for question in some(questions) if question.answer.strip()]

    def cheats(self, question: Question, questions: Sequence[Question], canary: str, *, hanging: bool) -> list[Cheat]:
        others = [other.answer for other in some(questions, OTHERS, seed=1)]
        return cheats(case(question.text, question.answer, others, canary), hanging=hanging)
