"""Units: a factor and the powers of base units. 5 cm is not 5 m; 5 m is 500 cm; a unit may be left out on either side."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from microrl.rewards.compare.lexer import Token, Unreadable, names


class Unit(NamedTuple):
    """`factor` base units; `powers` are pairs of a base unit's name and its power, sorted, none of them 0."""

    factor: Fraction
    powers: tuple[tuple[str, int], ...]


_TABLE: dict[str, tuple[str, str, int]] = {}
for _line in """
m meter metre = 1 m | cm centimeter centimetre = 1/100 m | mm millimeter millimetre = 1/1000 m | dm decimeter = 1/10 m
km kilometer kilometre = 1000 m | nm nanometer = 1/1000000000 m | in inch inche = 254/10000 m | ft foot feet = 3048/10000 m
yd yard = 9144/10000 m | mi mile = 1609344/1000 m
g gram gramme gm = 1 g | kg kilogram kilo = 1000 g | mg milligram = 1/1000 g
lb lbs = 45359237/100000 g | oz ounce = 28349523125/1000000000 g
s sec second = 1 s | ms millisecond = 1/1000 s | min minute = 60 s | h hr hour = 3600 s | day = 86400 s | week = 604800 s
month = 1 month | year yr = 12 month
L l liter litre = 1/1000 m 3 | mL ml milliliter millilitre = 1/1000000 m 3
gal gallon = 1 gallon | quart = 1/4 gallon | pint = 1/8 gallon
hectare ha = 10000 m 2 | acre = 40468564224/10000000 m 2
dollar USD usd buck = 1 dollar | cent = 1/100 dollar | euro EUR = 1 euro | pound = 1 pound | rupee Rs = 1 rupee | yen = 1 yen
dozen = 12 unit | unit = 1 unit | point pt = 1 point | N newton = 1 N | J joule = 1 J | kJ kilojoule = 1000 J | W watt = 1 W
kW kilowatt = 1000 W | V volt = 1 V | A amp ampere = 1 A
Hz hertz = 1 Hz | K kelvin = 1 K | Pa pascal = 1 Pa | ohm = 1 ohm | mol mole = 1 mol
mph = 1609344/3600000 m/s | kmh kph = 1000/3600 m/s | rpm = 1 rpm | rad radian = 1 radian
people person = 1 person | children child = 1 child
men man = 1 man | women woman = 1 woman | mice mouse = 1 mouse | dice die = 1 die
""".replace("\n", "|").split("|"):
    if _line.strip():
        _names, _, _meaning = _line.partition("=")
        _times, _base, _exponent = (*_meaning.split(), "1")[:3]
        for _name in _names.split():
            _TABLE[_name] = (_times, _base, int(_exponent))

DENIED = names(
    "hundred thousand million billion trillion zillion quadrillion half third quarter fifth tenth hundredth thousandth percent "
    "times plus minus squared cubed factorial over divided negative positive inverse reciprocal double triple twice base binary "
    "octal decimal hexadecimal modulo remainder approximately about nearly almost roughly around less more fewer greater than "
    "least most something nothing undefined infinity impossible wrong right correct incorrect maybe perhaps possibly other else "
    "otherwise unless except without with where when while because since either neither both never always false true answer "
    "degree root power exponent zero four five seven eight nine ten eleven twelve twenty halve lakh crore negated "
    "between through until from pairs pair couple "
    "score gross ratio"
)
"""Words that change a number, or take it back, and so are no units."""
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_MONEY = {"\\$": "dollar", "$": "dollar", "USD": "dollar", "€": "euro", "EUR": "euro", "£": "gbp", "¥": "yen"}


def currency(mark: str) -> Unit | None:
    """The unit that a sign or a code before a number stands for."""
    return Unit(Fraction(1), ((_MONEY[mark], 1),)) if mark in _MONEY else None


def read_unit(tokens: Sequence[Token]) -> Unit | None:
    """The unit that these tokens name; None where it says only "units". Raises Unreadable for what is none."""
    factor, powers, sign, at, strangers, is_open = Fraction(1), dict[str, int](), 1, 0, 0, True
    pending = 1
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if token.kind == "word" and token.text.lower() in _POWERS:
            pending = _POWERS[token.text.lower()]
        elif (token.kind, token.text) == ("word", "per") or (token.kind, token.text) == ("mark", "/"):
            if is_open or sign < 0:
                raise Unreadable
            sign, is_open = -1, True
        elif (token.kind, token.text) == ("command", "cdot") and not is_open:
            is_open = True
        elif token.kind == "word" or (token.kind == "letter" and at > 1 and tokens[at - 2].text == "/"):
            power, at = _power(tokens, at)
            power *= sign * pending
            pending, is_open = 1, False
            times, names, known = _named(token.text)
            strangers += not known
            factor *= times**power
            for name, exponent in names:
                powers[name] = powers.get(name, 0) + exponent * power
        else:
            raise Unreadable
    if is_open or pending != 1 or strangers > 1:
        raise Unreadable
    left = tuple(sorted((name, power) for name, power in powers.items() if power and name != "unit"))
    if not left and powers.keys() - {"unit"}:  # hours per week, which are left out like any other unit
        return Unit(Fraction(1), ((" ".join(token.text for token in tokens), 1),))
    return Unit(factor, left) if left or factor != 1 else None


def letter_as_unit(letter: str) -> Unit | None:
    """The unit that one letter may stand for, as in 3 m."""
    if letter not in _TABLE:
        return None
    factor, powers, _ = _named(letter)
    return Unit(factor, powers)


def _power(tokens: Sequence[Token], at: int) -> tuple[int, int]:
    """The power written after a unit, and where it ends."""
    texts = [token.text for token in tokens[at : at + 4]]
    if texts[:1] == ["^"]:
        if texts[1:2] == ["{"] and texts[3:4] == ["}"] and texts[2] in ("2", "3"):
            return int(texts[2]), at + 4
        if texts[1:2] and texts[1] in ("2", "3"):
            return int(texts[1]), at + 2
        raise Unreadable
    return 1, at


def _named(word: str) -> tuple[Fraction, tuple[tuple[str, int], ...], bool]:
    """Factor, base units and whether it is in the table; any other word of three letters or more is its own unit."""
    for form in (word, word.lower(), word.lower().removesuffix("s"), word.lower().removesuffix("es")):
        if form in _TABLE:
            factor, base, power = _TABLE[form]
            names = (("m", 1), ("s", -1)) if base == "m/s" else ((base, power),)
            return Fraction(factor), names, True
    singular = word.lower().removesuffix("s")
    if len(word) < 3 or word.lower() in DENIED or singular in DENIED or singular.removesuffix("e") in DENIED:
        raise Unreadable
    return Fraction(1), ((singular, 1),), False
