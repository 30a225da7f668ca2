"""What every part of the configuration is made of."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
Temperature = Annotated[float, Field(ge=0.01)]
"""Below 0.01 the likeliest token is all but certain, and the rounding of logits divided by it shows in the log-probabilities."""
Seed = Annotated[int, Field(ge=0, lt=2**63)]


_SURROGATE = re.compile("[\ud800-\udfff]")
LARGEST = 1e12
"""Of any number: what is measured in hours can be counted in microseconds, and squares are still finite."""


class Section(BaseModel):
    """Base of every part: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @field_validator("*")
    @classmethod
    def _computable(cls, value: Any) -> Any:
        if isinstance(value, float) and abs(value) > LARGEST:
            raise PydanticCustomError("too_large", "Input should be at most 1e12 in size")
        if any(isinstance(part, str) and _SURROGATE.search(part) for part in (value if isinstance(value, tuple) else (value,))):
            raise PydanticCustomError("not_text", "Input should be valid Unicode")  # it could not be written down
        return value
