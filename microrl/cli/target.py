"""Resolve a command's RUN_OR_MODEL argument to a run or a model, and its configuration."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from microrl.cli.output import say
from microrl.config import RunConfig, known_models, resolve
from microrl.config.data import GYM
from microrl.config.paths import expanded, local_model
from microrl.config.resolve import override
from microrl.data.load import check_source
from microrl.data.sources import place
from microrl.errors import UserError
from microrl.models import hub
from microrl.run.folder import RunFolder


@dataclass(frozen=True, slots=True)
class Target:
    """A run with its own configuration, or a model with the defaults (`run` is None)."""

    config: RunConfig
    run: RunFolder | None

    def with_settings(self, flags: Mapping[str, Any], sets: Iterable[str]) -> RunConfig:
        """The configuration with these flags and `--set` values applied. Raises UserError."""
        return override(self.config.model_dump(), flags, sets)


def prepare_hub(config: RunConfig, *more: str, reads_data: bool = False, loads_model: bool = True) -> None:
    """Call `hub.prepare`; must run before heavy imports, which take seconds. `more`: other models that the command loads.

    Raises UserError for a model's path or name that cannot be, and with `reads_data` for what is wrong with the data's first row.
    """
    models_named = [config.model.name, *more] if loads_model else []
    for name in models_named:
        local_model(name)
    if reads_data:
        check_source(config.data)
    names = (config.data.name, config.sft.data, *config.data.decontaminate)
    data = [name for name in names if name is not None and not name.lower().startswith(GYM)]
    hub.prepare(*models_named, *map(place, data), local=(known_models.QUICKSTART, "arithmetic"))


def run_of(name: str | None) -> RunFolder:
    """The run in this folder; for None the newest, which is said. Raises UserError."""
    if name is not None:
        return RunFolder.open(Path(name))
    run = RunFolder.newest()
    say(f"using the newest run: {run.path}")
    return run


def is_path(name: str) -> bool:
    """Whether a name can only be a path."""
    return name.startswith(("/", ".", "~", "runs/"))


def find(name: str | None, *, needs_weights: bool = False) -> Target:
    """The newest run for None; a run folder by its path; anything else is a model. With `needs_weights`, the newest run with a
    final adapter, if there is one. Raises UserError."""
    if name is not None:
        expanded(name, "the name of a run or model")
    if name is None:
        run = newest = RunFolder.newest()
        if needs_weights:
            run = RunFolder.newest(has_final=True)
        say(f"using the newest run{'' if run.path == newest.path else ' that is finished'}: {run.path}")
    elif RunFolder.is_one(Path(name)):
        run = RunFolder.open(Path(name))
    elif is_path(name) and not os.path.exists(os.path.expanduser(name)):
        raise UserError(f"there is no run and no model at {name}", "list your runs with `ls runs`, or pass a model")
    elif name == known_models.QUICKSTART:
        return Target(resolve([name]), None)
    else:
        if "/" in name and not os.path.exists(name):
            say(f"note: {name} is neither a run nor a local folder; taken as a model on the Hugging Face hub")
        return Target(resolve((), {"model.name": name}), None)
    return Target(run.settings(), run)
