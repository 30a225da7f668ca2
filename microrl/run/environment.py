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
from microrl.files import BadFile, Count
from microrl.sandbox import levels

PACKAGES = ("microrl", "torch", "transformers", "peft", "datasets", "math-verify", "vllm", "bitsandbytes", "numpy", "tokenizers")


class Attempt(BaseModel):
    """A process that has trained in a run folder."""

    time: str | None = None
    command: list[str] = []
    commit: str | None = None
    python: str | None = None
    packages: dict[str, str] = {}


class Environment(BaseModel):
    """The content of `environment.json`, of the last attempt but for the list of all. Older folders may lack keys."""

    command: list[str] = []
    commit: str | None = None
    python: str | None = None
    platform: str | None = None
    cpus: int | None = None
    packages: dict[str, str] = {}
    sandbox: str | None = None
    engine: str | None = None
    gpu: str | None = None
    trainable_params: Count | None = None
    adapter: dict[str, Any] = {}
    """See `Adapter.summary`."""
    attempts: list[Attempt] = []


def record(path: Path, *, engine: str, gpu: str | None, trainable_params: int, adapter: dict[str, Any]) -> str | None:
    """Write `environment.json` with this attempt after the earlier ones. Returns a warning where they cannot be read, or where
    versions or commit differ from those of the last one. Raises OSError.
    """
    earlier: list[Attempt] = []
    warning, described = None, describe()
    if path.exists():
        try:
            before = files.read_json(path, Environment)
            first = Attempt(command=before.command, commit=before.commit, python=before.python, packages=before.packages)
            earlier = before.attempts or [first]
        except BadFile as error:
            warning = f"earlier versions are not known, since {error.message}"
    now = Attempt(**described, time=clock.stamp())
    trained = {"trainable_params": trainable_params, "adapter": adapter}
    written = Environment(**described, engine=engine, gpu=gpu, **trained, attempts=[*earlier, now])
    files.write_json(path, written.model_dump())
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
