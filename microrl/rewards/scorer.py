"""The reward: format_weight * format + accuracy_weight * accuracy (+ overlong), parts kept apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from microrl.answers import THINK, has_format, last_boxed
from microrl.config.schema import RewardConfig
from microrl.rewards.accuracy import AnswerChecker, Verdict
from microrl.rewards.allowance import Allowance, Pair, Verdicts
from microrl.types import Completion, Group, Prompt, Score

Penalty = Callable[[int], float]
"""From a completion's length in tokens to its (negative) reward."""


class RewardScorer:
    """Scores groups. Answers are checked in background threads while others are decoded. Close it at the end."""

    def __init__(
        self, config: RewardConfig, *, answer_kind: str = "math", penalty: Penalty | None = None, workers: int = 2
    ) -> None:
        self.checker = AnswerChecker(deadline_s=config.deadline_s, kind=answer_kind, children=workers)
        self.check_deadline: Callable[[], None] = lambda: None
        """Called several times a second while scoring waits. What it raises ends the scoring."""
        self.allowance = Allowance()
        """What hanging checks have cost since the last `reset_allowance`."""
        self._config = config
        self._penalty = penalty
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="scorer")

    def reset_allowance(self) -> None:
        """Allow as many hanging checks again as one step may have."""
        self.allowance = Allowance()

    def score(self, groups: Iterable[tuple[int, Group]], *, left_s: Callable[[], float] | None = None) -> list[Group]:
        """All groups with their scores, in the order of their positions, whatever the order they finish in.

        `left_s` gives the seconds that are left: where there are none, groups with unfinished checks come back without scores.
        """
        arrived: list[tuple[int, Group, list[Pair]]] = []
        with Verdicts(self.checker, self._pool, self.allowance, self.check_deadline, left_s) as verdicts:
            for position, group in groups:
                pairs = [(group.prompt.answer, last_boxed(completion.text)) for completion in group.completions]
                verdicts.ask(pairs)
                arrived.append((position, group, pairs))
            arrived.sort(key=lambda item: item[0])
            verdicts.settle(pair for _, _, pairs in arrived for pair in pairs)
        found = verdicts.found
        return [
            replace(group, scores=self._scores(group, [found[pair] for pair in pairs])) if found.keys() >= set(pairs) else group
            for _, group, pairs in arrived
        ]

    def _scores(self, group: Group, verdicts: Sequence[Verdict]) -> tuple[Score, ...]:
        return tuple(self._one(group.prompt, *pair) for pair in zip(group.completions, verdicts, strict=True))

    def _one(self, prompt: Prompt, completion: Completion, verdict: Verdict) -> Score:
        """The score of one completion (micro, section 3: R = 0.2 * format + accuracy)."""
        form = float(has_format(completion.text, opened=prompt.text.rstrip().endswith(THINK)))
        overlong = self._penalty(len(completion.token_ids)) if self._penalty else None
        accuracy = float(verdict.right)
        total = self._config.format_weight * form + self._config.accuracy_weight * accuracy + (overlong or 0.0)
        return Score(total=total, format=form, accuracy=accuracy, overlong=overlong, killed=verdict.killed)

    def why_killed(self, count: int) -> str:
        """Why so many completions of this step count as wrong although their checks did not end."""
        why = (
            f"checking {len(self.allowance.killed)} different ones timed out (reward.deadline_s = {self._config.deadline_s:g} s)"
        )
        if self.allowance.refused:
            why += f", and {len(self.allowance.refused)} more were not checked, to limit the time of the step"
        return f"{count} answers count as wrong: {why}"

    def parse(self, golds: Sequence[str]) -> Iterator[bool | None]:
        """For each gold answer whether it can be checked; None where finding out was killed at its deadline."""
        checks = [self._pool.submit(self.checker.parses, gold) for gold in golds]
        try:
            for check in checks:
                yield check.result()
        finally:
            for check in checks:
                check.cancel()

    def close(self) -> None:
        """End the checkers and the threads."""
        self.checker.close()
        self._pool.shutdown(wait=False)
