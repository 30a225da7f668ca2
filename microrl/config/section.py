"""Base class and number types of all configuration sections."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
MIN_TEMPERATURE = 0.01
Temperature = Annotated[float, Field(ge=MIN_TEMPERATURE)]
"""Below 0.01 sampling is practically greedy, and dividing the logits amplifies their rounding errors. vLLM silently uses 0.01 for
anything smaller."""
Seed = Annotated[int, Field(ge=0, lt=2**63)]


def or_one(kind: type) -> BeforeValidator:
    """Of a list: one entry of this type may stand for itself."""
    return BeforeValidator(lambda value: (value,) if isinstance(value, kind) else value)


class Section(BaseModel):
    """Base of every section: immutable; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
