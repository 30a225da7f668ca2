"""The record of overlaps between a run's training questions and what it is evaluated on, `contamination.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field

from microrl.config import catalogue
from microrl.data.contamination import LENGTH, NEAR, Overlap
from microrl.data.load import Question
from microrl.files import Count, Fraction, Frozen

MAX_PAIRS = 100
"""Pairs that are listed for a benchmark, those that have most in common."""


class Pair(Frozen):
    """Rows, from 1, of a question of the benchmark and of a training question, and the share of word sequences in common."""

    row: Count
    training_row: Count
    share: Fraction


class Benchmark(Frozen):
    """Counts of the benchmark's questions. `removed` counts training questions, which were left out for it."""

    questions: Count
    overlapping: Count
    near: Count
    removed: Count = 0
    pairs: tuple[Pair, ...] = Field(default=(), max_length=MAX_PAIRS)

    def __str__(self) -> str:
        """`3 of 500 questions overlap with training questions, 1 of them nearly the same`, before anything was removed."""
        if not self.overlapping:
            return f"none of {self.questions:,} questions overlaps with training questions"
        removed = f"; {self.removed:,} training questions left out for it" if self.removed else ""
        return (
            f"{self.overlapping:,} of {self.questions:,} questions overlap with training questions, {self.near:,} of them nearly "
            f"the same{removed}"
        )


class Record(Frozen):
    """The content of `contamination.json`. The parts of the run's own data are `held-out` and `validation`."""

    training_questions: Count
    words: Count = LENGTH
    near_share: Fraction = NEAR
    benchmarks: dict[str, Benchmark]

    def of(self, name: str) -> Benchmark | None:
        """What was found for `held-out`, `validation` or a data set by its name; None if it was not looked for."""
        known = catalogue.find(name)
        return self.benchmarks.get(name if known is None else known.name)


def record(
    training: Sequence[Question],
    benchmarks: Mapping[str, Sequence[Question]],
    overlaps: Mapping[str, Sequence[Overlap]],
    removed: Mapping[str, int],
) -> Record:
    """The record of these overlaps."""
    return Record(
        training_questions=len(training),
        benchmarks={
            name: Benchmark(
                questions=len(questions),
                overlapping=len({pair.question for pair in overlaps[name]}),
                near=len({pair.question for pair in overlaps[name] if pair.is_near}),
                removed=removed.get(name, 0),
                pairs=tuple(
                    Pair(row=questions[pair.question].row, training_row=training[pair.training].row, share=round(pair.share, 4))
                    for pair in sorted(overlaps[name], key=lambda pair: -pair.share)[:MAX_PAIRS]
                ),
            )
            for name, questions in benchmarks.items()
        },
    )
