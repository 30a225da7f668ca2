"""Whole runs: started, killed at a place of `killed.PLACES`, their metrics read, and their ends compared."""

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


def same_end(out, whole):
    """That a run has ended as another one did, bit by bit."""
    assert rows(out, times=False) == rows(whole, times=False)
    for folder in ("final", "best"):
        (ours, theirs) = (sorted((run / folder).glob("*model*.safetensors")) for run in (out, whole))
        assert len(ours) == len(theirs) == 1 and ours[0].read_bytes() == theirs[0].read_bytes()
    ended, meant = (json.loads((path / "summary.json").read_text()) for path in (out, whole))
    assert (ended["status"], ended["best"], ended["eval"]) == ("done", meant["best"], meant["eval"])
    names = [sorted(path.name for path in (folder / "checkpoints").glob("step-*")) for folder in (out, whole)]
    assert names[0] == names[1] and len(names[0]) <= 3
    assert sorted(path.name for path in (out / "rollouts").iterdir()) == sorted(
        path.name for path in (whole / "rollouts").iterdir()
    )
    for line in (out / "events.jsonl").read_text().splitlines():
        json.loads(line)
