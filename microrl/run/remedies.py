"""The command that gives a run what it lacks: a trained adapter, an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from microrl import files
from microrl.config import RunConfig
from microrl.config.oversight import EvaluationConfig
from microrl.errors import UserError
from microrl.files import BadFile
from microrl.run import names

EVENTS_BYTES = 2**20
"""So much of the end of `events.jsonl` is read."""


def no_adapter(run: Path) -> UserError:
    """For a run without a final adapter: how to finish it, or the error that ended it before its first update."""
    state = run / "best/state.json"
    is_trained = state.is_file() and files.read_json(state, dict[str, Any]).get("version") != 0
    if not is_trained and (refusal := _refusal(run)) is not None:
        return refusal
    best = f", or take its best checkpoint so far: {run}/best" if is_trained else ""
    return UserError(f"{run} has no trained adapter yet", f"finish it: microrl train --resume {run}{best}")


def _refusal(run: Path) -> UserError | None:
    """The error with a hint that was the last event of a run without a step."""
    try:
        with files.open_regular(run / names.EVENTS) as file:
            file.seek(max(file.seek(0, 2) - EVENTS_BYTES, 0))
            last = next(filter(None, map(files.json_object, reversed(file.read().splitlines()))), {})
    except (OSError, BadFile):
        return None
    hint = last.get("hint")
    is_first = last.get("step") == 0 and not (run / names.SFT).exists()
    if last.get("kind") != "failed" or not is_first or not isinstance(hint, str):
        return None
    return UserError(f"{run} has no trained adapter: it ended before its first update: {last.get('message')}", hint)


def to_evaluate(run: Path, config: RunConfig, part: str | None = None, *, with_base: bool = False) -> str:
    """What evaluates a run or this part of it, and `with_base` its base on the same problems: a command, with what its settings
    lack."""
    lacks = "" if config.evaluation.problems else f" --problems {EvaluationConfig.model_fields['problems'].default}"
    if config.data.held_out == 0:
        lacks = " --data FILE.jsonl"
    command = f"microrl eval {run if part is None else run / part}{lacks}" + (f" --base {config.model.name}" if with_base else "")
    if part is not None or (run / names.FINAL).is_dir():
        return command
    if (refusal := _refusal(run)) is not None:
        return str(refusal.hint)
    return f"microrl train --resume {run}" + (f", then {command}" if lacks else "")
