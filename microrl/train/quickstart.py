"""The embedded default: a tiny model built in code and warm-started on generated problems, kept in the user's cache."""

from __future__ import annotations

from pathlib import Path

from microrl.tracking.console import RunConsole


def ensure_model(console: RunConsole) -> Path:
    raise RuntimeError("to come")
