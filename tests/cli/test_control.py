"""`microrl train --control shuffle`: a run, and the same run with shuffled rewards beside it."""

import gzip
import json
import signal
import subprocess
import sys
import time
from statistics import fmean

import pytest
from made_run import make
from whole_runs import rows, start

from microrl import clock
from microrl.report.history import History
from microrl.report.verdict import judge
from microrl.report.words import facts
from microrl.run import child
from microrl.run.folder import RunFolder

STEPS = 3


@pytest.fixture(scope="module")
def learning(tiny_arguments):
    """A tiny run whose rewards differ (by length), and whose weights move."""
    sets = ["sampling.max_completion_tokens=40", "sampling.group_size=8", "reward.overlong.buffer=39", "optim.lr=1e-2"]
    return [*map(str, tiny_arguments), "--steps", str(STEPS), *(part for key in sets for part in ("--set", key))]


def completions(run, step):
    return [json.loads(line) for line in gzip.decompress((run / f"rollouts/step-00000{step}.jsonl.gz").read_bytes()).splitlines()]


def evaluation(run, side):
    tree = json.loads((run / f"eval/held-out-{side}.json").read_text())
    return {key: value for key, value in tree.items() if key not in ("seconds", "gain_parts")}


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_control_is_the_same_run_with_other_advantages(inside, monkeypatch, learning, tmp_path):
    """In one process, where none can be forked; `test_a_killed_control_goes_on_to_the_same_end` has them forked."""
    monkeypatch.setattr(child, "can_fork", lambda: False)
    run, control = tmp_path / "runs" / "mine", tmp_path / "runs" / "mine-shuffled"
    command = ["train", *learning, "--out", run, "--control", "shuffle"]
    shown = inside(*command, "--dry-run")
    assert f"control: {control} follows" in shown.stdout and "each has 3 steps" in shown.stdout and not run.exists()
    began = clock.now_s()
    done = inside(*command)
    assert done.returncode == 0 and "each has 3 steps" in done.stderr, done.stderr
    assert done.stderr.rstrip().endswith(f"compare them: microrl compare {run} {control}")
    configs = [json.loads((path / "config.json").read_text()) for path in (run, control)]
    assert [config["reward"].pop("shuffle") for config in configs] == [False, True]
    assert [config["guard"].pop("action") for config in configs] == ["auto", "warn"] and configs[0] == configs[1]
    assert evaluation(run, "before") == evaluation(control, "before") and evaluation(run, "after") != evaluation(control, "after")
    sides = [completions(path, 0) for path in (run, control)]
    first, second = ([one["advantage"] for one in side] for side in sides)
    assert [one["reward"] for one in sides[0]] == [one["reward"] for one in sides[1]], "what is recorded are the true rewards"
    assert first != second
    groups = range(0, len(first), 8)
    assert [sorted(first[at : at + 8]) for at in groups] == [sorted(second[at : at + 8]) for at in groups]
    assert fmean(first) == pytest.approx(0, abs=1e-6)
    assert rows(run)[0]["policy/grad_norm"] != rows(control)[0]["policy/grad_norm"]
    spent_s = 3600 * json.loads((control / "summary.json").read_text())["hours_spent"]
    assert spent_s < clock.now_s() - began, "its time is its own, although the process is older"
    assert RunFolder.newest(tmp_path / "runs").path == run, "a control is not what a command means that names no run"
    said = " ".join(judge(History.load(run)).sentences), " ".join(judge(History.load(control)).sentences)
    assert (
        "Its control run with shuffled rewards (mine-shuffled, 3 steps in" in said[0] and "This is a control run" not in said[0]
    )
    assert "This is a control run" in said[1] and dict(facts(History.load(control)))["status"].endswith("rewards shuffled")
    table = inside("compare", run, control, "--as", "markdown").stdout
    assert "reward.shuffle=true" in table and "against first" in table
    again = inside("train", "--resume", run, "--control", "shuffle")
    assert again.returncode == 0 and again.stderr.count("is already finished") == 2
    alone = inside("train", "--resume", run, "--steps", STEPS + 1)
    assert alone.returncode == 0 and "no fair comparison" in alone.stderr and "not finished" not in alone.stderr
    (control / "summary.json").unlink()
    alone = inside("train", "--resume", run)
    assert f"its control is not finished; to continue: microrl train --resume {run} --control shuffle" in alone.stderr
    both = inside("train", "--resume", run, "--control", "shuffle")
    assert both.returncode == 0 and len(rows(control)) == STEPS + 1 == len(rows(run)), "as long as the run is now"
    assert "no fair comparison" not in both.stderr and "changed accuracy by" in both.stderr


def test_what_cannot_have_a_control_is_refused(inside, learning, tmp_path):
    command = ["train", *learning, "--out", tmp_path / "mine", "--control", "shuffle"]
    for more, why in [
        (["--set", "reward.shuffle=true"], "control itself"),
        (["--set", "sft.only=true", "--set", "sft.steps=2"], "SFT alone"),
        (["--teacher", "quickstart"], "no rewards to shuffle"),
    ]:
        done = inside(*command, *more)
        assert done.returncode == 2 and why in done.stderr and not (tmp_path / "mine").exists()
    (tmp_path / "mine-shuffled").mkdir()
    done = inside(*command)
    assert done.returncode == 2 and "mine-shuffled already exists" in done.stderr and not (tmp_path / "mine").exists()
    assert inside("train", *learning, "--control", "sorted").returncode == 2


def test_a_run_that_only_has_the_name_of_a_control_is_refused(inside, tmp_path):
    run, other = make(tmp_path / "mine"), make(tmp_path / "mine-shuffled")
    before = [(path, path.read_bytes()) for path in sorted(other.rglob("*")) if path.is_file()]
    done = inside("train", "--resume", run, "--control", "shuffle", "--steps", "30")
    assert done.returncode == 2 and f"{other} is not the control of {run}" in done.stderr and "rename it" in done.stderr
    assert before == [(path, path.read_bytes()) for path in sorted(other.rglob("*")) if path.is_file()]


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_killed_control_goes_on_to_the_same_end(microrl, learning, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "killed"
    done = microrl("train", *learning, "--out", whole, "--control", "shuffle")
    assert done.returncode == 0, done.stderr
    process = start(["train", *learning, "--out", out, "--control", "shuffle"], place="row", count=STEPS + 2)
    process.communicate(timeout=120)
    control = tmp_path / "killed-shuffled"
    assert process.returncode == -signal.SIGKILL
    assert (out / "summary.json").exists() and not (control / "summary.json").exists()
    done = microrl("train", *learning, "--out", out, "--control", "shuffle", "--resume", "auto")
    assert done.returncode == 0 and f"{out} is already finished" in done.stderr, done.stderr
    for ours, theirs in ((out, whole), (control, tmp_path / "whole-shuffled")):
        assert rows(ours, times=False) == rows(theirs, times=False) and len(rows(ours)) == STEPS
        paths = [path / "final/adapter_model.safetensors" for path in (ours, theirs)]
        assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.slow
def test_after_an_interrupted_run_there_is_no_control(learning, tmp_path):
    out = tmp_path / "mine"
    words = [sys.executable, "-m", "microrl", "train", *learning, "--steps", "100000", "--out", str(out), "--control", "shuffle"]
    # A process of its own, without torch: it forks for each of the two runs.
    process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while process.poll() is None and not (out / "metrics.jsonl").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, text = process.communicate(timeout=120)
    assert process.returncode == 130, text
    assert f"the control was not started; to continue: microrl train --resume {out} --control shuffle" in text
    assert (out / "summary.json").exists() and not (tmp_path / "mine-shuffled").exists()
