"""Supervised fine-tuning (SFT) before reinforcement learning."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from microrl.config.section import Positive, Section


class SftConfig(Section):
    minutes: Annotated[float, Field(gt=0)] | None = None
    """Maximum minutes of SFT, part of the run's hours; None and no steps either: no SFT."""
    steps: Positive | None = None
    """Maximum number of SFT steps; bound a reproducible run by these instead of minutes."""
    only: bool = False
    """SFT without reinforcement learning (`microrl warmup`)."""
    data: str | None = None
    """Data set with worked solutions, as data.name, or a folder of `microrl teach`, whose tokens are learned as they are; None:
    the run's data. Held-out and validation questions are never used."""
    solution: str | None = None
    """Column of the solution, reasoning included; None tries the usual names."""
    lr: Annotated[float, Field(ge=0)] | None = None
    """Initial learning rate; decays linearly to 0 over the phase. None: optim.lr."""
    batch: Positive = 16
    """Solutions per step."""

    @property
    def is_on(self) -> bool:
        return self.only or self.minutes is not None or self.steps is not None
