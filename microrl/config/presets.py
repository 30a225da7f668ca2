"""Presets: TOML files, shipped with the package or the user's own. The first comment line is the description."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from microrl.errors import UserError, did_you_mean

SWEEP = "sweep"
DEEPEST = 8
"""Maximum levels of nesting; the configuration has four."""
NONE = ("none", "null")
MAX_CHARACTERS, MAX_DOTS = 1_000_000, 500
"""Python's TOML parser takes time quadratic in the number of dots of a key: minutes for a small file."""
MAX_BASES, MAX_PRESETS = 20, 100
"""Presets of which each is the base of the one before, where more are a circle, and presets in all."""
_PACKAGE = Path(__file__).resolve().parent.parent
# In a wheel the presets are inside the package, in a checkout next to it.
_PLACES = (_PACKAGE / "presets", _PACKAGE.parent / "presets")


def available() -> dict[str, Path]:
    """Shipped presets: name -> path. Raises UserError if none are installed."""
    folder = next((place for place in _PLACES if place.is_dir()), None)
    if folder is None:
        raise UserError("no presets found: the installation is incomplete", "reinstall microrl")
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def find(name: str) -> Path:
    """The file of a shipped preset, or the path itself if `name` ends in .toml. Raises UserError."""
    if name.endswith(".toml"):
        path = Path(name)
        if not os.path.isfile(name):  # False too for a name that no file can have
            raise UserError(
                f"there is no preset file {name}", "pass the path of a TOML file, or a name listed by `microrl presets`"
            )
        return path
    presets = available()
    if name not in presets:
        raise UserError(f"unknown preset `{name}`", did_you_mean(name, presets))
    return presets[name]


def read(path: Path) -> str:
    """The text of a preset file. Raises UserError."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8: {error.reason} at byte {error.start}", "save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}", "check the path and its permissions") from error


def description(path: Path) -> str:
    """The first line of a preset without its `#`; empty if it is not a comment. Raises UserError."""
    first = read(path).partition("\n")[0]
    return first.lstrip("# ").strip() if first.startswith("#") else ""


def load(name: str) -> dict[str, Any]:
    """A preset as a nested dictionary, not validated yet, without its section `sweep`. Raises UserError."""
    return {key: value for key, value in _load(name).items() if key != SWEEP}


def sweep(name: str) -> dict[str, Any]:
    """The section `sweep` of a preset, which says what `microrl sweep` varies; empty if it has none. Raises UserError."""
    section = _load(name).get(SWEEP, {})
    if not isinstance(section, dict):
        raise UserError(f"`{SWEEP}` in {name} is a section, not a value", "for example: [sweep] and below it ranks = [8, 64]")
    return section


def with_bases(names: Iterable[str], above: tuple[str, ...] = ()) -> list[str]:
    """The presets, each after those that its section `sweep` names as its `base`, and theirs. Raises UserError.

    `above` are those of which these are bases.
    """
    ordered: list[str] = []
    for name in names:
        if name in above or len(above) > MAX_BASES:
            raise UserError(f"`sweep.base` of {above[0]} leads back to {name}", "remove it from one of the presets")
        base = sweep(name).get("base", [])
        if not isinstance(base, list) or not all(isinstance(one, str) for one in base):
            raise UserError(f"`sweep.base` in {name} is not a list of presets", 'for example: base = ["quickstart"]')
        ordered += [*with_bases(base, (*above, name)), name]
        if len(ordered) > MAX_PRESETS:
            raise UserError(f"{name} has more than {MAX_PRESETS} presets below it", "name fewer as `sweep.base`")
    return ordered


def _load(name: str) -> dict[str, Any]:
    path = find(name)
    text = read(path)
    if len(text) > MAX_CHARACTERS or any(line.count(".") > MAX_DOTS for line in text.splitlines()):
        raise UserError(
            f"{path} is not a preset: it has {len(text):,} characters, or a line with more than {MAX_DOTS} dots",
            "see `microrl presets show micro-r8` for an example",
        )
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # not TOML, a number without end, too deep a nesting
        raise UserError(f"{path} is not valid TOML: {error}", "see `microrl presets show micro-r8` for an example") from None
    refuse_depth(tree, str(path))
    return _with_none(tree)


def _with_none(value: Any) -> Any:
    """The same with None for "none" and "null", as in `--set`: TOML has no word for it."""
    if isinstance(value, dict):
        return {name: _with_none(part) for name, part in value.items()}
    return None if isinstance(value, str) and value.lower() in NONE else value


def refuse_depth(tree: dict[str, Any], where: str) -> None:
    """Raise UserError for keys or values nested deeper than DEEPEST levels."""
    level: list[Any] = [tree]
    for _ in range(DEEPEST):
        level = [part for node in level for part in (node.values() if isinstance(node, dict) else node)]
        level = [part for part in level if isinstance(part, dict | list)]
    if level:
        raise UserError(f"{where} is nested deeper than {DEEPEST} levels", "a valid key: optim.schedule.kind")
