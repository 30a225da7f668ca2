"""Do two expressions have different values? By a rough estimate in milliseconds, where working them out can take for ever.

Everything is computed in figures, three ways. An integral: by Gauss-Legendre quadrature over two parts, twice with another place
where they meet, and by tanh-sinh quadrature (Takahasi, Mori 1974). An endless sum or product: up to three numbers of terms. A
limit: at three places near it. How far the ways are apart says how well a value is known: where an integrand oscillates, has
poles or peaks, they disagree. Equal values prove nothing; that is left to a computer algebra system.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from functools import lru_cache, partial, reduce
from typing import Any, NamedTuple

DIGITS = 100
DIGITS_OF_AN_INTEGRAL = 15
MORE_DIGITS = 5
"""Each way takes so many more than the one before it: what has cancelled shows."""
WAYS = range(3)
DEGREES = {1: 4, 2: 3, 3: 1}
"""mpmath's degree of quadrature by the number of integrals, which may be in one another: 3 x 2^(degree - 1) nodes a part. More
are not computed."""
TERMS = {0: (1_000, 10_000, 100_000), 1: (100, 400, 1_600), 2: (10, 20, 40), 3: (4, 7, 12)}
"""Terms of an endless sum or product by the number of those in one another; more are not computed. Places near a limit are so far
away where it is at infinity, else the reciprocal; the first row is that of limits without a sum."""
MAX_TERMS = 1_600
PLACES = ((0.35, 0.65), (1.1, 1.4), (2.2, 2.6))
"""Bounds of the letters' values. At another place an expression has values where it has none at the first, such as
\\sqrt{x - 1}."""
SHARES = (0.43171, 0.58643)
"""Where the two parts of an integral meet."""
CERTAIN = 30
"""Two values that are so many times further apart than the three ways are have not come out apart by error."""
ROUNDING = 1e-9
"""Relative error of a value, at least."""
ROUGHLY = 0.05
"""Relative error of what is known roughly."""
Part = Callable[..., Any]
"""An integral, a sum, a product or a limit as a function of its letters."""


class Estimate(NamedTuple):
    """`error`: how far the three ways are apart."""

    value: Any
    error: Any


def differ(gold: Any, answer: Any) -> bool:
    """Whether two sympy expressions of the same letters certainly have different values where these are positive, or the answer
    has an integral, a sum, a product or a limit whose value is not seen to come near that of the gold answer.

    Indefinite integrals are differentiated first. False where the gold answer has no value in figures. What is drawn is the same
    each time, so that a verdict is.
    """
    from sympy import Integral, Limit, Product, Sum

    integrals = gold.atoms(Integral) | answer.atoms(Integral)
    for name in {limit[0] for each in integrals for limit in each.limits if len(limit) == 1}:
        gold, answer = gold.diff(name), answer.diff(name)
    is_open, has_value = answer.has(Integral, Limit, Product, Sum), False
    names = sorted(gold.free_symbols | answer.free_symbols, key=str)
    draw = random.Random(0)
    for bounds in PLACES if names else PLACES[:1]:
        point = {name: draw.uniform(*bounds) for name in names}
        first = estimate(gold, point)
        if first is None or first.error > ROUGHLY * abs(first.value):
            first = estimate(worked_out(gold), point)
        second = estimate(answer, point) if first is not None else None
        has_value |= first is not None
        if first is not None and second is not None:
            break
    else:
        return has_value and is_open
    distance, scale = abs(first.value - second.value), max(abs(first.value), abs(second.value))
    if distance > CERTAIN * max(first.error, second.error, ROUNDING * scale):
        return True
    return is_open and bool(distance > ROUGHLY * scale)


@lru_cache(10_000)
def worked_out(gold: Any) -> Any:
    """A gold answer with its integrals, sums, products and limits worked out as far as sympy can. May take for ever."""
    return gold.doit()


def estimate(expression: Any, point: dict[Any, float]) -> Estimate | None:
    """The value of an expression at a point; None where it has none in figures."""
    import mpmath
    from sympy import Integral, Limit, Product, Sum

    digits = DIGITS_OF_AN_INTEGRAL if expression.has(Integral) and not expression.has(Limit) else DIGITS
    values = []
    for way in WAYS:
        with mpmath.workdps(digits + MORE_DIGITS * way):
            try:
                values.append(_value(expression, point, way))
            except (ArithmeticError, ValueError, TypeError, NameError, NotImplementedError):
                return None  # a pole, or what mpmath does not know
    if not all(map(mpmath.isfinite, values)):
        return None
    first, second, last = values
    steps = abs(second - first), abs(last - second)
    if expression.has(Sum, Product, Limit) and steps[1] > max(steps[0], ROUNDING * abs(last)):  # it does not approach anything
        return None
    return Estimate(last, max(*steps, abs(last - first)))


def _value(expression: Any, point: dict[Any, float], way: int) -> Any:
    import mpmath
    from sympy import Integral, Limit, Product, Sum, lambdify

    count = sum(len(integral.limits) for integral in expression.atoms(Integral))
    if count > len(DEGREES):
        raise NotImplementedError
    depth = max(map(_sums_in_one_another, expression.atoms(Sum, Product)), default=0)
    if depth not in TERMS:
        raise NotImplementedError
    parts: dict[str, Part] = {}
    whole = expression
    for kind in (Integral, Sum, Product, Limit):  # those inside another one first
        whole = whole.replace(kind, lambda *of, kind=kind: _set_apart(kind(*of), parts, way, count, TERMS[depth][way]))
    return mpmath.mpmathify(lambdify(list(point), whole, [parts, "mpmath"])(*point.values()))


def _sums_in_one_another(node: Any) -> int:
    from sympy import Product, Sum

    own = len(node.limits) if isinstance(node, Sum | Product) else 0
    return own + max(map(_sums_in_one_another, node.args), default=0)


def _set_apart(node: Any, parts: dict[str, Part], way: int, integrals: int, terms: int) -> Any:
    """A function of its letters, which is added to `parts`, in the place of an integral, a sum, a product or a limit."""
    from sympy import Function, Integral, Limit, Product, lambdify

    if isinstance(node, Limit):
        inside, bound = node.args[0], [(node.args[1], node.args[2])]
    else:
        inside, bound = node.function, [limit for limit in node.limits[::-1]]  # from outside
    letters = sorted(node.free_symbols, key=str)
    names = [*letters, *(limit[0] for limit in bound)]
    body = lambdify(names, inside, [parts, "mpmath"])
    ends = [lambdify(names[: len(letters) + number], limit[1:], [parts, "mpmath"]) for number, limit in enumerate(bound)]

    def over(number: int, *values: Any) -> Any:
        if number == len(ends):
            return body(*values)
        more = partial(over, number + 1, *values)
        place, *end = ends[number](*values)
        if isinstance(node, Integral):
            return _integral(more, place, end[0], way, integrals)
        if isinstance(node, Limit):
            return more(_near(place, str(node.args[3]), terms))
        return _repeated(more, place, end[0], terms, operator.mul if isinstance(node, Product) else operator.add)

    name = f"part_{len(parts)}"
    parts[name] = partial(over, 0)
    return Function(name)(*letters)


def _integral(body: Part, low: Any, high: Any, way: int, integrals: int) -> Any:
    import mpmath

    low, high = mpmath.mpf(low), mpmath.mpf(high)
    if way == 2:
        return mpmath.quad(body, [low, high], method="tanh-sinh", maxdegree=DEGREES[integrals])
    share = SHARES[way]
    return mpmath.quad(body, [low, _between(low, high, share), high], method="gauss-legendre", maxdegree=DEGREES[integrals])


def _between(low: Any, high: Any, share: float) -> Any:
    """A place in an interval, which may be endless."""
    import mpmath

    if mpmath.isinf(low) and mpmath.isinf(high):
        return share - 0.5
    if mpmath.isinf(low):
        return high - 2 * share
    return low + 2 * share if mpmath.isinf(high) else low + share * (high - low)


def _repeated(body: Part, low: Any, high: Any, terms: int, join: Callable[[Any, Any], Any]) -> Any:
    """A sum or a product."""
    import mpmath

    first = int(low)
    last = first + terms if mpmath.isinf(high) else int(high)
    if ((first, last) != (low, high) and not mpmath.isinf(high)) or last - first > MAX_TERMS:
        raise NotImplementedError
    return reduce(join, map(body, map(mpmath.mpf, range(first, last + 1))), mpmath.mpf(join is operator.mul))


def _near(place: Any, side: str, terms: int) -> Any:
    import mpmath

    if mpmath.isinf(place):
        return mpmath.sign(place) * terms
    distance = mpmath.mpf(1) / terms
    return place - distance if side == "-" else place + distance
