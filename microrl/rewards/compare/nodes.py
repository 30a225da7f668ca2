"""What an answer can be, once it is read."""

from __future__ import annotations

from dataclasses import dataclass

from microrl.rewards.compare.lexer import names
from microrl.rewards.compare.tree import Tree, nodes
from microrl.rewards.compare.units import Unit

INFINITY: Tree = ("infinity",)
MINUS_INFINITY: Tree = ("-", INFINITY)


@dataclass(frozen=True, slots=True)
class Value:
    """A number or an expression with letters, with its unit if it has one."""

    tree: Tree
    unit: Unit | None = None


@dataclass(frozen=True, slots=True)
class Based:
    """A number in another base than ten: its digits and the base, both as written."""

    digits: str
    base: str


@dataclass(frozen=True, slots=True)
class Ratio:
    """`3:4`, or a time such as `3:30 pm`: `texts` are the parts as written, `suffix` is am, pm or nothing."""

    parts: tuple[Tree, ...]
    texts: tuple[str, ...]
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """Bare words, in lower case, with single spaces."""

    text: str


@dataclass(frozen=True, slots=True)
class Chain:
    """Relations: `parts` with one of `= < > le ge ne approx` between each two."""

    parts: tuple[Node, ...]
    marks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Several things: a `list` without brackets, a `tuple` in round ones, `square` ones, or a `set`.

    `choice`: a list joined by "or".
    """

    kind: str
    items: tuple[Node, ...]
    choice: bool = False


@dataclass(frozen=True, slots=True)
class Interval:
    low: Tree
    high: Tree
    low_open: bool
    high_open: bool


@dataclass(frozen=True, slots=True)
class Region:
    """The union of intervals and sets, without the points of the sets in `without`."""

    parts: tuple[Node, ...]
    without: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Matrix:
    rows: tuple[tuple[Tree, ...], ...]


Node = Value | Based | Ratio | Words | Chain | Group | Interval | Region | Matrix
_APPLIED = names("f g h F G H P Q S T N E V W A B C D K L M R p q")
"""Letters that are read as functions before a bracket."""
REALS = Interval(MINUS_INFINITY, INFINITY, True, True)


def is_infinite(tree: Tree) -> bool:
    """Whether it is infinity or minus infinity itself."""
    return tree in (INFINITY, MINUS_INFINITY)


def is_name(node: Node) -> bool:
    """Whether it can be what something is called: words, a letter, letters with each small one once, or a value of a function."""
    if isinstance(node, Words):
        return True
    if isinstance(node, Group):
        return all(map(is_name, node.items))
    if isinstance(node, Ratio):
        return not node.suffix and all(is_name(Value(part)) for part in node.parts)
    if not isinstance(node, Value) or node.unit is not None:
        return False
    tree = node.tree
    if tree[0] == "apply":
        return True
    if tree[0] == "*" and len(tree) == 3 and tree[1][0] == "letter" and tree[1][1][:1] in _APPLIED:
        return True
    letters = [each[1] for each in nodes(tree) if each[0] == "letter"]
    small = [letter for letter in letters if not letter.isupper() and not (letter == "d" and tree[0] == "/")]  # dy / dx
    return (
        bool(letters)
        and len(small) == len(set(small))
        and all(each[0] in ("letter", "*", "+", "/", "-", "call") for each in nodes(tree))
    )
