"""What every part of the configuration is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
Temperature = Annotated[float, Field(ge=0.01)]
"""Below 0.01 the likeliest token is all but certain, and the rounding of logits divided by it shows in the log-probabilities.
vLLM, too, takes 0.01 for anything smaller, and does not say so."""
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Section(BaseModel):
    """Base of every part: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
