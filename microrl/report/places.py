"""Where the events, steps and values of a run are on a figure's axis: by training step, time or cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from microrl.report.history import Event, History

SFT_END = "sft finished"
MARKS = {
    "guard": ("#d6453d", "guard"),
    "rolled back": ("#d6453d", "rolled back"),
    "out of memory": ("#e8720c", "out of memory"),
    "engine fallback": ("#e8720c", "engine fallback"),
    "sync check failed": ("#d6453d", "sync check failed"),
    "resumed": ("#3b82f6", "resumed"),
    "interrupted": ("#3b82f6", "interrupted"),
    SFT_END: ("#8a8f2a", "end of SFT"),
}
"""Colour and name of the events that are marked in the figures."""
COLUMNS = {"step": "step", "time": "budget/elapsed_s", "dollars": "budget/cost_usd"}
"""The metric of each axis."""


def unit_of_time(histories: Sequence[History]) -> tuple[str, float]:
    """(name, seconds) of the unit in which the longest of these runs is told."""
    longest = max((row.get("budget/elapsed_s") or 0.0 for history in histories for row in history.rows[-1:]), default=0.0)
    return ("seconds", 1.0) if longest < 180 else ("minutes", 60.0) if longest < 7200 else ("hours", 3600.0)


def positions(history: History, metric: str, by: str, histories: Sequence[History]) -> tuple[list[float], list[float]]:
    """(places, values) of the steps that have this metric, the places as they are on the axis of these runs' figure: steps are
    counted from 1, as on the console."""
    scale, first = unit_of_time(histories)[1] if by == "time" else 1.0, 1 if by == "step" else 0
    places, values = history.series(metric, COLUMNS[by])
    return [place / scale + first for place in places], values


def validations(history: History, by: str, histories: Sequence[History]) -> tuple[list[float], list[float]]:
    """(places, accuracies). A step validates before it samples: the weights are those at its beginning."""
    places, accuracies = positions(history, "validate/accuracy", by, histories)
    if by == "step":
        return [place - 1 for place in places], accuracies
    rows = [row for row in history.rows if row.get("validate/accuracy") is not None and row.get(COLUMNS[by]) is not None]
    return [_beginning(place, row) for place, row in zip(places, rows)], accuracies


def _beginning(place: float, row: Mapping[str, float | None]) -> float:
    """Where a step began that ended here: time and cost have grown alike since the run began."""
    return place * (1 - (row.get("time/step") or 0.0) / (row.get("budget/elapsed_s") or math.inf))


def marks(history: History) -> list[Event]:
    """The events that are marked in figures. The best checkpoint is the last that was."""
    best = [event for event in history.events if event.kind == "best"]
    return [event for event in history.events if event.kind in MARKS and event.step is not None] + best[-1:]


def mark_of(event: Event) -> tuple[str, str, int]:
    """The colour and the name of a mark, and its step, counted from 1. The best checkpoint's is the last that it has made, and
    SFT ends before the first one: at 0."""
    colour, name = MARKS.get(event.kind, ("#12a150", "best checkpoint"))
    return colour, name, (event.step or 0) + (event.kind in MARKS and event.kind != SFT_END)


def place_of(history: History, step: int, by: str) -> float | None:
    """Where a step, counted from 1, ended on an axis; 0: where the first began; behind the last row, where that is."""
    if by == "step":
        return float(step)
    places, _ = positions(history, "step", by, [history])
    number = next((number for number, row in enumerate(history.rows) if (row["step"] or 0) >= step - 1), len(history.rows) - 1)
    if not 0 <= number < len(places):
        return None
    return places[number] if step else _beginning(places[number], history.rows[number])
