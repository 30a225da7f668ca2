"""A run in progress: what every part of the loop works on."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from microrl import clock
from microrl.config import RunConfig
from microrl.evaluation.evaluate import Result
from microrl.models import gpu
from microrl.run.budget import Budget
from microrl.run.checkpoint import State
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.run.forecast import Forecast
from microrl.run.signals import Interrupts
from microrl.run.stopwatch import Stopwatch
from microrl.train.guard import Guard
from microrl.train.setup import Parts

Value = TypeVar("Value")


class OutOfTime(Exception):
    """What is running would not leave the time for the final save and evaluation."""


@dataclass(slots=True)
class Run:
    """`before` and `after` are the evaluations of the untouched and of the trained model."""

    config: RunConfig
    folder: RunFolder
    budget: Budget
    console: RunConsole
    interrupts: Interrupts
    watch: Stopwatch
    parts: Parts
    state: State
    guard: Guard
    forecast: Forecast
    before: Result | None = None
    after: Result | None = None

    def check_deadline(self) -> None:
        """Between two pieces of work. Raises KeyboardInterrupt where a signal waits, and OutOfTime."""
        self.interrupts.check()
        if self.budget.is_over():
            raise OutOfTime

    def resume_command(self) -> str:
        """What to type to go on with this run: with more hours where too few are left to load it again, save and evaluate."""
        command = f"microrl train --resume {shlex.quote(str(self.folder.path))}"
        needed_s, left_s = self.watch.totals.get("load", 0.0) + self.budget.reserve_s(), self.budget.left_s()
        return command if left_s is None or left_s >= needed_s else f"{command} --hours {self.budget.min_hours(needed_s):g}"

    def tell(self, kind: str, message: str, **details: Any) -> None:
        """An event that a person should see as well."""
        self.folder.event(kind, message, **details)
        self.console.note(f"{kind}: {message}")

    def sampled(self, work: Callable[[], Value]) -> Value:
        """What `work` returns, which samples; where memory runs out it is done again with a smaller cache in the engine.

        Raises MachineFailure where that cannot get smaller.
        """
        while True:
            position, began = self.parts.prompts.position, clock.now_s()
            try:
                return work()
            except Exception as error:
                if not gpu.is_out_of_memory(error):
                    raise
                said = gpu.first_line(error)
            # Only out here has what the exception held been let go.
            self.console.status("out of memory: giving the engine a smaller cache")
            gpu.empty_cache()
            self.parts.prompts.position = position
            self.state.max_kv_gb = self.parts.engine.shrink()
            if not self.watch.in_phase:
                self.watch.add("retry", clock.now_s() - began)
            self.tell(
                "out of memory", f"in sampling: {self.state.max_kv_gb:.3g} GB of keys and values from now on",
                max_kv_gb=self.state.max_kv_gb, error=said,
            )  # fmt: skip
