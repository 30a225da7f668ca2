"""`summary.json`: how a run ended, as it is written and as every command reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from microrl.evaluation.intervals import Estimate
from microrl.files import Count, Fraction, Seconds
from microrl.run import names, versioned

Status = Literal["done", "stopped", "interrupted", "unproved", "failed"]
Hours = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow")


class Side(_Part):
    """The held-out problems before or after training. pass@k for each k is beside these keys."""

    accuracy: Fraction
    ci95: tuple[Fraction, Fraction]
    questions: Count


@dataclass(frozen=True, slots=True)
class Gain(Estimate):
    """Mean over the problems that were answered before and after; their number, and their means on either side."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="ignore")  # else that of `_Part`, and slots hold no other keys
    questions: Count | None = None
    before: FiniteFloat | None = None
    after: FiniteFloat | None = None


class Evaluations(_Part):
    """What was evaluated, with the gain of accuracy; that of each pass@k is beside it, as `paired_gain_pass@8`."""

    __pydantic_extra__: dict[str, Annotated[Gain | Any, Field(union_mode="left_to_right")]]
    before: Side | None = None
    after: Side | None = None
    paired_gain: Gain | None = None

    def more_gains(self) -> dict[str, Gain]:
        """The gains in pass@k, by their names."""
        return {
            match[1]: value
            for name, value in self.__pydantic_extra__.items()
            if (match := _PASS_K.fullmatch(name)) and isinstance(value, Gain) and value.before is not None
        }


_PASS_K = re.compile(r"paired_gain_(pass@\d+)")


class StepForecast(_Part):
    """Of the whole run's steps, made after so many of them."""

    steps: Count | None = None
    made_after_steps: Count | None = None


class Sft(_Part):
    """The supervised phase."""

    steps: Count
    seconds: Seconds
    first_loss: float | None = None
    last_loss: float | None = None


class Validated(BaseModel):
    """A validation: after how many steps, and the accuracy."""

    step: Count
    accuracy: Fraction


class Written(BaseModel):
    """What a run has written into a file."""

    bytes: Count
    sha256: str


class Summary(BaseModel):
    """The whole run, including its earlier processes."""

    format: Count = versioned.FORMAT
    status: Status
    steps: Count
    hours_budget: Hours | None = None
    hours_spent: Hours
    hours_given_back: Hours | None = None
    """Where the guard has stopped the run."""
    seconds_by_phase: dict[str, Seconds] = {}
    cost_usd: FiniteFloat
    trainable_params: Count
    forecast: StepForecast | None = None
    sft: Sft | None = None
    """None without a supervised phase."""
    best: Validated | None = None
    validated: Validated | None = None
    """The last one; None without a validation."""
    eval: Evaluations = Evaluations()
    metrics: Written | None = None
    """`metrics.jsonl`; None where it could not be read."""
    verdict: dict[str, Any] | None = None
    """None where the folder was gone or damaged."""

    def to_json(self) -> dict[str, Any]:
        """As it is written."""
        return self.model_dump(mode="json")


def read(folder: Path) -> Summary:
    """The summary of the run in a folder. Raises BadFile where it is missing or damaged, and UserError for a later format."""
    return versioned.read_json(folder / names.SUMMARY, Summary)


def read_if_there(folder: Path) -> Summary | None:
    """As `read`; None where there is no such file: the run has not ended."""
    return read(folder) if (folder / names.SUMMARY).exists() else None
