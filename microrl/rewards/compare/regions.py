"""Sets of real numbers: intervals, inequalities and their unions, made one form so that they can be compared."""

from __future__ import annotations

from microrl.rewards.compare.nodes import (
    INFINITY,
    MINUS_INFINITY,
    REALS,
    Chain,
    Group,
    Interval,
    Node,
    Region,
    Value,
    is_infinite,
    is_name,
)
from microrl.rewards.compare.tree import Tree, letters_of
from microrl.rewards.compare.values import approximate, equal

FLIPPED = {"<": ">", ">": "<", "le": "ge", "ge": "le", "ne": "ne"}


class NoRegion(Exception):
    """It is no set of real numbers that this module knows."""


def same_region(gold: Node, answer: Node) -> bool:
    """Raises NoRegion, TooHard, Undefined."""
    letters: set[str] = set()
    others: set[str] = set()
    golds, answers = _pieces(gold, letters), _pieces(answer, others)
    if len(others) > 1 or (letters and len(letters | others) > 1):
        return False
    if len(golds) == len(answers) == 1 or any(letters_of(piece.low) or letters_of(piece.high) for piece in golds + answers):
        return len(golds) == len(answers) and all(map(_same_interval, golds, answers))
    golds, answers = _merged(golds), _merged(answers)
    return len(golds) == len(answers) and all(map(_same_interval, golds, answers))


def _same_interval(a: Interval, b: Interval) -> bool:
    return (a.low_open, a.high_open) == (b.low_open, b.high_open) and equal(a.low, b.low) and equal(a.high, b.high)


def _pieces(node: Node, letters: set[str]) -> list[Interval]:
    """The intervals that a node is the union of, a point being [a, a]. `letters` collects what inequalities are about."""
    match node:
        case Interval():
            return [_opened(node)]
        case Group("set", items):
            return [_point(item) for item in items]
        case Group("tuple" | "square", (Value(low, None), Value(high, None))):
            return [Interval(low, high, node.kind == "tuple", node.kind == "tuple")]
        case Group("list", items, True):
            return [piece for item in items for piece in _pieces(item, letters)]
        case Group("list", [Chain((name, _), ("ne",)) as first, *rest], False) if all(isinstance(each, Value) for each in rest):
            return _all_of([_pieces(each, letters) for each in (first, *(Chain((name, each), ("ne",)) for each in rest))])
        case Group("list", items, False) if any(isinstance(item, Chain) for item in items):  # x > 0, x != 1
            return _all_of([_pieces(item, letters) for item in items])
        case Chain():
            return _solutions(node, letters)
        case Region(parts, without):
            pieces = [piece for part in parts for piece in _pieces(part, letters)]
            for part in without:
                for gap in _pieces(part, letters):
                    pieces = _without(_merged(pieces), gap)
            return pieces
    raise NoRegion


def _opened(piece: Interval) -> Interval:
    """Infinity belongs to no interval, whatever its bracket."""
    return Interval(piece.low, piece.high, piece.low_open or is_infinite(piece.low), piece.high_open or is_infinite(piece.high))


def _point(node: Node) -> Interval:
    if not isinstance(node, Value) or node.unit is not None:
        raise NoRegion
    return Interval(node.tree, node.tree, False, False)


def _solutions(chain: Chain, letters: set[str]) -> list[Interval]:
    """Of `a < x`, `x < b`, `a < x < b` and `x != a`, with one letter, or one name such as f(x)."""
    match chain:
        case Chain((Value() as name, Group("list", items)), ("ne",)):  # x != plus or minus 1
            return _all_of([_solutions(Chain((name, item), ("ne",)), letters) for item in items])
    trees = []
    for part in chain.parts:
        if not isinstance(part, Value) or part.unit is not None:
            raise NoRegion
        trees.append(part.tree)
    indices = [number for number, tree in enumerate(trees) if letters_of(tree)]
    if len(indices) != 1 or not is_name(chain.parts[indices[0]]) or any(mark not in FLIPPED for mark in chain.marks):
        raise NoRegion
    index = indices[0]
    letters.add(repr(trees[index]))
    bounds = []  # what the letter is, as marks seen from it
    if index > 0:
        bounds.append((FLIPPED[chain.marks[index - 1]], trees[index - 1]))
    if index < len(trees) - 1:
        bounds.append((chain.marks[index], trees[index + 1]))
    if len(trees) > 3 or len(bounds) != len(trees) - 1:
        raise NoRegion
    low, high, low_open, high_open = MINUS_INFINITY, INFINITY, True, True
    for mark, bound in bounds:
        if mark == "ne" and len(bounds) == 1:
            return _without([REALS], Interval(bound, bound, False, False))
        if mark in (">", "ge") and low == MINUS_INFINITY:
            low, low_open = bound, mark == ">"
        elif mark in ("<", "le") and high == INFINITY:
            high, high_open = bound, mark == "<"
        else:
            raise NoRegion
    return [Interval(low, high, low_open, high_open)]


def _order(tree: Tree) -> float:
    if is_infinite(tree):
        return float("inf") if tree == INFINITY else float("-inf")
    return approximate(tree)


def _merged(pieces: list[Interval]) -> list[Interval]:
    """Sorted, and those that touch made one. Raises NoRegion where one has no point: all such ones would be the same, and the
    pair (5, 3) one of them."""
    for piece in pieces:
        if _order(piece.low) > _order(piece.high) or (equal(piece.low, piece.high) and (piece.low_open or piece.high_open)):
            raise NoRegion
    merged: list[Interval] = []
    for piece in sorted(pieces, key=lambda piece: (_order(piece.low), piece.low_open)):
        last = merged[-1] if merged else None
        if last is None or not _touch(last, piece):
            merged.append(piece)
            continue
        if equal(last.high, piece.high):
            high, high_open = last.high, last.high_open and piece.high_open
        elif _order(last.high) > _order(piece.high):
            high, high_open = last.high, last.high_open
        else:
            high, high_open = piece.high, piece.high_open
        merged[-1] = Interval(last.low, high, last.low_open, high_open)
    return merged


def _touch(first: Interval, second: Interval) -> bool:
    if equal(first.high, second.low):
        return not (first.high_open and second.low_open)
    return _order(first.high) > _order(second.low)


def _all_of(regions: list[list[Interval]]) -> list[Interval]:
    """What lies in each of these unions. Raises NoRegion where nothing does."""
    common = regions[0]
    for region in regions[1:]:
        common = [both for a in common for b in region if (both := _common(a, b)) is not None]
    if not common:
        raise NoRegion
    return common


def _without(pieces: list[Interval], gap: Interval) -> list[Interval]:
    sides = []
    if not is_infinite(gap.low):
        sides.append(Interval(MINUS_INFINITY, gap.low, True, not gap.low_open))
    if not is_infinite(gap.high):
        sides.append(Interval(gap.high, INFINITY, not gap.high_open, True))
    return [left for piece in pieces for side in sides if (left := _common(piece, side)) is not None]


def _common(a: Interval, b: Interval) -> Interval | None:
    """What lies in both; None where nothing does."""
    low, low_open = _inner(a.low, a.low_open, b.low, b.low_open, 1)
    high, high_open = _inner(a.high, a.high_open, b.high, b.high_open, -1)
    if equal(low, high):
        return None if low_open or high_open else Interval(low, high, False, False)
    return Interval(low, high, low_open, high_open) if _order(low) < _order(high) else None


def _inner(a: Tree, a_open: bool, b: Tree, b_open: bool, sign: int) -> tuple[Tree, bool]:
    """The end that leaves less: of two lower ends (`sign` 1) the larger one, of two upper ends (-1) the smaller one."""
    if equal(a, b):
        return a, a_open or b_open
    return (a, a_open) if sign * _order(a) > sign * _order(b) else (b, b_open)
