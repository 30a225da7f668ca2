"""Mathematics that takes a computer algebra system, in a confined process only: on untrusted text it can take for ever, fill the
memory or crash the interpreter."""

from __future__ import annotations

import sys
from typing import Any

from microrl.rewards import compare

LASTS = True
"""The parser caches its decisions: in a fork of its own a check takes a tenth of a second and more, else a hundredth."""


def prepare() -> None:
    """Import what is needed, before forking."""
    # sympy imports numpy for an infinite sum, if there is one. Its OpenBLAS starts threads, and ends a process that may not.
    sys.modules["numpy"] = None  # type: ignore[assignment]
    compare.prepare()


def handle(request: dict[str, Any], reads: int = -1, writes: int = -1) -> bool:
    """Whether `answer` equals `gold`; without an answer, whether answers can be compared with the gold answer."""
    if "answer" in request:
        return compare.compare(request["gold"], request["answer"])
    return compare.parses(request["gold"])
