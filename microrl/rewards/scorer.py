"""The reward: format_weight * format + accuracy_weight * accuracy (+ overlong, + custom functions), parts kept apart."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from microrl.answers import has_format
from microrl.config.environment import EnvironmentConfig
from microrl.config.reward import NO_ENVIRONMENT, RewardConfig, environment_parts, part_weights
from microrl.config.schema import RunConfig
from microrl.rewards.allowance import Allowance, Pair, Verdicts
from microrl.rewards.answer_checker import CHILDREN, AnswerChecker, AnswerVerdict
from microrl.rewards.custom.functions import CustomRewards, Value
from microrl.rewards.judges.judge import Kind, is_opened, read, refuse_unconfined
from microrl.sandbox import levels
from microrl.terminal import counted
from microrl.types import BUILT_IN, Completion, Group, Prompt, Score

Penalty = Callable[[int], float]
"""From a completion's length in tokens to its (negative) reward."""


def make_scorer(config: RunConfig) -> RewardScorer:
    """The configured reward. Nothing is started yet. Raises UserError if it would run a model's programs unconfined."""
    refuse_unconfined(config)
    overlong = config.reward.overlong
    limit = config.sampling.max_completion_tokens
    penalty = partial(soft_overlong_penalty, limit=limit, buffer=overlong.buffer, factor=overlong.factor) if overlong else None
    return RewardScorer(config.reward, answer_kind=config.data.answer_kind, penalty=penalty, env=config.env)


def in_words(config: RewardConfig, env: EnvironmentConfig = NO_ENVIRONMENT) -> str:
    """The reward as a sum, `0.2 format + 1 accuracy`, and what confines custom functions where that was asked for."""
    confined = f" (functions confined by {levels()})" if config.functions and config.confine_functions else ""
    return " + ".join(f"{weight:g} {name}" for name, weight in part_weights(config, env).items()) + confined


class RewardScorer:
    """Scores groups. Answers are checked and functions called in the background while others are decoded. Close it at the end."""

    def __init__(
        self,
        config: RewardConfig,
        *,
        answer_kind: Kind = "math",
        penalty: Penalty | None = None,
        env: EnvironmentConfig = NO_ENVIRONMENT,
    ) -> None:
        self.checker = AnswerChecker(deadline_s=config.deadline_s, kind=answer_kind, code_credit=config.code_credit)
        self.check_deadline: Callable[[], None] = lambda: None
        """Called several times a second while scoring waits. What it raises ends the scoring."""
        self.allowance = Allowance()
        """What hanging checks have cost since the last `reset_allowance`."""
        self.custom = CustomRewards(config)
        self._config, self._kind = config, answer_kind
        self._reads = partial(read, kind=answer_kind, opened=False) if answer_kind in ("code", "gym") else None
        self._weights, self._env, self._parts_of = part_weights(config, env), env, environment_parts(config, env)
        self._penalty = penalty
        self._pool = ThreadPoolExecutor(CHILDREN, thread_name_prefix="scorer")

    def expect(self, paying: Collection[str]) -> None:
        """Of the environments, only those of these names give a reward of their own."""
        for name in self._parts_of.keys() - paying:
            del self._weights[self._parts_of.pop(name)]

    def reset_allowance(self, steps: int = 1) -> None:
        """Allow as many hanging checks again as so many steps may have, and as many calls as one."""
        self.allowance = Allowance(steps)
        self.custom.reset()

    def score(
        self, groups: Iterable[tuple[int, Group]], *, left_s: Callable[[], float] | None = None, accuracy_only: bool = False
    ) -> list[Group]:
        """All groups with their scores, in the order of their positions, whatever the order they finish in.

        `left_s` gives the seconds that are left: where there are none, groups with unfinished checks come back without scores.
        `accuracy_only` calls no custom function, for evaluations.
        """
        arrived: list[tuple[int, Group, list[Pair]]] = []
        calls_custom = bool(self.custom.functions) and not accuracy_only
        with (
            Verdicts(self.checker, self._pool, self.allowance, self.check_deadline, left_s) as verdicts,
            self.custom.calls(self.check_deadline) as calls,
        ):
            for position, group in groups:
                pairs = [(group.prompt.answer, self.extracted(group.prompt, completion)) for completion in group.completions]
                verdicts.ask(pairs)
                if calls_custom:
                    calls.ask(position, group)
                arrived.append((position, group, pairs))
            arrived.sort(key=lambda item: item[0])
            verdicts.settle(pair for _, _, pairs in arrived for pair in pairs)
            values = calls.settle()
        by_pair = verdicts.by_pair
        return [
            replace(group, scores=self._scores(group, pairs, by_pair, self._own(group, values.get(position), accuracy_only)))
            if by_pair.keys() >= set(pairs)
            else group
            for position, group, pairs in arrived
        ]

    def right_ones(self, pairs: Iterable[Pair], *, left_s: Callable[[], float] | None = None) -> set[Pair] | None:
        """Those of other readings of answers, each a (gold answer, answer), that are right, within the allowance; None where the
        time, `left_s` as in `score`, is up before all have been checked."""
        asked = list(dict.fromkeys(pairs))
        with Verdicts(self.checker, self._pool, self.allowance, self.check_deadline, left_s) as verdicts:
            verdicts.ask(asked)
            verdicts.settle(asked)
        by_pair = verdicts.by_pair
        return {pair for pair in asked if by_pair[pair].right} if by_pair.keys() >= set(asked) else None

    @property
    def parts(self) -> list[str]:
        """The names of the reward's parts that are not built in."""
        return [name for name in self._weights if name not in BUILT_IN]

    def _own(self, group: Group, values: Sequence[dict[str, Value]] | None, accuracy_only: bool) -> Sequence[dict[str, Value]]:
        """Of each completion, what the custom functions and its environment gave."""
        own = values or [{}] * len(group.completions)
        if not self._parts_of or accuracy_only:
            return own
        if (part := self._parts_of.get(self._env.name_for(group.prompt.row, group.prompt.raw))) is None:
            return own
        rewards = [completion.episode.reward if completion.episode else None for completion in group.completions]
        return [{**given, part: reward} for given, reward in zip(own, rewards, strict=True)]

    def _scores(
        self, group: Group, pairs: Sequence[Pair], by_pair: Mapping[Pair, AnswerVerdict], parts: Sequence[dict[str, Value]]
    ) -> tuple[Score, ...]:
        return tuple(
            self._one(group.prompt, completion, pair[1], by_pair[pair], own)
            for completion, pair, own in zip(group.completions, pairs, parts, strict=True)
        )

    def _one(
        self, prompt: Prompt, completion: Completion, answer: str | None, verdict: AnswerVerdict, own: dict[str, Value]
    ) -> Score:
        """The score of one completion (micro, section 3: R = 0.2 * format + accuracy)."""
        score = Score(
            total=0.0,
            format=float(has_format(completion.text, opened=is_opened(prompt.text), read=self._reads)),
            accuracy=verdict.credit,
            overlong=self._penalty(completion.length) if self._penalty else None,
            killed=verdict.killed,
            parts=own,
            extracted=answer,
        )
        # In this order: the sum of floats depends on it.
        total = self._weights["format"] * score.format + self._weights["accuracy"] * score.accuracy + (score.overlong or 0.0)
        for name, value in own.items():
            total += self._weights[name] * (value or 0.0)
        # Without one of its parts a total cannot be compared with the others of its group.
        counts = all(value is not None or not self._weights[name] for name, value in own.items())
        return replace(score, total=total, is_valid=counts)

    def why_killed(self, count: int) -> str:
        """Why so many completions of this step count as wrong although their checks did not end."""
        distinct = counted(len(self.allowance.killed), "distinct answer")
        why = f"checking {distinct} timed out (reward.deadline_s = {self._config.deadline_s:g} s)"
        if self.allowance.refused:
            why += f", and {len(self.allowance.refused)} more were not checked, to limit the time of the step"
        return f"{counted(count, 'answer')} counted as wrong: {why}"

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
        """End the checkers, the functions' processes and the threads."""
        self.custom.close()
        self.checker.close()
        self._pool.shutdown(wait=False)

    def extracted(self, prompt: Prompt, completion: Completion) -> str | None:
        """The answer that is read off a completion; None where there is none."""
        return read(completion.text, self._kind, opened=is_opened(prompt.text))


def soft_overlong_penalty(length: int, *, limit: int, buffer: int, factor: float) -> float:
    """DAPO eq. 13: 0 up to limit - buffer, then a line down to -1 at the limit; times `factor`. Lengths in tokens."""
    over = length - (limit - buffer)
    return -factor * min(max(over / buffer, 0.0), 1.0)
