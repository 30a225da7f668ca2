"""Whole runs: started, killed at a place of `killed.PLACES`, and their metrics read."""

import json
import sys

import processes
from places import HELPERS

TIMES = ("time/", "budget/", "memory/", "tokens/per_second")


def rows(folder, *, times=True):
    """The rows of `metrics.jsonl`. Without `times`: those that a second run on any machine has, too."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return lines if times else [{k: v for k, v in line.items() if not k.startswith(TIMES)} for line in lines]


def start(arguments, *, place=None, count=1):
    """Begin `microrl ARGUMENTS`, which is killed when it comes to `place` for the `count`-th time."""
    program = ["-m", "microrl"] if place is None else [HELPERS / "killed.py", place, count]
    return processes.popen([sys.executable, *program, *arguments], stdout=processes.DEVNULL, stderr=processes.PIPE)
