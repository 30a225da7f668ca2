"""`microrl track`: metrics go to a tracker from a process of its own, and nothing that happens to it reaches training."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from command_line import in_process
from made_run import make

from microrl.commands import track
from microrl.run import follow, tracking
from microrl.run.metrics import METRICS

STEPS = 7


@pytest.fixture(autouse=True)
def niced(monkeypatch):
    """What a tracker in this process would have lowered its priority by: the tests after it are to keep theirs."""
    steps: list[int] = []
    monkeypatch.setattr(os, "nice", steps.append)
    return steps


@pytest.fixture
def run(tmp_path):
    return make(tmp_path / "made", steps=STEPS, kept=[])


def ended(run, seconds=600):
    """The run has been over for so long that nobody takes it for one in progress."""
    for name in ("config.json", "summary.json"):
        os.utime(run / name, (time.time() - seconds,) * 2)
    return run


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def numbers(row):
    return {name: value for name, value in row.items() if name != "step" and value is not None}


def history(path):
    """What wandb has written of each step: protobuf records in LevelDB's log format, in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    content, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 2**15 - at % 2**15 < 7:
            at += 2**15 - at % 2**15
            continue
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        whole += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last of its parts
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            if record.WhichOneof("record_type") == "history":
                yield record.history.item


# ---- the trackers themselves


def test_tensorboard_gets_every_number(inside, run, niced):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):  # the second time replaces the first
        done = inside("track", run, "--to", "tensorboard")
        assert done.returncode == 0 and f"sent {STEPS} steps" in done.stderr, done.stderr
    assert niced == [track.NICENESS] * 2
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    expected = rows(run)
    assert set(events.Tags()["scalars"]) == {name for row in expected for name in numbers(row)} <= set(METRICS)
    for name in ("reward/mean", "validate/accuracy"):
        values = [(row["step"], pytest.approx(row[name])) for row in expected if row[name] is not None]
        assert [(event.step, event.value) for event in events.Scalars(name)] == values


@pytest.mark.slow
@pytest.mark.one_of_each
def test_wandb_gets_every_number(microrl, run, tmp_path):
    pytest.importorskip("wandb")
    done = microrl("track", run, "--to", "wandb", cwd=tmp_path, WANDB_MODE="offline", WANDB_SILENT="true")
    assert done.returncode == 0 and f"sent {STEPS} steps" in done.stderr, done.stderr
    (path,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    found = [{"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items} for items in history(path)]
    assert [{name: line[name] for name in numbers(row)} for line, row in zip(found, rows(run), strict=True)] == [
        numbers(row) for row in rows(run)
    ]


@pytest.mark.slow
@pytest.mark.one_of_each
def test_trackio_gets_every_number(microrl, run, tmp_path):
    pytest.importorskip("trackio")
    done = microrl("track", run, "--to", "trackio", "--project", "mine", cwd=tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"))
    assert done.returncode == 0 and f"sent {STEPS} steps" in done.stderr, done.stderr
    (path,) = (tmp_path / "trackio").glob("mine*.db")
    with sqlite3.connect(path) as database:
        found = [(step, json.loads(text)) for step, text in database.execute("SELECT step, metrics FROM metrics ORDER BY step")]
    assert [(step, {name: line[name] for name in numbers(row)}) for (step, line), row in zip(found, rows(run), strict=True)] == [
        (row["step"], numbers(row)) for row in rows(run)
    ]


@pytest.mark.slow
def test_no_torch(run):
    pytest.importorskip("tensorboard")
    code = (
        "import sys\nfrom microrl.cli import app\n"
        f"app(['track', {str(run)!r}, '--to', 'tensorboard'], standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'datasets', 'vllm', 'matplotlib'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# ---- following


class Recorder:
    """A tracker that remembers."""

    def __init__(self, history, project):
        self.steps, self.summary, self.name = [], None, history.name
        Recorder.last = self

    def log(self, step, seconds, metrics):
        self.steps.append(step)

    def finish(self, summary):
        self.summary = summary


@pytest.fixture
def recorder(monkeypatch):
    monkeypatch.setattr(track, "TRACKERS", {"wandb": Recorder})
    monkeypatch.setattr(track, "LOOKS_S", 0.01)
    monkeypatch.setattr(os, "nice", lambda by: 0)
    return Recorder


def test_a_run_in_progress_is_followed_to_its_end(recorder, run, monkeypatch):
    text, summary = (run / "metrics.jsonl").read_text(), (run / "summary.json").read_text()
    whole = text.splitlines(keepends=True)
    (run / "summary.json").unlink()
    (run / "metrics.jsonl").write_text("".join(whole[:3]) + whole[3][:20])
    looks = iter([
        lambda: (run / "metrics.jsonl").write_text("".join(whole[:5])),
        lambda: (run / "metrics.jsonl").write_text("".join(whole[:2])),  # killed, and resumed from a checkpoint
        lambda: (run / "metrics.jsonl").write_text(text),
        lambda: (run / "summary.json").write_text(summary),
    ])  # fmt: skip
    monkeypatch.setattr(follow.time, "sleep", lambda seconds: next(looks)())
    assert track.track(track.RunFolder.open(run), "wandb", "microrl", print) == STEPS
    assert recorder.last.steps == list(range(STEPS)) and recorder.last.summary["status"] == "done"


def test_a_run_has_a_name_of_its_own_for_ever(run, tmp_path):
    from microrl.report.history import History

    name = track._identity(History.load(run))
    (run / "environment.json").write_text("{}")
    other = make(tmp_path / "other" / "made", steps=STEPS, kept=[])
    assert track._identity(History.load(run)) == name != track._identity(History.load(other))


def test_a_run_that_is_refused_makes_no_page(recorder, tmp_path):
    folder = make(tmp_path / "made", steps=1, kept=[])
    (folder / "metrics.jsonl").unlink()
    recorder.last = None
    assert track.track(track.RunFolder.open(folder), "wandb", "microrl", print) == 0 and recorder.last is None


def test_two_processes_do_not_send_the_same_run(recorder, run):
    code = (
        f"import fcntl, sys, time\nfile = open({str(run / tracking.log_name('wandb'))!r}, 'ab')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX)\nprint('locked', flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout.readline() == b"locked\n"
            with pytest.raises(track.UserError, match="another process is sending"):
                track.track(track.RunFolder.open(run), "wandb", "microrl", print)
        finally:
            other.kill()


def test_bad_input(inside, run, tmp_path, monkeypatch):
    assert "tensorboard" in inside("track", run, "--to", "tensorbord").stderr
    assert inside("track", tmp_path, "--to", "wandb").returncode == 2
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None)
    done = inside("track", run, "--to", "trackio")
    assert done.returncode == 2 and "pip install trackio" in done.stderr
    done = inside("train", "quickstart", "--steps", 1, "--track", "wandb", "--out", tmp_path / "new")
    assert done.returncode == 2 and "wandb is not installed" in done.stderr and not (tmp_path / "new").exists()


# ---- beside training

BROKEN = {
    "raises at import": "raise RuntimeError('no wandb today')",
    "raises at start": "def init(**keys): raise RuntimeError('not logged in')",
    "raises at a step": "class Run:\n    def log(self, *a, **k): raise OSError(28, 'full')\ndef init(**keys): return Run()",
    "hangs": "import time\ndef init(**keys): time.sleep(600)",
    "is killed": "import os, signal\ndef init(**keys): os.kill(os.getpid(), signal.SIGKILL)",
    "says too much": "import sys\ndef init(**keys):\n    sys.stderr.write('x' * 10**7); raise SystemExit(3)",
}  # fmt: skip


@pytest.fixture(scope="module")
def untracked(tiny_arguments, tmp_path_factory):

    out = tmp_path_factory.mktemp("untracked") / "run"
    done = in_process("train", *tiny_arguments, "--steps", 3, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [pytest.param(how, marks=[pytest.mark.one_of_each] if how == "is killed" else []) for how in BROKEN],
)
def test_a_broken_tracker_changes_nothing(how, inside, tiny_arguments, untracked, tmp_path, monkeypatch):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "wandb.py").write_text(f"{BROKEN[how]}\nSettings = dict")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "broken"), *filter(None, sys.path)]))
    monkeypatch.syspath_prepend(tmp_path / "broken")
    started, start = [], tracking.start

    def kept(folder, tracker):
        started.append(start(folder, tracker))
        return started[-1]

    monkeypatch.setattr(tracking, "start", kept)
    out = tmp_path / "run"
    done = inside("train", *tiny_arguments, "--steps", 3, "--out", out, "--track", "wandb")
    try:
        assert done.returncode == 0, done.stderr
        same = [{name: value for name, value in row.items() if not name.startswith(("time/", "budget/", "memory/", "tokens/per"))}
                for row in (*rows(untracked), *rows(out))]  # fmt: skip
        assert same[:3] == same[3:]
        assert json.loads((out / "summary.json").read_text())["status"] == "done"
        if how != "hangs":
            assert started[0].wait(60) != 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started[0].pid, signal.SIGKILL)
        started[0].wait()


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_tracker_that_hangs_is_given_up(run, tmp_path):
    (tmp_path / "wandb.py").write_text(BROKEN["hangs"] + "\nSettings = dict")
    code = (
        "import sys\nfrom microrl.commands import track\ntrack.HANGS_S = 1.0\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        f"track.track(track.RunFolder.open(track.follow.Path({str(run)!r})), 'wandb', 'microrl', print)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "Timeout" in done.stderr


@pytest.mark.slow
@pytest.mark.one_of_each
def test_training_sends_its_metrics_and_a_resumed_run_the_rest(microrl, tiny_arguments, tmp_path):
    pytest.importorskip("tensorboard")
    out = tmp_path / "run"
    log = out / tracking.log_name("tensorboard")
    for steps, arguments in ((2, [*tiny_arguments, "--out", out, "--track", "tensorboard"]), (3, ["--resume", out])):
        done = microrl("train", *arguments, "--steps", steps)
        assert done.returncode == 0, done.stderr
        deadline = time.monotonic() + 60
        while f"sent {steps} steps" not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert f"sent {steps} steps to tensorboard" in log.read_text()
