"""The guard: named rules that watch a run's metrics, see when it falls apart, and say what to do about it.

It reads finished rows of `metrics.jsonl` and nothing else, so that a recorded run can be replayed through it. What a row does
not say (null) neither adds to a rule's steps on end nor breaks them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from microrl.config.oversight import Action, GuardConfig

Row = Mapping[str, Any]

STRENGTH: dict[Action, int] = {"warn": 0, "lower": 1, "rollback": 2, "stop": 3}
SOLVED = 0.9
"""Share of right answers from which a policy may be as sure of itself as it likes."""
LEAST_ENTROPY = 0.1
"""Nats. A rise is judged against step 0's entropy, but not against less: a few times almost nothing is still little."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A rule that triggered, and what is to be done."""

    rule: str
    action: Action
    value: float | None
    """What the rule measured; None where that is not finite."""
    limit: float
    message: str


@dataclass(slots=True)
class Memory:
    """What the guard keeps of the rows it has seen."""

    start: dict[str, float] = field(default_factory=dict)
    """Step 0's metrics by name."""
    norms: int = 0
    log_norms: float = 0.0
    """Sum of the logarithms of `norms` gradient norms."""
    validations: list[float] = field(default_factory=list)
    """The last accuracies, as many as are averaged."""
    average: float | None = None
    """Their mean; None while there are too few."""
    best_average: float = 0.0
    passed: dict[str, int] = field(default_factory=dict)
    """Steps on end in which a rule's limit was passed. Below 0: a grace period."""
    warned: list[str] = field(default_factory=list)
    """Rules that have warned and not recovered since."""
    interventions: int = 0


class Guard:
    """Judges one row a step. After a rollback it goes on with what it has: its state is not that of the checkpoint."""

    def __init__(self, config: GuardConfig) -> None:
        self._config = config
        self._memory = Memory()

    @property
    def lr_factor(self) -> float:
        """What is left of the scheduled learning rate after the interventions so far, as a share."""
        return self._config.lower_to**self._memory.interventions

    def check(self, row: Row) -> Verdict | None:
        """The strongest of the verdicts on this row; of equals the first in the order of `RULES`."""
        self._look(row)
        found = [verdict for name, rule in RULES.items() if (verdict := self._judge(name, rule, row))]
        norm = row["policy/grad_norm"]
        if norm:
            self._memory.norms += 1
            self._memory.log_norms += math.log(norm)
        if not found:
            return None
        verdict = max(found, key=lambda verdict: STRENGTH[verdict.action])
        if verdict.action == "warn":
            self._memory.warned.append(verdict.rule)
        else:
            self._start_anew(verdict.action)
        return verdict

    def state(self) -> dict[str, Any]:
        """Everything it remembers, for a checkpoint; `restore` takes it back."""
        return asdict(self._memory)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on as the guard whose `state` this is."""
        self._memory = Memory(**state)

    def _look(self, row: Row) -> None:
        """Take in what this row is measured against: step 0's metrics, and the validations."""
        memory, averaged = self._memory, self._config.accuracy.patience
        for name in ("policy/entropy", "length/mean", "length/truncated"):
            if row[name] is not None:
                memory.start.setdefault(name, row[name])
        if row["validate/accuracy"] is not None:
            memory.validations = [*memory.validations, row["validate/accuracy"]][-averaged:]
            if len(memory.validations) == averaged:
                memory.average = sum(memory.validations) / averaged
                memory.best_average = max(memory.best_average, memory.average)

    def _judge(self, name: str, rule: Rule, row: Row) -> Verdict | None:
        config, memory = getattr(self._config, name), self._memory
        value = rule.measure(row, memory) if config.limit is not None else None
        if value is None:
            return None
        if not (value < config.limit if rule.below else value > config.limit):
            memory.passed[name] = 0
            memory.warned = [warned for warned in memory.warned if warned != name]
            return None
        memory.passed[name] = memory.passed.get(name, 0) + 1
        action: Action = config.action
        if memory.passed[name] < self._needed(name) or (action == "warn" and name in memory.warned):
            return None
        message = rule.sentence(row, value, config.limit) + (
            "" if name == "accuracy" else f" ({memory.passed[name]} steps on end)"
        )
        if action in ("lower", "rollback") and memory.interventions >= self._config.interventions:
            action = "stop"
            message += f"; the rate was lowered {memory.interventions} times already"
        return Verdict(name, action, value if math.isfinite(value) else None, config.limit, message)

    def _needed(self, name: str) -> int:
        """How often on end the limit must be passed. Accuracy's patience is already in its average."""
        patience: int = getattr(self._config, name).patience
        return 1 if name == "accuracy" else patience

    def _start_anew(self, action: Action) -> None:
        """Forget what went before an intervention. Only a rollback's weights are well at once: the others get a grace period."""
        memory = self._memory
        memory.validations, memory.average = [], None
        memory.passed = {name: -self._needed(name) if action == "lower" else 0 for name in RULES}
        if action in ("lower", "rollback"):
            memory.interventions += 1


class Rule(NamedTuple):
    """How a rule measures a row (None: the row does not say), on which side of the limit it triggers, and how it says so."""

    measure: Callable[[Row, Memory], float | None]
    sentence: Callable[[Row, float, float], str]
    below: bool = False


def _unsolved_entropy(row: Row, memory: Memory) -> float | None:
    """A policy that knows the answers needs no entropy."""
    return None if row["reward/accuracy"] >= SOLVED else row["policy/entropy"]


def _entropy_drop(row: Row, memory: Memory) -> float | None:
    entropy, start = _unsolved_entropy(row, memory), memory.start.get("policy/entropy")
    return 1 - entropy / start if entropy is not None and start else None


def _entropy_rise(row: Row, memory: Memory) -> float | None:
    entropy = row["policy/entropy"]
    return None if entropy is None else entropy / max(memory.start["policy/entropy"], LEAST_ENTROPY)


def _length_drift(row: Row, memory: Memory) -> float:
    ratio = max(row["length/mean"], 1.0) / max(memory.start["length/mean"], 1.0)
    return max(ratio, 1 / ratio)


def _grad_norm(row: Row, memory: Memory) -> float | None:
    """Infinite where the update was skipped although the batch had a loss: without differing rewards that is exactly 0."""
    norm = row["policy/grad_norm"]
    if norm is None:
        return math.inf if row["update/skipped"] and row["loss"] != 0 else None
    return norm / math.exp(memory.log_norms / memory.norms) if memory.norms else None


def _accuracy(row: Row, memory: Memory) -> float | None:
    """How far the average of the last validations lies below the best one.

    All validations are of the same problems with the same random numbers, so what differs is sampling alone: with the
    default 64 problems x 2 samples a standard error of at most 0.044, and 0.031 for the average of two. In 50 validations of
    a policy that stands still the averages' range passes 0.2 in one run of 150 at the worst, where every problem is right
    half the time, and in none of 500 simulated ones where difficulty is spread. One deep fall followed by a partial
    recovery shows in an average, but not in two validations on end below a limit.
    """
    if row["validate/accuracy"] is None or memory.average is None:
        return None
    return memory.best_average - memory.average


def _nothing_to_learn(row: Row, value: float, limit: float) -> str:
    right = row["reward/accuracy"]
    why = "all right: these problems are solved" if right >= 0.5 else "all wrong: these problems are out of reach"
    return f"{value:.0%} of the groups have rewards that differ, and the answers are {why} ({right:.0%} right)"


RULES: dict[str, Rule] = {
    "grad_norm": Rule(
        _grad_norm,
        lambda row, value, limit: (
            f"the gradient norm is {value:.0f} times its usual size, above {limit:g}"
            if math.isfinite(value)
            else "the gradient is not finite"
        ),
    ),
    "kl_sampler": Rule(
        lambda row, memory: row["policy/kl_sampler"],
        lambda row, value, limit: f"engine and trainer are {value:.3g} nats a token apart, more than {limit:g}",
    ),
    "truncated": Rule(
        lambda row, memory: row["length/truncated"] - memory.start["length/truncated"],
        lambda row, value, limit: (
            f"{row['length/truncated']:.0%} of the completions run into the length limit, {value:.0%} more than at step 0"
        ),
    ),
    "entropy_rise": Rule(
        _entropy_rise,
        lambda row, value, limit: (
            f"the policy's entropy is {row['policy/entropy']:.3f} nats, {value:.1f} times that of step 0: it turns random"
        ),
    ),
    "entropy_low": Rule(
        _unsolved_entropy,
        lambda row, value, limit: (
            f"the policy's entropy is {value:.4f} nats, below {limit:g}: it has stopped exploring with "
            f"{row['reward/accuracy']:.0%} of its answers right"
        ),
        below=True,
    ),
    "accuracy": Rule(
        _accuracy,
        lambda row, value, limit: (
            f"held-out accuracy, {row['validate/accuracy']:.3f} now, has fallen {value:.3f} below its best on average"
        ),
    ),
    "useful_groups": Rule(lambda row, memory: row["groups/useful"], _nothing_to_learn, below=True),
    "entropy_drop": Rule(
        _entropy_drop,
        lambda row, value, limit: (
            f"{value:.1%} of step 0's entropy is gone, with {row['reward/accuracy']:.0%} of the answers right"
        ),
    ),
    "length_drift": Rule(
        _length_drift,
        lambda row, value, limit: (
            f"completions are {row['length/mean']:.0f} tokens long, {value:.1f} times longer or shorter than at step 0"
        ),
    ),
}
