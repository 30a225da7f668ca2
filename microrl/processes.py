"""A child process: it dies with its parent, is killed first where memory runs out, answers over a pipe; and how it ended.

It needs the standard library alone: the process of custom code imports it, too.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
from contextlib import suppress
from functools import cache
from typing import Any

_PR_SET_PDEATHSIG = 1


@cache
def libc() -> ctypes.CDLL:
    """The C library. Loading it takes ten times as long as a call."""
    return ctypes.CDLL(None, use_errno=True)


def die_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends, even by SIGKILL. Only Linux can; elsewhere the pipe's end does."""
    with suppress(OSError, AttributeError):
        libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def offer_to_oom_killer() -> None:
    """Where the machine runs out of memory, this process is killed before the run."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")


def how_it_ended(status: int) -> str:
    """An exit status in words; -N stands for signal N, as in `subprocess`."""
    if status >= 0:
        return f"exit status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    return f"killed by {name}" + (", often for lack of memory" if status == -signal.SIGKILL else "")


def write_line(descriptor: int, value: Any, longest: float = math.inf) -> None:
    """Write a line of JSON to a pipe that may be full; nothing where it has more than `longest` bytes."""
    data = json.dumps(value).encode("ascii") + b"\n"
    if len(data) <= longest:
        while data:
            data = data[os.write(descriptor, data) :]
