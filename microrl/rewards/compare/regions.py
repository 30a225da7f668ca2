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

_FLIPPED = {"<": ">", ">": "<", "le": "ge", "ge": "le", "ne": "ne"}


class NoRegion(Exception):
    """It is no set of real numbers that this module knows."""


def same_region(gold: Node, answer: Node) -> bool:
    """Raises NoRegion, TooHard, Undefined."""
    letters: set[str] = set()
    golds = _pieces(gold, letters)
    both = letters.copy()
    answers = _pieces(answer, both)
    if letters and len(both) > 1:
        return False
    if len(golds) == len(answers) == 1 or any(_has_letters(piece) for piece in golds + answers):
        return len(golds) == len(answers) and all(map(_same_interval, golds, answers))
    golds, answers = _merged(golds), _merged(answers)
    return len(golds) == len(answers) and all(map(_same_interval, golds, answers))


def _has_letters(piece: Interval) -> bool:
    return bool(letters_of(piece.low) or letters_of(piece.high))


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
        case Chain():
            return _solutions(node, letters)
        case Region(parts, without):
            found = [piece for part in parts for piece in _pieces(part, letters)]
            for part in without:
                if not isinstance(part, Group) or part.kind != "set":
                    raise NoRegion
                for item in part.items:
                    found = _without(_merged(found), _point(item).low)
            return found
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
    trees = []
    for part in chain.parts:
        if not isinstance(part, Value) or part.unit is not None:
            raise NoRegion
        trees.append(part.tree)
    places = [number for number, tree in enumerate(trees) if letters_of(tree)]
    if len(places) != 1 or not is_name(chain.parts[places[0]]) or any(mark not in _FLIPPED for mark in chain.marks):
        raise NoRegion
    place = places[0]
    letters.add(repr(trees[place]))
    bounds = []  # what the letter is, as marks seen from it
    if place > 0:
        bounds.append((_FLIPPED[chain.marks[place - 1]], trees[place - 1]))
    if place < len(trees) - 1:
        bounds.append((chain.marks[place], trees[place + 1]))
    if len(trees) > 3 or len(bounds) != len(trees) - 1:
        raise NoRegion
    low, high, low_open, high_open = MINUS_INFINITY, INFINITY, True, True
    for mark, bound in bounds:
        if mark == "ne" and len(bounds) == 1:
            return _without([REALS], bound)
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
    found: list[Interval] = []
    for piece in sorted(pieces, key=lambda piece: (_order(piece.low), piece.low_open)):
        last = found[-1] if found else None
        if last is None or not _touch(last, piece):
            found.append(piece)
            continue
        if equal(last.high, piece.high):
            high, high_open = last.high, last.high_open and piece.high_open
        elif _order(last.high) > _order(piece.high):
            high, high_open = last.high, last.high_open
        else:
            high, high_open = piece.high, piece.high_open
        found[-1] = Interval(last.low, high, last.low_open, high_open)
    return found


def _touch(first: Interval, second: Interval) -> bool:
    if equal(first.high, second.low):
        return not (first.high_open and second.low_open)
    return _order(first.high) > _order(second.low)


def _without(pieces: list[Interval], point: Tree) -> list[Interval]:
    found = []
    for piece in pieces:
        at_low, at_high = equal(piece.low, point), equal(piece.high, point)
        if at_low or at_high:
            if not (at_low and at_high):
                found.append(Interval(piece.low, piece.high, piece.low_open or at_low, piece.high_open or at_high))
        elif _order(piece.low) < _order(point) < _order(piece.high):
            found.append(Interval(piece.low, point, piece.low_open, True))
            found.append(Interval(point, piece.high, True, piece.high_open))
        else:
            found.append(piece)
    return found
