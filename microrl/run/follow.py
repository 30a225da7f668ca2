"""Follow a run's files from another process, while they are written. Nothing is written, locked or waited for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from microrl import clock, files
from microrl.environments.transcript import said
from microrl.files import BadFile
from microrl.run import locks, names, rollouts
from microrl.run.metrics import METRICS, part

CHUNK = 2**24
"""Bytes that are read at once."""
ALIVE_S = 120.0
"""Where the lock does not tell, a run whose heartbeat is younger is taken to be going on; it beats every few seconds."""
LOOKS_S = 0.5
SAME_S = 1.0
"""Files whose times differ by less may have been copied together."""
NEEDED = ("step", "time/step", "budget/elapsed_s", "budget/cost_usd")
"""Metrics that every step has, and that the console computes with."""
MAX_VALUE = 1e300
"""A larger number, or an integer of hundreds of digits, is damage."""


class JsonlReader:
    """The complete lines of a growing file of JSON objects.

    A run that goes back to a checkpoint cuts its files: they are then read again from their beginning.
    """

    damaged = 0
    """Lines that were left out."""
    error = ""
    """Why not everything could be read."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def new(self, limit: float = math.inf) -> list[dict[str, Any]]:
        """The objects of the lines since the last call; lines that are damaged are left out, as is what is behind `limit`
        bytes of the file."""
        intact: list[dict[str, Any]] = []
        try:
            with files.open_regular(self._path) as file:
                size = file.seek(0, 2)
                if size < self._offset:
                    self._offset = 0
                if size > limit:
                    self.error = f"{self._path} is read up to {limit / 2**20:.0f} MiB"
                file.seek(self._offset)
                while self._offset < limit and (block := file.read(CHUNK)):
                    whole = block[: block.rfind(b"\n") + 1]
                    if not whole and len(block) < CHUNK:
                        break
                    if not whole:  # a line longer than any that is written: damage, up to its end
                        whole = block
                    self._offset += len(whole)
                    file.seek(self._offset)
                    objects = [*map(files.json_object, whole.splitlines())]
                    intact += filter(None, objects)
                    self.damaged += objects.count(None)
        except FileNotFoundError:
            pass  # not there yet, or not any more
        except BadFile as error:
            self.error = error.message
        except OSError as error:
            self.error = f"{self._path} cannot be read: {error}"
        return intact


def is_alive(folder: Path) -> bool:
    """Whether a process is at work on the run; where its lock does not tell, whether there has been a sign of life lately."""
    if (is_locked := locks.is_held(folder / names.LOCK)) is not None:
        return is_locked
    times = []
    for name in (names.HEARTBEAT, names.LOCK, names.CONFIG):
        with suppress(OSError):
            times.append((folder / name).lstat().st_mtime)
    return bool(times) and clock.wall_s() - max(times) < ALIVE_S


def is_over(folder: Path) -> bool:
    """Whether the run has ended, well or not, and has not been resumed since."""
    try:
        ended = (folder / names.SUMMARY).lstat().st_mtime
    except OSError:
        return False
    try:
        return (folder / names.LOCK).lstat().st_mtime <= ended + SAME_S  # taken anew by every process that trains
    except OSError:
        return True


def row(line: dict[str, Any]) -> dict[str, Any]:
    """A line of `metrics.jsonl` with every metric: null for those that came after the version that wrote it."""
    return dict.fromkeys(METRICS) | line


def is_row(line: dict[str, Any]) -> bool:
    """Whether a line has all that the console shows: finite numbers, or null where a step may lack it."""
    for name in (*METRICS, *(name for name in line if name.startswith(part("")))):
        value = line.get(name)
        if value is None and name not in NEEDED:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MAX_VALUE:
            return False
    return isinstance(line["step"], int)


def completion(folder: Path, step: int) -> str:
    """The text of a completion of this step; empty if it cannot be read."""
    with suppress(BadFile):
        for line in files.read_lines(folder / names.ROLLOUTS / rollouts.name(step)):
            return said(files.json_object(line) or {})
    return ""


def steps(
    folder: Path, *, looks_s: float = LOOKS_S, is_going: Callable[[], bool] | None = None
) -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """(rows, events) since the last look, every `looks_s` seconds, until the run has ended or gives no sign of life; or, where
    that is known better, as long as `is_going`."""
    metrics, events = JsonlReader(folder / names.METRICS), JsonlReader(folder / names.EVENTS)
    while True:
        # Before the files are read: what is written last is not missed.
        ended = not is_going() if is_going is not None else is_over(folder) or not is_alive(folder)
        yield metrics.new(), events.new()
        if ended:
            return
        time.sleep(looks_s)
