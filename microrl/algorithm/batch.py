"""Scored groups to the rows of an update."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from microrl.algorithm.grpo import Algorithm
from microrl.types import Group


@dataclass(frozen=True, slots=True)
class Row:
    """One completion as the update sees it.

    `counts` is False where the loss leaves it out (masked truncation, no reward). `represents`: the number of rows for whose
    entropy and mismatch it stands; 0: it is not scored at all. `drawn`: which tokens the policy drew; None: all of them. The
    others are read, and neither scored nor trained on.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    engine_logprobs: tuple[float, ...]
    advantage: float
    counts: bool
    group: int
    represents: int = 1
    drawn: tuple[bool, ...] | None = None

    @property
    def length(self) -> int:
        """Tokens that the policy drew."""
        return len(self.completion_ids) if self.drawn is None else sum(self.drawn)


@dataclass(frozen=True, slots=True)
class Batch:
    """A step's rows, group by group, and the version of the weights that sampled them all."""

    rows: tuple[Row, ...]
    groups: int
    version: int


def assemble(groups: Sequence[Group], algorithm: Algorithm) -> Batch:
    """One row a completion, with its advantage."""
    advantages_PG = algorithm.advantages(groups)
    versions = {completion.version for group in groups for completion in group.completions}
    assert len(versions) == 1, f"a batch mixes weights of versions {sorted(versions)}"
    rows = tuple(
        Row(
            prompt_ids=group.prompt.token_ids,
            completion_ids=completion.token_ids,
            engine_logprobs=completion.logprobs,
            advantage=advantage,
            counts=algorithm.counts(completion, score),
            group=number,
            drawn=completion.drawn,
        )
        for number, (group, advantages_G) in enumerate(zip(groups, advantages_PG, strict=True))
        for completion, score, advantage in zip(group.completions, group.scores, advantages_G, strict=True)
    )
    return Batch(rows, len(groups), versions.pop())


def split_evenly(batch: Batch, max_groups: int | None) -> list[list[Row]]:
    """The rows of each optimizer step's mini-batch, groups kept whole and in order.

    There are as few mini-batches as `max_groups` allows (None: one), and their numbers of groups differ by at most one: a
    small last one would move the weights as far as a whole one, since AdamW's step does not shrink with its gradient.
    """
    count = 1 if max_groups is None else -(-batch.groups // max_groups)
    ends = [batch.groups * number // count for number in range(count + 1)]
    return [[row for row in batch.rows if first <= row.group < end] for first, end in itertools.pairwise(ends)]


def sample_without_gradient(rows: Sequence[Row], has_gradient: Callable[[Row], bool]) -> list[Row]:
    """All rows; of a group's rows without a gradient only the first is left to be scored, and represents the others.

    These rows are scored for their metrics alone. The completions of a group are drawn alike and independently, so one of
    them is an unbiased sample.
    """
    without = Counter(row.group for row in rows if not has_gradient(row))
    sampled = []
    for row in rows:
        # What has been represented counts 0 from then on.
        sampled.append(row if has_gradient(row) else replace(row, represents=without.pop(row.group, 0)))
    return sampled
