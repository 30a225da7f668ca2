"""Something that went wrong in a run, in words, and the steps in which it did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from microrl.report.history import History


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that went wrong in a run, or, where it is not serious, that is worth knowing. `message`: what happened, with
    numbers; `advice`: which flag or key to change, empty where there is nothing to change; `count`: how often; `steps`: in which
    steps, as words."""

    kind: str
    message: str
    advice: str = ""
    is_serious: bool = False
    count: int = 1
    steps: str = ""

    def to_json(self) -> dict[str, Any]:
        """As it stands in `summary.json`."""
        return {
            "kind": self.kind, "message": self.message, "advice": self.advice, "serious": self.is_serious, "count": self.count,
        }  # fmt: skip

    def __str__(self) -> str:
        """One line."""
        return f"{'what went wrong' if self.is_serious else 'worth knowing'}: {self.text}"

    @property
    def text(self) -> str:
        """Title, message and advice."""
        advice = f" What to do: {self.advice}." if self.advice else ""
        return f"{self.title}: {self.message.rstrip('.')}.{advice}"

    @property
    def title(self) -> str:
        """Kind, count and steps."""
        return self.kind + (f" (x{self.count})" if self.count > 1 else "") + (f", {self.steps}" if self.steps else "")


def mean(history: History, metric: str) -> float | None:
    """Of all steps that have this metric; None: no step has it."""
    values = [value for row in history.rows if (value := row.get(metric)) is not None]
    return math.fsum(values) / len(values) if values else None


def steps_said(steps: Sequence[int]) -> str:
    """Counted from 1, as on the console; `steps` are counted from 0, as in `metrics.jsonl`."""
    if not steps:
        return ""
    steps = [step + 1 for step in dict.fromkeys(steps)]
    if len(steps) > 6 and steps[-1] - steps[0] == len(steps) - 1:
        return f"steps {steps[0]} to {steps[-1]}"
    listed = ", ".join(map(str, steps[:6])) + (", ..." if len(steps) > 6 else "")
    return f"step{'s' if len(steps) > 1 else ''} {listed}"
