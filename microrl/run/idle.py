"""Steps that changed no weight: how a row of `metrics.jsonl` shows one, why it was one, and what to change about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

Row = Mapping[str, Any]
Setting = Callable[[str], Any]
"""The value of a key of the configuration such as `sampling.group_size`."""
Cause = Literal["truncated", "wrong", "right", "equal", "no reward", "gradient"]
NEARLY_ALL = 0.95
"""Fraction of a step's completions from which they are called all truncated, all right, or (below 1 - this) all wrong."""

SETTINGS = ("optim.lr", "sampling.max_completion_tokens", "sampling.group_size")


MANY = 0.5
"""Fraction of truncated completions from which truncation explains that no answer is right."""


class Reason(NamedTuple):
    """Why a step changed no weight, and what to change: templates, of a row's numbers and of the configuration's values."""

    said: str
    advice: str


REASONS: dict[Cause, Reason] = {
    "no reward": Reason(
        "no completion has a reward, because a reward function gave no value",
        "repair the function, or leave it out of reward.functions",
    ),
    "gradient": Reason(
        "the gradient is not finite",
        "lower optim.lr (now {optim/lr}), or compute in a wider type: model.dtype=float32",
    ),
    "truncated": Reason(
        "{length/truncated:.0%} of the completions are cut at the length limit, and {reward/accuracy:.0%} of them are right",
        "raise sampling.max_completion_tokens (now {sampling/max_completion_tokens})",
    ),
    "right": Reason(
        "{reward/accuracy:.0%} of the answers are right, so there is nothing left to learn from them",
        "train on harder questions: another data.name, or data.screen_minutes to leave out those that are always right",
    ),
    "wrong": Reason(
        "{reward/accuracy:.0%} of the answers are right, so no answer is better than another",
        "check that answers are read as they should be (microrl regrade), then take easier questions, a larger model, or teach "
        "it by SFT first (sft.steps)",
    ),
    "equal": Reason(
        "within each group all completions that count have the same reward",
        "sample more completions a question (sampling.group_size, now {sampling/group_size}), or take a reward that differs more",
    ),
}


def cause_of(row: Row, *, counts_accuracy: bool = True) -> Cause | None:
    """Why this step changed no weight; None: it did change them. `counts_accuracy`: whether right answers are rewarded.

    Every update has a gradient norm. Where none was computed because nothing told the completions of a group apart, the loss is
    exactly 0; where it was computed and is not finite, it is not.
    """
    if row.get("policy/grad_norm") is not None or not row.get("update/skipped"):
        return None
    accuracy = row.get("reward/accuracy")
    if row.get("reward/mean") is None and row.get("reward/left_out"):
        return "no reward"
    if row.get("loss") != 0:
        return "gradient"
    if not counts_accuracy:
        return "equal"
    truncated = row.get("length/truncated") or 0.0
    if truncated > NEARLY_ALL or (truncated > MANY and (accuracy or 0.0) < 1 - NEARLY_ALL):
        return "truncated"
    if accuracy is None or 1 - NEARLY_ALL < accuracy < NEARLY_ALL:
        return "equal"
    return "right" if accuracy >= NEARLY_ALL else "wrong"


def said(cause: Cause, row: Row) -> str:
    """The cause in words, with this row's numbers."""
    return REASONS[cause].said.format_map({name: 0.0 if value is None else value for name, value in row.items()})


def advice(cause: Cause, setting: Setting) -> str:
    """What to change about it."""
    return REASONS[cause].advice.format_map({name.replace(".", "/"): setting(name) for name in SETTINGS})
