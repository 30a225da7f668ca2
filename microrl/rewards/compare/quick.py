"""The verdict on most answers, without a computer algebra system."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache

from microrl.answers import is_prose
from microrl.rewards.compare.absurd import is_absurd
from microrl.rewards.compare.growth import is_costly
from microrl.rewards.compare.lexer import FUNCTIONS, SMALL_WORDS, Token, Unreadable, names, plain, tokens, unwrapped
from microrl.rewards.compare.nodes import Based, Chain, Group, Node, Region, Value, Words
from microrl.rewards.compare.parser import parse
from microrl.rewards.compare.same import NUMBERS, same
from microrl.rewards.compare.tree import TooHard, TooLarge, Undefined, exact, letters_of, nodes, reset_work_budget
from microrl.rewards.compare.values import approximate

REMEMBERED_GOLDS = 50_000
REMEMBERED_ANSWERS = 2_000
_STYLED = re.compile(r"\\(?:text[a-z]{0,6}|math(?:rm|bf|it|sf)|mbox|hbox|boldsymbol|bm|emph)\s*\{([^{}]*)\}")
_COLOUR = re.compile(r"\\(?:color|textcolor)\s*\{[a-zA-Z]{0,20}\}")
_BLANK = re.compile(r"\\[ ,;:!]|~|\\quad\b|\s+")
_BARE_WORDS = re.compile(r"[^\W\d_]+(?:(?: |(?<=[^\W\d_]{2})['’-])[^\W\d_]+)*")
_ARTICLE = re.compile(r"(?:^|(?<=and )|(?<=or )|(?<=of ))(?:an?|the) (?=[^\W\d_]{3,})(?!and\b)")
_CHOICE = re.compile(r"(?:\(([A-Ja-j])\)|([A-J])(?:[.:)](?![0-9])|$))[.:]?\s*(.*)", re.DOTALL)
_LONE_LETTER = re.compile(r"(?<![A-Za-z\\])[A-J](?![A-Za-z])|^\([a-j]\)")
_GOES_ON = tuple("^_*/=+!'")
"""What follows a bracket that is no letter of a choice: (e)^2."""
_CONSTANTS = frozenset(["pi", "e", "i", "infinity", "inf", "oo", "nan", *FUNCTIONS])
_FOR_ALGEBRA = re.compile(
    r"\\(int|iint|oint|sum|prod|lim|det|gcd|lcm|max|min|begin|bmod|mod|pmod|cap|Re|Im|operatorname|partial)(?![a-zA-Z])"
)
LONGEST_FOR_ALGEBRA = 300
"""Characters of an answer, or twice those of the gold answer."""
_ALGEBRA_COMMANDS = names(
    "int iint oint sum prod lim det gcd lcm max min begin end bmod mod pmod cap cup Re Im operatorname partial infty to mathrm "
    "left right frac dfrac tfrac sqrt pi sin cos tan cot sec csc ln log exp arcsin arccos arctan sinh cosh tanh cdot times div "
    "le ge leq geq ne neq alpha beta gamma delta epsilon theta lambda mu nu phi psi omega rho sigma tau xi zeta eta binom circ "
    "displaystyle limits quad qquad in mathbb setminus emptyset lfloor rfloor lceil rceil vert lvert rvert overline"
)
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_RUN = re.compile(r"[a-zA-Z]{2,}")
_PRODUCT = re.compile(r"[a-zA-Z]?d[a-z]|[xyz]{2,3}")
"""Letters in a row that are no word: x dx, xy."""


def quick(gold: str, answer: str | None) -> bool | None:
    """Whether `answer` equals `gold`; None where only a computer algebra system can tell. Its time is bounded.

    No answer, an empty one and an absurd one are wrong, as is one that cannot be read: nothing is guessed.
    """
    if answer is None or not answer.strip() or not gold.strip():
        return False
    if gold.split() == answer.split():
        return True
    if is_absurd(answer) or is_absurd(gold):
        return False
    reset_work_budget()
    verdict = _by_words(gold, answer)
    if verdict is None:
        verdict = _by_choice(gold, answer)
    return _by_reading(gold, answer) if verdict is None else verdict


def _same_content(gold: str, answer: str) -> bool | None:
    """Of two texts without the letter of a choice. A letter in the text is part of it: "B: B: B: ..." costs no more than it is
    long."""
    if gold.split() == answer.split():
        return True
    verdict = _by_words(gold, answer)
    return _by_reading(gold, answer) if verdict is None else verdict


def readable(gold: str) -> bool | None:
    """Whether answers can be compared with this gold answer; None where only a computer algebra system can tell.

    Plain words side by side are prose, and no gold answer; one word is, and so are more in \\text{}.
    """
    if not gold.strip() or is_absurd(gold) or is_prose(gold):
        return False
    chosen = choice(gold)
    if chosen is None:
        return _is_readable(gold)
    return not chosen[1] or _is_readable(gold) or _is_readable(chosen[1])


def _is_readable(text: str) -> bool | None:
    if bare_words(text) is not None:
        return True
    reset_work_budget()
    for comma_groups in (True, False):
        node = _read_gold(text, comma_groups)
        if node is not None:
            return _is_defined(node)
    return None if needs_algebra(text) else False


# ---- words and choices


def bare_words(text: str) -> str | None:
    """The words, in lower case and with single spaces, of a text that is nothing but words; None for any other."""
    text = _in_plain_text(text).rstrip(".,;")
    if len(text) > 200 or not _BARE_WORDS.fullmatch(text) or any(sign.isnumeric() for sign in text):
        return None
    if " " in text and all(len(word) == 1 for word in text.split()):  # a product
        return None
    return _ARTICLE.sub("", text.casefold())


def _in_plain_text(text: str) -> str:
    """Without styles and colours, and with single spaces."""
    text = _STYLED.sub(r" \1 ", _COLOUR.sub(" ", unwrapped(text)))
    return " ".join(_BLANK.sub(" ", text).split())


def _by_words(gold: str, answer: str) -> bool | None:
    """Bare words are words: compared as text, without case. One letter that is no choice may be more than that, and so may x, y
    and z together."""
    words = bare_words(gold)
    if words is None or words in _CONSTANTS:
        return None
    others = bare_words(answer)
    if others is not None and others not in _CONSTANTS:
        if words == others and len(words) == 1 and not _LONE_LETTER.search(gold):
            return None
        if words == others:
            return True
        return None if set(words + others) <= set("xyz") and len(words) == len(others) else False
    if len(words) == 1:
        return None
    is_product = len(words) <= 3 and words.isascii() and "\\" not in gold and words not in SMALL_WORDS and gold.strip().islower()
    return None if is_product or words in NUMBERS else False


def choice(text: str) -> tuple[str, str] | None:
    """The letter and what follows it, of one choice among several: `B`, `(B)`, `B. 12`, `\\text{C. }5`; None for another text."""
    match = _CHOICE.fullmatch(_in_plain_text(text))
    return None if match is None or match[3].startswith(_GOES_ON) else ((match[1] or match[2]).upper(), match[3].strip())


def _by_choice(gold: str, answer: str) -> bool | None:
    """The letter decides, and what stands behind it must not disagree. The text of a choice may be given with any letter."""
    chosen, given = choice(gold), choice(answer)
    if chosen is not None and given is not None:
        if chosen[0] != given[0] or _LONE_LETTER.search(given[1]) or given[1].startswith(("or ", "and ")):
            return False
        return not (chosen[1] and given[1]) or _same_content(chosen[1], given[1])
    if chosen is not None and chosen[1]:
        return _same_content(chosen[1], answer)
    if given is not None and given[1] and not _LONE_LETTER.search(given[1]):
        return _by_reading(gold, given[1])
    return None


# ---- mathematics


def _read(text: str, comma_groups: bool) -> Node | None:
    try:
        return parse(tokens(plain(text), comma_groups=comma_groups))
    except (Unreadable, RecursionError):
        return None


_read_gold = lru_cache(REMEMBERED_GOLDS)(_read)
_read_answer = lru_cache(REMEMBERED_ANSWERS)(_read)


def _by_reading(gold: str, answer: str) -> bool | None:
    node = _read_gold(gold, True)
    if node is None:
        return _same_tokens(gold, answer) or (None if needs_algebra(gold) and _is_for_algebra(gold, answer) else False)
    if isinstance(node, Based) and _spelled(gold) == _spelled(answer):
        return True
    hard = False
    for comma_groups in (True, False) if "," in answer else (True,):
        given = _read_answer(answer, comma_groups)
        if given is None:  # and so is an integral or a sum left standing, where the gold answer has none
            continue
        try:
            if same(node, given):
                return True
        except (Undefined, TooLarge, RecursionError):
            pass
        except TooHard:
            hard = True
    has_letters = isinstance(node, Value) and bool(letters_of(node.tree))
    return None if hard and has_letters and is_mathematical(gold) and _is_for_algebra(gold, answer) else False


def _same_tokens(gold: str, answer: str) -> bool:
    """Whether they are spelled alike but for spacing, looks and braces around one thing."""
    try:
        first, second = (_canonical_tokens(tokens(plain(text))) for text in (gold, answer))
    except Unreadable:
        return False
    return first == second


def _spelled(text: str) -> str | None:
    """Without braces and case: a number with digits above nine is only here known from a product of letters."""
    try:
        return "".join(token.text for token in tokens(plain(text)) if token.text not in "{}").casefold()
    except Unreadable:
        return None


def _canonical_tokens(lexed: list[Token]) -> list[tuple[str, str]]:
    canonical: list[tuple[str, str]] = []
    for token in lexed:
        canonical.append((token.kind, token.text if token.value is None else str(token.value)))
        if canonical[-1] == ("mark", "}") and canonical[-3:-2] == [("mark", "{")]:
            canonical[-3:] = canonical[-2:-1]
    return canonical


def needs_algebra(text: str) -> bool:
    """Whether it has something that this package does not read and a computer algebra system does."""
    return _FOR_ALGEBRA.search(text) is not None and is_mathematical(text)


def _is_for_algebra(gold: str, answer: str) -> bool:
    """Whether a computer algebra system is worth asking. An integral, a sum, a product, a limit, a determinant and the like is
    right only where the gold answer has one of its kind, and a long text, or what grows, takes it seconds."""
    if len(answer) > max(LONGEST_FOR_ALGEBRA, 2 * len(gold)) or not is_mathematical(answer):
        return False
    return _left_standing(answer) <= _left_standing(gold) and not is_costly(answer)


def _left_standing(text: str) -> Counter[str]:
    return Counter(kind[-3:] for kind in _FOR_ALGEBRA.findall(text))


def is_mathematical(text: str) -> bool:
    """Whether it has mathematics alone: ASCII, commands that are known, and no words."""
    if not text.isascii() or any(command not in _ALGEBRA_COMMANDS for command in _COMMAND.findall(text)):
        return False
    rest = re.sub(r"\\(?:begin|end)\{[a-z]{1,12}\}|\\(?:operatorname|mathrm)\{[a-z]{1,6}\}", " ", text)
    rest = _COMMAND.sub(" ", rest)
    return all(run in FUNCTIONS or _PRODUCT.fullmatch(run) for run in _RUN.findall(rest))


def _is_defined(node: Node) -> bool:
    """Whether a gold answer has a value: 1/0 has none."""
    match node:
        case Value(tree):
            try:
                exact(tree)
                if not letters_of(tree) and not any(each[0] == "infinity" for each in nodes(tree)):
                    approximate(tree)
            except Undefined:
                return not any(each[0] != "infinity" and each[0] != "-" for each in nodes(tree))
            except TooLarge:
                return False
            except TooHard:
                pass
            return True
        case Group(_, items) | Region(items):
            return all(map(_is_defined, items))
        case Chain(parts):
            return all(map(_is_defined, parts))
        case Words(text):
            return bool(text)
    return True
