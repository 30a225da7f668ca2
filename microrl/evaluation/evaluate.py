"""Sample answers to a set of problems and count the right ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from microrl import clock
from microrl.evaluation.pace import DeadlinePace
from microrl.evaluation.result import Result, by_text
from microrl.limits import QUESTIONS_A_STEP
from microrl.rewards.scorer import RewardScorer
from microrl.rollout.engine import Sampler
from microrl.rollout.episodes import EpisodeEnvironment
from microrl.types import Group, Prompt, Sampling

if TYPE_CHECKING:
    from microrl.evaluation.record import FileJournal

STREAM = 0xE7A1
"""First word of the evaluation's random streams, which keeps them apart from training's."""


def evaluate(
    sampler: Sampler,
    scorer: RewardScorer,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    seed: int,
    pass_k: Sequence[int],
    deadline_s: float | None = None,
    expected_s: float = 0.0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    on_scored: Callable[[Sequence[Group]], None] = lambda groups: None,
    journal: FileJournal | None = None,
    environment: EpisodeEnvironment | None = None,
) -> Result | None:
    """Accuracy of the sampler's weights, question by question. An answer is right if its accuracy is 1, and not if it is less: a
    program that passes some of its tests is wrong.

    All questions go to the engine at once, which decodes as many together as it has room for. A question's random numbers
    follow from the seed and its place in `prompts`: two calls with other weights differ in nothing else.

    With a deadline, a question starts only where it is likely to end in time. If one does not, it and those behind it are left
    out, whatever has been answered of them: to leave out that one alone would favour weights whose right answers are short, or
    quick to check. None where nothing is left. `expected_s` is how long all of it is likely to take, before anything has been
    measured. `on_scored` gets the scored groups, in order. `environment`: the environment, as for `Sampler.groups`.
    """
    began, steps = clock.now_s(), sampler.decode_steps
    saved = dict(journal.saved()) if journal is not None else {}
    asked = [position for position in range(len(prompts)) if position not in saved]
    pace = None if deadline_s is None else DeadlinePace(deadline_s, len(asked), expected_s)

    arrived: list[int] = []

    def arriving() -> Iterator[tuple[int, Group]]:
        for position, group in saved.items():
            arrived.append(position)
            yield position, group
        done, number = len(saved), {position: number for number, position in enumerate(asked)}
        on_progress(done, len(prompts))
        todo = [prompts[position] for position in asked]
        for position, group in sampler.groups(
            todo, sampling, stream=(STREAM, seed), positions=asked, pace=pace, environment=environment
        ):
            if pace is not None:
                pace.finished(number[position])
            if journal is not None:
                journal.add(position, group)
            done += 1
            on_progress(done, len(prompts))
            arrived.append(position)
            yield position, group

    scorer.reset_allowance(math.ceil(len(prompts) / QUESTIONS_A_STEP))
    groups = scorer.score(arriving(), left_s=None if pace is None else pace.left_s, accuracy_only=True)
    whole = _whole(sorted(arrived), groups)
    if not whole:
        return None
    on_scored(whole)
    result = _result(whole, Result(sampling, seed, tuple(pass_k)))
    result.seconds, result.decode_steps = clock.now_s() - began, sampler.decode_steps - steps
    return result


def keys(prompts: Sequence[Prompt]) -> list[str]:
    """What names each question: its text, and a number from the second question with the same text on."""
    seen: Counter[str] = Counter()
    names = []
    for prompt in prompts:
        seen[prompt.question] += 1
        count = seen[prompt.question]
        names.append(prompt.question if count == 1 else f"{prompt.question} (#{count})")
    return names


def clusters_of(prompts: Sequence[Prompt]) -> dict[str, str]:
    """The cluster of each question that is not one of its own, by its key: as the data says, else by texts that look alike."""
    if not any(prompt.cluster for prompt in prompts):
        return by_text(keys(prompts), [prompt.question for prompt in prompts])
    sizes = Counter(prompt.cluster for prompt in prompts)
    return {key: one.cluster for key, one in zip(keys(prompts), prompts, strict=True) if one.cluster and sizes[one.cluster] > 1}


def _whole(positions: Sequence[int], groups: Sequence[Group]) -> list[Group]:
    """The groups up to the first question that is missing or not scored."""
    count = 0
    for position, group in zip(positions, groups, strict=True):
        if position != count or not group.scores:
            break
        count += 1
    return list(groups[:count])


def _votes(group: Group) -> list[tuple[int, bool]]:
    """How often each different answer was given, and whether it is right. All right ones are one answer: they equal the gold."""
    votes: Counter[tuple[str, bool]] = Counter()
    for score in group.scores:
        if score.accuracy == 1:
            votes["", True] += 1
        elif score.extracted is not None:
            votes["".join(score.extracted.split()), False] += 1
    return [(count, is_right) for (_, is_right), count in votes.items()]


def _result(groups: Sequence[Group], result: Result) -> Result:
    """Fill `result` from scored groups."""
    completions = [one for group in groups for one in group.completions]
    asked = [group.prompt for group in groups]
    result.clusters = clusters_of(asked)
    for name, group in zip(keys(asked), groups, strict=True):
        result.right[name] = sum(score.accuracy == 1 for score in group.scores)
        result.answers[name] = _votes(group)
        result.killed += sum(score.killed for score in group.scores)
    tokens = sum(one.length for one in completions)
    result.mean_length = tokens / len(completions)
    result.truncated = sum(one.finish == "length" for one in completions) / len(completions)
    result.entropy = math.fsum(one.entropy * one.length for one in completions) / tokens
    return result
