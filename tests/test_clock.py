"""The wall clock of whole processes: kept, filled, and refused where it is too short."""

import json
import re
import time

import pytest
from test_run import rows

from microrl.config import resolve
from microrl.train.validation import by_steps

# No plan foresees a machine that stalls in a run's last second, and a shared one does now and then.
a_second_chance = pytest.mark.flaky(reruns=1)


def kept(microrl, budget_s, out, *arguments):
    """`train` within `budget_s`: between 95 % and 101 % (of the shortest: half a second), nothing idle, evaluated, saved."""
    began = time.monotonic()
    done = microrl("train", *arguments, "--hours", budget_s / 3600, "--out", out)
    seconds = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    print(f"{seconds:.2f} of {budget_s:.0f} s, {seconds / budget_s:.1%}; {summary['forecast']}")
    assert 0.95 * budget_s <= seconds <= budget_s + max(0.01 * budget_s, 0.5)
    assert summary["status"] == "done" and summary["eval"]["after"]
    assert summary["seconds_by_phase"]["idle"] < 0.01 * budget_s
    assert summary["hours_spent"] * 3600 == pytest.approx(seconds, abs=max(0.01 * budget_s, 1.2))
    return summary


@a_second_chance
def test_hours_bound_the_whole_process(microrl, tiny_arguments, tmp_path):
    out = tmp_path / "timed"
    summary = kept(microrl, 25, out, *tiny_arguments)
    assert summary["steps"] > 20
    validations = [line for line in rows(out) if line["validate/accuracy"] is not None]
    assert len(validations) >= 5 and summary["seconds_by_phase"]["validate"] < 0.1 * 25
    assert (out / "best").is_dir() and len(list((out / "checkpoints").iterdir())) >= 2


@pytest.mark.slow
def test_with_a_generous_bound_of_steps_the_hours_are_what_schedules_follow(microrl, tiny_arguments, tmp_path):
    out = tmp_path / "both"
    sets = ["--set", "optim.schedule.kind=linear", "--set", "optim.lr=1.0"]
    done = microrl("train", *tiny_arguments, "--hours", 15 / 3600, "--steps", 100000, *sets, "--out", out)
    assert done.returncode == 0, done.stderr
    lines = rows(out)
    assert lines[0]["optim/lr"] < 0.9 and lines[-1]["optim/lr"] < 0.2, "loading has been spent too"
    assert sum(line["validate/accuracy"] is not None for line in lines) >= 3


@pytest.mark.slow
@a_second_chance
@pytest.mark.parametrize("hours", [pytest.param(0.02, marks=pytest.mark.one_of_each), 0.05, 0.1])
def test_the_quickstart_keeps_its_hours(microrl, tmp_path, hours):
    out = tmp_path / "run"
    summary = kept(microrl, hours * 3600, out, "quickstart")
    forecast = summary["forecast"]
    assert forecast["steps"] == pytest.approx(forecast["actual_steps"], rel=0.15)
    assert summary["seconds_by_phase"]["validate"] <= 0.1 * hours * 3600
    assert not [line for line in (out / "events.jsonl").read_text().splitlines() if json.loads(line)["kind"] == "guard"]


@pytest.mark.parametrize("hours", [0.0002, 0.0021])
def test_too_small_a_budget_names_the_least_and_that_is_enough(microrl, tiny_arguments, tmp_path, hours):
    out = tmp_path / "small"
    done = microrl("train", *tiny_arguments, "--hours", hours, "--out", out)
    if done.returncode == 0:  # a fast machine; nothing to refuse
        assert hours > 0.001
        return
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    least = re.search(r"hint: .*--hours ([\d.]+)", done.stderr)
    assert least and f"error: {hours:g} hours" in done.stderr, done.stderr
    assert not out.exists() or (out / "summary.json").is_file(), "nothing that was begun is thrown away, nothing else is left"
    resume = ("--resume", out) if out.exists() else (*tiny_arguments, "--out", out)
    again = microrl("train", *resume, "--hours", float(least[1]) * 1.5)
    assert again.returncode == 0, again.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["steps"] >= 1 and summary["eval"]["after"]


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
