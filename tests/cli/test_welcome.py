"""What a newcomer sees: bare `microrl`, the guide in a terminal, a command by its former name, no warnings of others."""

import json
import os
import pty
import subprocess
import sys
import termios
from contextlib import suppress

import made_run
import pytest

from microrl.cli import welcome


def test_six_lines_say_what_to_type(tmp_path):
    program = (
        "import sys; from microrl.cli import app; app([], standalone_mode=False)\n"
        "assert not {'torch', 'transformers', 'datasets'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    about, *begin, machine, newest = done.stdout.splitlines()
    assert done.returncode == 0 and "RL with verifiable rewards" in about, done.stderr
    assert [line.split("  ")[1].strip() for line in begin] == [command for command, _ in welcome.BEGIN] and len(begin) == 3
    assert machine.startswith("This machine: ") and " core" in machine
    assert newest == "Newest run: none in runs/ yet; begin with the quickstart"


def test_no_time_is_lost_to_full_collections_while_a_command_starts():
    """As many objects are made as by importing torch and transformers, and stay; Python itself would look through all of them
    every time that they have grown by a quarter."""
    program = (
        "import gc\n"
        "from microrl import cli\n"
        "cli.app = lambda **_: [[] for _ in range(600_000)]\n"
        "full = lambda phase, info: phase == 'stop' and info['generation'] == 2 and print('full', flush=True)\n"
        "gc.callbacks.append(full)\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() in ([], ["full"])


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        ({}, "accuracy 0.25 -> 0.50, gain +0.25 [+0.20, +0.30]: microrl report, microrl sample"),
        ({"eval": {}}, "not evaluated before and after: microrl report"),
        ({"steps": "no number"}, "but its summary cannot be read: microrl report"),
        (None, "not finished: microrl train --resume runs/mine"),
    ],
)
def test_the_newest_run_is_named_with_what_to_do_next(tmp_path, monkeypatch, summary, said):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "runs" / "mine"
    made_run.make(path, steps=1)
    stored = json.loads((path / "summary.json").read_text())
    stored["eval"]["paired_gain"] |= {"before": 0.25, "after": 0.5}
    if summary is None:
        (path / "summary.json").unlink()
        monkeypatch.setattr("microrl.run.follow.ALIVE_S", 0)
    else:
        (path / "summary.json").write_text(json.dumps({**stored, **summary}))
    assert welcome.first_screen().splitlines()[-1] == f"Newest run: runs/mine, {said}"


def test_a_run_in_progress_is_to_be_watched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made_run.make(tmp_path / "runs" / "mine", steps=1)
    (tmp_path / "runs" / "mine" / "summary.json").unlink()
    assert welcome.first_screen().endswith("Newest run: runs/mine, in progress: microrl watch")


def test_export_is_known_by_its_former_name(inside, tmp_path):
    old, new = (inside(name, tmp_path / "none", "--out", tmp_path / "out") for name in ("merge", "export"))
    assert old.returncode == new.returncode == 2 and old.stderr == new.stderr


def test_a_long_guide_page_opens_in_a_pager_at_its_top(tmp_path):
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho paged; head -n 1\n")
    pager.chmod(0o755)
    shown, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (20, 80))
    environment = {**os.environ, "PAGER": str(pager), "TERM": "xterm"}
    with subprocess.Popen(
        [sys.executable, "-m", "microrl", "guide", "budget"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        text = b""
        with suppress(OSError):  # at the end of a terminal
            while read := os.read(shown, 4096):
                text += read
    os.close(shown)
    first, second, *rest = text.decode().splitlines()
    assert process.returncode == 0 and first == "paged" and "Budget: time, money and memory" in second and not rest


@pytest.mark.slow
@pytest.mark.one_of_each
def test_as_a_library_it_does_not_pass_on_a_warning_about_4_bits_on_a_cpu():
    done = subprocess.run([sys.executable, "-c", "import microrl, bitsandbytes"], capture_output=True, text=True)
    assert done.returncode == 0 and "gemm_4bit_forward" not in done.stderr
