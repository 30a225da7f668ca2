"""Write the elapsed time of a run to disk every two seconds, so that a killed run knows how much time it has used."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from pydantic import ConfigDict

from microrl import files
from microrl.files import STRICT, Seconds

FILE = "heartbeat.json"
EVERY_S = 2.0


@dataclass(frozen=True)
class _Beat:
    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    elapsed_s: Seconds


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
            files.remove(temporary)
            temporary.write_text(json.dumps({"elapsed_s": self._elapsed_s()}))
            temporary.replace(self._path)


def last_s(folder: Path, on_bad: Callable[[str], None] = lambda why: None) -> float:
    """Elapsed seconds at the last heartbeat; 0 if there is none, or if it is damaged, which `on_bad` is told."""
    path = folder / FILE
    if not path.exists():
        return 0.0
    try:
        return files.read_json(path, _Beat).elapsed_s
    except files.BadFile as error:
        on_bad(error.message)
        return 0.0
