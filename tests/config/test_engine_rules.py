"""What becomes of a run whose vLLM fails: before its first step somebody is watching, unless they asked for `auto`."""

import json

import pytest

from microrl.config import check, resolve
from microrl.config.engine_rules import ended_at_start, outlasts_vllm
from microrl.config.resolve import override
from microrl.errors import EngineFault, MachineFailure, UserError
from microrl.run.folder import RunFolder
from microrl.sweep.grid import Grid


@pytest.fixture
def preset(tmp_path):
    def write(name, text):
        path = tmp_path / f"{name}.toml"
        path.write_text(text)
        return str(path)

    return write


def test_the_default_ends_at_the_start_and_auto_by_its_name_goes_on(preset):
    asks = preset("asks", '[engine]\nkind = "auto"\n')
    sets = preset("sets", "[engine]\ncuda_graphs = false\n[budget]\nsteps = 3\n")
    other = preset("other", '[engine]\nkind = "transformers"\n')
    for config, goes_on in (
        (resolve(["micro-r64"]), False),
        (resolve([sets]), False),
        (resolve([], {"engine.kind": "auto"}), True),
        (resolve([], {}, ["engine.kind=auto"]), True),
        (resolve([], {}, ['engine={kind="auto", sleep=1}']), True),
        (resolve([asks]), True),
        (resolve([asks, sets]), True),
        (resolve([other], {"engine.kind": "auto"}), True),
        (resolve([asks], {}, ["engine.unattended=false"]), False),
        (resolve([], {}, ["engine.kind=auto", "engine.unattended=false"]), False),
        (resolve([asks, other]), False),
        (resolve([], {"engine.kind": "vllm"}), False),
    ):
        assert outlasts_vllm(config, has_steps=False) is goes_on, config.engine
        assert outlasts_vllm(config, has_steps=True) is (config.engine.kind == "auto")


def test_it_is_kept_in_the_run_folder_and_in_a_sweeps_trials(tmp_path):
    asked = resolve([], {"engine.kind": "auto", "budget.steps": 1})
    folder = RunFolder.create(tmp_path / "run", asked.model_dump(mode="json"))
    assert outlasts_vllm(folder.settings(), has_steps=False)
    assert not outlasts_vllm(check(json.loads(resolve([], {"budget.steps": 1}).model_dump_json())), has_steps=False)
    tree = folder.config()
    del tree["engine"]["unattended"]  # of a run from before there was the key
    assert not outlasts_vllm(folder.settings(tree), has_steps=False)
    assert override(folder.settings().model_dump(), {"seed": 1}, ()).engine.unattended
    trials = Grid([], {"engine.kind": "auto", "budget.steps": 1}, (), {"rank": [8, 16]}).trials()
    assert [trial.config.engine.unattended for trial in trials] == [True, True]


def test_a_finished_step_is_one_of_either_kind(tmp_path):
    folder = RunFolder.create(tmp_path / "run", resolve([], {"budget.steps": 1}).model_dump(mode="json"))
    assert not folder.has_steps
    folder.append("sft.jsonl", {"step": 1})
    assert folder.has_steps
    other = RunFolder.create(tmp_path / "other", folder.config())
    other.append("metrics.jsonl", {"step": 1})
    assert other.has_steps


def test_the_error_names_the_ways_on_and_keeps_what_failed():
    error = UserError("vLLM does not start: no gcc", "apt install gcc")
    error.fault, error.__cause__ = EngineFault("starting", "auto", "auto", True), RuntimeError("below")
    ended = ended_at_start(error)
    assert isinstance(ended, MachineFailure) and ended.fault is error.fault and ended.__cause__ is error.__cause__
    assert ended.message == "vLLM has failed before the first step: vLLM does not start: no gcc"
    assert ended.hint.startswith("apt install gcc; pass --engine auto explicitly to go on")
    assert "--engine transformers" in ended.hint
    assert ended_at_start(UserError("it failed")).hint.startswith("pass --engine auto")
