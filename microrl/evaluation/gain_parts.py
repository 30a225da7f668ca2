"""Where a gain comes from: answers that were right before but not in the asked form, that were cut off, or that were wrong.

Two models' stored answers to the same questions, with the same random numbers, in; numbers out. Nothing is sampled. An answer is

- right, as the evaluation judged it;
- else truncated, if it reached the token limit, whatever it says until there;
- else right but not in the asked form, if nothing was read off it and a lenient reading of the same text is right
  (`microrl.answers.lenient_answer`, judged by the same answer checker);
- else wrong.

The gain is (answers that became right - answers that became wrong) / answers. Each of these belongs to one part: to the form, the
length or the answer, by what the answer is on the side on which it is not right. So the parts add up to the gain exactly.

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
        """What it is; where it is not right, the part of the gain or loss that it belongs to."""
        if self.is_right:
            return "right"
        if self.is_truncated:
            return "length"
        return "form" if self.reading is not None and self.reading in right_readings else "answer"


@dataclass(frozen=True, slots=True)
class Part(Estimate):
    """A part of the gain: (became right - became wrong) / answers."""

    became_right: Count
    became_wrong: Count


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
    """A gain in accuracy, and its parts, which add up to it."""

    model_config = ConfigDict(frozen=True)
    questions: Annotated[int, Field(ge=1)]
    samples: Annotated[int, Field(ge=1)]
    gain: Estimate
    form: Part | None
    """None where there is no lenient reading."""
    length: Part
    answer: Part
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
    changes: dict[Outcome, list[tuple[str, int]]] = {part: [] for part in PARTS}
    over: list[tuple[str, int]] = []
    for (question, _), was, now in zip(keys, before, after, strict=True):
        is_right = now == "right"
        if is_right != (was == "right"):
            changes[was if is_right else now].append((question, 1 if is_right else -1))
        over.append((question, is_right - (was in MEANT)))
    has_lenient = right_readings is not None
    return GainParts(
        questions=len(asked.names), samples=samples,
        gain=asked.change([one for part in PARTS for one in changes[part]]),
        form=asked.part(changes["form"]) if has_lenient else None,
        length=asked.part(changes["length"]), answer=asked.part(changes["answer"]),
        form_and_length=asked.change([*changes["form"], *changes["length"]]),
        over_lenient=asked.change(over) if has_lenient else None,
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

    def part(self, changes: Sequence[tuple[str, int]]) -> Part:
        change, signs = self.change(changes), [sign for _, sign in changes]
        return Part(change.mean, change.ci95, became_right=signs.count(1), became_wrong=signs.count(-1))

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
