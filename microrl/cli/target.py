"""The run that a command is about, and what has to be done before its heavy imports."""

from __future__ import annotations

from pathlib import Path

from microrl.cli.output import say
from microrl.config import RunConfig, known_models
from microrl.config.data import GYM
from microrl.config.paths import local_model
from microrl.data.load import check_source
from microrl.data.sources import place
from microrl.models import hub
from microrl.run.folder import RunFolder


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
