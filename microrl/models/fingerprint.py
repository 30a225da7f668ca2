"""A hash of a model's weights on the disk, by which an exchanged file is noticed."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import BinaryIO

from microrl.config.paths import local_model
from microrl.files import open_regular
from microrl.models import hub

BLOCK = 4096
"""Bytes that are read at a place."""
SPREAD = 1024
"""Places that are spread evenly over a file."""


def weights_sha256(name: str) -> str:
    """A hash of the weights of a model that was loaded by this name. For one that is made here, pass its folder.

    It covers a block at each of `SPREAD` places of each safetensors or `.gguf` file and, in safetensors, the first block of every
    tensor. That is 4 MiB a file and 4 KiB a tensor: of 7B parameters some 20 MB, in less than a second where they were just
    loaded. Other weights differ in nearly every block; a few numbers that were changed between the blocks are not noticed.
    It is not to be compared with the `model_sha256` of `microrl eval`, which is of the tensors in memory.
    """
    path, digest = _path(name), hashlib.sha256()
    for weights in [path] if path.is_file() else hub.weight_files(path):
        with open_regular(weights, follow=True) as file:
            size = file.seek(0, os.SEEK_END)
            tensors = _tensor_starts(file) if weights.suffix == ".safetensors" else ()
            for start in sorted({*range(0, size, max(size // SPREAD, BLOCK)), *tensors}):
                file.seek(start)
                digest.update(file.read(BLOCK))
    return digest.hexdigest()


def _path(name: str) -> Path:
    """The model's folder or `.gguf` file. Of one of the hub, it is the newest commit in the cache: one that changes no weights
    makes no other model."""
    if (local := local_model(name)) is not None:
        return local
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(hub.hub_id(name) or name, "config.json", cache_dir=hub.hub_folder())
    assert isinstance(config, str), f"{name} is loaded, but not in the cache"
    return Path(config).parent


def _tensor_starts(file: BinaryIO) -> list[int]:
    """Where the tensors of a safetensors file begin, in bytes."""
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(length))
    return [8 + length + tensor["data_offsets"][0] for name, tensor in header.items() if name != "__metadata__"]
