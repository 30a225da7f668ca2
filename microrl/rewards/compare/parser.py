r"""From tokens to what they say. One grammar for LaTeX and plain text; what it cannot read raises Unreadable.

Juxtaposition is multiplication, from left to right and as strong as `/`: 1/2x is x/2. Two numbers side by side are no product,
but `2 1/2` and `2\frac{1}{2}` are mixed numbers where the fraction is one of whole numbers below 1. `e`, `i` and `\pi` are the
constants. `\pm` stands for two values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product, repeat

from microrl.rewards.compare.expressions import Expressions
from microrl.rewards.compare.lexer import Token, Unreadable
from microrl.rewards.compare.nodes import Chain, Group, Interval, Node, Ratio, Region, Value, Words, is_infinite, is_name
from microrl.rewards.compare.tree import Tree, nodes
from microrl.rewards.compare.units import Unit, currency, read_unit

RELATIONS = ("=", "<", ">", "le", "ge", "ne")
_UNION = ("cup", "setminus")
_SAYS = ("is", "are")
_LARGE = {"hundred": Fraction(10**2), "thousand": Fraction(10**3), "million": Fraction(10**6), "billion": Fraction(10**9)}
_CELSIUS = {"c": "celsius", "celsius": "celsius", "f": "fahrenheit", "fahrenheit": "fahrenheit"}


def parse(tokens: Sequence[Token]) -> Node:
    """Raises Unreadable."""
    if tokens and all(token.kind == "word" for token in tokens):
        return Words(" ".join(token.text for token in tokens).lower())
    parser = _Parser(tokens)
    node = parser.items()
    parser.expect_end()
    return node


class _Parser(Expressions):
    def expect_end(self) -> None:
        if self._peek().kind != "end":
            raise Unreadable

    # ---- lists and relations

    def items(self) -> Node:
        """One thing, or a list of them."""
        items, choice = [self._item()], False
        while (joined := self._separator()) is not None:
            choice |= joined == "or"
            items.append(self._item())
        if len(items) == 1:
            return items[0]
        flat: list[Node] = []
        for node in items:  # a list from plus-or-minus
            flat += node.items if isinstance(node, Group) and node.kind == "list" else (node,)
        match flat:  # x = 1, 2, 3
            case [Chain((name, first), ("=",)), *rest] if is_name(name) and all(isinstance(node, Value) for node in rest):
                return Chain((name, Group("list", (first, *rest), choice)), ("=",))
        return Group("list", tuple(flat), choice)

    def _separator(self) -> str | None:
        joined = "," if self._take(",", ";") else None
        token = self._peek()
        if (token.kind == "word" and token.text.lower() in ("or", "and")) or self._is("vee", "lor", "wedge", "land"):
            self._at += 1
            return "or" if token.text.lower() in ("or", "vee", "lor") else "and"
        return joined

    def _item(self) -> Node:
        self._take("approx", "=")  # = 17 and about 17 say 17
        label = self._label()
        parts: list[Node] = [label or self._operand()]
        marks: list[str] = []
        if label is not None and (self._peek(-1).text in _SAYS or self._take(":")):
            marks.append("=")
            parts.append(self._operand())
        while self._is(*RELATIONS, "approx"):
            marks.append(self._need(*RELATIONS, "approx"))
            parts.append(self._operand())
        if not marks:
            if self._take("in"):
                return self._members_of(parts[0])
            return parts[0]
        return Chain(tuple(parts), tuple(marks))

    def _label(self) -> Words | None:
        """Words before an equals sign or a colon, words that end with "is" or "are", or words alone."""
        ahead = 0
        while self._peek(ahead).kind == "word" and self._peek(ahead).text.lower() not in ("or", "and"):
            ahead += 1
        follows = self._peek(ahead)
        is_said = ahead > 0 and self._peek(ahead - 1).text in _SAYS
        if ahead == 0 or not (is_said or follows.kind in ("end", "word") or follows.text in ("=", ":", ",", ";", "approx")):
            return None
        words = " ".join(self._peek(number).text for number in range(ahead)).lower()
        self._at += ahead
        return Words(words)

    def _members_of(self, letter: Node) -> Node:
        if not (isinstance(letter, Value) and letter.tree[0] == "letter"):
            raise Unreadable
        return self._operand()

    def _operand(self) -> Node:
        first = self._measured()
        marks = (*_UNION, "-") if isinstance(first, Interval) else _UNION
        if not self._is(*marks):
            return first
        parts: list[Node] = [first]
        without: list[Node] = []
        while self._is(*marks):
            is_union = self._need(*marks) == "cup"
            if is_union and without:
                raise Unreadable
            (parts if is_union else without).append(self._measured())
        return Region(tuple(parts), tuple(without))

    # ---- units, ratios

    def _measured(self) -> Node:
        minus = self._is("-") and currency(self._peek(1).text) is not None
        self._at += minus
        money = currency(self._peek().text) if self._peek().kind in ("mark", "word") else None
        self._at += money is not None
        parsed = self._sum()
        if not isinstance(parsed, tuple):
            if minus or money:
                raise Unreadable
            return parsed
        if minus:
            parsed = ("-", parsed)
        if (self._is(":") or self._is_to()) and money is None:
            return self._ratio(parsed)
        return self._with_unit(parsed, money)

    def _with_unit(self, tree: Tree, unit: Unit | None) -> Node:
        if self._peek().kind == "mark" and (money := currency(self._peek().text)) is not None:
            self._at += 1
            if unit is not None and unit != money:
                raise Unreadable
            unit = money
        words = self._unit_tokens()
        if words and (times := _LARGE.get(words[0].text.lower())) is not None:
            tree, words = ("*", tree, ("number", times, False)), words[1:]
        if words and words[0].text.lower() in ("percent", "percentage", "pct"):
            tree, words = ("percent", tree), words[1:]
        elif words and words[0].text.lower() in ("degree", "degrees", "deg"):
            tree, words = ("degrees", tree), words[1:]
        if words and tree[0] == "degrees" and len(words) == 1 and words[0].text.lower() in _CELSIUS:
            return Value(tree, Unit(Fraction(1), ((_CELSIUS[words[0].text.lower()], 1),)))
        if words:
            named = read_unit(words)
            if unit is not None and named != unit:
                raise Unreadable
            unit = unit or named
        values = _plus_and_minus(tree)
        return Value(tree, unit) if values == [tree] else Group("list", tuple(Value(each, unit) for each in values))

    def _unit_tokens(self) -> list[Token]:
        begin = self._at
        while True:
            token = self._peek()
            before = self._tokens[self._at - 1].text if self._at > begin else ""
            if not (
                (token.kind == "word" and token.text.lower() not in ("or", "and"))
                or (before and token.kind == "mark" and token.text in "/^{}")
                or (before in ("^", "{") and token.kind == "number")
                or (before == "/" and token.kind == "letter")
                or (before and (token.kind, token.text) == ("command", "cdot"))
            ):
                break
            self._at += 1
        while self._at > begin and self._tokens[self._at - 1].text == "}" and not _is_balanced(self._tokens[begin : self._at]):
            self._at -= 1  # it closes what was opened before
        return list(self._tokens[begin : self._at])

    def _is_to(self) -> bool:
        return (self._peek().kind, self._peek().text) == ("word", "to") and self._peek(1).kind == "number"

    def _ratio(self, first: Tree) -> Node:
        parts, texts = [first], ["" if self._is_to() else self._tokens[self._at - 1].text]
        while self._is(":") or self._is_to():
            self._at += 1
            begin = self._at
            part = self._sum()
            if not isinstance(part, tuple):
                raise Unreadable
            parts.append(part)
            texts.append("".join(token.text for token in self._tokens[begin : self._at]))
        suffix = "".join(token.text for token in self._unit_tokens()).lower().replace(".", "")
        if suffix not in ("", "am", "pm"):
            raise Unreadable
        return Ratio(tuple(parts), tuple(texts), suffix)

    # ---- brackets

    def _bracketed(self, left: str) -> Tree | Node:
        bars, self._bars = self._bars, 0
        inside = self.items()
        self._bars = bars
        right = self._need(")", "]")
        if not (isinstance(inside, Group) and inside.kind == "list"):
            if (left, right) not in (("(", ")"), ("[", "]")):
                raise Unreadable
            return self._plain(inside)
        items = inside.items
        if inside.choice:
            raise Unreadable
        ends = [item.tree for item in items if isinstance(item, Value) and item.unit is None]
        if len(ends) == len(items) == 2 and ((left, right) in (("(", "]"), ("[", ")")) or any(map(is_infinite, ends))):
            return Interval(ends[0], ends[1], left == "(", right == ")")
        if (left, right) not in (("(", ")"), ("[", "]")):
            raise Unreadable
        return Group("tuple" if left == "(" else "square", items)

    def _set(self) -> Node:
        if self._take("\\}"):
            return Group("set", ())
        builder = 3 if (self._peek(1).text, self._peek(2).text) == ("in", "mathbb") else 1  # \{x \in \mathbb{R} \mid ...\}
        if self._peek().kind == "letter" and self._peek(builder).text in ("mid", ":", "|"):
            domain = self._peek(2).value if builder == 3 else "R"
            self._at += builder + 1
            condition = self.items()
            self._need("\\}")
            if domain != "R":  # an item that is no condition: such a set is only known to be itself
                condition = Group("list", (condition, Words(domain)))
            return Region((condition,))
        inside = self.items()
        self._need("\\}")
        if isinstance(inside, Group) and inside.kind == "list" and not inside.choice:
            return Group("set", inside.items)
        return Group("set", (inside,))


def _is_balanced(tokens: Sequence[Token]) -> bool:
    return sum((token.text == "{") - (token.text == "}") for token in tokens) == 0


def _plus_and_minus(tree: Tree) -> list[Tree]:
    """All values of a tree with plus-or-minus signs: each of up to three is free, but for those with a minus-or-plus sign."""
    signs = [node for node in nodes(tree) if node[0] == "pm"]
    if not signs:
        return [tree]
    if any(sign[2][0] == "-" for sign in signs):
        return [_signed(tree, repeat(sign)) for sign in (1, -1)]
    if len(signs) > 3:
        raise Unreadable
    return [_signed(tree, iter(chosen)) for chosen in product((1, -1), repeat=len(signs))]


def _signed(tree: Tree, signs: Iterator[int]) -> Tree:
    parts = tuple(_signed(part, signs) if isinstance(part, tuple) else part for part in tree[1:])
    if tree[0] == "pm":
        return ("+", parts[0], parts[1] if next(signs) > 0 else ("-", parts[1]))
    return (tree[0], *parts)
