"""Download what the hub has of a model and show how far it is: transformers would do it unseen, within a run's time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

from microrl.config import known_models
from microrl.models import hub

PATTERNS = ("*.json", "*.jinja", "*.txt", "*.model", "model*.safetensors")
"""What transformers loads: configuration, chat template, tokenizer, weights. Other weights that lie beside them are copies."""
MB = 10**6
POLL_S = 0.2


def download(name: str, progress: Callable[..., Iterator[Any]]) -> None:
    """Download the model that `--model` names, unless it is local. A connection that breaks is resumed; of a download that was
    killed, the library keeps the files that were whole. `progress` as in `load`. Raises UserError as `hub.missing` has it."""
    hub_id = hub.hub_id(name)
    if hub_id is None:
        return
    hub.reachable()  # where it is not, the hub's library must know before it is imported
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    wanted: dict[str, Any] = {"repo_id": hub_id, "allow_patterns": list(PATTERNS), "ignore_patterns": ["*/*"]}
    failed: list[Exception] = []

    def work() -> None:
        try:
            snapshot_download(**wanted)
        except Exception as error:  # raised below, where it can be handled
            failed.append(error)

    try:
        total = sum(file.file_size for file in snapshot_download(**wanted, dry_run=True))
        worker = Thread(target=work, daemon=True)
        worker.start()
        blobs = hub.hub_folder() / hub.folder_name(hub_id) / "blobs"
        for _ in progress(_megabytes(worker, blobs, total), max(total // MB, 1), f"downloading {hub_id}, MB"):
            pass
        if failed:
            raise failed[0]
    except (OSError, ValueError, HTTPError) as error:
        known = known_models.find(name)
        raise hub.missing("model", hub_id, error, known.licence_page if known else None) from error


def _megabytes(worker: Thread, blobs: Path, total: int) -> Iterator[None]:
    """One item for each MB that has come, those of an earlier download first, until the worker has ended.

    What is on the disk is looked at: the library's own bars differ by version and by the protocol that it chooses.
    """
    left_over = set(blobs.glob("*.*.incomplete"))  # of one that was killed: nobody goes on with those
    told, is_over = 0, False
    while not is_over:
        worker.join(POLL_S)
        is_over = not worker.is_alive()
        size = sum(_size(path) for path in blobs.glob("*") if path not in left_over)
        for _ in range(told, min(size, total) // MB):
            told += 1
            yield None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # it has just been renamed
        return 0
