"""Presets: TOML files that ship with the package, or a user's own. A preset's first comment line is its description."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from microrl.errors import UserError, did_you_mean

_PACKAGE = Path(__file__).resolve().parent.parent
# In the wheel presets live inside the package; in a checkout they stand beside it.
_PLACES = (_PACKAGE / "presets", _PACKAGE.parent / "presets")


def available() -> dict[str, Path]:
    """Every shipped preset by name."""
    folder = next((place for place in _PLACES if place.is_dir()), None)
    if folder is None:
        raise UserError("no presets were found beside microrl", "the installation is incomplete: install microrl again")
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def find(name: str) -> Path:
    """The file of a shipped preset, or of the user's own where `name` ends in .toml."""
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise UserError(f"there is no preset file {name}", "give the path of a TOML file, or a name from `microrl presets`")
        return path
    presets = available()
    if name not in presets:
        raise UserError(f"unknown preset `{name}`", did_you_mean(name, presets))
    return presets[name]


def description(path: Path) -> str:
    """The first line of a preset, without its `#`."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip("# ").strip() if first.startswith("#") else ""


def load(name: str) -> dict[str, Any]:
    """A preset's keys as a nested dictionary, not yet checked."""
    path = find(name)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error
