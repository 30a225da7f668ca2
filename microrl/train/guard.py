"""The guard: rules that watch a run's metrics, detect a collapse, and decide what to do.

It reads finished rows of `metrics.jsonl` alone. A null value neither extends nor breaks a rule's consecutive steps. A step that
changed no weight counts as one without useful groups, and has a patience of its own.

How close 18 healthy quickstarts (ten seeds; four losses; rank 64; 3 and 30 times the rate; bfloat16; 600 steps) came to a limit
for as long as its patience: entropy 0.042 of 0.003 nats, 86 of 95 % lost, 0.99 of 3 times; useful groups 0.81 of 0.01; truncated
0 of 0.3; length 1.55 of 6 times; KL 3e-5 of 0.1; gradient norm 1.6 of 10 times; accuracy 0.07 of 0.2 below its best.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from microrl.config.oversight import GuardConfig
from microrl.errors import UserError
from microrl.files import OF_ANOTHER_VERSION, BadFile, absent, said_first
from microrl.report.updates import advise
from microrl.run import checkpoint, idle, names
from microrl.run.metrics import MetricsRow
from microrl.train.guard_rules import LOWER_TO, RULES, SCHEDULED, VALIDATED, Action, Memory, Rule, risen

if TYPE_CHECKING:
    from microrl.train.run import Run

STRENGTH: dict[Action, int] = {"warn": 0, "rollback": 1, "stop": 2}
ROLLBACKS = 3
"""How often a run may be rolled back; the next trigger of such a rule stops it."""
LEVEL = 0.05
"""Probability that chance alone ever triggers a rule about validation accuracy, however often a run is validated."""
IDLE_WARN, IDLE_STOP, IDLE_DEAD = 3, 10, 2
"""Consecutive steps without an update after which the guard says so, and stops the run; and after which it stops it where reward
functions have failed for every completion."""
ONCE_USEFUL = 0.1
"""Fraction of useful groups below which there never was anything to learn."""


@dataclass(frozen=True, slots=True)
class GuardVerdict:
    """A rule that triggered, and the action to take."""

    rule: str
    action: Action
    value: float | None
    """The measured value; None if it is not finite."""
    limit: float
    message: str
    cause: idle.Cause | None = None
    """Why the last steps had no update; None for every other verdict."""
    has_collapsed: bool = False
    """Whether a policy that could learn no longer can."""


class Guard:
    """Checks one row per step. A rollback does not restore the guard's own state from the checkpoint."""

    def __init__(self, config: GuardConfig) -> None:
        self._config = config
        self._memory = Memory()
        self.completions = 0
        """Completions of one validation, 0 before the first: fewer make its accuracy noisier."""
        self.counts_accuracy = True
        """Whether right answers are rewarded."""
        self.is_steered = True
        """Whether `optim.step_kl` steers the rate."""

    @property
    def lr_factor(self) -> float:
        """Factor on the scheduled learning rate after the interventions so far."""
        return float(LOWER_TO**self._memory.interventions)

    @property
    def has_seen_an_update(self) -> bool:
        """Whether any step has changed the weights."""
        return self._memory.norms > 0

    def check(self, row: MetricsRow, *, has_failed: bool = False) -> GuardVerdict | None:
        """The strongest verdict on this row, the first in `RULES` among equals; None if no rule triggered.

        `has_failed`: a reward function has failed for every completion of the step.
        """
        cause = idle.cause_of(row, counts_accuracy=self.counts_accuracy)
        self._look(row, cause)
        verdicts = [verdict for name, rule in RULES.items() if (verdict := self._check_rule(name, rule, row, cause, has_failed))]
        if norm := row["policy/grad_norm"]:
            self._memory.norms += 1
            self._memory.log_norms += math.log(norm)
        if not verdicts:
            return None
        verdict = max(verdicts, key=lambda verdict: STRENGTH[verdict.action])
        if verdict.action == "warn":
            self._memory.warned.append(verdict.rule)
        else:
            self._start_anew(verdict.action)
        return verdict

    def state(self) -> dict[str, Any]:
        """Everything it remembers, for a checkpoint; `restore` takes it back."""
        return asdict(self._memory)

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a `state`. Raises BadFile if it is damaged."""
        self._memory = memory_of(state)

    def _look(self, row: MetricsRow, cause: idle.Cause | None) -> None:
        """Take in what this row is measured against: step 0's metrics, and the validations."""
        memory, averaged = self._memory, self._patience("accuracy")
        useful = row["groups/useful"] if row.get("distill/kl") is None else 1.0  # a teacher teaches any group
        memory.steps, memory.useful = memory.steps + 1, memory.useful + (useful if cause is None else 0.0)
        for name in ("policy/entropy", "length/mean", "length/truncated"):
            if row[name] is not None:
                memory.start.setdefault(name, row[name])
        if row["validate/accuracy"] is not None:
            if not memory.validations and memory.average is None:
                # The start's counts alone: a policy may fall at once.
                memory.best_average = max(memory.best_average, row["validate/accuracy"])
            memory.validations = [*memory.validations, row["validate/accuracy"]][-averaged:]
            memory.history.append(row["validate/accuracy"])
            memory.has_learned = memory.has_learned or risen(memory.history) > self._rise_by_chance()
            if len(memory.validations) == averaged:
                memory.average = sum(memory.validations) / averaged
                memory.best_average = max(memory.best_average, memory.average)

    def _check_rule(
        self, name: str, rule: Rule, row: MetricsRow, cause: idle.Cause | None, has_failed: bool
    ) -> GuardVerdict | None:
        memory, limit = self._memory, self._limit(name)
        if name == "useful_groups" and cause is not None and limit is not None:
            return self._check_idle(cause, row, limit, IDLE_DEAD if has_failed else IDLE_STOP)
        value = rule.measure(row, memory) if limit is not None else None
        if value is None or limit is None:
            return None
        if not (value < limit if rule.below else value > limit):
            memory.passed[name] = 0
            memory.warned = [warned for warned in memory.warned if warned != name]
            return None
        memory.passed[name] = memory.passed.get(name, 0) + 1
        action: Action = rule.action if self._config.action == "auto" else self._config.action
        if name == "useful_groups" and memory.useful < ONCE_USEFUL * memory.steps:
            action = "warn"  # no run that has broken down, but data that this model was never able to learn from
        if memory.passed[name] < self._needed(name) or (action == "warn" and name in memory.warned):
            return None
        message = rule.sentence(row, value, limit) + ("" if name in VALIDATED else f" ({memory.passed[name]} consecutive steps)")
        if action == "rollback" and memory.interventions >= ROLLBACKS:
            action = "stop"
            message += f"; the run was already rolled back {memory.interventions} times"
        # Completions without an end are what a policy that has become random gives: a longer limit would not help it.
        rise = RULES["entropy_rise"].measure(row, memory) or 0.0
        is_random = row["reward/accuracy"] < 1 - idle.NEARLY_ALL or rise > idle.RANDOM
        has_collapsed = name in ("truncated", "length_drift") and is_random
        return GuardVerdict(name, action, value if math.isfinite(value) else None, limit, message, has_collapsed=has_collapsed)

    def _check_idle(self, cause: idle.Cause, row: MetricsRow, limit: float, patience: int) -> GuardVerdict | None:
        """A step without an update. A run that has learned and collapsed is rolled back once before it is stopped."""
        memory, rule, configured = self._memory, "useful_groups", self._config.action
        steps = memory.passed[rule] = memory.passed.get(rule, 0) + 1
        last = self._scaled(patience)
        # Those without an update do not count against it: a policy that collapses in its second step has had few others.
        until = max(memory.steps - steps, min(memory.steps, self._scaled(IDLE_STOP)))
        has_collapsed = cause in idle.COLLAPSED and memory.norms > 0 and memory.useful >= ONCE_USEFUL * until
        action: Action = "warn"
        if steps >= last and configured != "warn":
            action = "stop"
            if configured == "auto" and has_collapsed and steps < 2 * last:
                if steps > last:
                    return None  # it has been rolled back
                action = "rollback" if memory.interventions < ROLLBACKS else "stop"
        if action == "warn" and (steps < self._scaled(IDLE_WARN) or rule in memory.warned):
            return None
        # Earlier ones may have had other causes.
        in_a_row = f"{steps} steps in a row without an update; in the last" if steps > 1 else "this step has no update"
        message = f"{in_a_row}: {idle.said(cause, row)}"
        return GuardVerdict(rule, action, 0.0, limit, message, cause, has_collapsed)

    def _limit(self, name: str) -> float | None:
        """The configured limit; for accuracy at least, and for learning less, what chance does to the difference of averages."""
        limit: float | None = getattr(self._config, name)
        if name == "rate" and not self.is_steered:
            return None
        if limit is None or name not in VALIDATED:
            return limit
        if name == "learning":
            has_enough = len(self._memory.history) >= self._patience(name)
            return limit - self._rise_by_chance() if has_enough else None
        return max(limit, self._fall_by_chance()) if self.completions else limit

    def _fall_by_chance(self) -> float:
        """How far chance may take the last average below the best one, at LEVEL over all validations together.

        A mean of n answers is sub-Gaussian with variance 1 / 4n (Hoeffding), also where the problems differ. Validation t is
        compared with t - 1 earlier ones, each at LEVEL / (t (t - 1)^2): over all t and all of those that sums to LEVEL.
        """
        looks = max(len(self._memory.history), 2)
        averaged = self._patience("accuracy")
        is_single = self._memory.best_average in self._memory.history  # the start's: no average
        variance = (1 / averaged + (1.0 if is_single else 1 / averaged)) / (4 * self.completions)
        return math.sqrt(2 * variance * math.log(looks * (looks - 1) ** 2 / LEVEL))

    def _rise_by_chance(self) -> float:
        """How far chance may move the second half of the validations above or below the first, at LEVEL over all together.

        The answers' variance is that of their mean (less where problems differ). Validation t takes LEVEL / (t (t + 1)).
        """
        looks = len(self._memory.history)
        if not self.completions or looks < 2:
            return math.inf
        answers = self.completions * looks
        mean = (math.fsum(self._memory.history) * self.completions + 2) / (answers + 4)
        halves = 1 / (looks // 2) + 1 / (looks - looks // 2)
        return math.sqrt(2 * mean * (1 - mean) * halves / self.completions * math.log(looks * (looks + 1) / LEVEL))

    def _patience(self, name: str) -> int:
        return self._scaled(RULES[name].patience)

    def _scaled(self, patience: int) -> int:
        return max(round(patience * self._config.patience), 1)

    def _needed(self, name: str) -> int:
        """Consecutive steps in which the limit must be exceeded. For the validated rules 1: their patience is in the averages."""
        return 1 if name in VALIDATED else self._patience(name)

    def _start_anew(self, action: Action) -> None:
        """Forget the rows before an intervention, which has restored the weights of the best checkpoint."""
        memory = self._memory
        memory.validations, memory.average = [], None
        without_an_update = memory.passed.get("useful_groups", 0)
        memory.passed = dict.fromkeys(RULES, 0)
        if action == "rollback":
            memory.interventions += 1
            memory.passed["useful_groups"] = without_an_update  # only an update shows that it has helped
        else:
            memory.warned = [warned for warned in memory.warned if warned != "useful_groups"]


def memory_of(state: dict[str, Any]) -> Memory:
    """A guard's `state` as read from a checkpoint. Raises BadFile if it is damaged."""
    try:
        memory = TypeAdapter(Memory).validate_json(json.dumps(state))  # as it was read: strict, and lists are lists
        if (name := absent(state, memory)) is not None:
            raise BadFile(f"the guard's state has no `{name}`: {OF_ANOTHER_VERSION}")
        return memory
    except ValidationError as error:
        raise BadFile(f"the guard's state is damaged: {said_first(error)}") from None


def act(run: Run, row: MetricsRow, step: int) -> None:
    """Check a step's row and act: log the verdict, stop the run or roll back. A stopped run also ends with its best weights."""
    has_failed = any(lack.count >= row["reward/left_out"] for lack in run.scorer.custom.missing.values())
    verdict = run.guard.check(row, has_failed=has_failed and row["reward/mean"] is None)
    if verdict is None:
        return

    def setting(key: str) -> Any:
        return attrgetter(key)(run.config)

    if verdict.cause is None or verdict.has_collapsed:
        advice = advise(verdict.rule, setting, has_collapsed=verdict.has_collapsed)
    else:
        advice = idle.advice(verdict.cause, setting, row, run.folder.path)
        advice += "; or drop this rule in a new run: --set guard.useful_groups=none"
    details = {"rule": verdict.rule, "action": verdict.action, "value": verdict.value, "limit": verdict.limit, "step": step}
    run.folder.event("guard", verdict.message, **details, advice=advice, collapsed=verdict.has_collapsed)
    verdict_text = f"{verdict.rule}: {verdict.message}; action: {verdict.action}"
    run.console.guard(verdict_text)
    note = run.console.note_once if verdict.action == "warn" else run.console.note
    note(f"guard, {verdict_text}" + (f". What to do: {advice}" if advice else ""))
    run.state.is_stopped = verdict.action == "stop"
    if verdict.action == "rollback" or (verdict.action == "stop" and run.guard.has_seen_an_update):
        _load_best_weights(run, row, step, verdict.action)


def _load_best_weights(run: Run, row: MetricsRow, step: int, action: Action) -> None:
    best = checkpoint.best(run.folder.path / names.CHECKPOINTS, run.state)
    if best is None and action == "stop":
        return
    if best is None:
        run.announce("warning", "cannot roll back: no checkpoint has been validated yet", step=step)
        return
    try:
        with run.watch.phase("save"):
            steering = checkpoint.read_state(best).steering
            checkpoint.load_weights(best, run.policy)
        if action == "rollback":  # what steering has learned since is of the weights that are gone
            run.state.steering = steering
        lr = (steering.rate or float(run.config.optim.lr)) * run.guard.lr_factor * row[SCHEDULED]
        halved = f" and halved the learning rate to {lr:g}" if action == "rollback" else ""
        made = run.state.validation.best_step or 0
        origin = f"from after step {made}" if made else "from before the first step"
        run.announce("rolled back", f"restored the weights {origin}{halved}", step=step, restored_steps=made)
    except UserError as error:
        run.announce("warning", f"cannot roll back to {best.name}: {error.message}", step=step)
