"""What hangs is named and ended, and nothing else is: the thread that watches a run, alone and in whole runs."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import processes
import pytest
from failing_runs import script, started_anew, survived
from whole_runs import rows

from microrl import clock
from microrl.run import follow, heartbeat
from microrl.run.heartbeat import EVERY_S, SILENT_S, Heartbeat, kind_of

ADAPTER = "final/adapter_model.safetensors"


class Watched(Heartbeat):
    """Looks when it is told to, on a clock of its own, and only notes that it would end the process."""

    def __init__(self, folder, monkeypatch, **more):
        self.now, self.busy, self.elapsed, self.hangs, self.said = 0.0, 0.0, 0.0, [], []
        monkeypatch.setattr(clock, "awake_s", lambda: self.now)
        monkeypatch.setattr(clock, "processor_s", lambda: self.busy)
        super().__init__(folder, lambda: self.elapsed, **more)
        self.on_silence = lambda doing, seconds: self.said.append((doing, seconds))
        self._native_id = 0

    def _end(self, is_overdue, longest_s):
        self.hangs.append((self._doing, is_overdue))

    def passes(self, seconds, *, looks_s=EVERY_S, busy=0.0):
        """Let so much time pass without a finished piece of work; returns how much until it would have ended the process."""
        began = self.now
        while not self.hangs and self.now - began < seconds:
            self.now += looks_s
            self.elapsed += looks_s
            self.busy += busy * looks_s
            self._look()
            self._beat()
        return self.now - began

    def finishes(self, seconds):
        """A piece of work that takes so long."""
        self.passes(seconds)
        self.worked()
        self.passes(EVERY_S)


@pytest.fixture
def watched(tmp_path, monkeypatch):
    return lambda **more: Watched(tmp_path, monkeypatch, **more)


def test_silence_has_ten_times_the_longest_piece_of_its_kind(watched, tmp_path):
    run = watched()
    run.begin("step 1: sampling: 0/4 groups")
    run.finishes(30.0)
    run.begin("step 2: sampling: 3/4 groups")
    run.passes(EVERY_S)
    assert run.passes(1000.0) == pytest.approx(300.0, abs=2 * EVERY_S) and run.hangs == [("step 2: sampling: 3/4 groups", False)]
    assert run.said[0][1] == pytest.approx(75.0, abs=2 * EVERY_S), "it is reported before"
    assert heartbeat.read(tmp_path).silent_s == pytest.approx(300.0, abs=2 * EVERY_S)
    short = watched()
    short.begin("step 1: update")
    short.finishes(0.0)
    assert short.passes(1000.0) == pytest.approx(SILENT_S, abs=2 * EVERY_S)


@pytest.mark.slow
def test_the_first_piece_of_its_kind_has_longer_and_ten_times_the_plan(watched):
    run = watched()
    run.begin("loading m")
    assert run.passes(10_000.0) == pytest.approx(5 * SILENT_S, abs=2 * EVERY_S)
    run = watched()
    run.begin("step 1: sampling")
    run.forecast_s = 100.0
    assert run.passes(10_000.0) == pytest.approx(1000.0, abs=2 * EVERY_S)
    run = watched()
    run.begin("loading m")
    assert run.passes(4 * 5 * SILENT_S, busy=1.0) >= 4 * 5 * SILENT_S and not run.hangs, "it computes"


def test_once_the_budget_is_used_up_a_hang_ends_within_one_per_cent(watched):
    run = watched(budget_s=1000.0)
    run.begin("step 1: update")
    run.finishes(0.0)
    run.elapsed = 900.0
    run.begin("step 2: update")
    run.passes(EVERY_S)
    run.passes(1000.0)
    assert 1000 < run.elapsed <= 1010 and run.hangs == [("step 2: update", True)]


def test_work_that_only_overruns_its_budget_is_not_ended(watched):
    run = watched(budget_s=100.0)
    run.begin("after training: 0/64 problems")
    for _ in range(50):
        run.finishes(6.0)
    assert run.elapsed > 300 and not run.hangs


@pytest.mark.slow
@pytest.mark.one_of_each
def test_suspended_starved_and_waiting_for_a_disk_is_no_silence(watched, monkeypatch):
    run = watched()
    run.begin("step 1: update")
    run.finishes(0.0)
    assert run.passes(20 * 3600.0, looks_s=3600.0) == 20 * 3600.0 and not run.hangs, "it was stopped, or got no processor"
    monkeypatch.setattr(Watched, "_waits_for_a_disk", lambda self: True)
    run.worked()
    assert run.passes(3600.0) >= 3600.0 and not run.hangs, "the machine swaps"


def test_work_that_goes_on_takes_the_report_back(watched):
    run = watched()
    run.begin("step 1: update")
    run.finishes(0.0)
    run.finishes(60.0)
    assert run.said[0][0] == "step 1: update" and run.said[-1] == ("", 0.0) and not run.hangs


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("step 12: sampling: 3/8 groups, 310 tokens/s", "step: sampling"),
        ("step 9: sampling", "step: sampling"),
        ("SFT: step 3/20, loss 1.2, 15 % done, 0:00:40 to go", "SFT: step"),
        ("before training: 0/64 problems", "before training"),
        ("saving a checkpoint", "saving a checkpoint"),
    ],
)
def test_kinds_of_work(status, kind):
    assert kind_of(status) == kind


STUCK = """\
import sys, time
from pathlib import Path
from microrl.run import heartbeat
heartbeat.EVERY_S, heartbeat.SILENT_S, heartbeat.ENDING_S = 0.02, 0.2, 0.5
def report(hang):
    Path(sys.argv[1], "said").write_text(hang.doing + hang.stack)
    time.sleep(1000)  # a terminal that nobody reads
def stuck():
    time.sleep(1000)
beating = heartbeat.Heartbeat(Path(sys.argv[1]), lambda: 1.0, on_hang=report)
with beating:
    beating.begin("step 3: update")
    beating.worked()
    stuck()
"""


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_process_that_is_stuck_ends_even_if_it_cannot_say_so(tmp_path):
    began = time.monotonic()
    done = processes.run([sys.executable, "-c", STUCK, tmp_path], timeout=100)
    assert done.returncode == 1 and time.monotonic() - began < 60
    said = (tmp_path / "said").read_text()
    assert said.startswith("step 3: update") and "in stuck" in said
    beat = heartbeat.read(tmp_path)
    assert beat.doing == "step 3: update" and beat.silent_s >= 0.2


def test_watch_says_what_hangs_and_for_how_long(inside, tmp_path, monkeypatch):
    from made_run import make

    folder = make(tmp_path / "run", steps=6)
    (folder / "summary.json").unlink()
    beat = {"elapsed_s": 200.0, "doing": "step 7: sampling: 0/4 groups", "silent_s": 130.0}
    (folder / "heartbeat.json").write_text(json.dumps(beat))
    monkeypatch.setattr(follow, "ALIVE_S", 0.0)
    said = inside("watch", folder).stderr
    assert "no progress for 0:02:10 at `step 7: sampling: 0/4 groups`" in said, said
    assert "when there had been no progress for 0:02:10 at `step 7: sampling: 0/4 groups`" in said
    assert "to go" not in said


# ---- whole runs

HANGING = """\
import sys, time
from microrl.cli import main, target
at, limits = int(sys.argv.pop(1)), eval(sys.argv.pop(1))
prepare = target.prepare_hub
def prepared(*arguments, **named):
    from microrl.rollout import transformers
    from microrl.run import heartbeat
    real = transformers._Sampler.groups
    def groups(self, prompts, sampling, *, stream, **more):
        if len(stream) == 3 and stream[1] == at:  # of training, not of an evaluation
            vars(heartbeat).update(limits)
            time.sleep(10_000)
        yield from real(self, prompts, sampling, stream=stream, **more)
    transformers._Sampler.groups = groups
    return prepare(*arguments, **named)
target.prepare_hub = prepared
main()
"""


def hanging(at, limits, *arguments):
    return processes.run([sys.executable, "-c", HANGING, at, limits, *arguments], timeout=600, env={"OMP_NUM_THREADS": "1"})


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_step_that_hangs_ends_the_run_which_resumes_bit_for_bit(microrl, tiny_arguments, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "hung"
    arguments = [*tiny_arguments, "--steps", 4, "--set", "reward.overlong.buffer=11", "--set", "optim.lr=0.002"]
    assert microrl("train", *arguments, "--out", whole).returncode == 0
    done = hanging(2, {"SILENT_S": 1.0, "FACTOR": 0.0}, "train", *arguments, "--out", out)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "error: the run hung: no progress for 0:00:0" in done.stderr and "at `step 3: sampling" in done.stderr
    assert f"microrl train --resume {out}" in done.stderr
    assert "in groups" in (out / "crash.log").read_text()
    assert "at `step 3: sampling" in (out / "run.log").read_text()
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["kind"] == "failed" and event["stack"]] == [2]
    assert json.loads((out / "summary.json").read_text())["status"] == "failed"
    assert microrl("train", "--resume", out).returncode == 0
    assert rows(out, times=False) == rows(whole, times=False)
    assert (out / ADAPTER).read_bytes() == (whole / ADAPTER).read_bytes()


@pytest.mark.slow
def test_a_step_that_hangs_keeps_its_hours(tiny_arguments, tmp_path):
    """The process's own clock says when it ended, and the processor time of a busy machine changes nothing in it."""
    out, budget_s = tmp_path / "hung", 90.0
    done = hanging(2, {}, "train", *tiny_arguments, "--hours", budget_s / 3600, "--out", out)
    assert done.returncode == 1 and "at `step 3: sampling" in done.stderr and "time is up" in done.stderr, done.stderr
    assert 0.97 * budget_s <= heartbeat.last_s(out) <= 1.01 * budget_s + EVERY_S


@pytest.mark.slow
def test_a_hang_is_resumed_once(tiny_arguments, tmp_path):
    hang = {"at": "sampling", "hang": True}
    (tmp_path / "once").mkdir()
    done, out = script(tmp_path / "once", [hang], *tiny_arguments, run=started_anew)
    assert survived(done, out) == [("hanging", "restart")]
    assert "at `step 1: sampling" in done.stderr and "continuing in a new process" in done.stderr
    done, out = script(tmp_path, [hang, hang], *tiny_arguments, run=started_anew)
    assert done.returncode == 1 and done.stderr.count("engine fallback") == 1, done.stderr
    assert "error: the run hung: " in done.stderr and f"resume the run: microrl train --resume {out}" in done.stderr


@pytest.mark.slow
def test_stopped_and_continued_it_goes_on(tmp_path):
    """A real process that is stopped for longer than its limit is not ended when it continues."""
    code = STUCK.replace("    stuck()\n", "    print('up', flush=True); time.sleep(0.15); print('done', flush=True)\n")
    code = code.replace("0.02, 0.2, 0.5", "0.05, 3.0, 0.5")  # a busy machine may keep a process waiting for half a second
    assert code.count("done") == 1 and Path(sys.executable).exists()
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"
    os.kill(process.pid, 19)
    time.sleep(4)
    os.kill(process.pid, 18)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and out == "done\n"


def test_what_to_do_depends_on_whose_code_hangs():
    def hang(path):
        return heartbeat.Hang("update", 120.0, False, f'  File "{path}", line 3, in wait\n    time.sleep(9)\n')

    assert hang("/home/me/mine.py").innermost_call() == "; stuck at /home/me/mine.py:3, in wait(): `time.sleep(9)`"
    assert hang("/home/me/mine.py").foreign_file() == "/home/me/mine.py"
    for library in (heartbeat.__file__, pytest.__file__, subprocess.__file__):
        assert hang(library).foreign_file() is None
