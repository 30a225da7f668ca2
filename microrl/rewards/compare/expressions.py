"""The arithmetic half of the grammar: sums, products, powers, functions, names and matrices. See `parser`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from microrl.rewards.compare.lexer import Token, Unreadable, names
from microrl.rewards.compare.nodes import INFINITY, REALS, Based, Group, Matrix, Node, Value
from microrl.rewards.compare.tree import Tree

MAX_DEPTH = 30
"""Brackets, braces and functions in one another."""
_E: Tree = ("constant", "e")
_ZERO: Tree = ("number", Fraction(0), False)
_TWO: Tree = ("number", Fraction(2), False)
_TEN: Tree = ("number", Fraction(10), False)
_MINUS_ONE: Tree = ("-", ("number", Fraction(1), False))
_CALLS = names("sin cos tan cot sec csc asin acos atan sinh cosh tanh arg")
_INVERSE = {"sin": "asin", "cos": "acos", "tan": "atan"}
_LOGARITHMS = ("ln", "log", "lg")
_LETTERS = names(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi omega "
    "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell hbar"
)
_NAMED = names("overline bar vec hat widehat tilde widetilde overrightarrow overarc dot angle triangle measuredangle")
_ATOMS = _CALLS | _LETTERS | _NAMED | names("frac sqrt pi ln log lg exp binom infty lfloor lceil")
_FUNCTIONS = ("f",)
"""Letters that name a function before a bracket. Others, as in P(1 + r), are as often factors."""
_SETS = {"R": REALS}
_MATRICES = ("pmatrix", "bmatrix", "matrix", "Bmatrix", "smallmatrix", "array")


class Expressions:
    """A reader of tokens with a place. `items`, `_bracketed` and `_set` come from the other half."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens, self._at, self._depth, self._bars = tokens, 0, 0, 0

    def items(self) -> Node:
        raise NotImplementedError

    def _bracketed(self, left: str) -> Tree | Node:
        raise NotImplementedError

    def _set(self) -> Node:
        raise NotImplementedError

    # ---- tokens

    def _peek(self, ahead: int = 0) -> Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else Token("end", "")

    def _is(self, *texts: str) -> bool:
        token = self._peek()
        return token.kind in ("mark", "command") and token.text in texts

    def _take(self, *texts: str) -> bool:
        if self._is(*texts):
            self._at += 1
            return True
        return False

    def _need(self, *texts: str) -> str:
        if not self._is(*texts):
            raise Unreadable
        self._at += 1
        return self._tokens[self._at - 1].text

    # ---- arithmetic

    def _sum(self) -> Tree | Node:
        first: Tree | Node
        if self._is("+", "-", "pm", "mp"):
            sign = self._need("+", "-", "pm", "mp")
            term = as_tree(self._term())
            first = {"+": term, "-": ("-", term)}.get(sign) or _plus_or_minus(_ZERO, term, sign)
        else:
            first = self._term()
        terms: list[Tree] = []
        while is_tree(first) and self._is("+", "-", "pm", "mp"):
            terms = terms or [as_tree(first)]
            sign = self._need("+", "-", "pm", "mp")
            term = as_tree(self._term(signed=True))
            if sign in ("pm", "mp"):
                terms = [_plus_or_minus(("+", *terms), term, sign)]
            else:
                terms.append(term if sign == "+" else ("-", term))
        return ("+", *terms) if terms else first

    def _term(self, signed: bool = False) -> Tree | Node:
        if signed and self._is("-", "+"):  # 3 + -2
            return self._signed_factor()
        first = self._factor() if (mixed := self._mixed_number()) is None else self._marked(mixed)
        if not is_tree(first):
            return first
        factors: list[Tree] = [as_tree(first)]
        while True:
            if self._take("*", "cdot", "times"):
                factors.append(self._signed_factor())
            elif self._is("/"):
                self._at += 1
                factors = [("/", _product(factors), self._signed_factor())]
            elif self._begins_factor():
                factors.append(as_tree(self._factor()))
            elif self._is("begin") and isinstance(matrix := self._atom(), Matrix):
                return Matrix(tuple(tuple(_product([*factors, entry]) for entry in row) for row in matrix.rows))
            else:
                return _product(factors)

    def _begins_factor(self) -> bool:
        token = self._peek()
        if token.kind == "letter":
            return True
        if token.kind == "number":  # 3!7!
            return self._peek(-1).text == "!"
        if token.kind == "command":
            return token.text in _ATOMS
        if token.text == "{":  # 4{2} is printed as 42
            return token.kind == "mark" and self._peek(1).kind != "number"
        return token.kind == "mark" and (token.text in "([" or (token.text == "|" and self._bars == 0))

    def _mixed_number(self) -> Tree | None:
        r"""`2 1/2` and `2\frac{1}{2}`. It looks ahead: to try and go back would double the work at each level."""
        whole = self._peek()
        if not _is_whole(whole):
            return None
        if self._peek(1).text == "frac":
            fraction = self._fraction_ahead()
        elif not self._peek(1).tight and _is_whole(self._peek(1)) and self._peek(2).text == "/" and _is_whole(self._peek(3)):
            fraction = (self._peek(1).value.value, self._peek(3).value.value, 4)
        else:
            return None
        if fraction is None or not 0 < fraction[0] < fraction[1] or self._peek(fraction[2]).text == "!":
            return None
        if self._peek(fraction[2]).text == "^" and "circ" not in (
            self._peek(fraction[2] + 1).text,
            self._peek(fraction[2] + 2).text,
        ):
            return None
        self._at += fraction[2]
        return ("number", whole.value.value + fraction[0] / fraction[1], False)

    def _fraction_ahead(self) -> tuple[Fraction, Fraction, int] | None:
        r"""Both numbers of a `\frac` of whole numbers behind the next token, and how many tokens all that takes."""
        ahead, parts = 2, []
        token = self._peek(ahead)
        if _is_whole(token) and len(token.text) == 2 and self._peek(ahead + 1).text != "{":  # \frac12
            return Fraction(token.text[0]), Fraction(token.text[1]), ahead + 1
        for _ in range(2):
            braces = self._peek(ahead).text == "{"
            token = self._peek(ahead + braces)
            if not _is_whole(token) or (braces and self._peek(ahead + 2).text != "}"):
                return None
            parts.append(token.value.value)
            ahead += 3 if braces else 1
        return parts[0], parts[1], ahead

    def _signed_factor(self) -> Tree:
        if self._take("-"):
            return ("-", self._signed_factor())
        self._take("+")
        return as_tree(self._factor())

    def _factor(self) -> Tree | Node:
        """Something with at most one power or factorial, and signs of percent or degrees: x^2^3 and n!! are not read."""
        factor = self._atom()
        if self._is("^"):
            self._at += 1
            factor = self._raised(as_tree(factor))
        if self._take("!"):
            factor = ("factorial", as_tree(factor))
        factor = self._marked(factor)
        if self._is("^", "!", "%", "\\%", "degree"):
            raise Unreadable
        return factor

    def _marked(self, factor: Tree | Node) -> Tree | Node:
        """With a sign of percent or degrees, if one follows."""
        for kind, signs in (("percent", ("%", "\\%")), ("degrees", ("degree",))):
            if self._take(*signs):
                return (kind, as_tree(factor))
        if self._is("^") and "circ" in (self._peek(1).text, self._peek(2).text if self._peek(1).text == "{" else ""):
            self._at += 1
            return self._raised(as_tree(factor))
        return factor

    def _raised(self, base: Tree) -> Tree:
        braces = self._take("{")
        if self._take("circ", "degree"):
            raised: Tree = ("degrees", base)
        elif braces:
            raised = ("^", base, as_tree(self._sum()))
        elif self._take("-"):
            raised = ("^", base, ("-", as_tree(self._atom())))
        else:
            raised = ("^", base, as_tree(self._atom()))
        if braces:
            self._need("}")
        return raised

    # ---- atoms

    def _atom(self) -> Tree | Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unreadable
        token = self._peek()
        self._at += 1
        if token.kind == "number":
            atom = self._number(token)
        elif token.kind == "letter":
            atom = self._letter(token.text)
        elif token.kind == "command":
            atom = self._command(token)
        elif token.kind == "mark" and token.text in ("(", "["):
            atom = self._bracketed(token.text)
        elif token.kind == "mark" and token.text == "\\{":
            atom = self._set()
        elif token.kind == "mark" and token.text == "{":
            atom = self._plain(self.items())
            self._need("}")
        elif token.kind == "mark" and token.text == "|":
            self._bars += 1
            atom = ("call", "abs", as_tree(self._sum()))
            self._need("|")
            self._bars -= 1
        else:
            raise Unreadable
        self._depth -= 1
        return atom

    def _plain(self, node: Node) -> Tree | Node:
        return node.tree if isinstance(node, Value) and node.unit is None else node

    def _number(self, token: Token) -> Tree | Node:
        if self._take("_"):
            return Based(token.text, self._script())
        return ("number", *token.value)

    def _letter(self, name: str) -> Tree:
        script = "_" + self._script() if self._take("_") else ""
        while self._take("'"):
            script += "'"
        if name in ("e", "i") and not script:
            return ("constant", name)
        if name in _FUNCTIONS and self._is("("):
            return ("apply", f"{name}{script}()", as_tree(self._atom()))
        return ("letter", name + script)

    def _script(self) -> str:
        """What stands below, as text."""
        if not self._take("{"):
            self._at += 1
            if self._peek(-1).kind not in ("number", "letter", "word", "command"):
                raise Unreadable
            return self._tokens[self._at - 1].text
        begin = self._at
        while not self._is("}"):
            if self._peek().kind == "end":
                raise Unreadable
            self._at += 1
        self._at += 1
        return "".join(token.text for token in self._tokens[begin : self._at - 1])

    def _command(self, token: Token) -> Tree | Node:
        name = token.text
        if name == "frac":
            return self._fraction()
        if name == "sqrt":
            degree = _TWO
            if self._take("["):
                degree = as_tree(self._sum())
                self._need("]")
            return ("root", degree, self._argument())
        if name == "binom":
            return ("binom", self._argument(), self._argument())
        if name == "pi":
            return ("constant", "pi")
        if name == "infty":
            return INFINITY
        if name in _LETTERS:
            return self._letter("\\" + name)
        if name in _NAMED:
            return ("letter", f"{name} {self._name()}")
        if name in ("lfloor", "lceil"):
            inside = as_tree(self._sum())
            self._need("r" + name[1:])
            return ("call", name[1:], inside)
        if name in _CALLS or name in ("ln", "log", "lg", "exp"):
            return self._function(name)
        if name == "emptyset":
            return Group("set", ())
        if name == "mathbb":
            return _SETS.get(token.value) or ("letter", f"mathbb {token.value}")
        if name == "begin" and token.value in _MATRICES:
            return self._matrix(token.value)
        raise Unreadable

    def _fraction(self) -> Tree:
        token = self._peek()
        if token.kind == "number" and len(token.text) == 2 and token.text.isdigit() and self._peek(1).text != "{":
            self._at += 1  # \frac12
            return ("/", *(("number", Fraction(int(digit)), False) for digit in token.text))
        return ("/", self._argument(), self._argument())

    def _argument(self) -> Tree:
        """What a LaTeX command takes: a group in braces, or one thing."""
        if self._take("{"):
            argument = as_tree(self._sum())
            self._need("}")
            return argument
        return as_tree(self._atom())

    def _name(self) -> str:
        """The letters after `\\angle` or in `\\overline{}`."""
        braces, letters = self._take("{"), ""
        while self._peek().kind in ("letter", "word"):
            letters += self._peek().text
            self._at += 1
        if braces:
            self._need("}")
        if not letters:
            raise Unreadable
        return letters

    def _function(self, name: str) -> Tree:
        power: Tree | None = None
        base: Tree | None = {"ln": _E, "lg": _TEN}.get(name)
        if name == "log" and self._take("_"):
            base = self._argument()
        if self._take("^"):
            power = self._argument() if not self._take("-") else ("-", self._argument())
        if name in _CALLS and power is not None and power == _MINUS_ONE:
            name, power = _INVERSE.get(name, ""), None
            if not name:
                raise Unreadable
        inside = self._function_argument()
        if name in _LOGARITHMS:
            call: Tree = ("log", base, inside)
        else:
            call = ("^", _E, inside) if name == "exp" else ("call", name, inside)
        return call if power is None else ("^", call, power)

    def _function_argument(self) -> Tree:
        if self._is("(", "{", "[", "|"):
            return as_tree(self._atom())
        if self._take("-"):
            return ("-", self._function_argument())
        factors = [as_tree(self._factor())]
        while self._begins_factor() and not self._is("(", "[", *_CALLS, "ln", "log", "lg", "exp"):
            factors.append(as_tree(self._factor()))
        return _product(factors)

    def _matrix(self, name: str) -> Node:
        rows: list[list[Tree]] = [[]]
        while True:
            rows[-1].append(as_tree(self._sum()))
            if self._take("&"):
                continue
            if self._take("\\\\"):
                if self._is("end"):
                    break
                rows.append([])
                continue
            break
        end = self._peek()
        self._need("end")
        if end.value != name or len({len(row) for row in rows}) != 1:
            raise Unreadable
        return Matrix(tuple(map(tuple, rows)))


def is_tree(parsed: Tree | Node) -> bool:
    return isinstance(parsed, tuple)


def as_tree(parsed: Tree | Node) -> Tree:
    if not isinstance(parsed, tuple):
        raise Unreadable
    return parsed


def _product(factors: list[Tree]) -> Tree:
    return factors[0] if len(factors) == 1 else ("*", *factors)


def _is_whole(token: Token) -> bool:
    return token.kind == "number" and token.text.isdigit()


def _plus_or_minus(a: Tree, b: Tree, sign: str) -> Tree:
    return ("pm", a, b if sign == "pm" else ("-", b))
