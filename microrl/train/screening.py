"""The first pass over the training questions: what is always or never answered correctly is left out before the first step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from microrl import algorithm, clock
from microrl.config import RunConfig
from microrl.config.reward import gdpo_weights
from microrl.data.sampler import PromptSampler
from microrl.files import BadFile, Count, Seconds
from microrl.limits import SCREENING_FRACTION
from microrl.run import metrics, names
from microrl.train.refill import difficulty
from microrl.train.run import Run
from microrl.train.setup import make_prompt_sampler
from microrl.types import Group

PHASE = "screen"
STREAM = 0x5C12
"""First word of its random streams, which keeps them apart from others."""
MAX_FRACTION = 0.5
"""Fraction of the questions seen that may be left out: one group tells little, and what is left must make a training set."""
Right = Annotated[float, Field(ge=0, le=1e9)]
Answers = Annotated[int, Field(ge=1, le=10**9)]


class Screening(BaseModel):
    """The content of `screening.json`. Questions are named by their rows in the data, from 1."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    questions: Count
    """Training questions, seen or not."""
    seconds: Seconds
    seen: dict[int, tuple[Right, Answers]]
    """Right answers and all answers of each question that was seen."""
    left_out: tuple[int, ...]

    @field_validator("seen")
    @classmethod
    def _at_most_all(cls, seen: dict[int, tuple[float, int]]) -> dict[int, tuple[float, int]]:
        if any(right > answers for right, answers in seen.values()):
            raise ValueError("more right answers than answers")
        return seen

    def __str__(self) -> str:
        right = [right / answers for right, answers in self.seen.values()]
        return (
            f"{len(self.seen):,} of {self.questions:,} questions in {self.seconds:.0f} s, {right.count(1.0):,} of them always "
            f"right and {right.count(0.0):,} never; {len(self.left_out):,} are left out of training"
        )


def screening_phase(run: Run) -> None:
    """Answer each training question with one group, until all are answered or `data.screen_minutes` are used up, and leave out
    of training what `uninformative_rows` names. Once per run: `screening.json` records it.

    At least half of the time for training is kept. With `data.curriculum` the answers are the questions' first history. Raises
    BadFile where a resumed run's record is damaged, or missing after the first step.
    """
    if run.config.data.screen_minutes is None or run.config.sft.only:
        return
    path = run.folder.path / names.SCREENING
    if path.exists():
        screening = run.folder.read_json(names.SCREENING, Screening)
    elif run.state.step:
        raise BadFile(f"{path} is missing, so it is unknown what was left out of training")
    else:
        screening = _screen(run)
        run.folder.write_json(names.SCREENING, screening.model_dump())
        run.announce(
            "screened", str(screening), seen=len(screening.seen), left_out=len(screening.left_out), seconds=screening.seconds
        )
    _train_on_the_rest(run, screening)


def _screen(run: Run) -> Screening:
    config, questions = run.config, run.prompts.items
    order = PromptSampler(questions, config.seed).draw(len(questions))
    began, pace = clock.now_s(), _Pace(_allowed_s(run), config.sampling.prompts_per_step)

    def work() -> list[Group]:
        run.console.count(0, len(order), "first pass", " questions")
        run.scorer.reset_allowance(math.ceil(len(order) / config.sampling.prompts_per_step))
        with run.engine.awake(run.policy.snapshot()) as sampler:
            groups = sampler.groups(order, run.sampling, stream=(STREAM, config.seed), pace=pace, environment=run.environment)
            return run.scorer.score(_shown(run, groups), left_s=pace.left_s)

    with run.watch.phase(PHASE):
        groups = [group for group in run.with_smaller_cache_if_needed(work) if group.scores]
    return Screening(
        questions=len(questions),
        seconds=clock.now_s() - began,
        seen={group.prompt.row: (difficulty(config, group) * len(group.scores), len(group.scores)) for group in groups},
        left_out=tuple(uninformative_rows(config, groups)),
    )


def _allowed_s(run: Run) -> float:
    minutes, left_s = run.config.data.screen_minutes, run.budget.left_s()
    assert minutes is not None
    after_s = run.budget.reserve_s() + run.budget.step.forecast_s()
    return minutes * 60 if left_s is None else min(minutes * 60, SCREENING_FRACTION * (left_s - after_s))


def _shown(run: Run, groups: Iterable[tuple[int, Group]]) -> Iterator[tuple[int, Group]]:
    for done, group in enumerate(groups, 1):
        at_once = run.config.sampling.prompts_per_step
        run.console.count(done, len(run.prompts.items), "first pass", " questions", at_once=at_once)
        yield group


class _Pace:
    """As many groups at once as in a training step, until the time is up. What is not finished then counts as unseen.

    Until then no clock decides what is decoded together, so that the pass repeats bit for bit.
    """

    def __init__(self, seconds: float, at_once: int) -> None:
        self._ends_s, self._at_once = clock.now_s() + seconds, at_once

    def may_start(self, in_flight: int) -> bool:
        """See `Pace.may_start`."""
        return in_flight < self._at_once and not self.is_over()

    def is_over(self) -> bool:
        """See `Pace.is_over`."""
        return self.left_s() <= 0

    def left_s(self) -> float:
        """Seconds until the time is up."""
        return self._ends_s - clock.now_s()


def uninformative_rows(config: RunConfig, groups: Sequence[Group]) -> list[int]:
    """Rows of the questions to leave out: every answer right, or none, and nothing that the loss could learn from.

    At most half of all, so that training keeps something. Always right ones come first, in the order of `groups`: training
    makes right answers more frequent, so they move away from groups that differ, and the others towards them.
    """
    uninformative = [group for group in groups if _is_uninformative(config, group)]
    uninformative.sort(key=lambda group: -difficulty(config, group))
    return [group.prompt.row for group in uninformative[: int(MAX_FRACTION * len(groups))]]


def _is_uninformative(config: RunConfig, group: Group) -> bool:
    if difficulty(config, group) not in (0.0, 1.0) or any(score.killed or not score.is_valid for score in group.scores):
        return False
    if config.loss.drops_equal_groups:
        return not algorithm.make(config).keeps(group)
    return not metrics.is_useful(group, gdpo_weights(config.reward, config.env))


def _train_on_the_rest(run: Run, screening: Screening) -> None:
    questions, left_out = run.prompts.items, set(screening.left_out)
    is_ours = screening.questions == len(questions) and screening.seen.keys() <= {prompt.row for prompt in questions}
    if not is_ours or not left_out <= screening.seen.keys() or len(left_out) > MAX_FRACTION * len(screening.seen):
        raise BadFile(f"{run.folder.path / names.SCREENING} does not fit this run's questions")
    kept = [prompt for prompt in questions if prompt.row not in left_out]
    run.prompts = make_prompt_sampler(run.config, kept)
    if run.state.step:
        run.prompts.restore(run.state.sampler_position, run.state.question_history)
        return
    seen = [(prompt, *screening.seen[prompt.row]) for prompt in kept if prompt.row in screening.seen]
    run.prompts.learn([(prompt, right / answers, answers) for prompt, right, answers in seen])
    run.state.question_history = dict(run.prompts.history)
