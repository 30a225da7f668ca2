"""The guard's rules: what each measures in a row of metrics, on which side of its limit it triggers, and what it says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import ConfigDict, Field

from microrl.files import STRICT, Count, Fraction
from microrl.run.metrics import MetricsRow

SCHEDULED = "scheduled"
"""Beside the metrics of a row: the fraction of the peak rate that the schedule has set in this step."""

Action = Literal["warn", "rollback", "stop"]
SOLVED = 0.9
"""Fraction of right answers from which a low entropy is healthy."""
LARGEST_LOG_NORM = 700.0
"""Largest x, rounded down, with a finite exp(x)."""
LOWER_TO = 0.5
"""What a rollback leaves of the learning rate, as a fraction."""
MOVES_NOTHING = 1e-6
"""Nats per token. At the largest rate (`policy.optimizer`), such a step would still be a fortieth of 2e-4, a small one."""
LIKE_TEACHER = 0.5
"""Fraction of the teacher's entropy from which a student is about as sure as its teacher."""
MIN_ENTROPY = 0.1
"""Nats. A rise is measured against step 0's entropy, but at least this: a multiple of almost nothing is still small."""


@dataclass(slots=True)
class Memory:
    """The guard's memory of the rows it has seen. It is read back from checkpoints, which may be damaged."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    start: dict[Literal["policy/entropy", "length/mean", "length/truncated"], Annotated[float, Field(ge=0)]] = field(
        default_factory=dict
    )
    """Step 0's metrics by name."""
    norms: Count = 0
    log_norms: float = 0.0
    """Sum of the logarithms of `norms` gradient norms."""
    steps: Count = 0
    useful: Annotated[float, Field(ge=0)] = 0.0
    """Sum of the fractions of useful groups over all `steps`."""
    validations: list[Fraction] = field(default_factory=list)
    """The last validation accuracies, as many as are averaged."""
    history: list[Fraction] = field(default_factory=list)
    """All validation accuracies of the run."""
    has_learned: bool = False
    """Whether the accuracy of later validations was once above that of earlier ones by more than chance."""
    average: Fraction | None = None
    """The mean of `validations`; None while there are too few."""
    best_average: Fraction = 0.0
    passed: dict[str, Annotated[int, Field(ge=0, le=10**9)]] = field(default_factory=dict)
    """Consecutive steps in which a rule's limit was exceeded."""
    warned: list[str] = field(default_factory=list)
    """Rules that have warned and not recovered since."""
    interventions: Annotated[int, Field(ge=0, le=10**6)] = 0

    def __post_init__(self) -> None:
        if abs(self.log_norms) > LARGEST_LOG_NORM * self.norms:
            raise ValueError("`log_norms` is out of range")
        if unknown := {*self.passed, *self.warned} - RULES.keys():
            raise ValueError(f"`{min(unknown)}` is not a rule")


class Rule(NamedTuple):
    """How a rule measures a row (None: no value), on which side of the limit it triggers, and its message."""

    measure: Callable[[MetricsRow, Memory], float | None]
    sentence: Callable[[MetricsRow, float, float], str]
    below: bool = False
    patience: int = 8
    """Consecutive steps. For grad_norm, skipped steps do not count; for accuracy, the number of validations averaged; for
    learning, the validations before a verdict."""
    action: Action = "rollback"


def _unsolved_entropy(row: MetricsRow, memory: Memory) -> float | None:
    """Policy entropy; None if most answers are right, or a teacher's is not much higher, when a low entropy is healthy."""
    of_teacher = _of_teacher(row, memory)
    is_healthy = row["reward/accuracy"] >= SOLVED or (of_teacher is not None and of_teacher >= LIKE_TEACHER)
    return None if is_healthy else row["policy/entropy"]


def _of_teacher(row: MetricsRow, memory: Memory) -> float | None:
    """Policy entropy as a fraction of the teacher's."""
    entropy, teacher = row["policy/entropy"], row.get("distill/teacher_entropy")
    return None if entropy is None or not teacher else entropy / teacher


def _entropy_drop(row: MetricsRow, memory: Memory) -> float | None:
    entropy, start = _unsolved_entropy(row, memory), memory.start.get("policy/entropy")
    return 1 - entropy / start if entropy is not None and start else None


def _entropy_rise(row: MetricsRow, memory: Memory) -> float | None:
    entropy = row["policy/entropy"]
    return None if entropy is None else entropy / max(memory.start["policy/entropy"], MIN_ENTROPY)


def _length_drift(row: MetricsRow, memory: Memory) -> float:
    ratio = max(row["length/mean"], 1.0) / max(memory.start["length/mean"], 1.0)
    return max(ratio, 1 / ratio)


def _grad_norm(row: MetricsRow, memory: Memory) -> float | None:
    """Infinite where the update was skipped although the batch had a loss: without differing rewards that is exactly 0."""
    norm = row["policy/grad_norm"]
    if norm is None:
        return math.inf if row["update/skipped"] and row["loss"] != 0 else None
    return norm / math.exp(memory.log_norms / memory.norms) if memory.norms else None


VALIDATED = ("accuracy", "learning")
"""Rules about validation accuracy."""


def _accuracy(row: MetricsRow, memory: Memory) -> float | None:
    """How far the average of the last validations is below the best average, or below the first validation if that was better.

    All validations are of the same problems with the same random numbers, so what differs is sampling: with the default
    64 x 2 answers a standard error of at most 0.031 for an average of two. In 50 validations of a policy that stands still,
    their range passes 0.2 in one run of 150 at the worst (every problem right half the time), and in none of 200 where
    difficulty is spread. One deep fall with a partial recovery shows in an average, not in two consecutive validations.
    """
    if row["validate/accuracy"] is None or memory.average is None:
        return None
    return memory.best_average - memory.average


def risen(history: Sequence[float]) -> float:
    """Mean of the second half of the validations less that of the first; 0 for fewer than two."""
    half = len(history) // 2
    return math.fsum(history[half:]) / (len(history) - half) - math.fsum(history[:half]) / half if half else 0.0


def _learning(row: MetricsRow, memory: Memory) -> float | None:
    """How much higher the second half of the validations is than the first. None once a rise was seen: a plateau is healthy."""
    if row["validate/accuracy"] is None or memory.has_learned or memory.average is None:
        return None
    return risen(memory.history)


def _steered_rate(row: MetricsRow, memory: Memory) -> float | None:
    """The rate where a step moves nothing, before schedule and rollbacks have lowered it, since steering does not see that they
    have. 0 where a step moves the policy: an adapter may need a high rate."""
    scheduled = row.get(SCHEDULED, 1.0)
    if row["policy/step_kl"] is None or not scheduled:
        return None
    lowered = scheduled * LOWER_TO**memory.interventions
    return row["optim/lr"] / lowered if row["policy/step_kl"] < MOVES_NOTHING * lowered**2 else 0.0


def _gradient(row: MetricsRow, value: float, limit: float) -> str:
    large = f"the gradient norm is {value:.0f} times its usual size, above {limit:g}"
    return large if math.isfinite(value) else "the gradient is not finite"


def _nothing_to_learn(row: MetricsRow, value: float, limit: float) -> str:
    right = row["reward/accuracy"]
    why = "the problems are solved" if right >= 0.5 else "the problems are too hard for this model"
    return f"only {value:.0%} of the groups have differing rewards: {why} ({right:.0%} of the answers are right)"


def _says(text: str) -> Callable[[MetricsRow, float, float], str]:
    return lambda row, value, limit: text.format(row=row, value=value, limit=limit, points=100 * value)


RULES: dict[str, Rule] = {
    "grad_norm": Rule(_grad_norm, _gradient, patience=4),
    "kl_sampler": Rule(
        lambda row, memory: row["policy/kl_sampler"],
        _says("KL(engine, trainer) is {value:.3g} nats per token, above {limit:g}"),
        patience=4,
    ),
    "truncated": Rule(
        lambda row, memory: row["length/truncated"] - memory.start["length/truncated"],
        _says(
            "{row[length/truncated]:.0%} of the completions reach the length limit, {points:.0f} percentage points more than at "
            "the first step"
        ),
    ),
    "entropy_rise": Rule(
        _entropy_rise,
        _says(
            "entropy is {row[policy/entropy]:.3f} nats, {value:.1f} times that of the first step"
            f" (or of {MIN_ENTROPY:g} nats, if that is larger): the policy is becoming random"
        ),
    ),
    "entropy_low": Rule(
        _unsolved_entropy,
        _says("entropy is {value:.4f} nats: the policy no longer explores, with {row[reward/accuracy]:.0%} of its answers right"),
        below=True,
    ),
    "entropy_teacher": Rule(
        lambda row, memory: None if row["reward/accuracy"] >= SOLVED else _of_teacher(row, memory),
        _says("entropy is {row[policy/entropy]:.4f} nats, {value:.2g} times the teacher's: the student is far surer"),
        below=True,
    ),
    "accuracy": Rule(
        _accuracy,
        _says(
            "the average of the last validation accuracies is {value:.3f} below its best "
            "(latest accuracy: {row[validate/accuracy]:.3f})"
        ),
        patience=2,
    ),
    "learning": Rule(
        _learning,
        _says(
            "nothing is being learned: the second half of the validations differs from the first by {value:+.3f}, and no rise "
            "has been seen"
        ),
        below=True,
        patience=16,  # a slow rise is too small to see before
        action="warn",
    ),
    "useful_groups": Rule(
        # Patient, so that a validation can roll a collapse back first.
        lambda row, memory: row["groups/useful"] if row.get("distill/kl") is None else None,  # a teacher teaches any group
        _nothing_to_learn,
        below=True,
        patience=30,
        action="stop",
    ),
    "rate": Rule(
        _steered_rate,
        _says(
            "the steered learning rate has risen to {value:.3g}, above {limit:g}, and a step moves the policy by only "
            "{row[policy/step_kl]:.1g} nats a token"
        ),
        patience=2,  # only every fourth step is measured, and the gradient norm soon grows at such a rate
        action="stop",
    ),
    "entropy_drop": Rule(
        _entropy_drop,
        _says("entropy has fallen by {value:.1%} since the first step, with {row[reward/accuracy]:.0%} of the answers right"),
        action="warn",
    ),
    "length_drift": Rule(
        _length_drift,
        _says("the mean completion has {row[length/mean]:.0f} tokens, changed by a factor of {value:.1f} since the first step"),
        action="warn",
    ),
}
