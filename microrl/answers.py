r"""What can be read off a completion's text without mathematics: the thinking structure and the stated answer.

Everything here takes time in proportion to the text's length, whatever the text is: a model under training finds what is slow.

Where is the answer? After the thinking, if there is a think block, else anywhere:

1. the last whole box: `\boxed{4}`, `\boxed {4}`, `\fbox{4}`, `\boxed 4`; braces balanced, `\{` and `\}` not counted, and of
   boxes inside a box the outer one. A later box that never closes hides nothing;
2. without a box, a last line `#### 4` (GSM8K's form), which is not a heading: it must not begin with a word;
3. else the last `**4**` after the word "answer";
4. else a text that is nothing but one choice: `B`, `(B)`, `B. 12`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from decimal import Decimal

THINK, END_THINK = "<think>", "</think>"
_LATEX_TEXT = re.compile(r"\\(text|textbf|mathrm|mbox)\{[^{}]*\}")
_PROSE = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}\s+[a-zA-Z]{2,}")
_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")
_SCIENTIFIC = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))[eE]([+-]?\d+)", re.ASCII)
_MARKS = re.compile(
    r"\\{1,2}(?:boxed|fbox)(?![a-zA-Z])[ \t\n]{0,9}(?:(?P<open>\{)|(?P<bare>[+-]?(?:[0-9][0-9.]{0,40}|[a-zA-Z](?![a-zA-Z]))))?"
    r"|\\.|[{}]",
    re.DOTALL,
)
_HASHES = re.compile(r"#{4}(?!#)[ \t]*(?P<answer>\S.*)")
_WORD_FIRST = re.compile(r"[^\w\\]*[a-zA-Z]{2,}")
_STEP_FIRST = re.compile(r"[0-9]+[.):][ \t]+[a-zA-Z]{2,}")
_BOLD = re.compile(r"(?i:answer)(?P<between>[^*\n]{0,40})\*\*(?P<rest>[^*\n]{0,400})(?P<closed>\*\*)?")
_CHOICE = re.compile(r"\(?[A-J](?:[.:)]{0,2}|[.:)]{1,2}[ \t]+\S.{0,60})")
_SAID = re.compile(r"\b[Aa]nswer\b[^\n:=]{0,40}?(?:\bis\b|:|=)[ \t]*(?P<answer>\S[^\n]{0,200})")
_CLAUSE_END = re.compile(r"[.!?;](?=\s|\Z)|,\s+(?=[a-zA-Z]{2,})")
_EXPRESSION = re.compile(
    r"\$\$([^$]{1,400})\$\$|\$([^$\n]{1,400})\$|\\\(([^\n]{1,400}?)\\\)|\\\[([^$]{1,400}?)\\\]"
    r"|\\[dt]?frac\{[^{}]{1,40}\}\{[^{}]{1,40}\}"
    r"|(?<![\w.])[+\u2212-]?(?:[0-9]{1,40}(?:,[0-9]{3})*(?:\.[0-9]{1,40})?|\.[0-9]{1,40})(?:[ ]?/[ ]?[0-9]{1,40})?%?"
)
"""Mathematics between dollars or LaTeX's brackets, a fraction, or a number."""
LENIENT_TAIL = 2000
"""Characters at the end of a completion in which a lenient reading looks for an expression."""
MAX_ZEROS = 1000
"""Powers of ten that are written out."""


def after_thinking(completion: str, *, opened: bool = False) -> str | None:
    """What follows the thinking: all of it where there is none, and None where the thinking never ends.

    `opened`: the chat template has already written `<think>`.
    """
    end = completion.rfind(END_THINK)
    rest = completion if end < 0 else completion[end + len(END_THINK) :]
    return None if THINK in rest or (opened and end < 0) else rest


def final_answer(completion: str, *, opened: bool = False) -> str | None:
    """The answer that a completion states, as text (see the top of this file); None where it states none.

    `opened`: the chat template has already written `<think>`, as DeepSeek's distilled models' does.
    """
    text = after_thinking(completion, opened=opened)
    return None if text is None else _stated(text)


def lenient_answer(completion: str, *, is_text: bool = False) -> str | None:
    """What a completion most likely means by its answer where it states none in a form of `final_answer`: a guess.

    The first of these that there is: an answer in one of those forms, inside the thinking too; what follows the last "answer
    is" or "answer:", to the end of its clause, unless that is prose; the last expression or number. `is_text`: of answers that
    are text, what follows the last "answer is", else the last line.
    """
    text = (after_thinking(completion) or completion).strip()
    if (stated := _stated(text)) is not None:
        return stated
    tail = text[-LENIENT_TAIL:]
    said = deque(_SAID.finditer(tail), 1)
    phrase = _CLAUSE_END.split(said[0]["answer"], maxsplit=1)[0].strip(" *`$\t") if said else ""
    if is_text:
        return phrase or tail.rpartition("\n")[2].strip(" *`.") or None
    if phrase and not is_prose(phrase):
        return phrase
    expressions = deque(_EXPRESSION.finditer(tail), 1)
    return next(filter(None, [*expressions[0].groups(), expressions[0][0]])).strip() if expressions else None


def has_format(completion: str, *, opened: bool = False, read: Callable[[str], str | None] | None = None) -> bool:
    """Whether the completion is one `<think>...</think>` block with something in it, and then one answer.

    Each tag stands once and in order, nothing precedes the block, there is an answer after it, and at most one box.
    `read` takes the answer out of what follows the block; None where there is none. By default the one of `final_answer`.
    `opened`: as there.
    """
    text = (THINK if opened else "") + completion
    text = text.strip()
    if not text.startswith(THINK) or text.count(THINK) != 1 or text.count(END_THINK) != 1:
        return False
    thought, _, rest = text[len(THINK) :].partition(END_THINK)
    if not thought.strip():
        return False
    if read is not None:
        return bool((read(rest) or "").strip())
    return bool((_stated(rest) or "").strip()) and _count_boxes(rest) <= 1


def last_boxed(text: str) -> str | None:
    r"""The content of the last whole `\boxed{...}` or `\fbox{...}`, stripped; None where there is none."""
    last = deque(_boxes(text), 1)
    return text[last[0][0] : last[0][1]].strip() if last else None


def _boxes(text: str) -> Iterator[tuple[int, int]]:
    r"""Where the content of each whole box begins and ends, in the order of their ends: an outer one after those inside it.

    One pass with a stack of the opened braces. `\\` is a line break, so that the brace in `\\{` counts; `\{` does not.
    """
    opened: list[int] = []  # where the content of an opened box begins, or -1 for any other brace
    for mark in _MARKS.finditer(text):
        if mark["open"]:
            opened.append(mark.end())
        elif mark["bare"]:
            yield mark.start("bare"), mark.end()
        elif mark[0] == "{":
            opened.append(-1)
        elif mark[0] == "}" and opened and (begin := opened.pop()) >= 0:
            yield begin, mark.start()


def _count_boxes(text: str) -> int:
    """The number of whole boxes, without those inside another one."""
    outer: list[int] = []  # where they begin
    for begin, _ in _boxes(text):
        while outer and outer[-1] > begin:
            outer.pop()
        outer.append(begin)
    return len(outer)


def _stated(text: str) -> str | None:
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    for rule in (_hash_answer, _bold_answer, _choice):
        if (answer := rule(text)) is not None:
            return answer
    return None


def is_heading(text: str) -> bool:
    """Whether what stands after `####` is a heading, which begins with a word or is numbered, and no answer."""
    return bool(_WORD_FIRST.match(text) or _STEP_FIRST.match(text))


def _hash_answer(text: str) -> str | None:
    """What stands after `####` on the last line that is not empty."""
    lines = text.rstrip()
    match = _HASHES.fullmatch(lines, lines.rfind("\n") + 1)
    return None if match is None or is_heading(match["answer"]) else match["answer"].strip()


def _bold_answer(text: str) -> str | None:
    """`The answer is **4**`, `Answer: **4**`, `**Answer:** 4`, `**Answer: 4**`, `**Answer**: 4`; the last of them."""
    last = None
    for match in _BOLD.finditer(text):
        between, rest = match["between"], match["rest"].strip()
        if between[-1:].isspace() or (not between and not rest.startswith(":")):  # these stars open
            stated = rest if match["closed"] else ""
        else:  # and these close
            stated = between.partition(":")[2].strip() or rest.removeprefix(":").strip()
        last = stated or last
    return last


def _choice(text: str) -> str | None:
    text = text.strip()
    return text if _CHOICE.fullmatch(text) else None


def is_prose(text: str) -> bool:
    """Whether two plain words stand side by side, which a maths parser would take for a product of letters."""
    return _PROSE.search(_LATEX_TEXT.sub("", text)) is not None


def same_text(a: str, b: str) -> bool:
    """Equal but for case and white space."""
    return " ".join(a.split()).casefold() == " ".join(b.split()).casefold()


def as_integer(text: str) -> int | None:
    """The integer that a plain numeral of ASCII digits stands for; None for anything else."""
    text = text.strip()
    return int(text) if _INTEGER.fullmatch(text) else None


def spelled_out(text: str) -> str:
    """A number in scientific notation as a plain decimal; any other text as it is.

    1e16 is 10000000000000000: a maths parser would take its e for Euler's. Empty for what is too large or too small to be
    written out, which is then no mathematics and equal to nothing.
    """
    match = _SCIENTIFIC.fullmatch(text.strip())
    if match is None:
        return text
    power = match[2].lstrip("+-0")
    if len(power) > 4 or int(power or 0) > MAX_ZEROS:
        return ""
    return format(Decimal(f"{match[1]}e{match[2]}"), "f")
