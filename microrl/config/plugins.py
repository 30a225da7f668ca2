"""Code of other packages, by name: `module:attribute`, or an entry point. Looked for without being imported, and loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module, metadata
from importlib.machinery import ModuleSpec
from typing import Any

from microrl.errors import UserError, did_you_mean, nearest

ALGORITHMS = "microrl.algorithms"
"""Of the entry points that are algorithms."""
REWARDS = "microrl.rewards"
"""Of the entry points that are reward functions."""
ENVIRONMENTS = "microrl.environments"
"""Of the entry points that are environments."""


def entry_points(group: str) -> tuple[str, ...]:
    """The names of the installed packages' entry points of a group."""
    return tuple(metadata.entry_points(group=group).names)


def refuse_missing(
    target: str, *, what: str, group: str, folder: str | None, key: str, example: str, known: Iterable[str] = ()
) -> None:
    """Look for the target's module, without importing anything; `folder`: where it may be besides the installed packages, which
    `key` names; `known`: names that need no entry point. Raises UserError for one that does not exist."""
    module, colon, _ = target.partition(":")
    if not colon:
        names = entry_points(group)
        if target not in names:
            close = f"did you mean `{name}`? " if (name := nearest(target, [*known, *names])) else ""
            raise UserError(
                f"there is no {what} `{target}`: no installed package has such an entry point in the group {group}",
                f"{close}{example}",
            )
        return
    name, places = "", None
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = _spec(name, places) or (_spec(name, [folder or os.getcwd()]) if name == part else None)
        if spec is None:
            raise UserError(
                f"the {what} `{target}` cannot be imported: there is no module `{name}`",
                f"install its package, or put its file into {folder or 'the current folder'} (another: --set {key}=DIR)",
            )
        places = list(spec.submodule_search_locations or [])


def _spec(name: str, places: Sequence[str] | None) -> ModuleSpec | None:
    """Where a module is, as an import would find it in these places (None: in all that are known)."""
    for finder in sys.meta_path:
        with suppress(ImportError, AttributeError, ValueError):
            if (spec := finder.find_spec(name, places)) is not None:
                return spec
    return None


def load(target: str, *, what: str, group: str, folder: str | None) -> Any:
    """Import what the target names. Raises UserError for what does not exist, or whose import fails."""
    if folder and folder not in sys.path:
        sys.path.append(folder)  # last: a file of the user's shadows no installed package
    module_name, colon, path = target.partition(":")
    try:
        if not colon:
            return next(point for point in metadata.entry_points(group=group) if point.name == target).load()
        loaded: Any = import_module(module_name)
    except Exception as error:  # whatever the code of others raises
        raise UserError(
            f"the {what} `{target}` cannot be imported: {type(error).__name__}: {error}", "repair its module"
        ) from error
    for name in path.split("."):
        if not hasattr(loaded, name):
            known = [key for key, value in vars(loaded).items() if isinstance(value, type) and not key.startswith("_")]
            raise UserError(f"`{module_name}` has no {what} `{path}`", did_you_mean(path, known))
        loaded = getattr(loaded, name)
    return loaded
