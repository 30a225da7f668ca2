"""A run in progress: the object that every part of the loop works on."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from microrl import clock
from microrl.errors import first_line
from microrl.evaluation.result import Result
from microrl.models import gpu
from microrl.run.budget import Budget
from microrl.run.checkpoint import State
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.run.forecast import Forecast
from microrl.run.heartbeat import Heartbeat
from microrl.run.signals import Interrupts
from microrl.train.guard import Guard
from microrl.train.setup import Components

Value = TypeVar("Value")


class OutOfTime(Exception):
    """Continuing would not leave enough time for the final save and evaluation."""


@dataclass(slots=True, kw_only=True)
class Run(Components):
    """The components of a step, plus folder, budget, console and guard.

    `before` and `after` are the evaluations of the untouched and the trained model. `saved_s`: elapsed seconds at the last
    checkpoint, or at the start of the current phase. `engine_failures`: how often the engine has failed, in earlier processes.
    """

    folder: RunFolder
    budget: Budget
    console: RunConsole
    signals: Interrupts
    state: State
    guard: Guard
    forecast: Forecast
    heartbeat: Heartbeat
    before: Result | None = None
    after: Result | None = None
    saved_s: float = 0.0
    engine_failures: int = 0
    status: str = "failed"
    summary: dict[str, Any] = field(default_factory=dict)

    def check_deadline(self) -> None:
        """Call between two pieces of work. Raises KeyboardInterrupt if a signal is waiting, and OutOfTime."""
        self.heartbeat.worked()
        self.signals.check()
        if self.budget.is_over():
            raise OutOfTime

    def expect_end(self) -> None:
        """Tell the console when the run is likely to end, by the forecasts so far."""
        budget, sft, left_s = self.budget, self.config.sft, self.budget.reserve_s()
        if budget.max_steps is None and not sft.only:
            return  # it uses all of its hours
        if self.before is None:
            left_s += budget.evaluation_s
        if sft.is_on and not self.state.sft.is_done:
            steps_s = [(sft.steps - self.state.sft.steps) * budget.sft_step.typical_s()] if sft.steps is not None else []
            left_s += min([*steps_s, *([sft.minutes * 60] if sft.minutes is not None else [])], default=0.0)
        if budget.max_steps is not None and not sft.only:
            left_s += (budget.max_steps - self.state.step) * budget.step.typical_s()
        self.console.expect(left_s)

    def resume_command(self) -> str:
        """The command that resumes this run, with larger --hours if the time left does not suffice to load, save and evaluate."""
        command = f"microrl train --resume {shlex.quote(str(self.folder.path))}"
        needed_s, left_s = self.watch.totals.get("load", 0.0) + self.budget.reserve_s(), self.budget.left_s()
        return command if left_s is None or left_s >= needed_s else f"{command} --hours {self.budget.min_hours(needed_s):g}"

    def announce(self, kind: str, message: str, **details: Any) -> None:
        """Log an event and print it; one that repeats, but for its numbers, is printed once."""
        self.folder.event(kind, message, **details)
        note = self.console.note if kind == "rolled back" else self.console.note_once
        note(f"{kind}: {message}")

    def with_smaller_cache_if_needed(self, sample: Callable[[], Value]) -> Value:
        """Call `sample` and return its result; when memory runs out, halve the engine's KV cache and call it again.

        Raises MachineFailure if the cache cannot be smaller.
        """
        while True:
            position, began = self.prompts.position, clock.now_s()
            try:
                return sample()
            except Exception as error:
                if not gpu.is_out_of_memory(error):
                    raise
                why = first_line(error)
            # Only here are the tensors released that the exception held.
            self.console.status("out of memory: reducing the engine's KV cache")
            gpu.empty_cache()
            self.prompts.position = position
            self.state.max_kv_gb = self.engine.shrink()
            if not self.watch.in_phase:
                self.watch.add("retry", clock.now_s() - began)
            self.announce(
                "out of memory", f"while sampling: the KV cache is reduced to {self.state.max_kv_gb:.3g} GB",
                max_kv_gb=self.state.max_kv_gb, error=why,
            )  # fmt: skip
