r"""From an answer's text to tokens: spellings are made one here, so that the parser sees each thing in one way only.

Digits are ASCII digits. Digit groups are joined over `,` `{,}` `\,` `\ ` `~`, thin and plain spaces where each group but the
first has three digits: `10\,000` is 10000. A bare comma joins only outside brackets: (1,234) is a pair. Colour, bold, `\left`
and spacing are dropped. A character that stands for nothing known makes the text unreadable, which is never right.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, NamedTuple

from microrl.answers import last_boxed

MAX_TOKENS = 400
MAX_DIGITS = 1_000
"""Digits of one number."""
MAX_EXPONENT = 1_000
"""Of scientific notation, in absolute value."""


class Unreadable(Exception):
    """The text is no answer that this grammar knows."""


class Token(NamedTuple):
    """`kind` is number, letter, word, command or mark. `tight`: nothing stands between it and the token before it."""

    kind: str
    text: str
    value: Any = None
    tight: bool = False


class Numeral(NamedTuple):
    """`is_decimal`: written with a decimal point or in scientific notation."""

    value: Fraction
    is_decimal: bool


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


_SUPERSCRIPT = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n"))
_SUBSCRIPT = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789"))
_FRACTIONS = {
    "½": "12", "⅓": "13", "⅔": "23", "¼": "14", "¾": "34", "⅕": "15", "⅖": "25", "⅗": "35", "⅘": "45", "⅙": "16", "⅚": "56",
    "⅐": "17", "⅛": "18", "⅜": "38", "⅝": "58", "⅞": "78", "⅑": "19", "⅒": "110",
}  # fmt: skip
_GREEK_NAMES = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi omega "
    "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
)
_GREEK = dict(zip("αβγδεζηθικλμνξρστυφχψωΓΔΘΛΞΠΣΦΨΩ", _GREEK_NAMES.split()))
_SYMBOLS = str.maketrans(
    {
        "−": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "÷": "/", "∕": "/", "⁄": "/", "∞": r"\infty ",
        "π": r"\pi ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "∪": r"\cup ",
        "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "±": r"\pm ", "∓": r"\mp ", "°": r"^\circ ", "′": "'", "∠": r"\angle ",
        "√": r"\sqrt ", "∛": r"\sqrt[3]", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℚ": r"\mathbb{Q}", "ℕ": r"\mathbb{N}",
        "¢": r"\text{ cents}", "∖": r"\setminus ", "⟨": r"\langle ", "⟩": r"\rangle ", "△": r"\triangle ", "∣": r"\mid ",
        "\u00a0": r"\,", "\u2009": r"\,", "\u202f": r"\,", "\u2007": r"\,", "\u2006": r"\,", "\u2005": r"\,",
        "\u2002": " ", "\u2003": " ", "\t": " ", "\n": " ", "\r": " ", "\ufe0f": "",
        **{sign: rf"\frac{{{both[0]}}}{{{both[1:]}}}" for sign, both in _FRACTIONS.items()},
        **{sign: f"\\{name} " for sign, name in _GREEK.items()},
    }
)  # fmt: skip
_RAISED = re.compile(f"[{''.join(_SUPERSCRIPT)}]+")
_LOWERED = re.compile(f"[{''.join(_SUBSCRIPT)}]+")
_READABLE = re.compile(r"[ -~€£¥]*")

_SKIPPED = names(
    "left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr displaystyle textstyle scriptstyle limits nolimits "
    "mathbf boldsymbol bm pmb mathit mathsf bf rm it bfseries textcolor quad qquad thinspace medspace thickspace enspace "
    "middle mathop mathord mathstrut strut ensuremath mathnormal hspace"
)
_WITH_NAME = frozenset({"color", "textcolor", "hspace"})
"""Their first argument says how it looks, not what it is."""
_TEXT = names("text textrm textnormal textup textbf textit textsf texttt textmd mathrm mbox hbox operatorname emph mathtt")
_SAME = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "leq": "le", "leqslant": "le", "geq": "ge", "geqslant": "ge", "neq": "ne",
    "lt": "<", "gt": ">", "lbrace": "\\{", "rbrace": "\\}", "lbrack": "[", "rbrack": "]", "lparen": "(", "rparen": ")",
    "vert": "|", "lvert": "|", "rvert": "|", "ast": "*", "colon": ":", "varphi": "phi", "varepsilon": "epsilon",
    "vartheta": "theta", "arcsin": "asin", "arccos": "acos", "arctan": "atan", "simeq": "approx", "infin": "infty",
    "varnothing": "emptyset", "sinus": "sin", "degree": "degree", "dbinom": "binom", "tbinom": "binom", "div": "/", "slash": "/",
    "prime": "'", "tg": "tan", "ctg": "cot", "to": "to", "rightarrow": "to", "lnot": "neg", "thickapprox": "approx",
    "smallsetminus": "setminus", "backslash": "setminus", "mathring": "dot", "pounds": "£", "euro": "€", "dollar": "\\$",
    "ldots": "dots",
    "cdots": "dots", "textdegree": "degree",
}  # fmt: skip
_MARKS = frozenset([*"<>[]()|*:/'£€", "\\{", "\\}", "\\$"])
FUNCTIONS = names("sin cos tan cot sec csc asin acos atan sinh cosh tanh ln log lg exp sqrt")
_PLAIN_NAMES = {
    **{name: name for name in FUNCTIONS}, "arcsin": "asin", "arccos": "acos", "arctan": "atan", "pi": "pi", "infinity": "infty",
    "inf": "infty", "oo": "infty", "Infinity": "infty", "theta": "theta", "alpha": "alpha", "beta": "beta",
}  # fmt: skip
SMALL_WORDS = names(
    "a an and any all am are as at be but by do for from go had has he if in is it its me my no non nor not of off on only or "
    "our out per she so than that the then to too under up us was we who why yes you odd even both each one two six ten men day "
    "east west left right none true false else hour when where with otherwise"
)
_UNIT_RUNS = names(
    "pct cm mm km dm nm kg mg lb lbs oz ft yd mi in sec min hr hrs ml mL kJ Hz kW mph kmh rpm sq cu pm am PM AM USD EUR deg "
    "units unit"
)

_BLANKS = r"(?:\\[,;:! ]|~|[ ])"
_GROUPS = re.compile(
    rf"(?P<first>[0-9]{{1,3}})(?P<blank>{_BLANKS}|\{{,\}}|,\\! ?|\.(?=[0-9]{{3}}\.))[0-9]{{3}}(?:(?P=blank)[0-9]{{3}})*"
    r"(?![0-9])(?P<more>\.[0-9]+)?"
)
_COMMAS = re.compile(r"(?P<first>[1-9][0-9]{0,2})(?:,[0-9]{3})+(?![0-9]|,[0-9])(?P<more>\.[0-9]+)?")
_NUMBER = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE](?P<power>[+-]?[0-9]{1,6})(?![0-9]))?")
_REPEATING = re.compile(r"(?P<whole>[0-9]*)\.(?P<fixed>[0-9]*)\\(?:overline|bar|dot)\{(?P<again>[0-9]+)\}")
_LETTERS = re.compile(r"[a-zA-Z]+")
_COMMAND = re.compile(r"\\([a-zA-Z]+|.)")
_SPACES = re.compile(rf"(?:{_BLANKS}|\\>)+")
_WORDS_ONLY = re.compile(r"[a-zA-Z /.'-]*")
_NAME = re.compile(r"\s*\{[a-zA-Z0-9!.# -]{0,40}\}")
_ENVIRONMENT = re.compile(r"\\(begin|end)\s*\{([a-zA-Z]{1,12}\*?)\}(?:(?<=array\})\s*\{[lcr| ]{1,20}\})?")
_CHOSEN = r"((?:[^{}]|\{[^{}]*\})*)"
_CHOOSE = re.compile(rf"\{{{_CHOSEN}\\choose(?![a-zA-Z]){_CHOSEN}\}}")
_ONLY_CHOOSE = re.compile(r"(?:[^{}=<>,]|\{[^{}]*\})*\\choose(?![a-zA-Z])(?:[^{}=<>,]|\{[^{}]*\})*")
_COMBINATIONS = re.compile(
    r"(?<![\w)}\]])(?:\{\s*\})?[_^](?:\{([^{}]{1,20})\}|([0-9a-z]))\s*C_(?:\{([^{}]{1,20})\}|([0-9a-z]))"
    r"|(?<![a-zA-Z\\])C\(([^(){},]{1,20}),([^(){},]{1,20})\)"
)
"""_{10}C_3 and C(10, 3)"""
_DIGITS_OF_A_BASE = re.compile(r"(?:\\(?:text|mathrm|textbf|mathbf|texttt|textrm)\{|\()([0-9A-F]{1,100})[})](?=_)")
_BASED = re.compile(r"(?=[0-9]*[A-F])[0-9A-F]{2,100}(?=_(?:1[1-6]|\{(?:\\text\{)?(?:1[1-6]|twelve|sixteen)\}))")
_SCALE = re.compile(r"(\\circ\s*\}?\s*)([CF])(?![a-zA-Z])")
_US = re.compile(r"(?:(?<=\{)|(?<![\w\\.]))U\.?S\.? ?(?=\\?\$|dollars?\b)")
_ESCAPED = re.compile(r"\\\\(?=[a-zA-Z{}])")
_RELATIONS = {"<=": "le", ">=": "ge", "!=": "ne", "=<": "le", "==": "=", "**": "^"}


def plain(text: str) -> str:
    """The text in ASCII, the signs of mathematics made LaTeX. Raises Unreadable for characters that mean nothing here."""
    text = text.strip()
    if text.startswith(("–", "—")):
        text = "-" + text[1:]
    if not text.isascii():
        text = _RAISED.sub(lambda match: "^{" + "".join(map(_SUPERSCRIPT.__getitem__, match[0])) + "}", text)
        text = _LOWERED.sub(lambda match: "_{" + "".join(map(_SUBSCRIPT.__getitem__, match[0])) + "}", text)
    text = text.translate(_SYMBOLS)
    if "\\begin" not in text:  # no line breaks, so two backslashes are one that was escaped
        text = _ESCAPED.sub(r"\\", text)
    if "\\choose" in text:
        text = _CHOOSE.sub(r"\\binom{\1}{\2}", f"{{{text}}}" if _ONLY_CHOOSE.fullmatch(text) else text)
    if "\\circ" in text:
        text = _SCALE.sub(r"\1\\text{\2}", text)
    if "C" in text:
        text = _COMBINATIONS.sub(r"\\binom{\1\2\5}{\3\4\6}", text)
    if "_" in text:
        text = _DIGITS_OF_A_BASE.sub(r"\1", text)
    if "U" in text:
        text = _US.sub("", text)
    text = unwrapped(text.replace("{:}", ":"))
    if not _READABLE.fullmatch(text):
        raise Unreadable
    return text


def unwrapped(text: str) -> str:
    """Without what only surrounds an answer: math delimiters, white space, a full stop, comma or semicolon at its end."""
    for _ in range(4):
        before = text
        text = text.strip()
        if not text.endswith(".."):  # it goes on
            text = text.rstrip(".,;").rstrip()
        if text.endswith("\\"):  # it was a thin space
            text = text[:-1]
        for left, right in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**")):
            if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right):
                inner = text[len(left) : -len(right)]
                if left not in inner and not inner.endswith("\\"):
                    text = inner
                    break
        if text.startswith(("\\boxed{", "\\fbox{")) and text.endswith("}"):
            inner = text[text.index("{") + 1 : -1].strip()
            text = inner if inner == last_boxed(text) else text
        if text == before:
            break
    return text


def tokens(text: str, *, comma_groups: bool = True) -> list[Token]:
    """The tokens of a text from `plain`. `comma_groups`: whether 1,234 outside brackets is one number. Raises Unreadable."""
    collected: list[Token] = []
    _Lexer(text, comma_groups, collected).run()
    return collected


class _Lexer:
    def __init__(self, text: str, comma_groups: bool, collected: list[Token], depth: int = 0) -> None:
        self._text, self._comma_groups, self._collected, self._depth = text, comma_groups, collected, depth
        self._at, self._brackets, self._tight = 0, 0, False

    def run(self) -> None:
        text = self._text
        while self._at < len(text):
            if len(self._collected) > MAX_TOKENS:
                raise Unreadable
            character = text[self._at]
            if (based := _BASED.match(text, self._at)) is not None and not self._tight:
                self._add("number", based[0], Numeral(Fraction(int(based[0], 16)), False))
                self._at = based.end()
            elif character in "0123456789." and self._number():
                pass
            elif character.isalpha():
                self._letters()
            elif (spaces := _SPACES.match(text, self._at)) is not None:
                self._at, self._tight = spaces.end(), False
            elif character == "\\":
                self._command()
            else:
                self._mark(text[self._at : self._at + 2])

    def _add(self, kind: str, text: str, value: Any = None) -> None:
        self._collected.append(Token(kind, text, value, self._tight))
        self._tight = True

    def _mark(self, two: str) -> None:
        if two in _RELATIONS:
            self._add("mark", _RELATIONS[two])
            self._at += 2
            return
        self._brackets += (two[0] in "([") - (two[0] in ")]")
        self._add("mark", two[0])
        self._at += 1

    def _number(self) -> bool:
        text, at = self._text, self._at
        if (match := _REPEATING.match(text, at)) is not None:
            whole, fixed, again = match["whole"], match["fixed"], match["again"]
            _check(len(whole) + len(fixed) + len(again) <= 100)
            value = Fraction(int(whole + fixed or 0), 10 ** len(fixed))
            value += Fraction(int(again), 10 ** len(fixed) * (10 ** len(again) - 1))
            self._add("number", match[0], Numeral(value, False))
        elif (match := _GROUPS.match(text, at)) is not None or (
            self._comma_groups and self._brackets == 0 and (match := _COMMAS.match(text, at)) is not None
        ):
            more = match["more"] or ""
            digits = re.sub("[^0-9]", "", match[0][: len(match[0]) - len(more)])
            self._add("number", digits + more, Numeral(_value(digits + more), bool(more)))
        elif (match := _NUMBER.match(text, at)) is not None:
            self._add("number", match[0], Numeral(_value(match[0]), "." in match[0].rstrip(".") or match["power"] is not None))
        else:
            return False
        self._at = match.end()
        return True

    def _letters(self) -> None:
        letters = _LETTERS.match(self._text, self._at)
        _check(letters is not None)
        assert letters is not None
        run, before = letters[0], self._at
        self._at = letters.end()
        if run in _PLAIN_NAMES:
            self._add("command", _PLAIN_NAMES[run])
        elif len(run) == 1:
            self._add("letter", run)
        elif len(run) > 3 or run in _UNIT_RUNS or run in SMALL_WORDS or (run.istitle() and run.lower() in SMALL_WORDS):
            self._add("word", run)
        else:
            name = next((name for name in FUNCTIONS if run.startswith(name)), None)
            _check(name is None or before == 0 or run == name)
            for letter in run:
                self._add("letter", letter)

    def _command(self) -> None:
        if (environment := _ENVIRONMENT.match(self._text, self._at)) is not None:
            self._add("command", environment[1], environment[2].rstrip("*"))
            self._at = environment.end()
            return
        command = _COMMAND.match(self._text, self._at)
        _check(command is not None)
        assert command is not None
        name = command[1]
        self._at = command.end()
        if name in _SKIPPED or name in _WITH_NAME:
            self._skip(name)
        elif name in _TEXT:
            self._plain_text()
        elif name in ("mathbb", "Bbb"):
            self._add("command", "mathbb", self._argument().strip())
        elif name in "{}$%#&|_\\":
            self._brackets += (name == "{") - (name == "}")
            self._add("mark", {"%": "%", "|": "|", "_": "_"}.get(name, "\\" + name))
        elif (same := _SAME.get(name, name)) in _MARKS:
            self._brackets += (same in ("\\{", "[", "(")) - (same in ("\\}", "]", ")"))
            self._add("mark", same)
        elif same in ("le", "ge", "ne"):
            self._add("mark", same)
        else:
            self._add("command", same)

    def _skip(self, name: str) -> None:
        if name in _WITH_NAME:
            argument = _NAME.match(self._text, self._at)
            _check(argument is not None)
            assert argument is not None
            self._at = argument.end()
        elif name in ("left", "right", "middle") and self._text[self._at : self._at + 1] == ".":
            self._at += 1

    def _argument(self) -> str:
        """The text of the braces that follow, or the one character."""
        text = self._text
        while self._at < len(text) and text[self._at] == " ":
            self._at += 1
        if text[self._at : self._at + 1] != "{":
            self._at += 1
            return text[self._at - 1 : self._at]
        depth, begin = 0, self._at + 1
        for at in range(self._at, len(text)):
            depth += (text[at] == "{") - (text[at] == "}")
            if depth == 0:
                self._at = at + 1
                return text[begin:at]
        raise Unreadable

    def _plain_text(self) -> None:
        r"""The words in `\text{...}`. Other things in it, such as numbers, are read as if they stood alone."""
        content = self._argument()
        if not content.strip(" .,;"):
            self._tight = False
        elif _WORDS_ONLY.fullmatch(content):
            if (name := _PLAIN_NAMES.get(content.strip())) is not None:
                self._add("command", name)
            elif content.strip() in ("e", "i", "d"):
                self._add("letter", content.strip())
            else:
                for word in re.findall(r"[a-zA-Z'-]+\.?(?:[a-zA-Z]\.)*|[/.]", content):
                    if word in "/.":
                        self._add("mark", word)
                    else:
                        self._add("word", word.rstrip(".") if word.count(".") == 1 else word.replace(".", ""))
        else:
            _check(self._depth < 3)
            inner: list[Token] = []
            _Lexer(content.strip(), False, inner, self._depth + 1).run()
            self._collected += [
                Token("word", token.text) if token.kind == "letter" and token.text not in "ei" else token for token in inner
            ]
        self._tight = False


def _value(digits: str) -> Fraction:
    mantissa, _, power = digits.lower().partition("e")
    _check(len(mantissa) <= MAX_DIGITS and abs(int(power or 0)) <= MAX_EXPONENT)
    return Fraction(mantissa.rstrip(".") if not mantissa.startswith(".") else "0" + mantissa) * Fraction(10) ** int(power or 0)


def _check(good: bool) -> None:
    if not good:
        raise Unreadable
