"""`--init RUN`: start from the trained adapter of another run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from microrl.config import RunConfig
from microrl.config.adapters import KINDS
from microrl.config.paths import identity
from microrl.config.resolve import as_set
from microrl.errors import UserError
from microrl.run import checkpoint, names
from microrl.run.folder import RunFolder, not_a_run


def find(config: RunConfig) -> Path | None:
    """The newest intact checkpoint of the run that `init` names; None if `init` is not set.

    Raises UserError if that is not a run, has no intact checkpoint, or has another model or adapter.
    """
    if config.init is None:
        return None
    path = Path(config.init)
    if not RunFolder.is_one(path):
        raise not_a_run(path)
    other = RunFolder.open(path).settings()
    if identity(other.model.name) != identity(config.model.name):
        raise UserError(
            f"--init {path}: it was trained on {other.model.name}, but this run's model is {config.model.name}",
            f"pass --model {other.model.name}, or --init with another run",
        )
    if other.model.quant != config.model.quant:
        raise UserError(
            f"--init {path}: it was trained with model.quant={as_set(other.model.quant)}, but this run has "
            f"model.quant={as_set(config.model.quant)}",
            f"--set model.quant={as_set(other.model.quant)}: the adapter was trained on those weights",
        )
    theirs, ours = other.adapter.model_dump(), config.adapter.model_dump()
    differing = next((name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)), None)
    if differing is not None:
        # The scale must match too: with another one, the same tensors are a different update.
        raise UserError(
            f"--init {path}: it has a different adapter: adapter.{differing} is {_value(theirs, differing)} there and "
            f"{_value(ours, differing)} here",
            f"use the same adapter: {_flags(theirs, ours)}",
        )
    newest = checkpoint.newest_whole(path / names.CHECKPOINTS)
    if newest is None:
        raise UserError(f"--init {path}: it has no intact checkpoint", f"finish it first: microrl train --resume {path}")
    return newest


def _value(adapter: dict[str, Any], name: str) -> str:
    return f"`{as_set(adapter[name])}`" if name in adapter else "not a key"


def _flags(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    """The flags, quoted for a shell, that make `theirs` of `ours`. A new kind starts from its own defaults."""
    is_same = theirs["kind"] == ours["kind"]
    start = ours if is_same else {**KINDS[theirs["kind"]]().model_dump(), "rank": None}
    flags = [] if is_same else [f"--adapter {theirs['kind']}"]
    for name, value in theirs.items():
        if name != "kind" and (value != start.get(name) or value != ours.get(name, value)):
            flags.append(f"--rank {value}" if name == "rank" else f"--set {shlex.quote(f'adapter.{name}={as_set(value)}')}")
    return " ".join(flags)
