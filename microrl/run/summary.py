"""`summary.json`: how a run ended, as it is written and as every command reads it.

`format` counts up when a key changes its meaning. A file of a later format is refused: it is no damage that a run could begin
again after. Keys that this version does not know are ignored, and those that it can do without have defaults: within a format,
files of other versions can be read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from microrl import files
from microrl.errors import UserError
from microrl.files import Count, Fraction, Seconds

NAME = "summary.json"
FORMAT = 1
Status = Literal["done", "stopped", "interrupted", "unproved", "failed"]
Hours = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Side(BaseModel):
    """The held-out problems before or after training. pass@k for each k is beside these keys."""

    model_config = ConfigDict(extra="allow")

    accuracy: Fraction
    ci95: tuple[Fraction, Fraction]
    questions: Count


class Gain(BaseModel):
    """Mean over the problems that were answered before and after."""

    model_config = ConfigDict(extra="allow")

    mean: FiniteFloat
    ci95: tuple[FiniteFloat, FiniteFloat]


class Evaluations(BaseModel):
    """What was evaluated, with the gain of accuracy; that of each pass@k is beside it."""

    model_config = ConfigDict(extra="allow")

    before: Side | None = None
    after: Side | None = None
    paired_gain: Gain | None = None


class Summary(BaseModel):
    """The whole run, including its earlier processes."""

    format: Count = FORMAT
    status: Status
    steps: Count
    hours_budget: Hours | None = None
    hours_spent: Hours
    hours_given_back: Hours | None = None
    """Where the guard has stopped the run."""
    seconds_by_phase: dict[str, Seconds] = {}
    cost_usd: FiniteFloat
    trainable_params: Count
    forecast: dict[str, Any] | None = None
    sft: dict[str, Any] | None = None
    """None without a supervised phase."""
    best: dict[str, Any] | None = None
    """Step and accuracy of the best checkpoint on the validation problems."""
    eval: Evaluations = Evaluations()
    metrics: dict[str, Any] | None = None
    """Size and SHA-256 of `metrics.jsonl`; None where it could not be read."""
    verdict: dict[str, Any] | None = None
    """None where the folder was gone or damaged."""

    def to_json(self) -> dict[str, Any]:
        """As it is written."""
        return self.model_dump(mode="json")


def read(folder: Path) -> Summary:
    """The summary of the run in a folder. Raises BadFile where it is missing or damaged, and UserError for a later format."""
    refuse_later(folder)
    summary: Summary = files.read_json(folder / NAME, Summary)
    return summary


def refuse_later(folder: Path) -> None:
    """Raise UserError for a summary of a later format, and BadFile where it is missing or no format can be read."""
    path = folder / NAME
    known: int = files.read_json(path, _Format).format
    if known > FORMAT:
        raise UserError(f"{path} has format {known}, and this version of microrl reads up to {FORMAT}", "update microrl")


def read_if_there(folder: Path) -> Summary | None:
    """As `read`; None where there is no such file: the run has not ended."""
    return read(folder) if (folder / NAME).exists() else None


class _Format(BaseModel):
    format: Count = FORMAT
