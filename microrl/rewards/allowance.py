"""The verdicts on a step's answers, within an allowance for those whose checks hang."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from microrl.clock import now_s
from microrl.rewards.answer_checker import AnswerChecker, AnswerVerdict
from microrl.sandbox.worker import LOOK_S

Pair = tuple[str, str | None]
"""A gold answer, and what is compared with it."""

KILLS = 2
"""Checks a step that may hang until their deadline: one deadline where they hang side by side, two at the most."""
FIRST_TRY = 0.1
"""Share of the deadline, as processor time, after which a check is put off until all others have their verdicts."""
PUT_OFF = 16
"""First tries a step that may fail. With two children they cost 0.8 deadlines, so hanging costs a step less than three."""
GRACE_S = 0.3
"""What is being checked when the last group arrives is waited for this long, even where the time is up."""


@dataclass(slots=True)
class Allowance:
    """What the hanging checks of one step have cost: those put off, those killed at the deadline, those not made any more.

    `steps` is how many steps' checks it is for: an evaluation is as large as many of them.
    """

    steps: int = 1
    put_off: set[Pair] = field(default_factory=set)
    killed: set[Pair] = field(default_factory=set)
    refused: set[Pair] = field(default_factory=set)


class Verdicts:
    """Use it as a context manager; `look` is called while it waits, and what that raises ends it.

    Each distinct answer is checked once. A check that does not answer quickly is put off, so that it keeps no other one
    waiting; these are made in the end, in the step's order, until KILLS have hung. The rest is refused, and counts as
    killed. So what else is in a step changes the verdict of a quick answer only where more than PUT_OFF others hang.
    """

    def __init__(
        self,
        checker: AnswerChecker,
        pool: ThreadPoolExecutor,
        allowance: Allowance,
        look: Callable[[], None],
        left_s: Callable[[], float] | None = None,
    ) -> None:
        self._checker, self._pool, self._allowance = checker, pool, allowance
        self._look, self._left_s = look, left_s
        self._first: dict[Pair, Future[AnswerVerdict | None]] = {}
        self._patient_until = float("inf")
        self._over = False
        self.by_pair: dict[Pair, AnswerVerdict] = {}

    def __enter__(self) -> Verdicts:
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True  # what is still being checked is given up

    def ask(self, pairs: Iterable[Pair]) -> None:
        """Begin to check these, while others are still being sampled."""
        for pair in pairs:
            if pair in self.by_pair or pair in self._first:
                continue
            verdict = self._checker.at_once(*pair)
            if verdict is None and (pair in self._allowance.killed or pair in self._allowance.refused):
                verdict = AnswerVerdict(0.0, killed=True)
            if verdict is not None:
                self.by_pair[pair] = verdict
            else:
                self._first[pair] = self._pool.submit(self._first_try, pair)

    def settle(self, pairs: Iterable[Pair]) -> None:
        """Wait for these, all that were asked, in the order of the step. Where the time is up, `by_pair` lacks some."""
        self._patient_until = now_s() + GRACE_S
        in_time = self._wait(self._first.values())
        for pair, future in self._first.items():
            if future.done() and (verdict := future.result()) is not None:
                self.by_pair[pair] = verdict
        if in_time:
            self._settle_slow([pair for pair in dict.fromkeys(pairs) if pair not in self.by_pair])

    def _first_try(self, pair: Pair) -> AnswerVerdict | None:
        put_off = self._allowance.put_off
        if self._over or len(put_off) >= PUT_OFF * self._allowance.steps:
            return None
        verdict = self._checker.check(*pair, cpu_s=FIRST_TRY * self._checker.deadline_s, is_cancelled=self._is_over)
        if not verdict.killed:
            return verdict
        put_off.add(pair)
        return None

    def _settle_slow(self, slow: list[Pair]) -> None:
        allowance = self._allowance
        slow.sort(key=lambda pair: pair in allowance.put_off)  # what was not tried at all comes first
        while slow and (kills := KILLS * allowance.steps - len(allowance.killed)) > 0:
            together, slow = slow[: min(kills, KILLS)], slow[min(kills, KILLS) :]
            checks = {pair: self._pool.submit(self._checker.check, *pair, is_cancelled=self._is_over) for pair in together}
            if not self._wait(checks.values()):
                return
            self.by_pair |= {pair: check.result() for pair, check in checks.items()}
            allowance.killed.update(pair for pair in together if self.by_pair[pair].killed)
        self.by_pair |= dict.fromkeys(slow, AnswerVerdict(0.0, killed=True))
        allowance.refused.update(slow)

    def _wait(self, futures: Iterable[Future[Any]]) -> bool:
        """Whether all of them are done before the time is up. Raises what one of them has raised."""
        pending = set(futures)
        while pending:
            self._look()
            done, pending = wait(pending, LOOK_S, FIRST_EXCEPTION)
            for future in done:
                future.result()
            if pending and self._left_s is not None and self._left_s() <= 0 and now_s() > self._patient_until:
                return False
        return True

    def _is_over(self) -> bool:
        return self._over
