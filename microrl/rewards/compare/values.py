"""Are two expressions equal? By exact arithmetic, by identity testing, or to as many digits as their size asks for.

- Rational numbers: exactly.
- Quotients of polynomials: by their values modulo a prime of 61 bits at random points (Schwartz 1980, Zippel 1979: two that
  differ and have degree d agree at one point with probability at most d / 2^61).
- All else: by values to twice as many digits as the numbers in them and their values on the way span, and with letters at eight
  random points. Two that differ by less than that and are made of so few digits are not known; for sums of square roots
  their separation is bounded (Burnikel et al. 2000, https://doi.org/10.1007/s004530010005).
- One decimal that stands for a number without a finite decimal, such as 0.333333 for 1/3: within TOLERANCE. Between two
  finite decimals, or a decimal and a whole number, there is no tolerance: 0.1000001 is not 0.1.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any

from microrl.rewards.compare.nodes import is_infinite
from microrl.rewards.compare.tree import (
    PRIME,
    NotRational,
    Numeric,
    TooHard,
    Tree,
    Undefined,
    context,
    exact,
    letters_of,
    modular,
    nodes,
)

TOLERANCE = Fraction(1, 10**6)
"""Relative to the number that has no finite decimal."""
_POINTS = 3
_PRIMES = (997, 991, 983, 977, 971)
_random = random.Random()  # from the system's entropy: nobody can write an expression that vanishes at these points


def equal(a: Tree, b: Tree) -> bool:
    """Raises TooHard where the bounds do not allow it to be told, Undefined where one has no value."""
    if is_infinite(a) or is_infinite(b):
        return a == b
    names = letters_of(b)
    if not names and not letters_of(a):
        return _equal_constants(a, b)
    if letters_of(a) not in (names, frozenset()):
        return False
    try:
        same = all(modular(a, point) == modular(b, point) for point in _points_modulo(names))
        if not letters_of(a):  # letters that cancel need not be there, but sin^2 x + cos^2 x is 1
            return False
    except NotRational:
        same = _equal_at_points(a, b, names)
    return same and _is_whole(a, b, names)


def _is_whole(gold: Tree, answer: Tree, names: frozenset[str]) -> bool:
    """Whether the answer has no gap and no other value where the gold answer, which divides by no letter, has a value:
    x(x^2 + 1)/x is not x^2 + 1 at 0. Of quotients a common factor may be left out."""
    divisors = list(_divisors(answer))
    is_polynomial = not any(node[0] in _WITH_GAPS or (node[0] == "^" and letters_of(node[2])) for node in nodes(gold))
    jumps = any(node[0] in _WITH_GAPS or (node[0] == "^" and letters_of(node[2])) for node in nodes(answer))
    if any(True for _ in _divisors(gold)) or not (divisors or (is_polynomial and jumps)):
        return True
    points = []
    for divisor in divisors:
        for point in _zeros(divisor, names):
            if point is not None:
                points.append(point)
            elif is_polynomial:
                return False
    if is_polynomial:
        points += _special_points(names)
    for point in points:
        try:
            gold_value = Numeric(60, point).value(gold)
        except Undefined:
            continue
        try:
            answer_value = Numeric(60, point).value(answer)
        except Undefined:
            return False
        is_real = abs(_imaginary(answer_value)) < 1e-30 and abs(_imaginary(gold_value)) < 1e-30
        if is_real and abs(gold_value - answer_value) > 1e-20 * max(1, abs(gold_value)):
            return False
    return True


_WITH_GAPS = ("call", "log", "root", "factorial", "binom")


def _divisors(tree: Tree) -> Iterator[Tree]:
    """What it divides by, as far as there are letters in it and it may be 0, and what it raises to 0."""
    for node in nodes(tree):
        if node[0] == "/":
            factors = node[2][1:] if node[2][0] == "*" else node[2:]
            yield from (each for each in factors if each[0] != "factorial" and letters_of(each))
        elif node[0] == "^" and letters_of(node[1]) and not letters_of(node[2]):
            power = exact(node[2])
            if power is not None and power <= 0:
                yield node[1]


def _special_points(names: frozenset[str]) -> list[dict[str, Fraction]]:
    """Each letter once 0, 1, -1 and 2, the others between these, and all of them 0."""
    between = _random_points(names)[0]
    special = [{**between, name: Fraction(value)} for name in sorted(names) for value in (0, 1, -1, 2)]
    return [*special, dict.fromkeys(names, Fraction(0))]


def _zeros(divisor: Tree, names: frozenset[str]) -> Iterator[dict[str, Fraction] | None]:
    """Points where a polynomial of degree MAX_DEGREE or less is 0, for each of its letters, the others being any numbers. None
    where it is no such polynomial, so that they are not known."""
    between = _random_points(names)[0]
    for name in sorted(letters_of(divisor)):
        try:
            values = [_at(divisor, {**between, name: Fraction(at)}) for at in range(_MAX_DEGREE + 2)]
        except (TooHard, Undefined, NotRational):
            yield None
            continue
        # Newton's interpolation: the differences of a polynomial vanish above its degree.
        differences = [values[0]]
        while len(values) > 1:
            values = [b - a for a, b in pairwise(values)]
            differences.append(values[0])
        if differences[-1] != 0:
            yield None
            continue
        mp = context()
        mp.dps = 80
        coefficients, basis = [Fraction(0)] * len(differences), [Fraction(1)]
        for number, difference in enumerate(differences):
            for power, part in enumerate(basis):
                coefficients[power] += difference * part
            shifted = zip([Fraction(0), *basis], [*basis, Fraction(0)], strict=True)
            basis = [(low - number * high) / (number + 1) for low, high in shifted]
        while coefficients and coefficients[-1] == 0:
            coefficients.pop()
        if len(coefficients) < 2:
            continue
        try:
            roots = mp.polyroots([mp.mpf(one.numerator) / one.denominator for one in reversed(coefficients)], 200, extraprec=200)
        except mp.NoConvergence:
            yield None
            continue
        for root in roots:
            if abs(_imaginary(root)) < 1e-40:
                yield {**between, name: Fraction(int(mp.nint(root.real * mp.mpf(10) ** 70)), 10**70)}


def _at(tree: Tree, point: Mapping[str, Fraction]) -> Fraction:
    value = exact(tree, point)
    if value is None:
        raise NotRational
    return value


_MAX_DEGREE = 6


def _points_modulo(names: frozenset[str]) -> list[dict[str, int]]:
    return [{name: _random.randrange(2, PRIME) for name in sorted(names)} for _ in range(_POINTS)]


def _equal_constants(a: Tree, b: Tree) -> bool:
    values = exact(a), exact(b)
    if values[0] is not None and values[1] is not None:
        return values[0] == values[1] or _is_near(a, values[0], values[1]) or _is_near(b, values[1], values[0])
    first, second, bound = _both(a, b, {})
    if abs(first - second) <= bound:
        return True
    for decimal, value, other, number in ((a, values[0], values[1], second), (b, values[1], values[0], first)):
        if value is not None and other is None and is_decimal(decimal):
            return bool(abs(first - second) <= abs(number) * TOLERANCE.numerator / TOLERANCE.denominator)
    return False


def _is_near(decimal: Tree, value: Fraction, number: Fraction) -> bool:
    return is_decimal(decimal) and not _is_finite_decimal(number) and abs(value - number) <= TOLERANCE * abs(number)


def is_decimal(tree: Tree) -> bool:
    """Whether it is written as a decimal number, perhaps times a power of ten."""
    has_decimal = False
    for node in nodes(tree):
        if node[0] not in ("number", "-", "*", "^", "percent", "degrees"):
            return False
        has_decimal |= node[0] == "number" and node[2]
    return has_decimal


def _is_finite_decimal(value: Fraction) -> bool:
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def _both(a: Tree, b: Tree, point: Mapping[str, Fraction]) -> tuple[Any, Any, Any]:
    """Both values, and how far apart they can be without being different."""
    literal, roots = 15 + 3 * len(point), 0
    for tree in (a, b):
        for node in nodes(tree):
            if node[0] == "number":
                literal += (node[1].numerator.bit_length() + node[1].denominator.bit_length()) * 0.30103
            roots += node[0] == "root" or (node[0] == "^" and node[2][0] == "/")
    digits = int(60 + literal)
    while True:
        numeric = Numeric(digits, point)
        first, second = numeric.value(a), numeric.value(b)
        scale = max(1, abs(first), abs(second))
        span = numeric.large + numeric.small
        # Four times: sin(x) and x differ by a third power, and a better approximation by a fifth.
        needed = (literal + 2 * numeric.large + 4 * numeric.small) * min(1 + roots, 6)
        if 2 * needed + 20 <= digits or (span < 10 and abs(first - second) > scale * 1e-15):
            return first, second, scale * _power_of_ten(needed)
        digits = int(2 * needed) + 21


def _power_of_ten(digits: float) -> Any:
    return context().mpf(10) ** -int(digits)


def _random_points(names: frozenset[str]) -> list[dict[str, Fraction]]:
    """Five with positive coordinates, below 1 and above, and three with negative ones: all of them, and either half.

    Signs are not drawn: three positive draws would take the root of x^2 for x. Nor is it left to chance whether one is above
    pi / 2 and one above pi, where arcsin(sin x) and arccos(cos x) are no longer x.
    """
    ordered = sorted(names)
    positive = [(100, 900)] * 3 + [(1700, 3000), (3200, 4700)]
    points = [{name: _coordinate(index, each) for index, name in enumerate(ordered)} for each in positive]
    for half, each in ((ordered, (100, 900)), (ordered[::2], (100, 900)), (ordered[1::2] or ordered, (1700, 3000))):
        signed = ((index, name, -1 if name in half else 1) for index, name in enumerate(ordered))
        points.append({name: sign * _coordinate(index, each) for index, name, sign in signed})
    return points


def _coordinate(index: int, numerators: tuple[int, int]) -> Fraction:
    """Neither an integer, nor one together with another name's: a binomial coefficient, for example, has poles there."""
    prime, number = _PRIMES[index % len(_PRIMES)], _random.randrange(*numerators)
    return Fraction(number + (number % prime == 0), prime)


def _equal_at_points(a: Tree, b: Tree, names: frozenset[str]) -> bool:
    """Where both are real at three points or more, only those count: x^{2/3} is the cube root of x^2."""
    real, others = 0, []
    for point in _random_points(names):
        try:
            first, second, bound = _both(a, b, point)
        except Undefined:
            if _has_value(a, point) != _has_value(b, point):
                return False
            continue
        same = bool(abs(first - second) <= bound)
        if abs(_imaginary(first)) <= bound and abs(_imaginary(second)) <= bound:
            if not same:
                return False
            real += 1
        else:
            others.append(same)
    if real + len(others) < _POINTS:
        raise TooHard
    return (real >= _POINTS or all(others)) and _agree_far_off(a, b, names)


def _has_value(tree: Tree, point: Mapping[str, Fraction]) -> bool:
    try:
        Numeric(60, point).value(tree)
    except Undefined:
        return False
    return True


def _branches(node: Tree) -> bool:
    if node[0] == "^":
        return bool(letters_of(node[1])) and (node[2][0] != "number" or node[2][1].denominator != 1)
    return node[0] in ("root", "log") or (node[0] == "call" and node[1] in _BRANCHING)


_BRANCHING = ("abs", "floor", "ceil", "arg", "asin", "acos", "atan")


def _agree_far_off(a: Tree, b: Tree, names: frozenset[str]) -> bool:
    """Whether what is made of pieces is the same also beyond all numbers in it, and nearer to 0: |x + 100| - 100 is x down to
    -100 only. Of the rest a few points are enough: analytic functions that are the same somewhere are so everywhere."""
    if not any(map(_branches, (*nodes(a), *nodes(b)))):
        return True
    numeric = Numeric(60, _random_points(names)[0])
    for tree in (a, b):
        numeric.value(tree)
    size = int(numeric.large + numeric.small) + 1
    for power in (size, -size):
        far = {name: Fraction(_random.randrange(1000, 9970), 997) * Fraction(10) ** power for name in sorted(names)}
        for point in (far, {name: -value for name, value in far.items()}):
            try:
                first, second, bound = _both(a, b, point)
            except (Undefined, TooHard):
                continue
            if abs(_imaginary(first)) <= bound and abs(_imaginary(second)) <= bound and abs(first - second) > bound:
                return False
    return True


def _imaginary(value: Any) -> Any:
    return getattr(value, "imag", 0)


def constant_ratio(a: Tree, b: Tree) -> int | None:
    """The sign of a / b where that is a constant other than 0, and None where it is not. Raises TooHard, Undefined."""
    names = letters_of(a)
    if not names or names != letters_of(b):
        return None
    try:
        ratios = set()
        for point in _points_modulo(names):
            top, bottom = modular(a, point), modular(b, point)
            if top == 0 or bottom == 0:
                return None
            ratios.add(top * pow(bottom, -1, PRIME) % PRIME)
        if len(ratios) > 1:
            return None
    except NotRational:
        first = _random_points(names)[0]
        pair = Numeric(60, first)
        top, bottom = pair.value(a), pair.value(b)
        if abs(top) < 1e-20 or abs(bottom) < 1e-20:
            return None
        scaled = ("*", ("number", _near_fraction(top / bottom), False), b)
        if not _near_everywhere(a, scaled, names):
            return None
    return _sign_of_ratio(a, b, names)


def _near_fraction(value: Any) -> Fraction:
    if _imaginary(value) != 0:
        raise TooHard
    return Fraction(int(value * 10**40), 10**40)


def _near_everywhere(a: Tree, b: Tree, names: frozenset[str]) -> bool:
    for point in _random_points(names):
        numeric = Numeric(60, point)
        try:
            first, second = numeric.value(a), numeric.value(b)
        except Undefined:
            continue
        if abs(first - second) > abs(first) * 1e-25:
            return False
    return _agree_far_off(a, b, names)


def _sign_of_ratio(a: Tree, b: Tree, names: frozenset[str]) -> int | None:
    for point in _random_points(names):
        numeric = Numeric(60, point)
        try:
            ratio = numeric.value(a) / numeric.value(b)
        except (Undefined, ZeroDivisionError):
            continue
        if abs(_imaginary(ratio)) < 1e-30:
            return 1 if ratio.real > 0 else -1
    return None


def approximate(tree: Tree) -> Any:
    """Its value to 60 digits, for putting constants in order. Raises TooHard where it is not real, Undefined."""
    value = Numeric(60, {}).value(tree)
    if abs(_imaginary(value)) > 1e-30:
        raise TooHard
    return value.real


def is_rounded(tree: Tree, decimal: Tree) -> bool:
    """Whether a decimal with at least one place is this number, rounded or cut off at its last place."""
    if not (decimal[0] == "number" or (decimal[0] == "-" and decimal[1][0] == "number")) or not is_decimal(decimal):
        return False
    value = exact(decimal)
    assert value is not None
    place = _power_of_ten(max(1, next(number for number in range(2000) if (value * 10**number).denominator == 1)))
    number, stated = approximate(tree), approximate(decimal)
    cut_off = abs(number) - abs(stated)
    return bool(abs(number - stated) <= place / 2 or (number * stated > 0 and 0 <= cut_off < place))
