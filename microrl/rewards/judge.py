"""The reward: format_weight * format + accuracy_weight * accuracy (+ overlong), parts kept apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from microrl.answers import THINK, has_format, last_boxed
from microrl.config.schema import RewardConfig
from microrl.rewards.accuracy import AnswerChecker
from microrl.types import Completion, Group, Prompt, Score

Penalty = Callable[[int], float]
"""From a completion's length in tokens to its (negative) reward."""


class Judge:
    """Scores groups in background threads, so that checking overlaps with decoding. Close it at the end."""

    def __init__(
        self, config: RewardConfig, *, answer_kind: str = "math", penalty: Penalty | None = None, workers: int = 2
    ) -> None:
        self.checker = AnswerChecker(deadline_s=config.deadline_s, kind=answer_kind, children=workers)
        self._config = config
        self._penalty = penalty
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="judge")

    def score(self, groups: Iterable[tuple[int, Group]]) -> list[Group]:
        """All groups with their scores, in the order of their positions, whatever the order they finish in."""
        pending = [(position, self._pool.submit(self._judged, group)) for position, group in groups]
        return [future.result() for _, future in sorted(pending, key=lambda item: item[0])]

    def _judged(self, group: Group) -> Group:
        return replace(group, scores=tuple(self.one(group.prompt, completion) for completion in group.completions))

    def one(self, prompt: Prompt, completion: Completion) -> Score:
        """The score of one completion (micro, section 3: R = 0.2 * format + accuracy)."""
        form = float(has_format(completion.text, opened=prompt.text.rstrip().endswith(THINK)))
        verdict = self.checker.check(prompt.answer, last_boxed(completion.text))
        overlong = self._penalty(len(completion.token_ids)) if self._penalty else None
        accuracy = float(verdict.right)
        total = self._config.format_weight * form + self._config.accuracy_weight * accuracy + (overlong or 0.0)
        return Score(total=total, format=form, accuracy=accuracy, overlong=overlong, killed=verdict.killed)

    def close(self) -> None:
        """End the threads and the checkers."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.checker.close()
