"""The supervised phase before the first step."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from microrl.config.section import Positive, Section


class SftConfig(Section):
    minutes: Annotated[float, Field(gt=0)] | None = None
    """Most minutes of the phase, out of the run's hours; None and no steps either: no warm-up."""
    steps: Positive | None = None
    """Most supervised steps: with these, and without hours, a run repeats."""
    only: bool = False
    """The run is the warm-up alone (`microrl warmup`)."""
    data: str | None = None
    """Where the solutions come from, as data.name; None: the run's own data. Held-out and validation questions are left out."""
    solution: str | None = None
    """Column of the solution, reasoning included; None looks for the usual names."""
    lr: Annotated[float, Field(ge=0)] | None = None
    """Learning rate at the start, which falls in a line to 0 over the phase; None: optim.lr."""
    batch: Positive = 16
    """Solutions a step."""

    @property
    def is_on(self) -> bool:
        return self.only or self.minutes is not None or self.steps is not None
