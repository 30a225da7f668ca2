"""Sampling rounds of a step: one round, or with DAPO's dynamic sampling as many as it takes to fill the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from microrl import algorithm, clock
from microrl.config import RunConfig
from microrl.limits import has_time, next_round
from microrl.rollout.engine import SyncReport
from microrl.run.stopwatch import Stopwatch
from microrl.train.run import Run
from microrl.types import Group

MayRefill = Callable[[float, float, float], bool]
"""(seconds of the first round, of the rounds after it, forecast of the next one) -> whether the next round may start."""


def always(first_s: float, refills_s: float, next_s: float) -> bool:
    """No time limit for the rounds."""
    return True


def may_refill(run: Run, step: int) -> MayRefill:
    """The time limit of this step's rounds. A run bounded by steps has none, so that it stays reproducible."""
    budget = run.budget
    if budget.is_by_steps:
        return always
    update_s = run.watch.totals.get("update", 0.0) / step if step else run.forecast.update_s
    return lambda first_s, refills_s, next_s: has_time(first_s, refills_s, next_s) and budget.fits(next_s + update_s)


class SamplingTimer:
    """Seconds of a step's sampling by phase: `generate` until a round's last group is decoded, `verify` until all are scored,
    `sleep_wake` the engine's own, and `sync` the rest: pushing and verifying the adapter."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self._began = self._round_began = self._decoded = clock.now_s()
        self._rounds_s = 0.0

    def decoding(self, groups: Iterator[tuple[int, Group]]) -> Iterator[tuple[int, Group]]:
        """Pass a round's groups through; the last one ends decoding."""
        self._round_began = self._decoded = clock.now_s()
        yield from groups
        self._decoded = clock.now_s()

    def round_ended(self) -> float:
        """All groups of the round are scored; returns its seconds."""
        now = clock.now_s()
        self._watch.add("generate", self._decoded - self._round_began)
        self._watch.add("verify", now - self._decoded)
        self._rounds_s += now - self._round_began
        return now - self._round_began

    def ended(self, report: SyncReport) -> None:
        """The engine is asleep again, with this report."""
        sleep_wake_s = report.wake_s + report.sleep_s
        self._watch.add("sleep_wake", sleep_wake_s)
        self._watch.add("sync", clock.now_s() - self._began - self._rounds_s - sleep_wake_s)


class Refill:
    """The groups of a step so far. `add` the groups of each round; `next_round` gives the number of prompts of the next."""

    def __init__(self, config: RunConfig, may_refill: MayRefill) -> None:
        self._wanted = config.sampling.prompts_per_step
        self._is_dynamic = config.loss.drops_equal_groups
        self._keeps = algorithm.make(config).keeps
        self._may_refill = may_refill
        self._rounds_s: list[float] = []
        self.kept: list[Group] = []
        self.sampled: list[Group] = []
        """All groups, dropped ones included; the reward metrics are computed over these."""

    def next_round(self) -> int:
        """Number of prompts of the next round; 0: no further round."""
        if not self.sampled:
            return self._wanted
        asked = next_round(self._wanted, len(self.kept), len(self.sampled)) if self._is_dynamic else 0
        if not asked:
            return 0
        first_s, refills_s = self._rounds_s[0], sum(self._rounds_s[1:])
        return asked if self._may_refill(first_s, refills_s, self.seconds / len(self.sampled) * asked) else 0

    def add(self, scored: list[Group], seconds: float) -> None:
        """Add a round: its scored groups in the order of their prompts, and its seconds."""
        self._rounds_s.append(seconds)
        self.sampled += scored
        self.kept += [group for group in scored if self._keeps(group)]

    @property
    def count(self) -> int:
        """Rounds so far."""
        return len(self._rounds_s)

    @property
    def seconds(self) -> float:
        """Seconds of all rounds so far."""
        return sum(self._rounds_s)

    @property
    def batch(self) -> list[Group]:
        """The groups to train on. If no group is mixed, the first groups sampled, so that the step still has metrics."""
        return (self.kept or self.sampled)[: self._wanted]


def missing(config: RunConfig, groups: list[Group]) -> int | None:
    """Number of mixed groups missing from the batch after dynamic sampling; None if that is off."""
    if not config.loss.drops_equal_groups:
        return None
    return config.sampling.prompts_per_step - sum(map(algorithm.make(config).keeps, groups))


def difficulty(config: RunConfig, group: Group) -> float:
    """Share of right answers; where accuracy is no part of the reward, 1/2 for rewards that differ, and 0 for equal ones."""
    if config.reward.accuracy_weight:
        return sum(score.accuracy for score in group.scores) / len(group.scores)
    return 0.5 if group.has_mixed_rewards else 0.0
