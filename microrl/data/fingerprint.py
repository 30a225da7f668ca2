"""A hash of a data set's questions and answers, which detects changed data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field


class Fingerprint(BaseModel):
    """`sha256` is over the (question, answer) or (question, solution) pairs, in order and as read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    rows: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")

    def __str__(self) -> str:
        return f"{self.rows:,} rows, sha256 {self.sha256[:12]}..."


def fingerprint(name: str, pairs: Iterable[tuple[str, str]]) -> Fingerprint:
    """The fingerprint of the pairs of the data set `name`."""
    digest, rows = hashlib.sha256(), 0
    for rows, pair in enumerate(pairs, 1):  # noqa: B007, its last value counts
        for text in pair:
            content = text.encode("utf-8", "surrogatepass")
            digest.update(len(content).to_bytes(8, "big") + content)
    return Fingerprint(name=name, rows=rows, sha256=digest.hexdigest())
