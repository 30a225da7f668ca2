"""What a console shows of a run: at any width, whatever a model has written, with a terminal and without."""

import io
import json
import math
import os
import threading
import time

import pytest
from made_run import HOSTILE, make
from rich.console import Console

from microrl.run import follow
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.run.view import Seen, sparkline


@pytest.fixture
def rows(tmp_path):
    make(tmp_path / "made", steps=120, kept=[])
    return [json.loads(line) for line in (tmp_path / "made" / "metrics.jsonl").read_text().splitlines()]


def drawn(seen, width, *, encoding="utf-8"):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    console = Console(file=stream, width=width, force_terminal=True, color_system=None)
    console.print(seen)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [20, 40, 41, 79, 80, 200])
def test_the_panel_fits(rows, width):
    seen = Seen("a run with a name that is longer than forty columns are wide", total=120)
    for row in rows[:60]:
        seen.add(row)
    seen.completion, seen.guard = "says " * 100, "entropy: it fell"
    text = drawn(seen, width)
    assert max(map(len, text.splitlines())) <= max(width, 40 if width < 40 else width)
    for name in ("step 60/120", "reward", "entropy", "to go", "phases", "budget", "guard", "memory", "useful groups"):
        assert name in text, name


def test_no_text_steers_the_terminal(rows):
    for hostile in HOSTILE:
        seen = Seen(hostile[:300], status=hostile[:300], completion=hostile, guard=hostile[:300])
        seen.add(rows[0])
        text = drawn(seen, 80)
        assert not set(text) & set("\x1b\x07\x9b\x00\x08\u202e\u2066"), repr(hostile[:40])


def test_without_unicode_there_are_plain_bars(rows):
    seen = Seen("run", total=120)
    for row in rows[:10]:
        seen.add(row)
    text = drawn(seen, 80, encoding="ascii")
    assert "phases" in text and "#" in text


def test_trends():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 20) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0] * 5, 3) == "▁▁▁" and sparkline([None, None], 5) == "-" and sparkline([None, 2.0, 1.0], 5) == "█▁"


def test_what_is_left_is_the_nearer_of_time_and_steps(rows):
    seen = Seen("run", total=20)
    seen.add(rows[0] | {"time/step": 10.0, "budget/left_s": 50.0})
    assert seen.left_s() == 50.0
    seen.add(rows[9] | {"time/step": 2.0, "budget/left_s": None, "step": 9})
    assert seen.left_s() == pytest.approx(10 * 6.0)


def test_without_a_terminal_there_are_about_twenty_lines(rows, capsys):
    logged = []
    with RunConsole(total_steps=120, log=logged.append) as console:
        for row in rows:
            console.step(row, progress=(row["step"] + 1) / 120)
    shown = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step ")]
    assert 15 <= len(shown) <= 25 and shown[0].startswith("step 1/120") and shown[-1].startswith("step 120/120")
    assert sum(line.startswith("step ") for line in logged) == 120, "all of them are in the log"


def test_a_long_step_is_shown_whatever_it_spends(rows, capsys, monkeypatch):
    from microrl.run import console as module

    now = [0.0]
    monkeypatch.setattr(module, "now_s", lambda: now[0])
    with RunConsole() as console:
        for row in rows[:10]:
            now[0] += 301.0
            console.step(row, progress=0.001)
    assert len([line for line in capsys.readouterr().err.splitlines() if line.startswith("step ")]) == 10


# ---- microrl watch


def test_a_finished_run_is_shown_at_once(inside, tmp_path):
    make(tmp_path / "run", steps=120)
    done = inside("watch", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "step 1/120" in done.stderr and "step 120/120" in done.stderr
    *_, status, measured, said = done.stderr.splitlines()
    assert status.endswith(": done") and "Paired gain +" in measured and said.endswith("in this run, training helped.")


def test_a_run_is_followed_to_its_end(tmp_path):
    folder = make(tmp_path / "run", steps=6)
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    summary = (folder / "summary.json").read_bytes()
    (folder / "summary.json").unlink()
    (folder / "heartbeat.json").write_text("{}")
    (folder / "metrics.jsonl").write_bytes(lines[0] + lines[1][:30])
    looks = follow.steps(folder, looks_s=0.01)
    assert [row["step"] for row in next(looks)[0]] == [0]
    assert next(looks) == ([], []), "half a line is no line"
    (folder / "metrics.jsonl").write_bytes(b"".join(lines[:3]))
    assert [row["step"] for row in next(looks)[0]] == [1, 2]
    (folder / "metrics.jsonl").write_bytes(b"".join(lines[:2]))  # the run has gone back to a checkpoint
    assert [row["step"] for row in next(looks)[0]] == [0, 1]

    def end():
        time.sleep(0.1)
        with (folder / "metrics.jsonl").open("ab") as file:  # as a run does: a file that is rewritten is empty for a moment
            file.write(b"".join(lines[2:]))
        (folder / "summary.json").write_bytes(summary)

    thread = threading.Thread(target=end)
    thread.start()
    rest = [row["step"] for rows, _ in looks for row in rows]
    thread.join()
    assert rest == [2, 3, 4, 5]


def test_a_resumed_run_is_waited_for_while_it_loads(tmp_path):
    folder = make(tmp_path / "run", steps=3)
    old = time.time() - 3600
    for name in ("summary.json", "config.json"):
        os.utime(folder / name, (old, old))
    assert follow.is_over(folder)
    resumed = RunFolder(folder)
    resumed.lock()
    looks = follow.steps(folder, looks_s=0.01)
    assert len(next(looks)[0]) == 3 and next(looks) == ([], [])
    (folder / "summary.json").write_text("{}")
    assert list(looks) == [([], [])]


def test_a_line_of_any_length_stops_nothing(tmp_path, rows):
    path = tmp_path / "made" / "metrics.jsonl"
    path.write_text("".join([json.dumps(rows[0]) + "\n", "x" * (2**24 + 5) + "\n", json.dumps(rows[1]) + "\n"]))
    lines = follow.JsonlReader(path)
    assert [row["step"] for row in (*lines.new(), *lines.new())] == [0, 1]


@pytest.mark.parametrize("value", [math.nan, math.inf, "x", True, 10**400])
def test_a_row_that_the_panel_could_not_draw_is_no_row(rows, value):
    assert follow.is_row(rows[0]) and not follow.is_row(rows[0] | {"reward/mean": value})
    assert not follow.is_row(rows[0] | {"budget/elapsed_s": None}) and follow.is_row(rows[0] | {"sync/probe_gap": None})


def test_a_dead_run_is_not_waited_for(inside, tmp_path, monkeypatch):
    folder = make(tmp_path / "run", steps=6)
    (folder / "summary.json").unlink()
    monkeypatch.setattr(follow, "ALIVE_S", 0.0)
    done = inside("watch", folder)
    assert done.returncode == 0 and "still" not in done.stderr
    assert "what went wrong: killed: the run's process ended after 6 finished steps, without an error" in done.stderr


def test_rows_of_a_version_without_a_metric_are_shown(inside, tmp_path):
    folder = make(tmp_path / "run", steps=2)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        del row["groups/useful"], row["validate/accuracy"]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = inside("watch", folder)
    assert done.returncode == 0 and "step 2/" in done.stderr and "useful groups - " in done.stderr, done.stderr


def test_rows_of_another_version_are_left_out(tmp_path):
    assert not follow.is_row({"step": 1}) and not follow.is_row({})
    folder = make(tmp_path / "run", steps=2)
    row = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    assert follow.is_row(row) and not follow.is_row(row | {"reward/mean": "x"})
    assert follow.completion(folder, 0).startswith("<think>") and follow.completion(folder, 99) == ""


# ---- waiting


def test_the_panel_and_its_times_are_there_before_the_first_step():
    elapsed = [10.0]
    seen = Seen("run", status="loading m", elapsed_s=lambda: elapsed[0], budget_s=126.0)
    for elapsed[0] in (0.0, 10.0, 63.0):
        text = drawn(seen, 80)
        assert f"elapsed 0:0{int(elapsed[0]) // 60}:{elapsed[0] % 60:02.0f}" in text and "loading m" in text and "budget" in text
        assert f"to go 0:0{(126 - int(elapsed[0])) // 60}:{(126 - int(elapsed[0])) % 60:02d}" in text
    assert "50%" in text
    seen.hangs = "no progress for 0:00:50 in `loading m`"
    text = drawn(seen, 80)
    assert "to go -" in text and "no progress for 0:00:50 in `loading m`" in text, "no time is promised"


def test_without_hours_the_expected_end_counts_down_and_what_follows_the_steps_is_in_it(rows):
    elapsed = [30.0]
    seen = Seen("run", elapsed_s=lambda: elapsed[0], total=10)
    assert seen.left_s() is None and drawn(seen, 80)
    seen.expected_s = 100.0
    assert seen.left_s() == 70.0
    seen.add(rows[0] | {"time/step": 2.0, "budget/left_s": None, "step": 3, "budget/elapsed_s": 40.0})
    seen.rest_s, elapsed[0] = 15.0, 41.0
    assert seen.left_s() == 6 * 2.0 + 15.0 - 1.0


@pytest.fixture
def waiting(monkeypatch, capsys):
    """A console of a run on a clock of its own, what it has told the heartbeat, and what it printed."""
    from microrl.run import console as module

    now, begun = [0.0], []
    monkeypatch.setattr(module, "now_s", lambda: now[0])
    console = RunConsole(budget_s=600.0, elapsed_s=lambda: now[0], on_status=begun.append)
    return console, now, begun, lambda: capsys.readouterr().err.splitlines()


def test_each_stage_has_a_line_at_once_and_fewer_the_longer_it_lasts(waiting):
    console, now, _, said = waiting
    console.status("reading the data")
    now[0] = 0.1
    console.status("loading m")
    assert said() == [
        "reading the data  (0:00:00 elapsed, about 0:10:00 to go)", "loading m  (0:00:00 elapsed, about 0:10:00 to go)",
    ]  # fmt: skip
    for step in range(300):
        now[0] += 1.0
        console.count(step, 300, "pretraining", " steps")
    lines = said()
    assert 5 <= len(lines) <= 16 and lines[-1].startswith("pretraining: "), lines
    assert "pretraining: 3/300 steps  (" in lines[1], "the pace of three is none"
    assert all(" to go  (" in line for line in lines[4:])


def test_the_first_of_many_that_are_worked_on_at_once_tell_no_pace(waiting):
    """Of 64 questions that are all decoded together, one is answered after a minute, and the rest soon after it."""
    console, now, begun, _ = waiting
    console.count(0, 64, "before", at_once=16)
    for now[0], done in ((60.0, 1), (70.0, 15), (80.0, 16), (90.0, 64)):
        console.count(done, 64, "before", at_once=16)
    assert begun == ["before: 0/64", "before: 1/64", "before: 15/64", "before: 16/64, 0:04:00 to go", "before: 64/64"]


def test_a_checkpoint_between_two_steps_does_not_stay_on_the_screen(waiting):
    console, now, begun, said = waiting
    console.status("SFT: step 3/20")
    with console.doing("saving a checkpoint"):
        now[0] += 0.1
        assert console._seen.status == "saving a checkpoint"
    assert console._seen.status == "SFT: step 3/20" and begun[-1] == "SFT: step 3/20"
    assert sum("saving" in line for line in said()) == 1
    for _ in range(20):
        now[0] += 3.0
        console.status("SFT: step 4/20")
        with console.doing("saving a checkpoint"):
            now[0] += 0.1
    lines = said()
    assert lines and not any("saving" in line for line in lines)


@pytest.mark.slow
def test_the_sft_phase_says_so_in_each_of_its_steps(inside, wares, tmp_path, monkeypatch):
    from microrl.policy import sft

    shown, step, made = [], sft.sft_step, []
    begin = RunConsole.__enter__

    def entered(self):
        made.append(self)
        return begin(self)

    def seen(*arguments, **named):
        shown.append(made[-1]._seen.status)
        return step(*arguments, **named)

    monkeypatch.setattr(RunConsole, "__enter__", entered)
    monkeypatch.setattr(sft, "sft_step", seen)
    done = inside("train", wares / "preset.toml", "--steps", 1, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert [text.split(",")[0] for text in shown] == ["SFT: step 1/2", "SFT: step 2/2"]
    assert "to go" in shown[1] and "before training: 0/2 problems  (" in done.stderr


@pytest.mark.slow
def test_a_terminal_has_the_panel_while_a_run_loads(tiny_arguments, tmp_path):
    """A real terminal, whatever is drawn in it before the first step."""
    import pty
    import subprocess
    import sys

    master, slave = pty.openpty()
    command = [sys.executable, "-m", "microrl", "train", *tiny_arguments, "--steps", 2, "--out", tmp_path / "run"]
    process = subprocess.Popen(
        [*map(str, command)], stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "COLUMNS": "100"}
    )
    os.close(slave)
    text = b""
    try:
        while block := os.read(master, 65536):
            text += block
    except OSError:  # the other end is closed
        pass
    assert process.wait() == 0
    before = text.decode(errors="replace").partition("reward")[0]
    assert "elapsed" in before and "to go" in before and "budget" in before


# ---- what is shown of a step


def test_own_parts_and_validation_are_shown_and_cost_only_where_there_is_a_price(rows):
    from microrl.run.view import numbers, plain_line

    seen = Seen("run", total=120)
    for row in rows[:60]:
        seen.add(row | {"reward/part/brevity": 0.25, "reward/part/\x1b[2Jx": None})
    text, line = drawn(seen, 100), plain_line(seen.rows[-1], 120)
    assert "brevity 0.250" in text and "brevity 0.250" in line and "\x1b" not in line + text
    assert len(seen.trends["validate/accuracy"]) == 6, "a validation every ten steps"
    assert "validation " in text and "cost $0.06" in text and line.endswith("$0.06")
    limited, unlimited = (plain_line(rows[5] | {"budget/left_s": left_s}, 120) for left_s in (169.0, None))
    assert " elapsed, limit in 0:02:49" in limited and "limit in" not in unlimited
    free = rows[5] | {"budget/cost_usd": 0.0}
    assert "$" not in plain_line(free, 120) and "cost" not in dict(numbers(free, seen))
    assert not follow.is_row(rows[0] | {"reward/part/x": "text"}) and follow.is_row(rows[0] | {"reward/part/x": None})
