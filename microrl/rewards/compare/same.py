"""Do two readings say the same? The rules by kind; `microrl guide rewards` states them for people."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from microrl.rewards.compare.nodes import (
    Based,
    Chain,
    Group,
    Interval,
    Matrix,
    Node,
    Ratio,
    Region,
    Value,
    Words,
    is_infinite,
    is_name,
)
from microrl.rewards.compare.regions import FLIPPED, NoRegion, same_region
from microrl.rewards.compare.tree import TooHard, Tree, exact, letters_of, nodes
from microrl.rewards.compare.units import Unit, letter_as_unit
from microrl.rewards.compare.values import constant_ratio, equal, is_decimal, is_rounded

MAX_UNORDERED = 40
"""Items of a list or set whose order does not matter."""
_CENT = Unit(Fraction(1, 100), (("dollar", 1),))
_COUNTING = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
    "nineteen twenty"
)
NUMBERS = {word: str(number) for number, word in enumerate(_COUNTING.split())}


def same(gold: Node, answer: Node) -> bool:
    """Raises TooHard where the bounds do not allow it to be told, Undefined where one has no value."""
    match gold, answer:
        case Value(), Value():
            return _same_value(gold, answer)
        case Chain(), Chain():
            return _same_chain(gold, answer)
        case _, Chain():
            return _stated(gold, answer) if _is_statement(answer) else _same_region(gold, answer)
        case Chain(), _:
            named = _named_value(gold)
            return same(named, answer) if named is not None else _same_region(gold, answer)
        case Words(), Words():
            return gold.text == answer.text
        case (Words(word), Value(("letter", name), None)) | (Value(("letter", name), None), Words(word)):
            return word == name.lower()
        case (Words(word), Value(tree, None)) | (Value(tree, None), Words(word)) if word in NUMBERS:
            return equal(tree, ("number", Fraction(NUMBERS[word]), False))
        case Based(), Based():
            return gold.digits == answer.digits and _base(gold) == _base(answer)
        case (Based(), Value()) | (Value(), Based()):
            return _same_based(gold, answer)
        case Ratio(), Ratio():
            return _same_ratio(gold, answer)
        case (Ratio(), Value()) | (Value(), Ratio()):
            ratio, value = (gold, answer) if isinstance(gold, Ratio) else (answer, gold)
            assert isinstance(ratio, Ratio) and isinstance(value, Value)
            if _is_time(ratio) or len(ratio.parts) != 2 or value.unit is not None:
                return False
            if value is gold and (size := exact(value.tree)) is not None and size.denominator == 1:
                return False  # whoever answers 17:1 has not said 17
            return equal(("/", *ratio.parts), value.tree)
        case Matrix(rows), Matrix(others):
            return [len(row) for row in rows] == [len(row) for row in others] and all(
                equal(a, b) for row, other in zip(rows, others, strict=True) for a, b in zip(row, other, strict=True)
            )
        case Group("set", (single,)), Value():
            return same(single, answer)
        case Group("list", items, True), Value() if all(same(items[0], item) for item in items):  # 3/2 or 1.5
            return all(same(item, answer) for item in items)
        case Value(), Group("list", items, True):
            return all(same(gold, item) and same(items[0], item) for item in items)
        case Group(), Group():
            return _same_group(gold, answer) or (
                (_has_conditions(gold) or _has_conditions(answer)) and _same_region(gold, answer)
            )
        case (Interval() | Region() | Group(), Interval() | Region() | Group()):
            return _same_region(gold, answer)
    return False


def _has_conditions(group: Group) -> bool:
    return group.kind == "list" and any(isinstance(item, Chain) and not _is_statement(item) for item in group.items)


def _same_region(gold: Node, answer: Node) -> bool:
    try:
        return gold == answer or same_region(gold, answer)
    except NoRegion:
        return False


# ---- values


def _same_value(gold: Value, answer: Value) -> bool:
    gold, answer = _with_letter_as_unit(gold, answer), _with_letter_as_unit(answer, gold)
    if _is_in_radians(gold) and answer.unit is None and _in_degrees(answer.tree):
        return equal(gold.tree, ("/", ("*", answer.tree, ("constant", "pi")), ("number", Fraction(180), False)))
    marks = _marks(gold), _marks(answer)
    if all(marks) and not marks[0] & marks[1]:
        return False
    units = gold.unit, answer.unit
    if units[0] is not None and units[1] is not None and units[0].powers and units[1].powers:
        return units[0].powers == units[1].powers and _same_percent(_scaled(gold), _scaled(answer))
    # One side leaves the unit out: then the numbers are the same as they are written.
    a, b = (value.tree if value.unit is not None and value.unit.powers else _scaled(value) for value in (gold, answer))
    if gold.unit is None and answer.unit == _CENT and is_decimal(gold.tree) and equal(gold.tree, _scaled(answer)):
        return True  # an amount of money with a decimal point is in dollars
    return _same_percent(a, b)


def _in_degrees(tree: Tree) -> bool:
    return tree[0] == "degrees" or (tree[0] == "-" and tree[1][0] == "degrees")


def _is_in_radians(value: Value) -> bool:
    """Whether it is said to be, or is a rational multiple of pi."""
    if value.unit is not None:
        return value.unit.powers == (("radian", 1),)
    kinds = {node[0] for node in nodes(value.tree)}
    return "constant" in kinds and kinds <= {"number", "constant", "*", "/", "-"} and ("constant", "pi") in nodes(value.tree)


def _marks(value: Value) -> set[str]:
    """What the number is followed by. One may be left out, but 5% is not 5 m, and 5 degrees are neither."""
    sign = {value.tree[0]} & {"percent", "degrees"}
    return sign | {"unit"} if value.unit is not None and value.unit.powers else sign


def _with_letter_as_unit(value: Value, other: Value) -> Value:
    """3 m, where the other one is a length, and m was read as a variable."""
    if value.unit is not None or other.unit is None or value.tree[0] != "*" or len(value.tree) != 3:
        return value
    number, letter = value.tree[1:]
    unit = letter_as_unit(letter[1]) if letter[0] == "letter" and number[0] == "number" else None
    return value if unit is None or unit.powers != other.unit.powers else Value(number, unit)


def _scaled(value: Value) -> Tree:
    """The number in base units."""
    unit: Unit | None = value.unit
    return value.tree if unit is None or unit.factor == 1 else ("*", ("number", unit.factor, False), value.tree)


def _same_percent(a: Tree, b: Tree) -> bool:
    """50% is 50% and 0.5; and 50, for numbers above 1: the question has asked for a percentage then."""
    signs = a[0] == "percent", b[0] == "percent"
    if signs == (True, True):
        return equal(a[1], b[1])
    if equal(a, b):
        return True
    if signs == (False, False):
        return False
    with_sign, without = (a[1], b) if signs[0] else (b[1], a)
    if is_infinite(without):
        return False
    size = exact(without)
    return size is not None and abs(size) > 1 and equal(with_sign, without)


def _base(number: Based) -> str:
    return NUMBERS.get(number.base, number.base)


def _same_based(gold: Node, answer: Node) -> bool:
    """A number without a base is one in base ten."""
    based, value = (gold, answer) if isinstance(gold, Based) else (answer, gold)
    if not isinstance(based, Based) or not isinstance(value, Value) or _base(based) != "10" or not based.digits.isdigit():
        return False
    return equal(("number", Fraction(based.digits), False), value.tree)


def _is_time(ratio: Ratio) -> bool:
    return len(ratio.parts) == 2 and (
        bool(ratio.suffix) or (len(ratio.texts[1]) == 2 and all(text.isdigit() and len(text) <= 2 for text in ratio.texts))
    )


def _same_ratio(gold: Ratio, answer: Ratio) -> bool:
    """3:4 is 6:8, but 3:30 may be a time and is 3:30 only. am and pm may be left out."""
    if len(gold.parts) != len(answer.parts):
        return False
    if gold.suffix and answer.suffix and gold.suffix != answer.suffix:
        return False
    if _is_time(gold) or _is_time(answer):
        return all(map(equal, gold.parts, answer.parts))
    first, other = gold.parts[0], answer.parts[0]
    return all(equal(("*", first, b), ("*", other, a)) for a, b in zip(gold.parts[1:], answer.parts[1:], strict=True))


# ---- lists, tuples, sets


def _same_group(gold: Group, answer: Group) -> bool:
    """Brackets make a difference; a list without brackets may be any of them but one in square brackets."""
    kinds = gold.kind, answer.kind
    if kinds == ("set", "set"):
        return _has_all(gold.items, answer.items) and _has_all(answer.items, gold.items)
    if kinds in (("set", "list"), ("list", "set")):
        return _are_paired(gold.items, answer.items)
    if kinds == ("list", "list"):
        statements = [sum(isinstance(item, Chain) for item in group.items) for group in (gold, answer)]
        if statements[0] and not statements[1]:  # x = 1, y = 2 is not 2, 1
            return _are_same(gold.items, answer.items)
        return _are_paired(gold.items, answer.items)
    if kinds[0] == kinds[1] or kinds in (("tuple", "list"), ("list", "tuple")):
        return _are_same(gold.items, answer.items)
    return False


def _are_same(golds: Sequence[Node], answers: Sequence[Node]) -> bool:
    return len(golds) == len(answers) and all(map(same, golds, answers))


def _are_paired(golds: Sequence[Node], answers: Sequence[Node]) -> bool:
    """Whether each has its own partner, in any order."""
    if len(golds) != len(answers):
        return False
    if len(golds) > MAX_UNORDERED:
        raise TooHard
    left = list(answers)
    for item in golds:
        partner = next((number for number, other in enumerate(left) if same(item, other)), None)
        if partner is None:
            return False
        del left[partner]
    return True


def _has_all(golds: Sequence[Node], answers: Sequence[Node]) -> bool:
    if max(len(golds), len(answers)) > MAX_UNORDERED:
        raise TooHard
    return all(any(same(item, other) for other in answers) for item in golds)


# ---- relations


def _is_statement(chain: Chain) -> bool:
    return all(mark in ("=", "approx") for mark in chain.marks)


def _stated(gold: Node, answer: Chain) -> bool:
    """x = 42 says 42, and so does x = 6 * 7 = 42: all that is said must be right. 41 = 42 says both, and 42 = x says 42.

    After an approximation sign a decimal may stand that is the number rounded.
    """
    parts, marks = list(answer.parts), ["=", *answer.marks]
    if is_name(parts[0]) and not isinstance(gold, Words):
        parts, marks = parts[1:], marks[1:]
    elif len(parts) == 2 and is_name(parts[1]) and not isinstance(gold, Words):
        parts, marks = parts[:1], marks[:1]
    for number, (part, mark) in enumerate(zip(parts, marks, strict=True)):
        if mark == "approx" and number > 0 and isinstance(gold, Value) and isinstance(part, Value) and part.unit == gold.unit:
            if not same(gold, part) and not is_rounded(gold.tree, part.tree):
                return False
        elif not same(gold, part):
            return False
    return bool(parts)


def _named_value(gold: Chain) -> Node | None:
    """What a gold answer such as x = 42, y = 2x + 1 or pi = 3.14 roughly says: of its letter if it has one, and exactly."""
    has_name = is_name(gold.parts[0]) and gold.marks[0] in ("=", "approx")
    return gold.parts[has_name] if all(mark == "approx" for mark in gold.marks[has_name:]) else None


def _same_chain(gold: Chain, answer: Chain) -> bool:
    names = gold.parts[0], answer.parts[0]
    is_one_name = names[0] == names[1] or (set(names) == _CURVE and not _has_y([*gold.parts[1:], *answer.parts[1:]]))
    if gold.marks[0] == "=" and answer.marks[0] == "=" and is_name(names[0]) and is_one_name:
        rest = Chain(answer.parts, answer.marks)
        return len(gold.parts) == 2 and _is_statement(rest) and _stated(gold.parts[1], rest)
    if len(gold.parts) == len(answer.parts) == 2:
        return _same_relation(gold, answer)
    if _same_region(gold, answer):
        return True
    turned = Chain(answer.parts[::-1], tuple(FLIPPED.get(mark, mark) for mark in answer.marks[::-1]))
    return any(gold.marks == each.marks and _are_same(gold.parts, each.parts) for each in (answer, turned))


_CURVE: set[Node] = {Value(("letter", "y")), Value(("apply", "f()", ("letter", "x")))}
"""f(x) = x + 1 and y = x + 1 say the same."""


def _has_y(parts: Sequence[Node]) -> bool:
    return any(isinstance(part, Value) and "y" in letters_of(part.tree) for part in parts)


def _same_relation(gold: Chain, answer: Chain) -> bool:
    """Whether left side minus right side is the same but for a constant factor, which must not turn an inequality round."""
    a, b = _as_difference(gold), _as_difference(answer)
    if a is None or b is None or a[0] != b[0]:
        return gold.marks == answer.marks and _are_same(gold.parts, answer.parts)
    sign = constant_ratio(a[1], b[1])
    return sign is not None and (sign > 0 or a[0] in ("=", "ne"))


def _as_difference(chain: Chain) -> tuple[str, Tree] | None:
    left, right = chain.parts
    mark = chain.marks[0]
    if mark == "approx" or not (isinstance(left, Value) and isinstance(right, Value)):
        return None
    if left.unit is not None or right.unit is not None or is_infinite(left.tree) or is_infinite(right.tree):
        return None
    if mark in (">", "ge"):
        left, right, mark = right, left, FLIPPED[mark]
    return mark, ("+", left.tree, ("-", right.tree))
