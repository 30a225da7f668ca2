"""How a run ends, whatever goes away under it: the wall clock, the terminal, the disk, its folder."""

import contextlib
import json
import os
import pty
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time

import processes
import pytest
from command_line import in_process
from made_run import make
from whole_runs import rows

from microrl import clock
from microrl.cli.attempts import report
from microrl.cli.output import guarded
from microrl.commands import evaluation_job
from microrl.errors import UserError
from microrl.quickstart import model as quickstart
from microrl.run.budget import Budget
from microrl.run.folder import RunFolder
from microrl.run.signals import Interrupts
from microrl.train import held_out, saving

ADAPTER = "final/adapter_model.safetensors"


@pytest.fixture(scope="module")
def arguments(tiny_arguments):
    """A tiny run whose rewards differ (by length), so that its weights move; four steps."""
    sets = ["sampling.max_completion_tokens=16", "reward.overlong.buffer=15", "optim.lr=0.002", "validation.problems=0"]
    return [*map(str, tiny_arguments), "--steps", "4", *(part for key in sets for part in ("--set", key))]


@pytest.fixture(scope="module")
def whole(arguments, tmp_path_factory):
    """The run that nothing happens to, and what it said."""
    out = tmp_path_factory.mktemp("endings") / "whole"
    done = in_process("train", *arguments, "--out", out)
    assert done.returncode == 0, done.stderr
    assert sum(row["update/skipped"] for row in rows(out)) < 4, "its weights move"
    return out, done.stderr


def before_step(monkeypatch, step, act):
    """Call `act` with the run folder once, in the middle of a run: when the rollouts of `step` are about to be written."""
    original, done = RunFolder.log_rollouts, []

    def wrapped(self, number, groups):
        if number >= step and not done:
            done.append(number)
            act(self)
        return original(self, number, groups)

    monkeypatch.setattr(RunFolder, "log_rollouts", wrapped)
    return done


@contextlib.contextmanager
def no_room(limit=1000):
    """No file can grow beyond `limit` bytes: what a full disk says, but for the number of the error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def read_only(folder):
    """Nobody can write into the folder, root included."""
    folder.chmod(0o555)
    try:
        if os.access(folder, os.W_OK) and subprocess.run(["chattr", "+i", folder], capture_output=True).returncode:
            pytest.skip("this user can write everywhere")
        yield
    finally:
        subprocess.run(["chattr", "-i", folder], capture_output=True)
        folder.chmod(0o755)


def summary_of(out):
    return json.loads((out / "summary.json").read_text())


def told(done, status):
    """The one line and the hint that a command has ended with."""
    assert done.returncode == status and "Traceback" not in done.stderr, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith(("error: ", "hint: "))]
    assert [line.split(":")[0] for line in lines] == ["error", "hint"], done.stderr
    return lines


def hinted(done):
    """The arguments of the `microrl` command in the hint."""
    command = re.search(r"^hint: .*?microrl (.+)$", done.stderr, re.MULTILINE)
    assert command, done.stderr
    return shlex.split(command[1])


def same_end(out, whole):
    assert rows(out, times=False) == rows(whole, times=False)
    assert (out / ADAPTER).read_bytes() == (whole / ADAPTER).read_bytes()
    summary, meant = summary_of(out), summary_of(whole)
    assert (summary["status"], summary["steps"], summary["eval"]) == ("done", meant["steps"], meant["eval"])


# ---- an ending that fails


def failing(monkeypatch, part, offset=None):
    """The final save finds a full disk, twice (it is tried again when the run fails); or the evaluation after training fails."""
    if part == "final save":
        original, calls = saving.save_final, []

        def save_final(run):
            calls.append(run)
            if len(calls) > 2:
                return original(run)
            if offset is not None:
                offset[0] += 290
            with no_room():
                return original(run)

        monkeypatch.setattr(saving, "save_final", save_final)
    else:
        original, calls = held_out.evaluate, []

        def evaluate(*rest, **named):
            calls.append(rest)
            if len(calls) != 2:
                return original(*rest, **named)
            if offset is not None:
                offset[0] += 580
            raise RuntimeError("the checker has lost its mind")

        monkeypatch.setattr(held_out, "evaluate", evaluate)
    return calls


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize("part", ["final save", "evaluation after"])
def test_an_ending_that_fails_is_no_success_and_its_hint_leads_to_the_end(inside, arguments, whole, tmp_path, monkeypatch, part):
    out = tmp_path / "run"
    failing(monkeypatch, part)
    done = inside("train", *arguments, "--out", out)
    told(done, 1)
    assert summary_of(out)["status"] == "failed" and summary_of(out)["eval"]["after"] is None
    if part == "final save":
        assert not (out / "final").exists() and not list(out.glob(".final*"))
    resumed = inside(*hinted(done))
    assert resumed.returncode == 0 and "continuing at step 5" in resumed.stderr, resumed.stderr
    same_end(out, whole[0])
    assert "is already finished" in inside("train", "--resume", out).stderr


@pytest.mark.cases(one_of_each=1)
@pytest.mark.slow
@pytest.mark.parametrize("part", ["final save", "evaluation after"])
def test_where_the_hours_are_spent_the_hint_has_enough_for_the_ending(inside, arguments, tmp_path, monkeypatch, part):
    """An hour whose steps take ten minutes each; what fails in the end takes what is left of it."""
    real, offset, out = clock.now_s, [0.0], tmp_path / "run"

    def now_s():
        return real() + offset[0]

    monkeypatch.setattr(clock, "now_s", now_s)
    monkeypatch.setattr(clock, "process_started_s", now_s)
    monkeypatch.setitem(Budget.__init__.__kwdefaults__, "now", now_s)
    original = RunFolder.log_rollouts

    def log_rollouts(*rest):
        offset[0] += 600
        original(*rest)

    monkeypatch.setattr(RunFolder, "log_rollouts", log_rollouts)
    failing(monkeypatch, part, offset)
    at = arguments.index("--steps")
    done = inside("train", *arguments[:at], *arguments[at + 2 :], "--hours", 1, "--out", out)
    told(done, 1)
    steps = summary_of(out)["steps"]
    assert summary_of(out)["status"] == "failed" and steps == 5
    resumed = inside(*hinted(done))
    assert resumed.returncode == 0, resumed.stderr
    summary = summary_of(out)
    assert (summary["status"], summary["steps"]) == ("done", steps) and (out / ADAPTER).is_file()
    assert summary["eval"]["after"]["questions"] == summary["eval"]["before"]["questions"] == 4


# ---- the wall clock


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize("jump_s", [-7200, 7200])
def test_a_wall_clock_that_is_set_changes_nothing(inside, arguments, tmp_path, monkeypatch, jump_s):
    """The machine's clock is set in the middle of a run of at most an hour: steps, bill and final evaluation are the same."""
    real, offset, out = time.time, [0.0], tmp_path / "run"
    monkeypatch.setattr(time, "time", lambda: real() + offset[0])
    defaults = Budget.__init__.__kwdefaults__
    for name in [name for name, value in defaults.items() if value is real]:
        monkeypatch.setitem(defaults, name, time.time)
    jumped = before_step(monkeypatch, 1, lambda folder: offset.__setitem__(0, jump_s))
    began = time.monotonic()
    done = inside("train", *arguments, "--hours", 1, "--price", 3600, "--out", out)
    seconds = time.monotonic() - began
    assert done.returncode == 0 and jumped, done.stderr
    summary = summary_of(out)
    assert (summary["status"], summary["steps"]) == ("done", 4)
    assert summary["eval"]["after"]["questions"] == summary["eval"]["before"]["questions"] == 4
    # The time of this test's own process counts too.
    spent_s = [row["budget/elapsed_s"] for row in rows(out)]
    assert 0 < spent_s[0] < spent_s[1] < spent_s[2] < spent_s[3] < spent_s[0] + seconds
    assert summary["cost_usd"] == pytest.approx(summary["hours_spent"] * 3600, abs=0.1)
    assert spent_s[3] < summary["hours_spent"] * 3600 < spent_s[0] + seconds
    assert sum(summary["seconds_by_phase"].values()) == pytest.approx(summary["hours_spent"] * 3600, rel=0.01, abs=1)
    heartbeat = json.loads((out / "heartbeat.json").read_text())["elapsed_s"]
    assert heartbeat == pytest.approx(summary["hours_spent"] * 3600, abs=5)


# ---- the terminal


def logged(out):
    return [line.split(" ", 1)[1] for line in (out / "run.log").read_text().splitlines()]


def test_what_the_console_says_is_in_run_log(whole):
    out, said = whole
    assert logged(out) == said.splitlines()
    assert any(line.startswith("step 4/4  reward ") for line in logged(out)) and logged(out)[-1].startswith(
        ("try it: ", "read more: ")
    )


def test_run_log_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(RunFolder, "LOG_BYTES", 1000)
    folder = RunFolder(tmp_path)
    for number in range(100):
        folder.log(f"line {number}")
    assert logged(tmp_path)[-1] == "line 99"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.log", "run.log.1"]
    assert all(path.stat().st_size < 1100 for path in tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_run_outlives_the_pipe_that_reads_it(arguments, whole, tmp_path):
    """As with `microrl train ... 2>&1 | head -1`."""
    out = tmp_path / "run"
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "microrl", "train", *arguments, "--out", out]
    process = processes.popen(command, stdout=writer, stderr=processes.STDOUT)
    os.close(writer)
    with open(reader) as pipe:
        assert pipe.readline()
    assert process.wait(timeout=120) == 0
    same_end(out, whole[0])
    assert logged(out)[-1].startswith(("try it: ", "read more: ")) and not (out / "crash.log").exists()


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_a_console_that_goes_away_is_given_up(inside, arguments, whole, tmp_path, monkeypatch, kind):
    reader, writer = os.pipe() if kind == "pipe" else pty.openpty()
    out = tmp_path / "run"
    lost = before_step(monkeypatch, 1, lambda folder: os.close(reader))
    with os.fdopen(writer, "w", buffering=1) as stream:
        assert stream.isatty() is (kind == "terminal")
        done = inside("train", *arguments, "--out", out, stderr=stream)
    assert done.returncode == 0 and lost
    same_end(out, whole[0])
    assert logged(out)[-1].startswith(("try it: ", "read more: "))


def test_a_command_without_standard_error_at_all(monkeypatch):
    """As after `2>&-`."""

    def command():
        print("words", file=sys.stderr)
        raise UserError("wrong", "right")

    monkeypatch.setattr(sys, "stderr", None)
    assert guarded(command) == 2


def test_an_evaluation_outlives_its_console(inside, whole):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as stream:
        done = inside("eval", whole[0], "--problems", 2, "--json", stderr=stream)
    assert done.returncode == 0 and json.loads(done.stdout)["benchmarks"]["held-out"]["questions"] == 2


@pytest.mark.one_of_each
@pytest.mark.slow
def test_without_its_terminal_a_run_saves_and_ends(inside, arguments, tmp_path):
    """The terminal itself goes away: the kernel sends SIGHUP, and nothing can be written any more."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "microrl", "train", *arguments, "--steps", 24, "--out", out]
    terminal, end = pty.openpty()
    process = processes.popen(command, stdin=end, stdout=end, stderr=end, owns_terminal=True)
    os.close(end)
    metrics = out / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") >= 2):
        time.sleep(0.01)
    os.close(terminal)
    assert process.wait(timeout=120) == 130
    steps = summary_of(out)["steps"]
    assert summary_of(out)["status"] == "interrupted" and 2 <= steps == len(rows(out)) < 24
    assert f"resume with: microrl train --resume {out}" in logged(out)
    resumed = inside("train", "--resume", out)
    assert resumed.returncode == 0 and f"continuing at step {steps + 1}" in resumed.stderr, resumed.stderr
    assert summary_of(out)["status"] == "done" and [row["step"] for row in rows(out)] == list(range(24))


def test_a_hangup_is_heeded_once_and_under_nohup_never():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt), interrupts.held("this"):
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGHUP)  # the shell sends it, and so does the kernel
            held = True
        assert held
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGHUP)
            interrupts.check()
    finally:
        signal.signal(signal.SIGHUP, before)


# ---- the disk and the folder


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_run_folder_that_cannot_be_written_costs_nothing_that_can_be_kept(
    inside, arguments, whole, tmp_path, monkeypatch, comes_back
):
    """In the middle of the run a file stands in the folder's place; it comes back before the end, or it does not."""
    out, away = tmp_path / "run", tmp_path / "away"

    def go(folder):
        out.rename(away)
        out.write_text("in the way")

    def back(run):
        if comes_back:
            out.unlink()
            away.rename(out)
        return original(run)

    original = saving.save_final
    monkeypatch.setattr(saving, "save_final", back)
    monkeypatch.chdir(tmp_path)
    before_step(monkeypatch, 2, go)
    done = inside("train", *arguments, "--out", out)
    assert "cannot write" in done.stderr
    if comes_back:
        assert done.returncode == 0, done.stderr
        same_end(out, whole[0])
    else:
        lines = told(done, 1)
        assert str(out) in lines[0] and out.read_text() == "in the way"
        assert len(rows(away)) == 3 and (away / "eval" / "held-out-before.json").is_file()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["away", "run"], "nothing else is left anywhere"


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize("damage", ["events gone", "folder gone"])
def test_what_is_deleted_under_a_run_is_made_again(inside, arguments, whole, tmp_path, monkeypatch, damage):
    out = tmp_path / "run"
    before_step(monkeypatch, 1, lambda folder: (out / "events.jsonl").unlink() if damage == "events gone" else shutil.rmtree(out))
    done = inside("train", *arguments, "--set", "data.held_out=0.2", "--out", out)
    assert done.returncode == 0, done.stderr
    assert (out / ADAPTER).read_bytes() == (whole[0] / ADAPTER).read_bytes()
    assert summary_of(out)["status"] == "done" and inside("eval", out, "--problems", 2).returncode == 0
    assert rows(out, times=False)[-2:] == rows(whole[0], times=False)[-2:]


@pytest.mark.slow
def test_lines_that_cannot_be_written_to_the_end_are_no_success(inside, arguments, whole, tmp_path, monkeypatch):
    """A folder stands in the place of metrics.jsonl. The adapter is saved all the same, and the hint leads to the end."""
    out = tmp_path / "run"

    def block(folder):
        (out / "metrics.jsonl").rename(out / "metrics")
        (out / "metrics.jsonl").mkdir()

    before_step(monkeypatch, 2, block)
    done = inside("train", *arguments, "--out", out)
    lines = told(done, 1)
    assert "metrics.jsonl" in lines[0] and summary_of(out)["status"] == "failed" and (out / ADAPTER).is_file()
    (out / "metrics.jsonl").rmdir()
    (out / "metrics").rename(out / "metrics.jsonl")
    assert inside(*hinted(done)).returncode == 0
    same_end(out, whole[0])


def test_a_result_that_cannot_be_stored_is_said_before_it_is_computed_and_printed(inside, whole, tmp_path, monkeypatch):
    out = tmp_path / "run"
    shutil.copytree(whole[0], out)
    before = sorted((out / "eval").iterdir())
    monkeypatch.setattr(evaluation_job, "load_model", saying(evaluation_job.load_model))
    with read_only(out / "eval"):
        done = inside("eval", out, "--problems", 2, "--json")
    assert done.returncode == 0 and sorted((out / "eval").iterdir()) == before, done.stderr
    assert json.loads(done.stdout)["benchmarks"]["held-out"]["questions"] == 2
    assert done.stderr.index("not stored") < done.stderr.index("LOADING"), done.stderr


def saying(function):
    def wrapped(*rest, **named):
        print("LOADING", file=sys.stderr)
        return function(*rest, **named)

    return wrapped


def test_a_traceback_is_kept_wherever_it_can_be(tmp_path, monkeypatch, capsys):
    places = [tmp_path / name for name in ("here", "temporary")]
    for place in places:
        place.mkdir()
    monkeypatch.chdir(places[0])
    monkeypatch.setattr("tempfile.tempdir", str(places[1]))
    for blocked in range(3):
        assert guarded(lambda: 1 / 0) == 1
        said = capsys.readouterr().err
        assert said.startswith("error: ZeroDivisionError: division by zero\nhint: ") and "Traceback" not in said
        assert said.count("\n") == 2
        if blocked < 2:
            kept = places[blocked] / "crash.log"
            assert "division by zero" in kept.read_text() and str(kept.name) in said
            kept.unlink()
            kept.mkdir()
        else:
            assert "test_endings.py" in said, "where it happened"


def test_no_half_made_folder_is_left(inside, arguments, tmp_path):
    out = tmp_path / "run"
    with no_room(20):
        done = inside("train", *arguments, "--out", out)
    assert "cannot write" in told(done, 2)[0] and not out.exists()


def test_a_run_that_is_refused_while_it_loads_leaves_no_folder(inside, arguments, tmp_path):
    told(inside("train", *arguments, "--rank", 65, "--out", tmp_path / "run"), 2)
    assert not (tmp_path / "run").exists()


def test_a_lock_that_cannot_be_taken_is_said(inside, whole, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(whole[0], out)
    (out / ".lock").unlink()
    (out / ".lock").mkdir()
    before = sorted(path.name for path in out.iterdir())
    told(inside("train", "--resume", out, "--steps", 5), 2)
    assert sorted(path.name for path in out.iterdir()) == before


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "run.log", ".lock"])
def test_a_hard_link_in_a_run_is_not_written_through(inside, whole, tmp_path, name):
    out, theirs = tmp_path / "run", tmp_path / "theirs"
    shutil.copytree(whole[0], out)
    (out / name).unlink(missing_ok=True)
    theirs.write_text("{}\n")
    (out / name).hardlink_to(theirs)
    done = inside("train", "--resume", out, "--steps", 5)
    told(done, 2)
    assert f"{out / name} is a hard link" in done.stderr and f"mv {out / name}.own" in done.stderr
    assert theirs.read_text() == "{}\n"
    assert inside("report", out, "--out", tmp_path / "page.html").returncode == 0, "it can still be read"


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize("trouble", ["full", "a file in the way"])
def test_a_cache_that_cannot_hold_the_warm_start(inside, model, tokenizer, tmp_path, monkeypatch, trouble):
    """The training of the warm start is left out; what is written, and where, is real."""
    cache, out = tmp_path / "cache", tmp_path / "run"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    made = []

    def pretrain(*_):
        made.append(True)
        return model, 1, 0.3

    monkeypatch.setattr(quickstart, "pretrain", pretrain)
    if trouble == "full":
        with no_room(100_000):
            done = inside("train", "quickstart", "--steps", 1, "--out", out)
        assert list((cache / "microrl").iterdir()) == []
    else:
        cache.write_text("")
        done = inside("train", "quickstart", "--steps", 1, "--out", out)
        assert not made, "it is said before twenty seconds are spent"
    lines = told(done, 1)
    assert str(cache) in lines[0] and "XDG_CACHE_HOME" in lines[1] and not out.exists()


@pytest.mark.parametrize(("high", "best", "warned"), [(-0.05, 3, True), (0.05, 3, False), (-0.05, None, False), (-0.05, 0, True)])
def test_a_run_that_made_the_model_worse_names_its_best_checkpoint(tmp_path, capsys, high, best, warned):
    make(tmp_path / "run")
    side = {"accuracy": 0.3, "ci95": [0.2, 0.4], "questions": 64, "pass@8": {"mean": 0.5}}
    summary = {
        "status": "done", "steps": 20, "hours_spent": 0.1, "cost_usd": 0.0, "sft": None, "trainable_params": 8192,
        "best": None if best is None else {"step": best, "accuracy": 0.6},
        "eval": {"before": side, "after": side, "paired_gain": {"mean": -0.1, "ci95": [-0.2, high]}},
    }  # fmt: skip
    report(summary, tmp_path / "run")
    said = capsys.readouterr().err
    assert (f"{tmp_path / 'run' / 'best'} is from step 3, with validation accuracy 0.600" in said) == (warned and best == 3)
    assert ("microrl export" in said) == (warned and best == 3), "the untouched model need not be exported"
    assert ("worse than the untouched one" in said) == warned
    assert ("try it" in said) == (high > 0)
