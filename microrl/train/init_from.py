"""`--init RUN`: the adapter starts where another run's stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from microrl.config import RunConfig, models
from microrl.errors import UserError
from microrl.policy.policy import Policy
from microrl.run import checkpoint
from microrl.run.folder import RunFolder


def find(config: RunConfig) -> Path | None:
    """The newest whole checkpoint of the run that `init` names; None without one.

    Raises UserError for what is no run, has no whole checkpoint, or was trained on another model or with another adapter.
    """
    if config.init is None:
        return None
    path = Path(config.init)
    if not RunFolder.is_one(path):
        raise UserError(f"init: {path} is not a run folder", "see `ls runs`, or make one: microrl warmup MODEL --data FILE")
    other = RunFolder.open(path).settings()
    if _identity(other.model.name) != _identity(config.model.name):
        raise UserError(
            f"init: {path} trained an adapter of {other.model.name}, and this run's model is {config.model.name}",
            f"--model {other.model.name}, or another run",
        )
    if other.model.quant != config.model.quant:
        raise UserError(
            f"init: {path} was trained on a base with model.quant={other.model.quant}, and here it is {config.model.quant}",
            f"--set model.quant={other.model.quant or 'none'}: an update of other numbers is another update",
        )
    theirs, ours = other.adapter.model_dump(), config.adapter.model_dump()
    differing = next((name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)), None)
    if differing is not None:
        # The scale too: with another one the same tensors are another update.
        raise UserError(
            f"init: {path} has another adapter: adapter.{differing} is {_value(theirs, differing)} there and "
            f"{_value(ours, differing)} here",
            f"the same one: {_flags(theirs)}",
        )
    found = checkpoint.newest_whole(path / checkpoint.FOLDER)
    if found is None:
        raise UserError(f"init: {path} has no whole checkpoint", f"let it go on to its end: microrl train --resume {path}")
    return found


def load_adapter(checkpoint_path: Path, policy: Policy) -> None:
    """Load a checkpoint's adapter; the optimiser begins anew. Raises UserError where its tensors have other shapes."""
    checkpoint.load_adapter(checkpoint_path, policy)


def _identity(name: str) -> str:
    """The same for a model's short name and its hub id, and for two ways to the same folder."""
    known = models.find(name)
    if known is not None:
        return known.hub_id
    return str(Path(name).resolve()) if Path(name).exists() else name


def _value(adapter: dict[str, Any], name: str) -> str:
    return f"`{adapter[name]}`" if name in adapter else "nothing"


def _flags(adapter: dict[str, Any]) -> str:
    rest = " ".join(f"--set adapter.{name}={value}" for name, value in adapter.items() if name not in ("kind", "rank"))
    rank = f" --rank {adapter['rank']}" if "rank" in adapter else ""
    return f"--adapter {adapter['kind']}{rank} {rest}".rstrip()
