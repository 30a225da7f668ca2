"""The run's clock on disk, every few seconds: a killed run has spent what it had spent then."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

FILE = "heartbeat.json"
EVERY_S = 2.0


class Heartbeat:
    """While open, a thread writes `elapsed_s()` into the run folder."""

    def __init__(self, folder: Path, elapsed_s: Callable[[], float]) -> None:
        self._path, self._elapsed_s = folder / FILE, elapsed_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self._beat()

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._beat()

    def _beat(self) -> None:
        temporary = self._path.with_name(f".{FILE}.tmp")
        with suppress(OSError):  # a full disk: the checkpoints say it
            temporary.write_text(json.dumps({"elapsed_s": self._elapsed_s()}))
            temporary.replace(self._path)


def last_s(folder: Path) -> float:
    """Seconds that the run had spent at its last heartbeat; 0 where there was none."""
    try:
        return float(json.loads((folder / FILE).read_text())["elapsed_s"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0
