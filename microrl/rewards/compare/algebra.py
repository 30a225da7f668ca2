"""The rest: what `quick` leaves open, by math-verify and sympy. Slow, and can hang: for a confined process with a deadline."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from microrl.rewards.compare.absurd import is_absurd
from microrl.rewards.compare.estimate import differ, worked_out
from microrl.rewards.compare.quick import is_mathematical, quick, readable

REMEMBERED_GOLDS = 10_000
DIGITS = 50
"""To which both sides are computed after math-verify has called them equal."""
AGREE = 30
"""Digits that must be the same then. math-verify rounds to six decimals: to it 1.6e-19 is 0, and e^-50 is e^-60."""

_POWER_IN_POWER = re.compile(r"(?:\^|\*\*)\s*\{?[^{}^]{0,40}[0-9]\s*(?:\^|\*\*)")
"""A power of a number in an exponent: 9^{9^9}."""


@lru_cache(1)
def prepare() -> None:
    """Import what is needed, and what is imported or computed at the first use of it. Takes two seconds."""
    first, second = _parsed(r"\sum_{n=1}^{3} n"), _parsed(r"6 + \sum_{n=1}^{0} n")
    assert first is not None and second is not None and not _are_equal(first, first + 1), "math-verify cannot be used"
    # The parser caches its decisions: reading the first of a kind takes 0.2 to 0.5 s, and the next a third of that.
    for answer in (
        r"\int_0^{\infty} \sin(x^{7}+1) \ln(\frac{\sqrt{x}}{2}+x^{5}+x) \, dx",
        r"\int_0^1 \sqrt{\cos(x^{3}+1)+x} \, dx",
    ):
        compare(r"\int_0^1 x \, dx", answer)


def compare(gold: str, answer: str) -> bool:
    """Whether `answer` equals `gold`. What math-verify calls equal must also be of one kind, with the same letters, and have the
    same value in figures."""
    verdict = quick(gold, answer)
    if verdict is not None:
        return verdict
    try:
        expected, given = _parsed_gold(gold), _parsed(answer)
        return expected is not None and given is not None and _are_equal(expected, given)
    except (Exception, RecursionError):
        # Whatever goes wrong inside the mathematics of one answer means "not shown to be right".
        return False


def parses(gold: str) -> bool:
    """Whether a gold answer can be compared with anything."""
    good = readable(gold)
    if good is not None:
        return good
    try:
        return _parsed_gold(gold) is not None
    except (Exception, RecursionError):
        return False


def _parsed(text: str) -> Any | None:
    """A sympy object; None for what math-verify cannot read."""
    from math_verify import LatexExtractionConfig, parse
    from sympy import Basic, MatrixBase, Symbol

    if is_absurd(text) or not is_mathematical(text) or _POWER_IN_POWER.search(text):
        return None
    parsed = parse(
        f"\\boxed{{{text}}}",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=0)],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
        raise_on_error=False,
    )
    objects = [each for each in parsed if isinstance(each, Basic | MatrixBase)]
    if len(objects) != 1:
        return None
    # Where an i stands, though it only counts, math-verify takes all letters for complex ones, which no real ones are equal to.
    return objects[0].xreplace({name: Symbol(name.name, real=True) for name in objects[0].atoms(Symbol)})


_parsed_gold = lru_cache(REMEMBERED_GOLDS)(_parsed)


def _are_equal(gold: Any, answer: Any) -> bool:
    from math_verify import verify
    from sympy import Integral, Limit, Product, Sum

    if _kind(gold) != _kind(answer) or gold.free_symbols != answer.free_symbols:
        return False
    if _kind(gold) == "expression":
        # Of one inside another one sympy would give both letters the same name.
        if len(gold.atoms(Integral, Limit, Product, Sum)) == 1 and gold.as_dummy() == answer.as_dummy():
            return True
        if differ(gold, answer):
            return False
        if worked_out(gold) == answer.doit():  # what math-verify would first simplify, for minutes: sin(10^7 x)
            return _agree(gold, answer)
    return bool(verify(gold, answer, timeout_seconds=None)) and _agree(gold, answer)


def _kind(value: Any) -> str:
    from sympy import MatrixBase, Set, Tuple
    from sympy.core.relational import Relational
    from sympy.logic.boolalg import Boolean

    for kind, name in ((MatrixBase, "matrix"), (Set, "set"), (Tuple, "tuple"), (Relational, "relation"), (Boolean, "relation")):
        if isinstance(value, kind):
            return name
    return "expression"


def _agree(gold: Any, answer: Any) -> bool:
    """Whether values do not contradict, exact ones where they are: of expressions, at two points where there are letters, and of
    all entries. How many terms a sum has is a whole number."""
    from sympy import Integer, MatrixBase, Product, Rational, Sum

    kind = _kind(gold)
    if kind == "matrix":
        assert isinstance(gold, MatrixBase)
        return gold.shape == answer.shape and all(map(_agree, gold, answer))
    if kind != "expression":
        return True  # compared by math-verify item by item; the numbers in them are never taken for decimals
    names = sorted(gold.free_symbols, key=str)
    counts = {
        name
        for each in gold.atoms(Sum, Product) | answer.atoms(Sum, Product)
        for limit in each.limits
        for end in limit[1:]
        for name in end.free_symbols
    }
    for shift in range(2) if names else range(1):
        point = {
            name: Integer(7 + number + 4 * shift) if name in counts else Rational(37 + 11 * number + 29 * shift, 61)
            for number, name in enumerate(names)
        }
        a, b = (each.subs(point).doit() for each in (gold, answer))
        if isinstance(a, Rational) and isinstance(b, Rational):
            if a != b:
                return False
            continue
        a, b = a.evalf(DIGITS), b.evalf(DIGITS)
        if not (a.is_number and b.is_number and a.is_finite and b.is_finite):
            return False
        if abs(a - b) > max(abs(a), abs(b)) * Rational(1, 10**AGREE):
            return False
    return True
