"""Expressions as trees, and their values: exact ones, values modulo a prime, and values to many digits.

A tree is a tuple whose first item says what it is:

    ("number", Fraction, is_decimal)  ("letter", name)  ("constant", "pi" | "e" | "i")
    ("+", a, b, ...)  ("*", a, b, ...)  ("/", a, b)  ("^", a, b)  ("-", a)  ("pm", a, b): a + b or a - b
    ("root", degree, a)  ("log", base or None, a)  ("call", name, a)  ("factorial", a)  ("binom", a, b)
    ("degrees", a): pi/180 times `a` inside a trigonometric function, and `a` elsewhere  ("percent", a): `a` hundredths
    ("apply", name, a): an unknown function of `a`  ("infinity",)

All arithmetic is bounded. What would need more raises TooHard; what has no value, such as 1/0 or 0^0, raises Undefined.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from microrl.rewards.compare.lexer import names

Tree = tuple[Any, ...]

MAX_BITS = 33_220
"""Of an exact number: 10,000 decimal digits."""
MAX_FACTORIAL = 1_000
MAX_DIGITS_OF_VALUE = 3_000
"""Decimal digits to which an irrational number is computed."""
MAX_DIGITS_OF_GAMMA = 150
"""More take mpmath tens of milliseconds."""
MAX_EXPONENT = 100_000
"""Binary digits before or behind the point of an irrational number."""
WORK = 100_000
"""Units of work for one comparison, about a microsecond each: what would cost more is not compared."""
PRIME = 2**61 - 1
TRIGONOMETRIC = names("sin cos tan cot sec csc")
UNKNOWN_BASE_LOG = Fraction(13572468013, 10**10)
"""The natural logarithm of the base of a `log` without one: no base that occurs, so nothing is right for one base only."""
NOWHERE: Mapping[str, Fraction] = {}

_local = threading.local()


class TooHard(Exception):
    """The bounds do not allow it to be told."""


class TooLarge(TooHard):
    """A number is beyond the bounds, which no answer needs."""


class Undefined(Exception):
    """The expression has no value."""


class NotRational(Exception):
    """The expression is no quotient of polynomials with rational coefficients."""


def reset_work_budget() -> None:
    """Begin a comparison: this thread may spend WORK units of work on it."""
    _local.left = WORK


def _spend(units: float) -> None:
    """Raises TooLarge where the comparison has cost too much."""
    _local.left = getattr(_local, "left", WORK) - units
    if _local.left < 0:
        raise TooLarge


def letters_of(tree: Tree) -> frozenset[str]:
    """The names of the variables and unknown functions in a tree."""
    return frozenset(node[1] for node in nodes(tree) if node[0] in ("letter", "apply"))


def nodes(tree: Tree) -> Iterator[Tree]:
    """All trees in a tree, itself first."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        todo.extend(part for part in node[1:] if isinstance(part, tuple))


def exact(tree: Tree, point: Mapping[str, Fraction] = NOWHERE) -> Fraction | None:
    """The value where it is rational by exact rules; None where it is not, or these rules do not show it, and for letters that
    `point` has not.

    Raises TooHard, Undefined.
    """
    kind = tree[0]
    if kind == "number":
        return tree[1]
    if kind in ("letter", "constant"):
        return point.get(tree[1]) if kind == "letter" else None
    if kind in ("infinity", "pm"):
        raise Undefined
    parts = [exact(part, point) for part in tree[1:] if isinstance(part, tuple)]
    if kind == "/" and parts[1] == 0:
        raise Undefined
    if any(part is None for part in parts):
        return None
    return _bounded(_exact(kind, tree, [part for part in parts if part is not None]))


def _exact(kind: str, tree: Tree, parts: list[Fraction]) -> Fraction | None:
    first = parts[0]
    match kind:
        case "+":
            return sum(parts[1:], first)
        case "*":
            return _product(parts)
        case "/":
            return first / parts[1]
        case "-":
            return -first
        case "^":
            return _power(first, parts[1])
        case "root":
            return _root(parts[1], parts[0])
        case "percent":
            return first / 100
        case "degrees":
            return first
        case "factorial":
            if first.denominator != 1:
                raise TooHard
            if first < 0:
                raise Undefined
            return Fraction(math.factorial(_small(first)))
        case "binom":
            if any(part.denominator != 1 or part < 0 for part in parts):
                raise TooHard
            return Fraction(math.comb(_small(first), _small(parts[1])))
        case "call":
            return {"abs": abs(first), "floor": Fraction(math.floor(first)), "ceil": Fraction(math.ceil(first))}.get(tree[1])
    return None


def _small(value: Fraction) -> int:
    if value > MAX_FACTORIAL:
        raise TooLarge
    return int(value)


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def _bounded(value: Fraction | None) -> Fraction | None:
    if value is not None:
        bits = _bits(value)
        if bits > MAX_BITS:
            raise TooLarge
        _spend(2 + (bits / 500) ** 1.5)
    return value


def _product(parts: list[Fraction]) -> Fraction:
    product = Fraction(1)
    for part in parts:
        product *= part
        _bounded(product)
    return product


def _power(base: Fraction, power: Fraction) -> Fraction | None:
    if base == 0:
        if power <= 0:
            raise Undefined
        return Fraction(0)
    if base == 1:
        return base
    if abs(power.numerator) * _bits(base) > 2 * MAX_BITS:
        raise TooLarge
    if power.denominator == 1:
        return base ** int(power)
    root = _root(base, Fraction(power.denominator)) if base > 0 else None
    return None if root is None else root**power.numerator


def _root(value: Fraction, degree: Fraction) -> Fraction | None:
    """The real root where it is rational; odd roots of negative numbers are negative."""
    if degree.denominator != 1 or not 1 <= degree <= 100:
        raise Undefined
    if degree == 1:
        return value
    if value < 0:
        return -root if int(degree) % 2 and (root := _root(-value, degree)) is not None else None
    top, bottom = (_whole_root(part, int(degree)) for part in (value.numerator, value.denominator))
    return None if top is None or bottom is None else Fraction(top, bottom)


def _whole_root(value: int, degree: int) -> int | None:
    if degree == 2:
        root = math.isqrt(value)
    else:  # Newton's method from above
        root = 1 << -(-value.bit_length() // degree)
        while (better := ((degree - 1) * root + value // root ** (degree - 1)) // degree) < root:
            root = better
    return root if root**degree == value else None


def modular(tree: Tree, point: Mapping[str, int]) -> int:
    """The value modulo PRIME at a point. Raises NotRational, Undefined, TooHard."""
    kind = tree[0]
    _spend(2)
    match kind:
        case "letter":
            return point[tree[1]]
        case "apply":  # a polynomial of high degree, another one for each name
            return pow(modular(tree[2], point) + point[tree[1]], 65537, PRIME)
        case "+":
            return sum(modular(part, point) for part in tree[1:]) % PRIME
        case "*":
            product = 1
            for part in tree[1:]:
                product = product * modular(part, point) % PRIME
            return product
        case "-":
            return -modular(tree[1], point) % PRIME
        case "/":
            return modular(tree[1], point) * _inverse(modular(tree[2], point)) % PRIME
        case "degrees":
            return modular(tree[1], point)
        case "percent":
            return modular(tree[1], point) * _inverse(100) % PRIME
        case "^":
            power = None if letters_of(tree[2]) else exact(tree[2])
            if power is None or power.denominator != 1 or abs(power) > MAX_BITS:
                raise NotRational
            root = modular(tree[1], point)
            return pow(root if power >= 0 else _inverse(root), abs(int(power)), PRIME)
    value = None if letters_of(tree) else exact(tree)
    if value is None:
        raise NotRational
    return value.numerator * _inverse(value.denominator % PRIME) % PRIME


def _inverse(value: int) -> int:
    if value % PRIME == 0:
        raise Undefined
    return pow(value, -1, PRIME)


def context() -> Any:
    """This thread's own context of mpmath: its precision is state."""
    if not hasattr(_local, "context"):
        from mpmath.ctx_mp import MPContext

        _local.context = MPContext()
    return _local.context


class Numeric:
    """Values of trees to `digits` decimal digits, with letters from `point`. Values are mpmath's.

    `large` and `small` are log10 of the largest value on the way and of the inverse of the smallest, at least 0. A sum or the
    value of a function that vanishes to half the digits counts as 0, and so does a divisor and the argument of a logarithm.
    """

    def __init__(self, digits: int, point: Mapping[str, Fraction]) -> None:
        if digits > MAX_DIGITS_OF_VALUE:
            raise TooLarge
        self._mp = context()
        self._mp.dps = digits
        self._point = point
        self._cost = (digits / 50) ** 1.6
        self._tiny = self._mp.mpf(10) ** (-digits // 2)
        self.large = self.small = 0.0

    def value(self, tree: Tree, in_angle: bool = False) -> Any:
        """Raises TooHard, Undefined."""
        _spend(self._cost * (50 if tree[0] in ("call", "log", "^", "root", "factorial", "binom") else 3))
        try:
            value = self._value(tree, in_angle)
        except (ZeroDivisionError, ValueError):
            raise Undefined from None
        except (OverflowError, self._mp.NoConvergence):
            raise TooHard from None
        return self._noted(value, may_cancel=tree[0] in ("+", "call", "log"))

    def _noted(self, value: Any, may_cancel: bool = False) -> Any:
        if not self._mp.isfinite(value):
            raise Undefined
        if value != 0:
            size = self._mp.mag(value)
            if abs(size) > MAX_EXPONENT:
                raise TooLarge
            if not may_cancel or abs(value) > self._tiny:
                self.large, self.small = max(self.large, size * 0.30103), max(self.small, -size * 0.30103)
        return value

    def _fraction(self, value: Fraction) -> Any:
        return self._mp.mpf(value.numerator) / value.denominator

    def _value(self, tree: Tree, in_angle: bool) -> Any:
        mp, kind = self._mp, tree[0]
        match kind:
            case "number":
                return self._fraction(tree[1])
            case "letter":
                return self._fraction(self._point[tree[1]])
            case "constant":
                return {"pi": mp.pi, "e": mp.e, "i": mp.mpc(0, 1)}[tree[1]] * 1
            case "infinity" | "pm":
                raise Undefined
            case "apply":
                raise TooHard
            case "call":
                return self._call(tree[1], self.value(tree[2], tree[1] in TRIGONOMETRIC))
            case "log":
                divisor = UNKNOWN_BASE_LOG if tree[1] is None else None
                argument = self._log(self.value(tree[2]))
                return argument / (self._fraction(divisor) if divisor else self._nonzero(self._log(self.value(tree[1]))))
            case "factorial" | "binom":
                value = exact(tree)
                return self._gamma(kind, tree[1:]) if value is None else self._fraction(value)
        parts = [self.value(part, in_angle) for part in tree[1:]]
        match kind:
            case "+":
                return mp.fsum(parts)
            case "*":
                product = parts[0]
                for part in parts[1:]:
                    product = self._noted(product * part)
                return product
            case "-":
                return -parts[0]
            case "/":
                return parts[0] / self._nonzero(parts[1])
            case "^":
                return self._power(parts[0], parts[1])
            case "root":
                return self._root(parts[0], parts[1])
            case "degrees":
                return parts[0] * mp.pi / 180 if in_angle else parts[0]
            case "percent":
                return parts[0] / 100
        raise TooHard

    def _gamma(self, kind: str, arguments: tuple[Tree, ...]) -> Any:
        """n! and n over k where letters stand for any numbers. Formulas that are the same for all whole numbers are so there."""
        values = [self.value(each) for each in arguments]
        if self._mp.dps > MAX_DIGITS_OF_GAMMA or any(abs(value) > MAX_FACTORIAL for value in values):
            raise TooHard
        try:
            return getattr(self._mp, "binomial" if kind == "binom" else kind)(*values)
        except ValueError:  # (-1)!, where n! / (n - 1)! may yet be n
            raise TooHard from None

    def _nonzero(self, value: Any) -> Any:
        if abs(value) < self._tiny:
            raise Undefined
        return value

    def _log(self, value: Any) -> Any:
        return self._mp.log(self._nonzero(value))

    def _power(self, base: Any, power: Any) -> Any:
        mp = self._mp
        if abs(base) < self._tiny:
            if mp.re(power) <= self._tiny:
                raise Undefined
            return mp.mpf(0)
        if abs(power) > MAX_EXPONENT or abs(power) * (abs(mp.mag(base)) + 1) > MAX_EXPONENT:
            raise TooLarge
        return mp.power(base, power)

    def _root(self, degree: Any, value: Any) -> Any:
        mp = self._mp
        if not mp.isint(degree) or not 1 <= degree <= 100:
            return self._power(value, 1 / self._nonzero(degree))
        if mp.im(value) == 0 and mp.re(value) < 0 and int(degree) % 2:
            return -mp.root(-mp.re(value), int(degree))
        return mp.root(value, int(degree)) if degree > 2 else mp.sqrt(value)

    def _call(self, name: str, value: Any) -> Any:
        mp = self._mp
        if name in ("floor", "ceil"):
            if mp.im(value) != 0 or abs(value - mp.nint(value)) < self._tiny:
                raise TooHard
            return getattr(mp, name)(value)
        if name in ("exp", "sinh", "cosh", "tanh") and abs(value) > MAX_EXPONENT // 2:
            raise TooLarge
        if name in ("sinh", "cosh", "tanh"):
            self.small = max(self.small, float(abs(value)))  # they are as near to powers of e, or to 1
        if name in ("cot", "csc"):
            self._nonzero(mp.sin(value))
        if name in ("tan", "sec"):
            self._nonzero(mp.cos(value))
        return {"abs": abs, "arg": mp.arg}[name](value) if name in ("abs", "arg") else getattr(mp, name)(value)
