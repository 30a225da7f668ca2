"""Runs whose engine fails as told, by `failing_engine.py`, and what they did about it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import processes
import pytest
from places import HELPERS

SCRIPT = HELPERS / "failing_engine.py"


def script(tmp_path, faults: list[dict], *arguments: object, run=processes.run) -> tuple[subprocess.CompletedProcess, Path]:
    """A run of three steps whose engine fails like this. Where torch is imported already, its attempts share one process."""
    plan, out = tmp_path / "faults.json", tmp_path / "run"
    plan.write_text(json.dumps(faults))
    engine = () if "--engine" in arguments else ("--engine", "auto")
    done = run([sys.executable, SCRIPT, plan, "train", *arguments, *engine, "--steps", 3, "--out", out], timeout=600)
    assert json.loads(plan.read_text()) == [], (done.returncode, done.stderr)
    return done, out


def started_anew(command: list[object], *, timeout: float) -> subprocess.CompletedProcess:
    """As a shell starts it: without torch, so that it forks for every attempt."""
    words, environment = [str(word) for word in command], {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, env=environment)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def survived(done: subprocess.CompletedProcess, out: Path) -> list[tuple[str, str]]:
    """What the engine of a run that went to its end was doing at each failure, and the change that followed."""
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("done", 3) and summary["eval"]["after"]
    assert [row["step"] for row in lines(out / "metrics.jsonl")] == [0, 1, 2]
    said = [event for event in lines(out / "events.jsonl") if event["kind"] == "engine fallback"]
    assert sum(line.startswith("engine fallback: ") for line in done.stderr.splitlines()) == len(said)
    phases = summary["seconds_by_phase"]
    assert summary["hours_spent"] * 3600 == pytest.approx(sum(phases.values()), abs=0.1)  # the failed attempts count too
    return [(event["doing"], event["change"]) for event in said]
