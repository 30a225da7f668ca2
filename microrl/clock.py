"""Time as a run is charged for it: it never jumps when the wall clock is set, and it counts while the machine is suspended."""

from __future__ import annotations

import datetime
import os
import time
from pathlib import Path

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def now_s() -> float:
    """Seconds since an arbitrary fixed moment: only differences mean something, and only until the machine restarts."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


def awake_s() -> float:
    """As `now_s`, without the time in which the machine was suspended."""
    return time.monotonic()


def wall_s() -> float:
    """Seconds since 1970 on the clock that can be set: only to compare with the times of files."""
    return time.time()


def stamp() -> str:
    """The date and time in UTC, to the second, in ISO's form."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def processor_s() -> float:
    """Processor time of this process, all threads together, in seconds: what other processes do hardly changes it."""
    return time.process_time()


def process_started_s() -> float:
    """When this process was created, on the clock of `now_s`, so that the time of importing counts too."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])  # since the machine was booted
        return ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return now_s()  # not Linux: the imports so far, about a second, are not counted
