"""Presets: TOML files that ship with the package, or a user's own. A preset's first comment line is its description."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from microrl.errors import UserError, did_you_mean

DEEPEST = 8
"""Levels of nesting; the configuration has four."""
MAX_CHARACTERS, MAX_DOTS = 1_000_000, 500
"""Python's reader of TOML takes the square of a dotted key's depth: minutes for a small file."""
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
        if not os.path.isfile(name):  # False too for a name that no file can have
            raise UserError(f"there is no preset file {name}", "give the path of a TOML file, or a name from `microrl presets`")
        return path
    presets = available()
    if name not in presets:
        raise UserError(f"unknown preset `{name}`", did_you_mean(name, presets))
    return presets[name]


def read(path: Path) -> str:
    """A preset as it is written. Raises UserError."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8: {error.reason} at byte {error.start}", "save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}", "check the file") from error


def description(path: Path) -> str:
    """The first line of a preset, without its `#`."""
    first = read(path).partition("\n")[0]
    return first.lstrip("# ").strip() if first.startswith("#") else ""


def load(name: str) -> dict[str, Any]:
    """A preset's keys as a nested dictionary, not yet checked. Raises UserError."""
    path = find(name)
    text = read(path)
    if len(text) > MAX_CHARACTERS or any(line.count(".") > MAX_DOTS for line in text.splitlines()):
        raise UserError(
            f"{path} is no preset: {len(text):,} characters, or a line with more than {MAX_DOTS} dots", "a preset is short"
        )
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # not TOML, a number without end, too deep a nesting
        raise UserError(f"{path} is not valid TOML: {error}", "see `microrl presets show micro-r8` for one that is") from None
    refuse_depth(found, str(path))
    return found


def refuse_depth(tree: dict[str, Any], where: str) -> None:
    """Raise UserError for keys or values nested deeper than any section of the configuration."""
    level: list[Any] = [tree]
    for _ in range(DEEPEST):
        level = [part for node in level for part in (node.values() if isinstance(node, dict) else node)]
        level = [part for part in level if isinstance(part, dict | list)]
    if level:
        raise UserError(f"{where} is nested deeper than {DEEPEST} levels", "a key is like optim.schedule.kind")
