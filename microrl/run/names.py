"""Names of the files and folders of a run folder, which are a contract: scripts lean on them. Needs no torch."""

from __future__ import annotations

import re
from pathlib import Path

CONFIG = "config.json"
"""The resolved configuration, written first."""
ENVIRONMENT = "environment.json"
"""Versions, machine, commit and adapter; see `environment.Environment`."""
METRICS = "metrics.jsonl"
"""One object for each step; see `metrics`."""
EVENTS = "events.jsonl"
"""Warnings, retries, the guard's actions, interruptions."""
SFT = "sft.jsonl"
"""One object for each step of the supervised phase."""
SUMMARY = "summary.json"
"""How the run ended, written last; see `summary.Summary`."""
HEARTBEAT = "heartbeat.json"
"""The time spent, every few seconds; see `heartbeat`."""
SYNC = "sync.json"
"""Which way of handing over weights was the cheaper one."""
ENGINE = "engine.json"
"""What failures have changed in the engine's settings."""
DATA = "data.json"
"""Hashes of the data; see `data_record`."""
CONTAMINATION = "contamination.json"
"""What of the data is in benchmarks; see `contamination`."""
SCREENING = "screening.json"
"""The first pass over the questions."""
TEACHER = "teacher.json"
"""The teacher and its hash."""
INSPECTION = "inspect.json"
"""Spectra of the update, by `microrl inspect`."""
REPORT = "report.html"
"""The page, by `microrl report`."""
CRASH = "crash.log"
"""The traceback of an unexpected error."""
LOCK = ".lock"
"""Held by the process that trains."""
LOG = "run.log"
"""The lines of the console, with their times; its older part is `run.log.1`."""
IGNORE = ".gitignore"
"""Holds `*`."""

CHECKPOINTS = "checkpoints"
"""Folder of `step-NNNNNN/`; see `checkpoint`."""
BEST = "best"
"""Folder of the adapter that was best in validation."""
FINAL = "final"
"""Folder of the adapter that the run ended with."""
EVAL = "eval"
"""Folder of evaluations, a JSON file and a `.jsonl.gz` of answers each."""
ROLLOUTS = "rollouts"
"""Folder of all completions, a file for each step; see `rollouts`."""

HELD_OUT = "held-out"
BEFORE, AFTER = f"{HELD_OUT}-before", f"{HELD_OUT}-after"
"""Evaluations on the held-out problems before and after training, as they are called in `eval/`."""

SWEEP = "sweep.json"
"""In the folder of a sweep, which has a run folder for each trial."""

FOLDERS = (CHECKPOINTS, BEST, FINAL, EVAL, ROLLOUTS)
FILES = (
    *(CONFIG, ENVIRONMENT, METRICS, f"{METRICS}.before", EVENTS, SFT, SUMMARY, HEARTBEAT, SYNC, ENGINE, DATA, CONTAMINATION),
    *(SCREENING, TEACHER, INSPECTION, REPORT, CRASH, LOCK, LOG, f"{LOG}.1", IGNORE),
)
MADE_BEFORE_A_RUN = {
    *(CONFIG, EVENTS, HEARTBEAT, DATA, TEACHER, CONTAMINATION, LOCK, LOG, IGNORE),
    *(f"track-{tracker}.log" for tracker in ("wandb", "trackio", "tensorboard")),
}
"""Files after which a folder is still as good as empty."""


def of_step(step: int) -> str:
    """The name of a checkpoint."""
    return f"step-{step:06d}"


def step_of(checkpoint: Path) -> int | None:
    """The step in a checkpoint's name; None if it is not such a name."""
    match = re.fullmatch(r"step-(\d{6,15})", checkpoint.name)
    return int(match[1]) if match and of_step(int(match[1])) == checkpoint.name else None


def saved(checkpoints: Path) -> list[Path]:
    """All checkpoints in that folder, oldest first, intact or not."""
    folders = [path for path in checkpoints.glob("step-*") if path.is_dir() and step_of(path) is not None]
    return sorted(folders, key=lambda path: step_of(path) or 0)
