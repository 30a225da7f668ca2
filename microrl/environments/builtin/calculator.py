"""A calculator: `--env calculator`. Numbers are exact, and no expression costs more than a moment."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from fractions import Fraction

LONGEST = 1000
"""Characters of an expression."""
MAX_BITS = 4096
"""Of a numerator or a denominator: some 1,200 digits."""
SMALLEST = 1e-300
"""Of a number with a decimal point. Python would round smaller ones to 0."""
AS_PYTHON = str.maketrans({"^": "**", "\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "\u2212": "-"})
"""As people write powers, products, quotients and differences."""
OPERATORS: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
}


class Calculator:
    """One tool. It keeps nothing between its calls, and gives no reward of its own: the answer's is enough."""

    def reset(self, **row: object) -> None:
        """Begin an episode."""

    def calculate(self, expression: str) -> str:
        """Evaluate an arithmetic expression exactly. Fractions stay fractions.

        Args:
            expression: Numbers, + - * / // % **, and parentheses, for example (1/3 + 2) * 6.
        """
        if len(expression) > LONGEST:
            raise ValueError(f"the expression has {len(expression):,} characters; the limit is {LONGEST:,}")
        source = " ".join(expression.translate(AS_PYTHON).split())
        try:
            return str(_value(ast.parse(source, mode="eval").body, source))
        except ZeroDivisionError:
            raise ValueError("division by zero") from None


def _value(node: ast.expr, source: str) -> Fraction:
    """The value of a part of an expression. Raises ValueError for what is no arithmetic, and for numbers that are too large."""
    match node:
        case ast.Constant(value=bool() | complex() | str() | bytes() | None):
            raise ValueError(f"`{ast.unparse(node)}` is not a number")
        case ast.Constant(value=int(number)):
            value = Fraction(number)
        case ast.Constant(value=float(number)):
            text = ast.get_source_segment(source, node) or ""
            if text.strip("0.") and not SMALLEST < number < 1 / SMALLEST:
                raise ValueError(f"{text} is too large or too small")
            value = Fraction(text)  # 0.1 is 1/10, and not its float
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
            value = _value(operand, source) if isinstance(sign, ast.UAdd) else -_value(operand, source)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            value = _power(_value(left, source), _value(right, source))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
            value = OPERATORS[type(sign)](_value(left, source), _value(right, source))
        case _:
            raise ValueError("only numbers, + - * / // % ** and parentheses are understood")
    if _bits(value) > MAX_BITS:
        raise ValueError("the number is too large")
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ValueError("an exponent has to be an integer")
    if abs(exponent) * _bits(base) > MAX_BITS and abs(base) != 1:
        raise ValueError("the number is too large")
    power = base ** int(exponent)
    assert isinstance(power, Fraction)
    return power


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())
