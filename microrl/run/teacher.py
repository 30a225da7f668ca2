"""What `distill.teacher` names, found without torch: a model, or an adapter on top of one, of a run or in PEFT's format."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

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
    is_rl: bool = False
    """Whether microrl has trained it by reinforcement learning."""
    quant: Literal["nf4"] | None = None
    """The type of the base that it was trained on, as `model.quant`."""


def find(name: str) -> Source:
    """The teacher of this name. Raises UserError if it does not exist; a run that is resumed looks for it again."""
    path = Path(expanded(name, "distill.teacher"))
    run = path if RunFolder.is_one(path) else run_above(path) if path.is_dir() else None
    try:
        if run is not None:
            folder = RunFolder.open(run)
            config = folder.settings()
            update = folder.final() if path == run else path
            source = Source(config.model.name, update, not config.sft.only, config.model.quant)
        elif (path / SETTINGS).is_file() and not (path / "config.json").is_file():
            if (named := base_of(path)) is None:
                raise UserError("the adapter does not name its base model", f"set base_model_name_or_path in its {SETTINGS}")
            source = Source(named, path)
        elif not path.exists() and (path.is_absolute() or path.parent.name == "runs"):
            raise UserError("there is no such run or folder", f"put it back, or look for it: ls {path.parent}")
        else:
            source = Source(name, None)
        local_model(source.model)
    except UserError as error:
        raise UserError(f"the teacher {name}: {error.message}", error.hint) from None
    return source
