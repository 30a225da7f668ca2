"""The hours of whole runs: kept, filled, and refused where they are too few. In simulated time, and once in real time."""

import json
import os
import re
import subprocess
import sys
import time
from itertools import pairwise

import pytest
from simulated import Machine, noise
from whole_runs import rows

from microrl.config import resolve
from microrl.quickstart.model import ensure_model
from microrl.run import checkpoint
from microrl.run.budget import Budget, Durations
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.train.validation import by_steps


def summary_of(out):
    return json.loads((out / "summary.json").read_text())


def slower_every_minute(elapsed_s):
    return 1 + elapsed_s / 3600


def stalling(elapsed_s):
    """Half a minute at a time it has other things to do."""
    return 6.0 if elapsed_s % 600 < 30 else 1.0


PACES = {"noisy": noise(0, 0.5, 1.6), "slower": slower_every_minute, "stalling": stalling}


@pytest.fixture
def arguments(tiny_arguments):
    """Runs whose steps are few and cheap to compute, and teach nothing."""
    return [*tiny_arguments, "--set", "sampling.max_completion_tokens=6", "--set", "guard.useful_groups=none"]


def ended_well(out, budget_s):
    """The summary of a run that has evaluated, saved, validated, and was never idle."""
    summary = summary_of(out)
    spent_s = summary["hours_spent"] * 3600
    assert summary["status"] == "done" and summary["hours_budget"] * 3600 == pytest.approx(budget_s)
    assert summary["eval"]["after"]["questions"] == summary["eval"]["before"]["questions"] == 4
    assert sum(summary["seconds_by_phase"].values()) == pytest.approx(spent_s, rel=1e-3)
    assert summary["seconds_by_phase"]["idle"] < 0.01 * budget_s
    return summary


MARKED = [pytest.param(pace, marks=() if pace == "stalling" else pytest.mark.slow) for pace in PACES]


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize("pace", MARKED)
def test_hours_bound_the_whole_process(inside, arguments, tmp_path, monkeypatch, pace):
    """An hour is used to at least 95 % and passed by 1 % at the most, exit included, whatever the machine does."""
    machine, out, budget_s = Machine(monkeypatch, PACES[pace]), tmp_path / "run", 3600
    done = inside("train", *arguments, "--hours", 1, "--out", out)
    assert done.returncode == 0, done.stderr
    summary, exit_s = ended_well(out, budget_s), Budget(hours=1.0, steps=None, started=0.0).exit_s()
    spent_s = summary["hours_spent"] * 3600
    assert spent_s == pytest.approx(machine.now - 1000) and 0.95 * budget_s <= spent_s <= 1.01 * budget_s - exit_s
    assert summary["steps"] > 20
    assert summary["forecast"]["steps"] == pytest.approx(summary["steps"], rel=0.15 if pace != "slower" else 1)
    validations = [line for line in rows(out) if line["validate/accuracy"] is not None]
    assert len(validations) >= 5 and summary["seconds_by_phase"]["validate"] < 0.1 * budget_s
    assert (out / "best").is_dir() and len(list((out / "checkpoints").iterdir())) >= 2


@pytest.mark.slow
def test_with_a_generous_bound_of_steps_the_hours_are_what_schedules_follow(inside, arguments, tmp_path, monkeypatch):
    Machine(monkeypatch)
    out = tmp_path / "both"
    sets = ["--set", "optim.schedule.kind=linear", "--set", "optim.lr=1.0"]
    done = inside("train", *arguments, "--hours", 1 / 3, "--steps", 100000, *sets, "--out", out)
    assert done.returncode == 0, done.stderr
    lines = rows(out)
    assert lines[0]["optim/lr"] < 0.98 and lines[-1]["optim/lr"] < 0.2, "loading has been spent too"
    for before, after in pairwise(lines):  # a step's rate is that of the middle of it, or nearly
        earlier, later = (1 - row["budget/elapsed_s"] / 1200 for row in (before, after))
        assert later - 1e-9 <= after["optim/lr"] <= earlier + 1e-9
    assert sum(line["validate/accuracy"] is not None for line in lines) >= 3


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(("budget_s", "said"), [(0.7, "is too short: loading took"), (5.4, "is too short for a single step")])
def test_too_small_a_budget_names_the_least_and_that_is_enough(inside, arguments, tmp_path, monkeypatch, budget_s, said):
    machine, out = Machine(monkeypatch, lambda elapsed_s: 0.01, load_s=400.0), tmp_path / "small"  # as fast as is planned
    done = inside("train", *arguments, "--hours", budget_s / 3600, "--out", out)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    least = re.search(r"hint: .*--hours ([\d.]+)", done.stderr)
    assert least and f"error: a time limit of {budget_s} seconds " in done.stderr and said in done.stderr, done.stderr
    assert not out.exists() or (out / "summary.json").is_file(), "nothing that was begun is thrown away, nothing else is left"
    machine.restarted()
    resume = ("--resume", out) if out.exists() else (*arguments, "--out", out)
    hours = float(least[1])
    again = inside("train", *resume, "--hours", hours)
    assert again.returncode == 0, again.stderr
    summary = summary_of(out)
    assert summary["steps"] >= 1 and summary["eval"]["after"]
    assert summary["hours_spent"] <= hours


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_resumed_run_has_what_was_left_of_its_hours(inside, arguments, tmp_path, monkeypatch):
    """Interrupted in the middle and resumed with half as much again, an hour later: that hour is not counted."""
    machine, out, write = Machine(monkeypatch), tmp_path / "run", RunFolder.log_rollouts

    def interrupted(self, step, groups):
        write(self, step, groups)
        if step == 6:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "log_rollouts", interrupted)
        assert inside("train", *arguments, "--hours", 0.4, "--out", out).returncode == 130
    first_s = machine.now - 1000
    assert summary_of(out)["hours_spent"] * 3600 == pytest.approx(first_s, rel=0.02) and first_s < 1200
    machine.restarted()
    began = machine.now
    done = inside("train", "--resume", out, "--hours", 0.6)
    assert done.returncode == 0, done.stderr
    summary = ended_well(out, 2160)
    assert 0.95 * 2160 <= first_s + machine.now - began <= 2160
    assert summary["hours_spent"] * 3600 == pytest.approx(first_s + machine.now - began, abs=1)
    assert json.loads((out / "config.json").read_text())["budget"]["hours"] == 0.6
    refused = inside("train", "--resume", out, "--hours", 0.3)
    assert refused.returncode == 2 and "has already used" in refused.stderr
    assert summary_of(out) == summary, "a refusal changes nothing"


# ---- in real time: minutes long


@pytest.mark.slow
@pytest.mark.parametrize("hours", [0.02, 0.05, 0.1])
def test_the_quickstart_keeps_its_hours(tmp_path, hours):
    """A real process, judged by its own account, which what else this machine does cannot make wrong: how much it spent is what
    it took, and at its last step there was room for that step and, by what it had measured, for no other.

    The tiny model is pretrained beforehand: on a busy machine that alone may take longer than the shortest of these budgets.
    """
    ensure_model("quickstart", RunConsole())
    out, budget_s = tmp_path / "run", hours * 3600
    command = [sys.executable, "-m", "microrl", "train", "quickstart", "--hours", str(hours), "--out", str(out)]
    before, began = os.times(), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    seconds, after = time.monotonic() - began, os.times()
    assert done.returncode == 0, done.stderr
    summary = summary_of(out)
    spent_s = summary["hours_spent"] * 3600
    worked_s = after.children_user + after.children_system - before.children_user - before.children_system
    print(f"{spent_s:.2f} of {budget_s:.0f} s, {seconds:.2f} to the exit, {worked_s:.2f} of processors; {summary['forecast']}")
    assert summary["status"] == "done" and summary["eval"]["after"]
    assert spent_s <= seconds and worked_s - 2 * spent_s < 1, "the whole process is in its account, and nothing follows it"
    assert summary["seconds_by_phase"]["idle"] < 0.01 * budget_s
    lines, state = rows(out), checkpoint.read_state(sorted((out / "checkpoints").iterdir())[-1])
    step, save = Durations(), Durations()
    step.recent, save.recent = state.durations["step"], state.durations["save"]
    account = Budget(hours=hours, steps=None, started=0.0, now=lambda: lines[-1]["budget/elapsed_s"])
    account.step, account.save = step, save
    measured = json.loads((out / "eval" / "held-out-before.json").read_text())
    account.evaluation_s = measured["seconds"] * 2
    assert not account.fits(step.forecast_s() * 2 + save.forecast_s()), "it stopped while there was room for more"
    assert lines[-1]["budget/elapsed_s"] <= budget_s - account.exit_s()
    assert not [line for line in (out / "events.jsonl").read_text().splitlines() if json.loads(line)["kind"] == "guard"]


def test_validation_by_steps_by_hand():
    # 100 steps of 64 completions; a tenth are 640, or 320 questions of 2 samples: 16 validations of 20 questions.
    flags = {"budget.steps": 100, "sampling.prompts_per_step": 8, "sampling.group_size": 8}
    assert by_steps(resolve((), flags), available=20) == (20, 7)  # 15 pauses: 0, 7, ..., 98, and the end
    # The same budget for 300 questions is spent on two validations of 160.
    assert by_steps(resolve((), flags), available=300) == (160, 100)
    # Evaluated at four times the length each counts four times.
    longer = {**flags, "evaluation.max_completion_tokens": 4 * 3584}
    assert by_steps(resolve((), longer), available=20) == (20, 34)
    assert by_steps(resolve((), {**flags, "budget.steps": 1, "validation.samples": 8}), available=20)[0] == 0
    # However cheap, 20 pauses.
    assert by_steps(resolve((), {**flags, "budget.steps": 10000}), available=1) == (1, 500)
