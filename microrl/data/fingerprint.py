"""What tells a data set from what it was before: its name, and the number and hash of its rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from pydantic import BaseModel, Field

from microrl.files import STRICT, Count


class Fingerprint(BaseModel):
    """Of a data set: `sha256` is over the (question, answer) or (question, solution) pairs, in order and as read."""

    model_config = STRICT | {"frozen": True}

    name: str
    rows: Count
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
