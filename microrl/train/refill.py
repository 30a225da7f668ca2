"""The groups of a step, round by round: one round, or with DAPO's dynamic sampling as many as fill the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from microrl import clock
from microrl.algorithm.advantages import has_mixed_accuracy
from microrl.config import RunConfig
from microrl.limits import has_time, next_round
from microrl.run.stopwatch import Stopwatch
from microrl.train.run import Run
from microrl.types import Group

MayRefill = Callable[[float, float, float], bool]
"""Whether a further round may start: by the seconds of the first round, of those after it, and of the further one."""


def always(first_s: float, refills_s: float, next_s: float) -> bool:
    """Only the number of prompts bounds the rounds."""
    return True


def may_refill(run: Run, step: int) -> MayRefill:
    """The clock that bounds the refilling of this step. Where steps end the run it decides nothing: the run must repeat."""
    budget = run.budget
    if budget.is_by_steps:
        return always
    update_s = run.watch.totals.get("update", 0.0) / step if step else run.forecast.update_s
    return lambda first_s, refills_s, next_s: has_time(first_s, refills_s, next_s) and budget.fits(next_s + update_s)


class RoundTimer:
    """Counts a round as `generate` until its last group is decoded, and as `verify` from then until all are scored."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self._began = self._decoded = clock.now_s()

    def decoding(self, groups: Iterator[tuple[int, Group]]) -> Iterator[tuple[int, Group]]:
        """The groups as they come; their end is the end of decoding."""
        yield from groups
        self._decoded = clock.now_s()

    def stop(self) -> float:
        """The round is over; returns its seconds."""
        now = clock.now_s()
        self._watch.add("generate", self._decoded - self._began)
        self._watch.add("verify", now - self._decoded)
        return now - self._began


class Refill:
    """What has been sampled in a step so far. Add the groups of each round; `next_round` says how many prompts to ask next."""

    def __init__(self, config: RunConfig, may_refill: MayRefill) -> None:
        self._wanted = config.sampling.prompts_per_step
        self._is_dynamic = config.loss.drops_equal_groups
        self._may_refill = may_refill
        self._rounds_s: list[float] = []
        self.kept: list[Group] = []
        self.sampled: list[Group] = []
        """All groups, those that are dropped included: what metrics of the reward are of."""

    def next_round(self) -> int:
        """Prompts to ask next; 0: no more."""
        if not self.sampled:
            return self._wanted
        asked = next_round(self._wanted, len(self.kept), len(self.sampled)) if self._is_dynamic else 0
        if not asked:
            return 0
        first_s, refills_s = self._rounds_s[0], sum(self._rounds_s[1:])
        return asked if self._may_refill(first_s, refills_s, self.seconds / len(self.sampled) * asked) else 0

    def add(self, scored: list[Group], seconds: float) -> None:
        """A round's groups in the order of their prompts, and how long it took."""
        self._rounds_s.append(seconds)
        self.sampled += scored
        self.kept += [group for group in scored if not self._is_dynamic or has_mixed_accuracy(group)]

    @property
    def rounds(self) -> int:
        """Rounds so far."""
        return len(self._rounds_s)

    @property
    def seconds(self) -> float:
        """Seconds of all rounds so far."""
        return sum(self._rounds_s)

    @property
    def batch(self) -> list[Group]:
        """The groups to train on. Where none is mixed, those of the first round, so that the step says what it saw."""
        return (self.kept or self.sampled)[: self._wanted]


def missing(config: RunConfig, groups: list[Group]) -> int | None:
    """How many groups a batch lacks that dynamic sampling should have filled; None where that is off."""
    if not config.loss.drops_equal_groups:
        return None
    return config.sampling.prompts_per_step - sum(map(has_mixed_accuracy, groups))
