"""Where a gain comes from: fewer answers that are right but not in the asked form, that are cut off, or that are wrong.

Two models' stored answers to the same questions, with the same random numbers, in; numbers out. Nothing is sampled. An answer is

- right, as the evaluation judged it;
- else truncated, if it reached the token limit, whatever it says until there;
- else right but not in the asked form, if nothing was read off it and a lenient reading of the same text is right
  (`microrl.answers.lenient_answer`, judged by the same answer checker);
- else wrong.

A part of the gain is the fraction of such answers before, less that after: how much rarer this way of not being right has become.
So the parts add up to the gain exactly. Like the gain, they are paired by question, and not by sample: two models' third samples
have nothing in common once their texts differ.

A lenient reading guesses: a last number may be right by chance, and an answer in words is missed. Programs and procedural tasks
have none: what is not in their form counts as wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from microrl.answers import lenient_answer
from microrl.evaluation.intervals import TAIL, Estimate, gain_interval, mean_share, named
from microrl.files import Count

Outcome = Literal["right", "form", "length", "answer"]
PARTS: tuple[Outcome, ...] = ("form", "length", "answer")
MEANT: tuple[Outcome, ...] = ("right", "form")
"""What is right when it is read leniently."""
KEY = "gain_parts"
"""Of the parts in an evaluation's JSON."""
LENIENT_KINDS = ("math", "text")
"""Kinds of answers that have a lenient reading."""
Reading = tuple[str, str | None]
"""A gold answer, and what a lenient reading compares with it: a pair as answer checkers take it."""


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """A line of an evaluation's record. `question`: its key in `Result.right`. `reading`: what decides whether it is right but
    not in the asked form; None: it is not."""

    question: str
    sample: int
    is_right: bool
    is_truncated: bool
    is_read: bool
    """Whether an answer was read off it."""
    reading: Reading | None = None

    @classmethod
    def of(cls, line: Mapping[str, Any], question: str, kind: str) -> StoredAnswer:
        """`kind`: `data.answer_kind`."""
        is_right, is_truncated = line.get("right") is True, line.get("finish") == "length"
        is_read, sample, reading = line.get("extracted") is not None, line.get("sample"), None
        if kind in LENIENT_KINDS and not (is_right or is_truncated or is_read):
            guess = lenient_answer(str(line.get("completion") or ""), is_text=kind == "text")
            reading = None if guess is None else (str(line.get("answer") or ""), guess)
        return cls(question, sample if isinstance(sample, int) else 0, is_right, is_truncated, is_read, reading)

    def outcome(self, right_readings: Container[Reading]) -> Outcome:
        """Whether it is right, or the part of the gain or loss that it counts for."""
        if self.is_right:
            return "right"
        if self.is_truncated:
            return "length"
        return "form" if self.reading is not None and self.reading in right_readings else "answer"


class Side(BaseModel):
    """One model's answers: how many are `right`, and how many of the others belong to each part."""

    model_config = ConfigDict(frozen=True)
    right: Count
    form: Count
    length: Count
    answer: Count
    well_formed: Count
    """Finished answers that were read in the asked form."""
    well_formed_right: Count
    lenient: Estimate | None
    """Accuracy, answers that are right but not in the asked form included; None where there is no lenient reading."""

    @property
    def well_formed_accuracy(self) -> float | None:
        """Of the finished and well-formed answers alone; other ones of the other model's: no pair."""
        return self.well_formed_right / self.well_formed if self.well_formed else None


class GainParts(BaseModel):
    """A gain in accuracy, and its parts, which add up to it: positive where there are fewer such answers than before."""

    model_config = ConfigDict(frozen=True)
    format: Literal[2] = Field(repr=False)
    """Format 1 compared each sample with the other model's sample of the same number."""
    questions: Annotated[int, Field(ge=1)]
    samples: Annotated[int, Field(ge=1)]
    gain: Estimate
    form: Estimate | None
    """None where there is no lenient reading."""
    length: Estimate
    answer: Estimate
    form_and_length: Estimate
    over_lenient: Estimate | None
    """The trained model's accuracy as it was judged, less that of the base read leniently."""
    base: Side
    trained: Side

    @classmethod
    def read(cls, stored: Any) -> GainParts | None:
        """As it stands in an evaluation's JSON; None where it is not there, or another version's."""
        try:
            return cls.model_validate(stored)
        except ValidationError:
            return None


def gain_parts(
    base: Sequence[StoredAnswer],
    trained: Sequence[StoredAnswer],
    right_readings: Container[Reading] | None,
    clusters: Mapping[str, str],
) -> GainParts | None:
    """The gain over the questions whose answers both sides have, and its parts; None where there are none.

    `right_readings`: those lenient readings that are right; None where answers have none. `clusters` as in `Result`.
    """
    sides = [{(one.question, one.sample): one for one in side} for side in (base, trained)]
    shared = [key for key in sides[0] if key in sides[1]]
    sizes = Counter(question for question, _ in shared)
    samples = max(sizes.values(), default=0)
    keys = [key for key in shared if sizes[key[0]] == samples]
    if not keys:
        return None
    asked = _Questions(list(dict.fromkeys(question for question, _ in keys)), samples, clusters)
    answers = [[side[key] for key in keys] for side in sides]
    before, after = ([one.outcome(right_readings or ()) for one in side] for side in answers)

    def fewer(of_base: Container[Outcome], of_trained: Container[Outcome]) -> Estimate:
        changes = ((was in of_base) - (now in of_trained) for was, now in zip(before, after, strict=True))
        return asked.change(zip((question for question, _ in keys), changes, strict=True))

    has_lenient = right_readings is not None
    return GainParts(
        format=2, questions=len(asked.names), samples=samples, gain=fewer(PARTS, PARTS),
        form=fewer(("form",), ("form",)) if has_lenient else None,
        length=fewer(("length",), ("length",)), answer=fewer(("answer",), ("answer",)),
        form_and_length=fewer(("form", "length"), ("form", "length")),
        over_lenient=fewer(("length", "answer"), PARTS) if has_lenient else None,
        base=_side(answers[0], before, asked, has_lenient=has_lenient),
        trained=_side(answers[1], after, asked, has_lenient=has_lenient),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Questions:
    """Questions with so many answers each: means over them of what single answers add."""

    names: Sequence[str]
    samples: int
    clusters: Mapping[str, str]

    def change(self, changes: Iterable[tuple[str, int]]) -> Estimate:
        """The mean change, from (question, +1 or -1) of every answer that counts."""
        return gain_interval(self._values(changes), named(self.names, self.clusters), samples=self.samples, k=1)(TAIL)

    def accuracy(self, right: Iterable[tuple[str, int]]) -> Estimate:
        """The mean accuracy, from (question, 0 or 1) of every answer."""
        return mean_share(self._values(right), samples=self.samples, clusters=named(self.names, self.clusters))

    def _values(self, added: Iterable[tuple[str, int]]) -> list[float]:
        sums = dict.fromkeys(self.names, 0)
        for question, value in added:
            sums[question] += value
        return [value / self.samples for value in sums.values()]


def _side(answers: Sequence[StoredAnswer], outcomes: Sequence[Outcome], asked: _Questions, *, has_lenient: bool) -> Side:
    counts = Counter(outcomes)
    well_formed = [one.is_right for one in answers if one.is_read and not one.is_truncated]
    meant = [(one.question, outcome in MEANT) for one, outcome in zip(answers, outcomes, strict=True)]
    return Side(
        right=counts["right"], form=counts["form"], length=counts["length"], answer=counts["answer"],
        well_formed=len(well_formed), well_formed_right=sum(well_formed),
        lenient=asked.accuracy(meant) if has_lenient else None,
    )  # fmt: skip
