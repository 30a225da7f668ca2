"""A run in progress: the one object that every part of the loop works on."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from microrl import clock
from microrl.evaluation.evaluate import Result
from microrl.models import gpu
from microrl.run.budget import Budget
from microrl.run.checkpoint import State
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.run.forecast import Forecast
from microrl.run.signals import Interrupts
from microrl.train.guard import Guard
from microrl.train.setup import Components

Value = TypeVar("Value")


class OutOfTime(Exception):
    """What is running would not leave the time for the final save and evaluation."""


@dataclass(slots=True, kw_only=True)
class Run(Components):
    """The components of a step, and what surrounds them: the folder, the budget, the console, the guard.

    `before` and `after` are the evaluations of the untouched and of the trained model; `saved_s` is the elapsed time of the
    last checkpoint, or of the start of the phase that is running.
    """

    folder: RunFolder
    budget: Budget
    console: RunConsole
    signals: Interrupts
    state: State
    guard: Guard
    forecast: Forecast
    before: Result | None = None
    after: Result | None = None
    saved_s: float = 0.0
    status: str = "failed"
    summary: dict[str, Any] = field(default_factory=dict)

    def check_deadline(self) -> None:
        """Between two pieces of work. Raises KeyboardInterrupt where a signal waits, and OutOfTime."""
        self.signals.check()
        if self.budget.is_over():
            raise OutOfTime

    def resume_command(self) -> str:
        """What to type to go on with this run: with more hours where too few are left to load it again, save and evaluate."""
        command = f"microrl train --resume {shlex.quote(str(self.folder.path))}"
        needed_s, left_s = self.watch.totals.get("load", 0.0) + self.budget.reserve_s(), self.budget.left_s()
        return command if left_s is None or left_s >= needed_s else f"{command} --hours {self.budget.min_hours(needed_s):g}"

    def announce(self, kind: str, message: str, **details: Any) -> None:
        """An event that a person should see as well."""
        self.folder.event(kind, message, **details)
        self.console.note(f"{kind}: {message}")

    def with_smaller_cache_if_needed(self, sample: Callable[[], Value]) -> Value:
        """What `sample` returns; where memory runs out it is called again, with a smaller cache in the engine.

        Raises MachineFailure where that cannot get smaller.
        """
        while True:
            position, began = self.prompts.position, clock.now_s()
            try:
                return sample()
            except Exception as error:
                if not gpu.is_out_of_memory(error):
                    raise
                why = gpu.first_line(error)
            # Only out here has what the exception held been let go.
            self.console.status("out of memory: giving the engine a smaller cache")
            gpu.empty_cache()
            self.prompts.position = position
            self.state.max_kv_gb = self.engine.shrink()
            if not self.watch.in_phase:
                self.watch.add("retry", clock.now_s() - began)
            self.announce(
                "out of memory", f"in sampling: {self.state.max_kv_gb:.3g} GB of keys and values from now on",
                max_kv_gb=self.state.max_kv_gb, error=why,
            )  # fmt: skip
