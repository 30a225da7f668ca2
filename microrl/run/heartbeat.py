"""The thread beside a run: it writes the elapsed time to disk every two seconds, and notices when the run hangs.

A killed run knows by the heartbeat how much time it has used. What hangs may be stuck in C code, where no exception reaches it:
the thread therefore ends the whole process.
"""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from pydantic import ConfigDict

from microrl import clock, files
from microrl.files import STRICT, Seconds
from microrl.run import names
from microrl.terminal import printable

EVERY_S = 2.0
LIBRARIES = tuple({str(Path(__file__).parents[1]), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))})
"""Folders of microrl and of the installed packages."""
SILENT_S = 120.0
"""A piece of work may take so long whatever its forecast,"""
OVERDUE_S = 10.0
"""or only so long once the budget is used up: a piece that was finished in time would have been discarded."""
FACTOR, OVERDUE_FACTOR = 10.0, 2.0
"""Times the longest piece of its kind so far, which serves as forecast."""
FIRST_FACTOR = 5.0
"""Before any of its kind was finished, the limits are so many times longer,"""
BUSY_WEIGHT = 0.1
"""and time in which the process computes counts for so little: loading and compiling make no sound."""
OVERRUN = 0.01
"""Fraction of the budget by which a run may pass it."""
SUSPECTED = 0.25
"""Fraction of its limit after which silence is reported."""
ENDING_S = 15.0
"""Time to report a hang before the process ends in any case."""


@dataclass(frozen=True)
class Beat:
    """The content of the file. `silent_s`: for how long no work was finished, once that is suspicious; else 0."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    elapsed_s: Seconds
    doing: str = ""
    silent_s: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class Hang:
    """What hangs, for how many seconds, whether the budget is used up, the stack of the thread that hangs, and how long the
    longest piece of this kind took before, None if there was none."""

    doing: str
    silent_s: float
    is_overdue: bool
    stack: str
    longest_s: float | None = None

    def innermost_call(self) -> str:
        """The innermost call of the stack, as the end of a sentence; empty if it is not known."""
        calls = re.findall(r'File "([^"]*)", line (\d+), in (.*)\n(?:    (.*))?', self.stack)
        if not calls:
            return ""
        path, line, function, text = calls[-1]
        return f"; stuck at {path}:{line}, in {function}()" + (f": `{text}`" if text else "")

    def foreign_file(self) -> str | None:
        """The file of the innermost call, if it belongs neither to microrl nor to Python or an installed package."""
        paths = re.findall(r'File "([^"]*)", line', self.stack)
        if not paths or any(paths[-1].startswith(place) for place in LIBRARIES) or "<" in paths[-1]:
            return None
        return str(paths[-1])


def kind_of(status: str) -> str:
    """What statuses that differ only in their numbers have in common: `step: sampling` of `step 3: sampling: 2/8 groups`."""
    return re.sub(r"\d.*", "", re.sub(r"^step \d+", "step", status)).rstrip(": ")


class Heartbeat:
    """While open, a thread writes `elapsed_s()` into the run folder, and watches the thread that has opened it.

    That thread calls `begin` before a stage of work and `worked` after each piece of it. When one takes too long, `on_silence`
    is called every two seconds with the stage and the seconds, and once with ("", 0) if work goes on. Finally `on_hang` is
    called; the process ends with status 1 as soon as it returns, or after ENDING_S.
    """

    def __init__(
        self,
        folder: Path,
        elapsed_s: Callable[[], float],
        *,
        budget_s: float | None = None,
        on_hang: Callable[[Hang], None] = lambda hang: None,
    ) -> None:
        self._path, self._elapsed_s, self._budget_s = folder / names.HEARTBEAT, elapsed_s, budget_s
        self._on_hang = on_hang
        self.on_silence: Callable[[str, float], None] = lambda doing, seconds: None
        self.forecast_s = 0.0
        """Forecast of a piece of which none was finished yet."""
        self._doing, self._kind = "starting", ""
        self._pieces = 0
        self._longest: dict[str, float] = {}
        """Seconds of the longest finished piece, by kind of stage."""
        self._silent_s, self._is_suspected = 0.0, False
        self._looked = (clock.awake_s(), clock.processor_s(), 0, "")
        """At the last look: time, processor time, finished pieces, kind of stage."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._watched, self._native_id = threading.get_ident(), threading.get_native_id()
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self._beat()

    def begin(self, doing: str) -> None:
        """A stage of work begins, and whatever was going on is finished."""
        self.worked()
        self._doing, self._kind = doing, kind_of(doing)

    def worked(self) -> None:
        """A piece of work is finished."""
        self._longest.setdefault(self._kind, 0.0)
        self._pieces += 1

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._look()
            self._beat()

    def _look(self) -> None:
        now, busy, pieces, kind = clock.awake_s(), clock.processor_s(), self._pieces, self._kind
        before, before_busy, before_pieces, before_kind = self._looked
        self._looked = (now, busy, pieces, kind)
        if pieces != before_pieces:
            self._finished(before_kind)
        elif not self._waits_for_a_disk():
            # Silence adds up look by look: where this thread did not run either, the machine was suspended or overloaded.
            seconds = min(now - before, 2 * EVERY_S)
            is_computing = busy - before_busy > 0.1 * seconds
            self._silent_s += seconds * (BUSY_WEIGHT if is_computing and kind not in self._longest else 1.0)
            self._judge(kind)

    def _finished(self, kind: str) -> None:
        if self._silent_s:  # it ended after the look before this one
            self._longest[kind] = max(self._longest.get(kind, 0.0), self._silent_s + EVERY_S)
        self._silent_s = 0.0
        if self._is_suspected:
            self._is_suspected = False
            self.on_silence("", 0.0)

    def _judge(self, kind: str) -> None:
        """Report a suspicious silence; end the process after too long a one."""
        elapsed_s, budget_s = self._elapsed_s(), self._budget_s
        # So early that the process has ended when the budget is overrun by as much as it may be.
        is_overdue = budget_s is not None and elapsed_s > budget_s + max(OVERRUN * budget_s - EVERY_S, 0.0)
        longest_s, first = self._longest.get(kind), 1.0
        if longest_s is None:
            longest_s, first = self.forecast_s, FIRST_FACTOR
        limit_s = max(SILENT_S * first, FACTOR * longest_s)
        hangs = self._silent_s >= (max(OVERDUE_S * first, OVERDUE_FACTOR * longest_s) if is_overdue else limit_s)
        if hangs or self._silent_s >= SUSPECTED * limit_s:
            self._is_suspected = True
            self.on_silence(self._doing, self._silent_s)
        if hangs:
            self._end(is_overdue, self._longest.get(kind))

    def _end(self, is_overdue: bool, longest_s: float | None) -> None:
        self._beat()
        frame = sys._current_frames().get(self._watched)
        hang = Hang(self._doing, self._silent_s, is_overdue, "".join(traceback.format_stack(frame)) if frame else "", longest_s)
        # A thread of its own: a terminal that nobody reads may block it for ever.
        reporting = threading.Thread(target=self._on_hang, args=(hang,), daemon=True)
        reporting.start()
        reporting.join(ENDING_S)
        os._exit(1)

    def _waits_for_a_disk(self) -> bool:
        """Whether the watched thread waits for a disk, as while the machine swaps. Only Linux tells."""
        try:
            return Path(f"/proc/self/task/{self._native_id}/stat").read_text().rpartition(")")[2].split()[0] == "D"
        except (OSError, IndexError):
            return False

    def _beat(self) -> None:
        beat = Beat(self._elapsed_s(), printable(self._doing), self._silent_s if self._is_suspected else 0.0)
        with suppress(OSError), files.written_whole(self._path) as temporary:  # a full disk: the checkpoints say it
            temporary.write_text(json.dumps(asdict(beat)))


def read(folder: Path, on_bad: Callable[[str], None] = lambda why: None) -> Beat:
    """The last heartbeat; one of 0 s if there is none, or if it is damaged, which `on_bad` is told."""
    path = folder / names.HEARTBEAT
    if not path.exists():
        return Beat(0.0)
    try:
        return files.read_json(path, Beat)
    except files.BadFile as error:
        on_bad(error.message)
        return Beat(0.0)


def last_s(folder: Path, on_bad: Callable[[str], None] = lambda why: None) -> float:
    """Elapsed seconds at the last heartbeat; `on_bad` as in `read`."""
    return read(folder, on_bad).elapsed_s
