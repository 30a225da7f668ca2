"""`summary.json`: one record for all who read it, and what becomes of other formats and damage."""

import json
import shutil

import pytest

from microrl.errors import UserError
from microrl.files import BadFile
from microrl.run import names, summary

ENDED = {
    "format": 1, "status": "done", "steps": 4, "hours_budget": None, "hours_spent": 0.5, "seconds_by_phase": {"load": 2.0},
    "cost_usd": 0.15, "trainable_params": 640,
    "eval": {
        "before": {"accuracy": 0.25, "ci95": [0.1, 0.4], "questions": 8, "pass@2": {"mean": 0.5, "ci95": [0.2, 0.8]}},
        "after": None, "paired_gain": None,
    },
}  # fmt: skip


def write(folder, **changes):
    (folder / names.SUMMARY).write_text(json.dumps({**ENDED, **changes}))


def test_what_is_written_is_read_back(tmp_path):
    write(tmp_path)
    ended = summary.read(tmp_path)
    assert (ended.status, ended.steps, ended.eval.before.accuracy, ended.verdict) == ("done", 4, 0.25, None)
    assert {name: ended.to_json()[name] for name in ENDED} == ENDED


def test_a_run_that_has_not_ended_has_none(tmp_path):
    assert summary.read_if_there(tmp_path) is None
    with pytest.raises(BadFile):
        summary.read(tmp_path)


def test_a_later_format_is_refused_and_unknown_keys_are_not(tmp_path):
    gain = {"mean": 0.1, "ci95": [0.0, 0.2], "questions": 8, "before": 0.5, "weather": "fair"}
    write(tmp_path, weather="fair", eval={"paired_gain": gain, "paired_gain_pass@2": gain, "weather": {"mean": 1}})
    ended = summary.read(tmp_path)
    assert ended.steps == 4 and ended.eval.paired_gain.questions == 8 and ended.eval.more_gains().keys() == {"pass@2"}
    write(tmp_path, format=2, steps={"rl": 4})
    with pytest.raises(UserError, match="has format 2, and this version of microrl reads up to 1") as error:
        summary.read_if_there(tmp_path)
    assert error.value.hint == "update microrl" and not isinstance(error.value, BadFile)


@pytest.mark.parametrize("name", ["config.json", "summary.json"])
@pytest.mark.parametrize("command", ["train --resume {}", "report {}", "merge {} --out merged", "watch {}"])
def test_a_run_of_a_later_version_is_neither_shown_nor_begun_again(command, name, inside, wares, tmp_path):
    run = shutil.copytree(wares / "done", tmp_path / "run")
    later = json.loads((run / name).read_text())
    assert later["format"] == 1
    (run / name).write_text(json.dumps(later | {"format": 2}))
    done = inside(*command.format("run").split(), cwd=tmp_path)
    assert done.returncode == 2 and f"run/{name} has format 2" in done.stderr, done.stderr
    assert json.loads((run / name).read_text()) == later | {"format": 2}


@pytest.mark.parametrize(
    "change", [{"status": "fine"}, {"steps": -1}, {"hours_spent": None}, {"eval": {"after": {"accuracy": 2}}}]
)
def test_damage_is_named(change, tmp_path):
    write(tmp_path, **change)
    with pytest.raises(BadFile, match=f"{names.SUMMARY}.*{next(iter(change))}"):
        summary.read(tmp_path)
