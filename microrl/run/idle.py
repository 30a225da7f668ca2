"""Steps that changed no weight: how a row of `metrics.jsonl` shows one, why it was one, and what to change about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from microrl.run.metrics import MetricsRow, custom_parts

Setting = Callable[[str], Any]
"""The value of a key of the configuration such as `sampling.group_size`."""
Cause = Literal["truncated", "format", "wrong", "right", "equal", "no reward", "gradient", "rate", "teacher"]
COLLAPSED: tuple[Cause, ...] = ("wrong", "format", "truncated", "gradient")
"""Causes of steps without an update that better weights may remove, if the run ever had any."""
RANDOM = 2.0
"""Entropy as a multiple of the first step's from which a policy is taken to have become random."""
NEARLY_ALL = 0.95
"""Fraction of a step's completions from which they are called all truncated, all right, or (below 1 - this) all wrong."""
MANY = 0.5
"""Fraction of truncated completions from which truncation explains that no answer is right."""


class Reason(NamedTuple):
    """Why a step changed no weight, and what to change: templates, of a row's numbers, the configuration's values, and {run}."""

    said: str
    advice: str


EASIER = "use easier questions or a larger model, or start with SFT (sft.steps)"
REASONS: dict[Cause, Reason] = {
    "no reward": Reason(
        "no completion has a reward, because a reward function gave no value",
        "repair the function, or leave it out of reward.functions",
    ),
    "gradient": Reason("the gradient is not finite", "lower {rate}, or compute in a wider type: model.dtype=float32"),
    "rate": Reason("the learning rate is 0", "raise {rate}"),
    "teacher": Reason("the teacher and the model give every token the same probability", "choose another distill.teacher"),
    "truncated": Reason(
        "{length/truncated:.0%} of the completions are cut at the length limit, and {reward/accuracy:.0%} of them are right",
        "raise sampling.max_completion_tokens (now {sampling/max_completion_tokens})",
    ),
    "format": Reason(
        "{reward/accuracy:.0%} of the answers are right, and {reward/format:.0%} of the completions have the format",
        "teach the format by SFT first (sft.steps), phrase questions in a way the model knows, or use a model that follows "
        "instructions; how answers are read: microrl regrade {run}",
    ),
    "right": Reason(
        "{reward/accuracy:.0%} of the answers are right, so there is nothing left to learn from them",
        "train on harder questions: another data.name, or data.screen_minutes to leave out those that are always right",
    ),
    "wrong": Reason(
        "{reward/accuracy:.0%} of the answers are right, so no answer is better than another",
        f"compare the answers with those of the data (microrl regrade {{run}}); if the data is right, {EASIER}",
    ),
    "equal": Reason(
        "within each group, all completions not left out have the same reward",
        "sample more completions per question (sampling.group_size, now {sampling/group_size}), or use a reward that varies more",
    ),
}
_KEYS = ("sampling.max_completion_tokens", "sampling.group_size")


def rate_of(setting: Setting) -> str:
    """The key that decides how far a step goes, and its value, for advice."""
    key = "optim.lr" if setting("optim.step_kl") is None else "optim.step_kl"
    return f"{key} (now {setting(key)})"


def cause_of(row: MetricsRow, *, counts_accuracy: bool = True) -> Cause | None:
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
    if accuracy >= NEARLY_ALL:
        return "right"
    in_format = row.get("reward/format")
    return "format" if in_format is not None and in_format < 1 - NEARLY_ALL else "wrong"


def without_effect(row: MetricsRow) -> Cause | None:
    """Why a step that had a gradient changed no weight. For the guard it is a step like others: such a run may be a control."""
    if (norm := row.get("policy/grad_norm")) is None:
        return None
    if row.get("optim/lr") == 0:
        return "rate"
    return "teacher" if norm == 0 and row.get("distill/kl") == 0 else None


def has_collapsed(rows: Sequence[MetricsRow]) -> bool:
    """Whether a policy that gave right answers in the first step gives none in the last, at quite another entropy or length."""
    if not rows:
        return False
    (right, entropy, cut), (right_now, entropy_now, cut_now) = (
        tuple(row.get(name) or 0.0 for name in ("reward/accuracy", "policy/entropy", "length/truncated"))
        for row in (rows[0], rows[-1])
    )
    is_like_before = entropy / RANDOM <= entropy_now <= RANDOM * entropy and cut_now - cut < MANY
    return right > 1 - NEARLY_ALL > right_now and not is_like_before


def said(cause: Cause, row: MetricsRow) -> str:
    """The cause in words, with this row's numbers."""
    known = {name: 0.0 if value is None else value for name, value in row.items()}
    parts = ", ".join(f"`{name}` gave {value:g}" for name, value in custom_parts(row).items() if value is not None)
    means = f" (on average {parts})" if cause == "equal" and parts else ""
    return REASONS[cause].said.format_map({"reward/format": 0.0} | known) + means


def advice(cause: Cause, setting: Setting, row: MetricsRow, run: Any) -> str:
    """What to change about it. `run`: the run's folder."""
    values = {name.replace(".", "/"): setting(name) for name in _KEYS} | {"run": run, "rate": rate_of(setting)}
    names = " or ".join(f"`{name}`" for name in custom_parts(row))
    if cause == "equal" and names:
        key = "sampling.group_size" if setting("reward.accuracy_weight") else "reward.accuracy_weight"
        return f"make {names} score a question's completions differently, or raise {key} (now {setting(key)})"
    return REASONS[cause].advice.format_map(values)
