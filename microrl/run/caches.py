"""Caches in a HOME that cannot be written: they go elsewhere, before a library makes them at import."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

from microrl import files
from microrl.models import hub
from microrl.types import Finding


def move(environment: MutableMapping[str, str] = os.environ, *, with_compilers: bool) -> Finding | None:
    """Have the environment name another folder for every cache whose default place in HOME cannot be written; None: all can.

    What the user has set stays. XDG_CACHE_HOME holds microrl's, Hugging Face's and vLLM's. `with_compilers`: also those that are
    not below it: FlashInfer's, which it makes when it is imported, Triton's, and the driver's. torch's inductor is not asked: its
    cache is in the temporary folder.
    """
    home = Path(os.path.expanduser("~"))
    places = {"XDG_CACHE_HOME": home / ".cache"}
    if with_compilers:
        places |= {"FLASHINFER_WORKSPACE_BASE": home / ".cache" / "flashinfer", "TRITON_CACHE_DIR": home / ".triton" / "cache",
                   "CUDA_CACHE_PATH": home / ".nv" / "ComputeCache"}  # fmt: skip
    lost = [name for name, place in places.items() if not environment.get(name) and not _can_hold(place)]
    if not lost:
        return None
    base = Path(environment["XDG_CACHE_HOME"]) if environment.get("XDG_CACHE_HOME") else _private_folder()
    hub_before = hub.hub_folder(environment)
    for name in lost:
        environment[name] = str(base if name == "XDG_CACHE_HOME" else base / name.partition("_")[0].lower())
    if hub_before.is_dir() and hub_before != hub.hub_folder(environment) and any(hub_before.glob("models--*")):
        environment["HF_HUB_CACHE"] = str(hub_before)  # it can be read: what it has needs no second download
    return Finding("caches", "warning", f"{home} is not writable: caches are in {base} instead",
                   "set HOME or XDG_CACHE_HOME to a writable folder to keep them")  # fmt: skip


def _can_hold(place: Path) -> bool:
    return place.is_absolute() and files.is_writable(place)  # "~" stays as it is where no home is known


def _private_folder() -> Path:
    """A folder for caches that nobody else can have written to: what lies in them is executed."""
    place = Path(tempfile.gettempdir(), f"microrl-cache-{os.getuid()}")
    with suppress(OSError):
        place.mkdir(mode=0o700)
    with suppress(OSError):
        status = place.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
            return place
    return Path(tempfile.mkdtemp(prefix="microrl-cache-"))
