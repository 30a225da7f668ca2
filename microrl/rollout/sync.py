"""Swap or merge: measured on a run's first steps, at its own rank, length and batch, and kept."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from microrl.config.engine_rules import Mode
from microrl.rollout.sync_check import HIGHEST_SLOPE, LOWEST_SLOPE, Reading

TRIALS = 3
"""Steps in each mode; the first warms up and does not count."""
GROWTH = 2
"""By which the trainer's change has to grow before a merge that was put off is tried again: what stochastic rounding adds grows
more slowly, with the root of the change."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One step's cost in one mode."""

    push_s: float
    tokens: int
    decode_s: float
    gap: float
    slope: float | None


class SyncChoice:
    """The mode to use next. `wanted` other than auto, or a choice stored by an earlier process of the run, decides it."""

    def __init__(self, wanted: str, stored: Mode | None, on_choice: Callable[[Mode, str, list[dict[str, Any]]], None]) -> None:
        self.decided: Mode | None = stored
        if wanted in ("swap", "merge"):
            self.decided = "swap" if wanted == "swap" else "merge"
        self._on_choice = on_choice
        self._trials: dict[Mode, list[Trial]] = {"swap": [], "merge": []}
        self._change = 0.0
        """Nats a token that the trainer had changed by at the last swap; 0 where that could not be measured."""
        self._min_change = 0.0
        """From where on merging is tried."""

    def next(self) -> Mode:
        """Merging is tried only once the trainer's change stands out of the noise: before that its slope cannot be measured,
        and a merge that rounds every update away would look as good as any."""
        if self.decided is not None:
            return self.decided
        may_merge = self._change > 0 and self._change >= self._min_change
        return "merge" if len(self._trials["swap"]) >= TRIALS and may_merge else "swap"

    def refusal(self, mode: Mode, reading: Reading, failure: str | None) -> str | None:
        """Why this step may not go on in this mode, after what the probe showed and found wrong; None: it may.

        A merge that may not is tried again once the trainer's change has grown by `GROWTH`.
        """
        if mode == "swap":
            self._change = reading.change if reading.slope is not None else 0.0
        if self.decided is not None or mode == "swap":
            return None
        slope = reading.slope
        if failure is None and slope is not None and LOWEST_SLOPE <= slope <= HIGHEST_SLOPE:
            return None
        why = failure or ("the check's slope is not measurable" if slope is None else f"the check's slope is {slope:.3f}")
        self._min_change = GROWTH * reading.change
        return (
            f"not merging yet ({why}): sampling with swap; merging is tried again once the update has changed the "
            f"log-probabilities by {self._min_change:.2g} nats per token"
        )

    def record(self, mode: Mode, trial: Trial) -> None:
        """Count a step; after the last one decide."""
        if self.decided is not None or trial.tokens == 0:
            return
        self._trials[mode].append(trial)
        if len(self._trials["merge"]) >= TRIALS:
            costs = {name: self._step_s(name) for name in self._trials}
            best: Mode = "merge" if costs["merge"] < costs["swap"] else "swap"
            self.decided = best
            why = f"{best} ({', '.join(f'{name} {seconds:.3g} s per step' for name, seconds in costs.items())})"
            table = [{"mode": name, **asdict(trial)} for name, trials in self._trials.items() for trial in trials]
            self._on_choice(best, why, table)

    def _step_s(self, mode: Mode) -> float:
        """Push and decode seconds a step, at the tokens that a step of either mode had."""
        counted = self._trials[mode][1:]
        tokens = statistics.mean(trial.tokens for trials in self._trials.values() for trial in trials[1:])
        return min(trial.push_s for trial in counted) + tokens * min(trial.decode_s / trial.tokens for trial in counted)
