"""A run's control: the same run with shuffled rewards, in the folder beside it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from microrl.run import names

ENDING = "-shuffled"
"""Ends the name of a control's folder."""


def control_of(path: Path) -> Path:
    """The folder of a run's control."""
    named = _named(path)
    return named.with_name(named.name + ENDING)


def run_of(path: Path) -> Path | None:
    """The folder of the run that a run is the control of; None if it is none."""
    named = _named(path)
    run = named.with_name(named.name.removesuffix(ENDING)) if named.name.endswith(ENDING) else None
    return run if run is not None and (run / names.CONFIG).exists() else None


def shuffled(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a run's control. Its guard only warns: else it would undo, by the true accuracy, what shuffled rewards
    do to the weights."""
    return config | {"reward": config["reward"] | {"shuffle": True}, "guard": config["guard"] | {"action": "warn"}}


def is_control(control: dict[str, Any], run: dict[str, Any]) -> bool:
    """Whether a configuration is that of a run's control, whatever the time and steps of either."""
    try:
        return without_bounds(control) == without_bounds(shuffled(run))
    except (KeyError, TypeError):  # damaged
        return False


def budget(config: dict[str, Any]) -> tuple[float | None, int | None]:
    """The hours and steps of a configuration."""
    return config["budget"]["hours"], config["budget"]["steps"]


def without_bounds(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without hours and steps, which may have been changed since."""
    if not isinstance(config["budget"], dict):
        return config
    return config | {"budget": {name: value for name, value in config["budget"].items() if name not in ("hours", "steps")}}


def _named(path: Path) -> Path:
    """The path with a name: `.` and `..` have none."""
    return path if path.name not in ("", "..") else Path(os.path.abspath(path))
