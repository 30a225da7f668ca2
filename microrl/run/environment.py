"""The environment of a run: versions, machine, and the commit of microrl."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from microrl import clock, files
from microrl.files import BadFile
from microrl.sandbox import levels

PACKAGES = ("microrl", "torch", "transformers", "peft", "datasets", "math-verify", "vllm", "bitsandbytes", "numpy", "tokenizers")


class Attempt(BaseModel):
    """A process that has trained in a run folder."""

    time: str | None = None
    command: list[str] = []
    commit: str | None = None
    python: str | None = None
    packages: dict[str, str] = {}


class _Record(BaseModel):
    attempts: list[Attempt]


def record(path: Path, **details: Any) -> str | None:
    """Write `environment.json` with this attempt after the earlier ones. Returns a warning where they cannot be read, or where
    versions or commit differ from those of the last one. Raises OSError.
    """
    earlier: list[Attempt] = []
    warning, described = None, describe()
    if path.exists():
        try:
            earlier = files.read_json(path, _Record).attempts
        except BadFile as error:
            warning = f"earlier versions are not known, since {error.message}"
    now = Attempt(**described, time=clock.stamp())
    files.write_json(path, described | details | {"attempts": [one.model_dump() for one in (*earlier, now)]})
    if earlier and (changed := _difference(earlier[-1], now)):
        warning = f"resumed under other versions, so results may differ from those of an uninterrupted run: {changed}"
    return warning


def _difference(before: Attempt, now: Attempt) -> str:
    """What is not the same, as words; empty: nothing."""
    old, new = ({**one.packages, "python": one.python, "microrl's commit": one.commit} for one in (before, now))
    names = ("python", "microrl's commit", *PACKAGES)
    return "; ".join(f"{name} {old.get(name)}, now {new.get(name)}" for name in names if old.get(name) != new.get(name))


def describe() -> dict[str, Any]:
    """Command, versions, machine, and the commit of microrl if it runs from a checkout."""
    return {
        "command": sys.argv,
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "packages": packages(),
        "sandbox": str(levels()),
    }


def packages() -> dict[str, str]:
    """Versions of the packages that decide a result, as far as they are installed."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _commit() -> str | None:
    here = Path(__file__).parent
    try:
        tracked = subprocess.run(["git", "ls-files", "--error-unmatch", __file__], cwd=here, capture_output=True)
        if tracked.returncode != 0:
            return None
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"], cwd=here, capture_output=True, text=True
        )
    except OSError:
        return None
    return described.stdout.strip() or None
