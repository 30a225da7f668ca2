"""A cheap look at a text: what would cost the mathematics too much is refused before the mathematics sees it."""

from __future__ import annotations

import re

LONGEST = 2_000
"""Characters of an answer."""
DEEPEST = 40
"""Braces and brackets in one another."""
MAX_DIGITS = 1_000
"""Of one number."""
MAX_DIGITS_OF_A_POWER = 4
"""Of a number in an exponent or a binomial."""
MAX_DIGITS_OF_A_FACTORIAL = 3
"""Of a number whose factorial is asked for. A bracket counts with the longest number in it."""
TALLEST = 2
"""Powers of powers of powers, exp, sinh and cosh among them."""
MAX_OPERATORS = 4
"""Integrals, sums, products and limits."""
MAX_TERMS = 100
"""Of a sum or a product, and ten times that of those inside one another."""
MAX_DIGITS_IN_A_SUM = 2
"""Of a number in an exponent where there is a sum or a product, but for their limits."""

_DIGITS = re.compile(rf"[0-9]{{{MAX_DIGITS + 1}}}")
_MARKS = re.compile(
    r"(?P<power>\^|\*\*|\\?(?:exp|sinh|cosh)(?![a-zA-Z]))|(?P<open>[({\[])"
    r"|(?P<close>[)}\]])|(?P<number>[0-9]+(?:,[0-9]{3}(?![0-9]))*(?:\.[0-9]+)?)|(?P<many>!)|(?P<choose>\\[dt]?binom|\\choose)"
    r"|(?P<operator>\\(?:int|iint|iiint|oint|sum|prod|lim)(?![a-zA-Z]))|(?P<skip>\s+|\\[,;:! ])|(?P<other>\\[a-zA-Z]+|\\.|.)",
    re.DOTALL,
)
_SUM = re.compile(r"\\(?:sum|prod)(?![a-zA-Z])")
_LIMIT = re.compile(r"(?:\s|\\limits|\\,)*([_^])\s*(?:\{((?:[^{}]|\{[^{}]*\})*)\}|(\\?[a-zA-Z]+|.))", re.DOTALL)
_WHOLE = re.compile(r"\s*[{(]*\s*([+-]?)\s*0*([0-9]{1,9})\s*[})]*\s*")
_LETTER = re.compile(r"\\infty|(?<![a-zA-Z\\])[a-zA-Z]")
"""No command: two numbers and a sign between them are no limit that is worth a look."""
_HIGH_POWER = re.compile(rf"(?:\^|\*\*)\s*(?:[{{(][^{{}}()^]*)?[0-9]{{{MAX_DIGITS_IN_A_SUM + 1}}}")
_OPERATOR = re.compile(r"\\(?:int|iint|iiint|oint|sum|prod|lim)(?![a-zA-Z])")
_OPEN_TOWER = re.compile(r"\^\s*\{[^{}^]*\^\s*(?:\{[^{}0-9]*[a-zA-Z]|[a-zA-Z\\])")
"""A power of letters in an exponent: x^{x^{x}}."""


def is_absurd(text: str) -> bool:
    """Whether an answer breaks one of the bounds above, in time in proportion to its length.

    A text of more than LONGEST characters, brackets deeper than DEEPEST, a number of more than MAX_DIGITS digits, a tower of
    more than TALLEST powers, an exponent or binomial of more than MAX_DIGITS_OF_A_POWER digits, a factorial of more than
    MAX_DIGITS_OF_A_FACTORIAL or of a factorial, a binomial of powers, factorials or
    binomials, more than MAX_OPERATORS integrals, sums, products and limits; and where there is one of these, a sum or product
    of more than MAX_TERMS terms, an exponent of more than MAX_DIGITS_IN_A_SUM digits inside it, and a power of letters in an
    exponent.
    """
    if len(text) > LONGEST:
        return True
    return _DIGITS.search(text) is not None or _has_a_bomb(text) or _is_long_sum(text)


def _is_long_sum(text: str) -> bool:
    """Whether it has an integral, a sum, a product or a limit that is more than a computer algebra system should work out.

    After `_has_a_bomb`: there are few of them.
    """
    if not _OPERATOR.search(text):
        return False
    if _OPEN_TOWER.search(text):
        return True
    terms_and_rest = _summed(text)
    return terms_and_rest is None or (terms_and_rest[0] is not None and _HIGH_POWER.search(terms_and_rest[1]) is not None)


def count_terms(text: str) -> int | None:
    """Terms of the sums and products, those inside one another multiplied; None where there are none, and MAX_TERMS + 1 where
    there are too many."""
    terms_and_rest = _summed(text)
    return MAX_TERMS + 1 if terms_and_rest is None else terms_and_rest[0]


def _summed(text: str) -> tuple[int | None, str] | None:
    """`count_terms`, and the text without the limits; None where there are too many terms."""
    rest, place, terms, range_before = "", 0, 1, 1
    for match in _SUM.finditer(text):
        if match.start() < place:  # in the limit of another
            return None
        rest += text[place : match.start()]
        place = match.end()
        limits: dict[str, str] = {}
        while len(limits) < 2 and (limit := _LIMIT.match(text, place)) and limit[1] not in limits:
            limits[limit[1]] = limit[2] if limit[2] is not None else limit[3]
            place = limit.end()
        count = _terms(limits.get("_", "").rpartition("=")[2], limits.get("^", ""))
        range_before = range_before if count is None else count
        terms *= range_before
        if range_before > MAX_TERMS or terms > 10 * MAX_TERMS:
            return None
    return (terms if place else None), rest + text[place:]


def _terms(lower: str, upper: str) -> int | None:
    """Terms of a sum between these limits; None where they have letters, infinity among them, or one is not there. A sum does not
    begin at infinity."""
    if lower.strip() == "\\infty":
        return MAX_TERMS + 1
    if not lower or not upper or _LETTER.search(lower + upper):
        return None
    ends = [_WHOLE.fullmatch(limit) for limit in (lower, upper)]
    first, last = (int(end[1] + end[2]) if end else None for end in ends)
    return MAX_TERMS + 1 if first is None or last is None else abs(last - first) + 1


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
            if (height or raises or chooses) and digits > MAX_DIGITS_OF_A_POWER:
                return True
            raises = False
        elif kind == "many":
            if last > MAX_DIGITS_OF_A_FACTORIAL or after_factorial:
                return True
            last = 0
        elif kind == "choose":
            chooses, level = 2, len(opened)
        else:
            operators += kind == "operator"
            if operators > MAX_OPERATORS:
                return True
            last, raises = 0, raises and mark[0] in "+-"
        after_factorial = kind == "many" or (after_factorial and kind == "close")
    return False
