"""Procedural tasks: answers are judged by reasoning-gym's own scorers, in a confined process only.

Nine of these scorers evaluate the answer as code. `handle` is what runs in the confined process; `refusal` decides, before a run,
whether a task's scorer can be trusted. Only a full score counts: many scorers pay a part of it for any text, or for a long one
that contains the answer among others.
"""

from __future__ import annotations

import json
import logging
import math
import re
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from microrl import plain
from microrl.answers import after_thinking, last_boxed
from microrl.clock import processor_s

LONGEST = 10_000
"""Characters. A longer text is no answer, and is not scored."""
QUICK_S = 1.0
"""Processor time that a scorer may take for one answer of a probe."""
PROBED = 8
"""Problems of each task that a probe should look at."""
NONSENSE = ("", " ", "banana", "I do not know", "nan", "inf", "-inf", "0/0", "[nan]", "nan+nanj", "lambda: 0", "x" * 500)
"""What is never a right answer."""
EMPTY = ("None", "null", "()", "[]", "{}", "[[]]", '"', "\\", "True False", "yes no", "0", "1", "-1", "0.5", "00")
"""What may be the right answer to a problem or two, but not to SEVERAL whose own answers differ."""
SEVERAL = 3
"""Or to all of them, where a task has two different answers, such as True and False."""
_TOWER = re.compile(r"(?:\*\*|\^)[({\[+\- ]{0,9}\d+(?:\.\d*)?(?:(?<=\d{4})|[)}\] ]{0,9}(?:\*\*|\^))|\d[eE][+-]?\d{4}")
"""A number as an exponent that is in the thousands, or is itself raised to a power."""

_NUMBERS = r"[0-9+\-*/().\s]*"
_MATRIX = r"[0-9\[\],\s-]*"
_TERMS = r"(?:[0-9+\-*/^()\s]|\.(?=[0-9])|(?<![A-Za-z0-9_])(?:{names}[A-Za-z](?![A-Za-z0-9_(])))*"
_FUNCTIONS = (
    r"(?:(?:a?(?:sin|cos|tan|cot|sec|csc)h?|exp|log|ln|sqrt|Abs|erf|erfi|Ei|Si|Ci|li)(?=\s*\()|(?:pi|oo)(?![A-Za-z0-9_]))|"
)
EVALUATED = {
    "countdown": _NUMBERS,
    "puzzle24": _NUMBERS,
    "binary_matrix": _MATRIX,
    "spiral_matrix": _MATRIX,
    "string_insertion": r"[A-Z\[\],'\"\s]*",
    "n_queens": r"[Q_\[\],'\"\s]*",
    "polynomial_multiplication": _TERMS.format(names=""),
    "simple_integration": _TERMS.format(names=_FUNCTIONS),
    "intermediate_integration": _TERMS.format(names=_FUNCTIONS),
}
"""What an answer may consist of, for the tasks whose scorers evaluate it as Python (reasoning-gym 0.1.25). Otherwise
`integrate(...)` around the question would be a right answer, and `entry["answer"]` could be."""

Ask = Callable[[dict[str, Any]], Any]
"""Ask a confined process for the result of `handle`; None where it did not answer in time."""


def answer_of(completion: str, opened: bool = False) -> str | None:
    """The answer in a completion: after the thinking, the last `<answer>...</answer>`, else the last box; None without one.

    `opened`: the chat template has already written `<think>`.
    """
    if (text := after_thinking(completion, opened=opened)) is None:
        return None
    end = text.rfind("</answer>")
    if end >= 0:
        begin = text.rfind("<answer>", 0, end)
        return text[begin + len("<answer>") : end].strip() if begin >= 0 else None
    return last_boxed(text)


def prepare() -> None:
    """Import what the scorers need, before forking."""
    import reasoning_gym  # noqa: F401


def is_refused(task: str, answer: str) -> bool:
    """Whether an answer is wrong without being scored: it is too long, may take a scorer for ever, or is code."""
    if len(answer) > LONGEST or _TOWER.search(answer) is not None:
        return True
    return task in EVALUATED and re.fullmatch(EVALUATED[task], answer) is None


def handle(request: dict[str, Any], reads: int = -1, writes: int = -1) -> Any:
    """Judge answers to one problem: `gold` is the question's answer (`microrl.data.gym`).

    With `answer`: whether it is right. With `answers`: a list of that, and the largest processor time of one of them, in seconds.
    """
    problem = json.loads(request["gold"])
    scorer, entry = _scorer(problem["task"]), plain.decode(problem["entry"])
    if "answers" not in request:
        return _is_right(scorer, problem["task"], entry, request["answer"])
    verdicts, slowest_s = [], 0.0
    for answer in request["answers"]:
        began = processor_s()
        verdicts.append(_is_right(scorer, problem["task"], entry, entry["answer"] if answer is None else answer))
        slowest_s = max(slowest_s, processor_s() - began)
    return [verdicts, slowest_s]


def refusal(task: str, golds: Sequence[str], ask: Ask) -> str | None:
    """Why a task cannot be trained on, or None. `golds`: answers of some of its questions.

    Its own answer has to be right, nonsense wrong, one text not right for several problems with different answers (nor all
    their answers in a row), and the scorer quick with all of them.
    """
    problems = [json.loads(gold) for gold in golds]
    if not all(problem["has_answer"] for problem in problems):
        return "its problems have no gold answer, so its scorer cannot be checked"
    own = [plain.decode(problem["entry"])["answer"] for problem in problems]
    answers = [None, *NONSENSE, *EMPTY, *(mark.join(dict.fromkeys(own)) for mark in (" ", ", ", " or ", "\n\n"))]
    takes: dict[str | None, set[str]] = {answer: set() for answer in answers}
    for gold, right in zip(golds, own, strict=True):
        reply = ask({"gold": gold, "answers": answers})
        if reply is None:
            return "its scorer hangs or crashes"
        verdicts, slowest_s = reply
        if slowest_s > QUICK_S:
            return f"its scorer takes {slowest_s:.1f} s for an answer"
        if not verdicts[0]:
            return "its scorer takes its own answer for wrong"
        for answer, verdict in zip(answers, verdicts, strict=True):
            if verdict and answer != right:
                takes[answer].add(right)
    several = max(2, min(SEVERAL, len(set(own))))
    for answer in answers[1:]:
        if len(takes[answer]) >= (1 if answer in NONSENSE else several):
            return f"its scorer takes {str(answer)[:60]!r} for right"
    return None


def _is_right(scorer: Any, task: str, entry: dict[str, Any], answer: str) -> bool:
    if is_refused(task, answer):
        return False
    try:
        score = scorer.score_answer(answer, entry)
        return isinstance(score, int | float) and math.isfinite(score) and score >= 1
    except Exception:
        # Whatever goes wrong inside the scorer of one answer means "not shown to be right".
        return False


@cache
def _scorer(task: str) -> Any:
    """A data set of this task: of its scorer, all else is in the entry."""
    import reasoning_gym

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    return reasoning_gym.create_dataset(task, seed=0, size=1)
