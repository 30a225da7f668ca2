"""What `distill.teacher` names, found without torch: a model, or a run's or a stranger's adapter on top of one."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from microrl.adapters.settings import SETTINGS, base_of
from microrl.config.paths import expanded, local_model
from microrl.errors import UserError
from microrl.run.folder import RunFolder, run_above


class Source(NamedTuple):
    """Where a teacher comes from."""

    model: str
    """Its base, as `model.name`."""
    update: Path | None
    """Folder of what is trained on top of it; None: nothing."""
    is_run: bool
    """Whether microrl has trained it."""


def find(name: str) -> Source:
    """The teacher of this name. Raises UserError where there is none: it is looked for again when a run is resumed."""
    path = Path(expanded(name, "distill.teacher"))
    run = path if RunFolder.is_one(path) else run_above(path) if path.is_dir() else None
    try:
        if run is not None:
            folder = RunFolder.open(run)
            source = Source(folder.settings().model.name, folder.final() if path == run else path, True)
        elif (path / SETTINGS).is_file() and not (path / "config.json").is_file():
            if (base := base_of(path)) is None:
                raise UserError("it does not name its base model", f"name it in its {SETTINGS}: base_model_name_or_path")
            source = Source(base, path, False)
        else:
            source = Source(name, None, False)
        local_model(source.model)
    except UserError as error:
        raise UserError(f"the teacher {name}: {error.message}", error.hint) from None
    return source
