"""A cheap look at a text: what would cost the mathematics too much is refused before the mathematics sees it."""

from __future__ import annotations

import re

LONGEST = 2_000
"""Characters of an answer."""
DEEPEST = 40
"""Braces and brackets in one another."""
MOST_DIGITS = 1_000
"""Of one number."""
MOST_DIGITS_OF_A_POWER = 4
"""Of a number in an exponent or a binomial."""
MOST_DIGITS_OF_A_FACTORIAL = 3
"""Of a number whose factorial is asked for. A bracket counts with the longest number in it."""
TALLEST = 2
"""Powers of powers of powers, exp, sinh and cosh among them."""
MOST_OPERATORS = 4
"""Integrals, sums, products and limits."""

_DIGITS = re.compile(rf"[0-9]{{{MOST_DIGITS + 1}}}")
_MARKS = re.compile(
    r"(?P<power>\^|\*\*|\\?(?:exp|sinh|cosh)(?![a-zA-Z]))|(?P<open>[({\[])"
    r"|(?P<close>[)}\]])|(?P<number>[0-9][0-9.,]*)|(?P<many>!)|(?P<choose>\\[dt]?binom|\\choose)"
    r"|(?P<operator>\\(?:int|iint|iiint|oint|sum|prod|lim)(?![a-zA-Z]))|(?P<skip>\s+|\\[,;:! ])|(?P<other>\\[a-zA-Z]+|\\.|.)",
    re.DOTALL,
)


def is_absurd(text: str) -> bool:
    """Whether an answer breaks one of the bounds above, in time in proportion to its length.

    A text of more than LONGEST characters, brackets deeper than DEEPEST, a number of more than MOST_DIGITS digits, a tower of
    more than TALLEST powers, an exponent or binomial of more than MOST_DIGITS_OF_A_POWER digits, a factorial of more than
    MOST_DIGITS_OF_A_FACTORIAL or of a factorial, a binomial of powers, factorials or
    binomials, more than MOST_OPERATORS integrals, sums, products and limits.
    """
    if len(text) > LONGEST:
        return True
    return _DIGITS.search(text) is not None or _has_a_bomb(text)


def _has_a_bomb(text: str) -> bool:
    """One pass. For each open bracket: the powers right before it, the powers around it, and the longest number so far."""
    opened: list[tuple[int, int, int]] = []
    height, longest, operators = 0, 0, 0  # powers above the line here; digits of the longest number in this bracket
    raises = after_factorial = False
    chooses = level = 0  # arguments of a binomial that are still to come, and its place
    chain = 0  # powers one after the other, without brackets
    last = 0  # digits of what stands directly before
    for mark in _MARKS.finditer(text):
        kind = mark.lastgroup
        if kind == "skip":
            continue
        if chooses and len(opened) > level and kind in ("power", "many", "choose"):
            return True
        if kind == "power":
            raises, last, chain = True, 0, chain + 1
            if height + chain > TALLEST:
                return True
            continue
        chain = chain if raises else 0
        if kind == "open":
            if len(opened) >= DEEPEST:
                return True
            opened.append((chain, height, longest))
            height, longest, raises, chain = height + chain, 0, False, 0
        elif kind == "close":
            inside, longest = longest, 0
            if opened:
                chain, height, before = opened.pop()
                longest = max(before, inside)
            last = inside
            chooses -= bool(chooses) and len(opened) == level
        elif kind == "number":
            digits = len(mark[0].partition(".")[0].replace(",", "").lstrip("0"))
            longest, last = max(longest, digits), digits
            if (height or raises or chooses) and digits > MOST_DIGITS_OF_A_POWER:
                return True
            raises = False
        elif kind == "many":
            if last > MOST_DIGITS_OF_A_FACTORIAL or after_factorial:
                return True
            last = 0
        elif kind == "choose":
            chooses, level = 2, len(opened)
        else:
            operators += kind == "operator"
            if operators > MOST_OPERATORS:
                return True
            last, raises = 0, raises and mark[0] in "+-"
        after_factorial = kind == "many" or (after_factorial and kind == "close")
    return False
