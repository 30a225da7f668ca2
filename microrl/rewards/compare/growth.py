"""A cheap look at what a computer algebra system would be asked: how large numbers and expansions in it can grow."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from microrl.rewards.compare.absurd import count_terms

MAX_DIGITS = 1_000
"""Of a power, a factorial, a binomial or an exponential, where a letter stands for 10, and for 100 beside a sum or a product."""
MAX_FACTORS = 12
"""Of a power of a function, of a matrix, and of a sum in which there are letters. Expanded, it has as many terms or more."""
MAX_OF_A_BINOMIAL = 50
"""Of the number above, where there are letters below; where it is the other way round, MAX_FACTORS."""
HIGHEST_DEGREE = 10_000
"""Of a power of a letter."""
DEEPEST = 6
"""Brackets in one another."""
MAX_ROOTS_IN_A_MATRIX = 6
"""Their determinant is expanded while it is read."""
MAX_TERMS_OF_FUNCTIONS = 20
"""Of a sum or a product in which there are functions, roots, factorials, binomials, or letters in exponents. No such product has
endlessly many; and an endless sum has no functions but roots, factorials and binomials, and nothing like n^2 + n in brackets."""

_TOKEN = re.compile(
    r"(?P<number>[0-9]+(?:,[0-9]{3}(?![0-9]))*(?:\.[0-9]+)?)|(?P<open>[({\[]|\\begin\{[a-zA-Z]+\}|\\lfloor|\\lceil)"
    r"|(?P<close>[)}\]]|\\end\{[a-zA-Z]+\}|\\rfloor|\\rceil)"
    r"|(?P<power>\^|\*\*)|(?P<many>!)|(?P<exponential>\\?(?:exp|sinh|cosh)(?![a-zA-Z]))|(?P<choose>\\[dt]?binom)"
    r"|(?P<function>\\?(?:sin|cos|tan|cot|sec|csc|arc[a-z]{3}|tanh|log|ln|lg)(?![a-zA-Z])|\\sqrt|\\lfloor|\\bmod|\\[pb]?mod)"
    r"|(?P<apart>[-+=,&;<>|]|\\\\|\\(?:le|ge|leq|geq|pm|mp|to)(?![a-zA-Z]))|(?P<below>_)"
    r"|(?P<constant>\\pi(?![a-zA-Z])|e)|(?P<letter>[a-zA-Z]|\\(?:alpha|beta|gamma|theta|lambda|mu|phi|omega|infty)(?![a-zA-Z]))"
    r"|(?P<skip>\\[a-zA-Z]+|\\.|.)",
    re.DOTALL,
)


_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc|arc|sinh|cosh|log|ln|lg)")


class _Costly(Exception):
    """A bound is broken."""


@dataclass(frozen=True, slots=True)
class _Size:
    """A value is at most 10^digits times `degree` letters."""

    digits: float = 0.0
    degree: float = 0.0
    is_sum: bool = False
    has_functions: bool = False
    has_open_power: bool = False
    """Whether there is a power with letters in the exponent."""

    def times(self, other: _Size) -> _Size:
        return _Size(
            self.digits + other.digits,
            self.degree + other.degree,
            self.is_sum or other.is_sum,
            self.has_functions or other.has_functions,
            self.has_open_power or other.has_open_power,
        )

    def plus(self, other: _Size) -> _Size:
        added = self.times(other)
        return replace(added, digits=max(self.digits, other.digits), degree=max(self.degree, other.degree), is_sum=True)


def is_costly(text: str) -> bool:
    """Whether a computer algebra system would take long for a text that is not absurd: one of the bounds above is broken, or a
    power with letters in the exponent is itself raised to letters. In time in proportion to its length."""
    terms = count_terms(text)
    is_endless = terms is not None and "\\infty" in text
    try:
        size = _Look(text, 2 if terms else 1, is_endless).group()
    except (_Costly, OverflowError):
        return True
    if "\\begin" in text and text.count("\\sqrt") > MAX_ROOTS_IN_A_MATRIX:
        return True
    if is_endless and ("\\prod" in text or _FUNCTION.search(text)):
        return size.has_functions
    return size.has_functions and (terms or 0) > MAX_TERMS_OF_FUNCTIONS


class _Look:
    """`letter`: decimal digits of what a letter stands for."""

    def __init__(self, text: str, letter: int, is_endless: bool) -> None:
        tokens = ((str(match.lastgroup), match[0]) for match in _TOKEN.finditer(text) if not match[0].isspace())
        self._tokens = [*tokens, ("end", "")]
        self._at, self._depth, self._letter, self._is_endless = 0, 0, letter, is_endless

    def group(self) -> _Size:
        """What stands up to the end of a bracket, or of the text."""
        whole: _Size | None = None
        term = _Size()
        while self._kind not in ("end", "close"):
            if self._kind == "apart":
                self._at += 1
                whole, term = term if whole is None else whole.plus(term), _Size()
            else:
                term = term.times(self._operand())
        total = term if whole is None else whole.plus(term)
        if self._is_endless and self._depth and whole is not None and total.degree > 1:
            raise _Costly
        return total

    @property
    def _kind(self) -> str:
        return self._tokens[self._at][0]

    def _operand(self) -> _Size:
        size = self._atom()
        while self._kind in ("power", "many", "below"):
            kind = self._kind
            self._at += 1
            if kind == "power":
                size = self._raised(size, self._argument())
            elif kind == "many":
                size = self._factorial(size)
            else:
                size = replace(size, has_functions=size.has_functions or self._argument().has_functions)
        return size

    def _argument(self) -> _Size:
        while self._kind == "apart" or self._tokens[self._at] == ("skip", "\\limits"):
            self._at += 1
        return self._atom() if self._kind not in ("end", "close") else _Size()

    def _atom(self) -> _Size:
        kind, text = self._tokens[self._at]
        self._at += kind != "end"
        match kind:
            case "number":
                digits = text.partition(".")[0].replace(",", "").lstrip("0")
                return _Size(math.log10(float(f"0.{digits[:9]}")) + len(digits) if digits else 0.0)
            case "letter":
                return _Size(degree=1.0)
            case "constant":
                return _Size(0.5)
            case "function":
                size = _Size(has_functions=True)
                return size.times(self._atom()) if self._kind == "open" else size
            case "exponential":
                return self._raised(_Size(0.5), self._argument())
            case "choose":
                return self._binomial(self._argument(), self._argument())
            case "open":
                self._depth += 1
                if self._depth > DEEPEST:
                    raise _Costly
                size = self.group()
                self._at += self._kind == "close"
                self._depth -= 1
                return replace(size, is_sum=True) if text.startswith("\\begin") else size
        return _Size()

    def _magnitude(self, size: _Size) -> float:
        return size.digits + self._letter * size.degree

    def _value(self, size: _Size) -> float:
        """The largest value, within what can be a number at all."""
        return 10 ** min(self._magnitude(size), 12)

    def _bounded(self, digits: float) -> float:
        if digits > MAX_DIGITS:
            raise _Costly
        return digits

    def _raised(self, base: _Size, power: _Size) -> _Size:
        value = self._value(power)
        if power.degree or power.has_open_power:
            if base.has_open_power or power.has_open_power:
                raise _Costly
            digits = self._bounded(self._magnitude(base) * value)
            return _Size(digits, has_functions=True, has_open_power=True)
        digits, degree = self._bounded(base.digits * value), base.degree * value
        expands = base.has_functions or (base.is_sum and base.degree > 0)
        if degree > HIGHEST_DEGREE or (expands and value > MAX_FACTORS):
            raise _Costly
        if self._letter > 1:
            self._bounded(digits + self._letter * degree)
        return replace(base, digits=digits, degree=degree)

    def _factorial(self, size: _Size) -> _Size:
        value = self._value(size)
        digits = self._bounded(value * math.log10(value + 1))
        return _Size(digits, has_functions=True, has_open_power=size.degree > 0)

    def _binomial(self, above: _Size, below: _Size) -> _Size:
        if (below.degree and not above.degree and self._value(above) > MAX_OF_A_BINOMIAL) or (
            above.degree and not below.degree and self._value(below) > MAX_FACTORS
        ):
            raise _Costly
        digits = min(0.302 * self._value(above), self._value(below) * self._magnitude(above))
        return _Size(self._bounded(digits), has_functions=True, has_open_power=above.degree + below.degree > 0)
