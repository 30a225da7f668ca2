"""Killed at any instant, a run goes on to the end that it would have had. All of it through the real command line."""

import json
import os
import random
import shutil
import signal
import time
from importlib import metadata

import pytest
from command_line import in_process
from killed import PLACES
from whole_runs import rows, same_end, start

from microrl.config import resolve
from microrl.models.tiny import build_model
from microrl.report.findings import findings
from microrl.report.history import CHANGED, History
from microrl.run.folder import RunFolder

STEPS = 12
ADAPTER = "final/adapter_model.safetensors"


@pytest.fixture(scope="module")
def learning(tiny_arguments):
    """A tiny run whose rewards differ (by length), whose weights move, and which validates, saves and finds a best."""
    sets = [
        "sampling.max_completion_tokens=40",
        "sampling.group_size=8",
        "reward.overlong.buffer=39",
        "optim.step_kl=1e-3",
        "data.validation=0.2",
        "validation.fraction=0.5",
        "optim.prompts_per_update=2",
    ]
    return [*map(str, tiny_arguments), "--steps", str(STEPS), *(part for key in sets for part in ("--set", key))]


@pytest.fixture(scope="module")
def whole(learning, tmp_path_factory):
    """The run that nobody kills."""
    out = tmp_path_factory.mktemp("resume") / "whole"
    done = in_process("train", *learning, "--out", out)
    assert done.returncode == 0, done.stderr
    lines = rows(out)
    assert sum(line["update/skipped"] for line in lines) < STEPS and lines[-1]["policy/entropy"] != lines[0]["policy/entropy"]
    assert sum(line["validate/accuracy"] is not None for line in lines) > 2
    return out


def resumed(microrl, out, whole):
    done = microrl("train", "--resume", out)
    assert done.returncode == 0, done.stderr
    same_end(out, whole)


SOME = {("tensors of a checkpoint", 7)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "count"),
    [
        pytest.param(place, count, marks=[pytest.mark.one_of_each] if (place, count) in SOME else [])
        for place, count in [
            *SOME, ("generation", 60),
            ("update", 9), ("optimizer", 5), ("row", 4), ("export of a checkpoint", 1), ("sums of a checkpoint", 33),
            ("name of a checkpoint", 6), ("best", 1), ("behind best", 1), ("validation", 3), ("evaluation", 1), ("evaluation", 2),
            ("final", 1), ("answers", 6),
        ]
    ],
)  # fmt: skip
def test_killed_inside(microrl, learning, whole, tmp_path, place, count):
    assert place in PLACES
    out = tmp_path / "killed"
    process = start(["train", *learning, "--out", out], place=place, count=count)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, errors
    assert not (out / "summary.json").exists()
    resumed(microrl, out, whole)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adalora", "pissa", "full", "vera", "lora+", "dora"])
def test_adapters_with_more_than_two_factors(microrl, learning, tmp_path, kind):
    """Frozen starts, averages of sensitivity, shared vectors, master copies, rates of their own: all of it goes on."""
    place = learning.index("--rank")
    rank = [] if kind == "full" else ["--rank", "8"]
    command = ["train", *learning[:place], *learning[place + 2 :], "--adapter", kind, *rank, "--steps", "5"]
    whole, out = tmp_path / "whole", tmp_path / "killed"
    assert microrl(*command, "--out", whole).returncode == 0
    process = start([*command, "--out", out], place="row", count=3)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    resumed(microrl, out, whole)


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize("kind", ["own base", "second model", "top_k"])
def test_a_distillation_goes_on_with_its_teacher(microrl, learning, whole, tokenizer, tmp_path, kind):
    """With two optimizer steps per batch. A teacher that is no longer there is named, and the run that it taught stays as it
    was."""
    teacher, meant, out = tmp_path / "teacher", tmp_path / "whole", tmp_path / "killed"
    if kind == "own base":
        shutil.copytree(whole, teacher)
    else:
        build_model(tokenizer, seed=4).save_pretrained(teacher)
        tokenizer.save_pretrained(teacher)
    sets = ["--set", "distill.top_k=8", "--set", "distill.reward_weight=0.5"] if kind == "top_k" else []
    assert "optim.prompts_per_update=2" in learning
    command = ["train", *learning, "--steps", "5", "--teacher", teacher, *sets]
    assert microrl(*command, "--out", meant).returncode == 0
    assert all(row["distill/kl"] is not None and row["update/skipped"] == 0 for row in rows(meant))
    process = start([*command, "--out", out], place="row", count=3)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    teacher.rename(tmp_path / "gone")
    gone = microrl("train", "--resume", out)
    assert gone.returncode == 2 and f"the teacher {teacher}" in " ".join(gone.stderr.split()), gone.stderr
    (tmp_path / "gone").rename(teacher)
    assert ("a second model of" in (out / "events.jsonl").read_text()) is (kind != "own base")
    resumed(microrl, out, meant)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_killed_at_random_instants(microrl, learning, whole, tmp_path, seed):
    """Each of these runs is killed four times, at an instant drawn from the seconds of its training."""
    draw = random.Random(seed)
    out = tmp_path / "killed"
    command = ["train", *learning, "--out", out]
    for _ in range(4):
        process = start(command)
        while process.poll() is None and not (out / "environment.json").exists():
            time.sleep(0.005)
        began = (out / "environment.json").stat().st_mtime if command[1] == "--resume" else 0
        while process.poll() is None and (out / "environment.json").stat().st_mtime == began:
            time.sleep(0.005)  # a resumed run writes it anew when it is loaded
        time.sleep(draw.uniform(0, 3.0))
        process.kill()
        process.communicate()
        if process.returncode == 0:
            break  # faster than the clock; nothing to resume
        command = ["train", "--resume", out]
    resumed(microrl, out, whole)


STOP = ["--set", "guard.length_drift=0.5", "--set", "guard.patience=0.375", "--set", "guard.action=stop"]


@pytest.mark.slow
def test_a_run_that_the_guard_has_stopped_stays_stopped(microrl, learning, tmp_path):
    """Killed in the final evaluation after the stop; given more steps it goes on."""
    meant, out = tmp_path / "meant", tmp_path / "killed"
    done = microrl("train", *learning, *STOP, "--out", meant)
    assert done.returncode == 3 and "stopped early by the guard" in done.stderr, done.stderr
    process = start(["train", *learning, *STOP, "--out", out], place="evaluation", count=2)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert microrl("train", "--resume", out).returncode == 3
    assert rows(out, times=False) == rows(meant, times=False) and len(rows(out)) == 3
    assert (out / ADAPTER).read_bytes() == (meant / ADAPTER).read_bytes()
    assert json.loads((out / "summary.json").read_text())["status"] == "stopped"
    again = microrl("train", "--resume", out)
    assert again.returncode == 0 and "is already finished" in again.stderr
    assert microrl("train", "--resume", out, "--steps", 20).returncode == 3
    assert len(rows(out)) == 6, "the guard stops it again, three steps later"


@pytest.mark.slow
def test_a_run_killed_at_the_very_end_of_its_hours_is_ended(microrl, learning, tmp_path):
    out = tmp_path / "late"
    at = learning.index("--steps")
    process = start(["train", *learning[:at], "--hours", 13 / 3600, *learning[at + 2 :], "--out", out], place="final", count=1)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    count = len(rows(out))
    done = microrl("train", "--resume", out)
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["status"] == "done" and summary["steps"] == count and (out / ADAPTER).is_file()
    refused = microrl("train", "--resume", out, "--hours", 5 / 3600)
    assert refused.returncode == 2 and "has already used" in refused.stderr
    assert json.loads((out / "summary.json").read_text()) == summary, "a refusal changes nothing"


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_changed_digit_in_the_middle_of_the_metrics_is_noticed(inside, whole, tmp_path):
    """By the report of a run that has ended, of one that was killed, and by resuming: the weights are as they were, so that no
    step is repeated, and the run says ever after that it has happened."""
    out = tmp_path / "changed"
    shutil.copytree(whole, out)
    assert History.load(out).notes == []
    path = out / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b"0.", b"7.", 1)
    assert path.read_bytes() != b"".join(lines)
    path.write_bytes(b"".join(lines))
    assert History.load(out).notes == [CHANGED]
    told = inside("report", out)
    assert CHANGED in (out / "report.html").read_text(), told.stderr
    (out / "summary.json").unlink()
    assert History.load(out).notes == [CHANGED], "by its last checkpoint"
    done = inside("train", "--resume", out, "--steps", STEPS + 1)
    assert done.returncode == 0 and f"warning: {CHANGED}" in done.stderr, done.stderr
    assert f"continuing at step {STEPS + 1}" in done.stderr and path.read_bytes().startswith(b"".join(lines))
    assert any(CHANGED in finding.message for finding in findings(History.load(out)))
    path.write_bytes(b"".join(lines[2:]))
    assert History.load(out).notes == [CHANGED], "lines are missing"


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize("form", ["attempts", "damaged"])
def test_every_attempt_is_recorded_and_another_version_is_told(inside, whole, tmp_path, form):
    out = tmp_path / "attempts"
    shutil.copytree(whole, out)
    path = out / "environment.json"
    first = json.loads(path.read_text())
    (attempt,) = first["attempts"]
    assert {name: first[name] for name in ("command", "commit", "python", "packages")}.items() <= attempt.items()
    assert attempt["time"].endswith("+00:00")
    older = {"packages": first["packages"] | {"torch": "1.0", "microrl": "0.0.1"}}
    first["attempts"] = [attempt | older]
    path.write_text(json.dumps(first)[: 20 if form == "damaged" else None])
    done = inside("train", "--resume", out, "--steps", STEPS + 1)
    assert done.returncode == 0, done.stderr
    versions = [one["packages"]["torch"] for one in json.loads(path.read_text())["attempts"]]
    now = first["packages"] | {"torch": metadata.version("torch"), "microrl": metadata.version("microrl")}
    assert versions == [now["torch"]] if form == "damaged" else versions == ["1.0", now["torch"]]
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    (told,) = [event["message"] for event in events if event["kind"] == "warning" and "versions" in event["message"]]
    assert told in " ".join(done.stderr.split())
    if form == "damaged":
        assert "environment.json is damaged" in told
    else:
        assert f"microrl 0.0.1, now {now['microrl']}" in told and f"torch 1.0, now {now['torch']}" in told
    assert inside("train", "--resume", out, "--steps", STEPS + 2).returncode == 0
    lines = (out / "events.jsonl").read_text().splitlines()
    assert sum("versions" in line for line in lines) == 1, "told once: the next attempt has the same versions"


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(
    "damage",
    ["torn", "metrics", *(pytest.param(one, marks=pytest.mark.slow) for one in ("flipped", "gone"))],
)
def test_a_damaged_checkpoint_is_told_and_the_one_before_it_taken(inside, whole, tmp_path, damage):
    out = tmp_path / "damaged"
    shutil.copytree(whole, out)
    *_, before, last = sorted((out / "checkpoints").iterdir())
    target = last / "optimizer.safetensors"
    content = target.read_bytes()
    if damage == "torn":
        target.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        target.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "gone":
        target.unlink()
    else:
        metrics = out / "metrics.jsonl"
        os.truncate(metrics, metrics.stat().st_size - 10)
    (out / "summary.json").unlink()
    done = inside("train", "--resume", out)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert [event["message"].split()[2] for event in events if event["kind"] == "bad checkpoint"] == [f"bad-{last.name}"]
    assert any(f"continuing at step {int(before.name[5:]) + 1}" in event["message"] for event in events)
    same_end(out, whole)


@pytest.mark.one_of_each
@pytest.mark.slow
def test_without_a_whole_checkpoint_a_run_starts_again(inside, whole, tmp_path):
    out = tmp_path / "damaged"
    shutil.copytree(whole, out)
    for folder in (out / "checkpoints").iterdir():
        (folder / "SHA256SUMS").write_text("torn")
    (out / "summary.json").unlink()
    assert inside("train", "--resume", out).returncode == 0
    same_end(out, whole)


@pytest.mark.one_of_each
@pytest.mark.slow
def test_a_second_process_is_refused(microrl, learning, tmp_path):
    out = tmp_path / "one"
    process = start(["train", *learning, "--out", out])
    while process.poll() is None and not (out / "metrics.jsonl").exists():
        time.sleep(0.01)
    second = microrl("train", "--resume", out)
    process.kill()
    process.communicate()
    assert second.returncode == 2 and f"another process (PID {process.pid}) is training" in second.stderr, second.stderr
    assert "hint:" in second.stderr


def test_a_child_does_not_keep_the_lock_of_a_run_that_has_died(tmp_path):
    """The process group of a killed run may live on. With flock(2), which filelock uses, it would hold the lock."""
    folder = RunFolder.create(tmp_path / "run", resolve(["quickstart"]).model_dump(mode="json"))
    reading, writing = os.pipe()
    if (owner := os.fork()) == 0:
        folder.lock()
        if (child := os.fork()) == 0:
            time.sleep(60)
        os.write(writing, str(child).encode())
        os._exit(0)
    os.waitpid(owner, 0)
    child = int(os.read(reading, 32))
    try:
        RunFolder.open(folder.path).lock()
        os.kill(child, 0)  # it does live on
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.one_of_each
@pytest.mark.slow
def test_resume_auto_begins_goes_on_and_ends(microrl, learning, whole, tmp_path):
    command = [*learning, "--resume", "auto"]
    process = start(["train", *command, "--out", tmp_path / "runs" / "a"], place="row", count=3)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    done = microrl("train", *command, cwd=tmp_path)
    assert done.returncode == 0 and "continuing at step 3" in done.stderr, done.stderr
    same_end(tmp_path / "runs" / "a", whole)
    again = microrl("train", *command, "--out", tmp_path / "runs" / "a")
    assert again.returncode == 0 and "is already finished" in again.stderr
    other = microrl("train", *command, "--seed", 5, "--out", tmp_path / "runs" / "a")
    assert other.returncode == 2 and "started with different settings" in other.stderr


@pytest.mark.slow
def test_a_killed_run_is_charged_what_its_heartbeat_said(microrl, learning, tmp_path):
    """Killed in the middle, dead for a while, resumed: the time while dead is free, and the time lost is not. By the run's own
    account, so that nothing else on this machine makes it wrong; whole runs of simulated hours are in `test_clock.py`."""
    out, at = tmp_path / "timed", learning.index("--steps")
    process = start(["train", *learning[:at], "--hours", 0.1, *learning[at + 2 :], "--out", out])
    began = time.monotonic()
    while not (out / "metrics.jsonl").exists() or time.monotonic() - began < 11:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    first_s = time.monotonic() - began
    said_s = json.loads((out / "heartbeat.json").read_text())["elapsed_s"]
    assert 2 < said_s <= first_s
    time.sleep(3)
    began = time.monotonic()
    done = microrl("train", "--resume", out, "--steps", (out / "metrics.jsonl").read_bytes().count(b"\n") + 20)
    second_s = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    spent_s = summary["hours_spent"] * 3600
    assert said_s < spent_s <= said_s + second_s, "neither less than both processes, nor the seconds between them"
    phases = summary["seconds_by_phase"]
    assert sum(phases.values()) == pytest.approx(spent_s, rel=0.02) and phases["lost"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.one_of_each), signal.SIGTERM])
def test_a_second_signal_stops_at_once_and_the_last_checkpoint_stands(learning, whole, microrl, tmp_path, number):
    out = tmp_path / "cut"
    process = start(["train", *learning, "--out", out])
    while process.poll() is None and not (out / "checkpoints" / "step-000003").exists():
        time.sleep(0.005)
    process.send_signal(number)
    time.sleep(0.02)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    resumed(microrl, out, whole)
