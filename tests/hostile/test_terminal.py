"""What others wrote reaches a terminal as text: nothing of it moves the cursor, sets a title or hides a line."""

import json

import pytest

from microrl.cli.output import emit, say
from microrl.run.console import RunConsole
from microrl.terminal import printable

HOSTILE = "a\x1b]0;title\x07b\x1b[2Jc\rd\x9be\x7ff\u202eg\u2066h\u200fi\x00j\ud800k"
FORBIDDEN = set("\x1b\x07\r\x9b\x7f\u202e\u2066\u200f\x00\ud800")


def test_control_characters_are_written_out():
    shown = printable(HOSTILE)
    assert shown.startswith("a\\u001b]0;title\\u0007b") and not FORBIDDEN & set(shown)
    ordinary = "two\nlines\tand naïve 日本語 🙂 \u200d שלום \\boxed{1}"
    assert printable(ordinary) == ordinary


def test_errors_notes_and_json_are_safe(capsys):
    say(HOSTILE)
    console = RunConsole()
    console.note(HOSTILE)
    console.status(HOSTILE)
    emit({"text": HOSTILE})
    out, err = capsys.readouterr()
    assert not FORBIDDEN & set(out + err) and err.count("title") == 3
    assert json.loads(out) == {"text": HOSTILE}


@pytest.mark.parametrize("gold", ["1", "no idea \x1b[2J at all"])
def test_a_dry_run_of_hostile_data_is_safe(inside, model_folder, tmp_path, gold):
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"question": f"{n} {HOSTILE[:-2]}", "answer": gold}) + "\n" for n in range(9)))
    done = inside("train", "--model", model_folder, "--data", path, "--steps", 1, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert not FORBIDDEN & set(done.stdout + done.stderr) and "\\u001b[2J" in done.stdout
    if gold != "1":
        failed = inside("train", "--model", model_folder, "--data", path, "--steps", 1, "--out", tmp_path / "run")
        assert failed.returncode == 2 and not FORBIDDEN & set(failed.stderr) and "no idea" in failed.stderr


def test_a_preset_of_somebody_else_is_shown_safely(inside, tmp_path):
    (tmp_path / "their.toml").write_text("# a \u202e preset\nseed = 1\n")
    done = inside("presets", "show", tmp_path / "their.toml")
    assert done.returncode == 0 and not FORBIDDEN & set(done.stdout) and "\\u202e" in done.stdout
