"""The resident memory of this process. It needs the standard library alone: a peer's script reads this file by its path."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak_gb() -> float:
    """The peak in GB (1e9 bytes).

    `ru_maxrss` is asked only where there is no /proc: Linux lets it begin at the peak of the process that started this one.
    """
    if STATUS.exists():
        lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines() if ":" in line)
        if "VmHWM" in lines:
            return int(lines["VmHWM"].split()[0]) * 1024 / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
