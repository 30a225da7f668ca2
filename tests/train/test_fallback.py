"""With `--engine auto` a run outlives its engine; with `--engine vllm` it ends with the engine's error."""

import datetime
import json
import re
import sys
from types import SimpleNamespace

import processes
import pytest
from failing_runs import SCRIPT, script, started_anew, survived
from planned import seconds_of

from microrl.config import resolve
from microrl.errors import EngineFault, MachineFailure, UserError
from microrl.plan import devices, plan
from microrl.plan.source import shape_of
from microrl.run import names
from microrl.run.budget import Budget
from microrl.run.folder import RunFolder
from microrl.run.forecast import Forecast
from microrl.train import fallback, planning

ON_A_CARD, ON_A_CPU = {"cuda_graphs": True}, {"cuda_graphs": False}
FULL_CARD = {"cuda_graphs": True, "out_of_memory": True, "kv_gb": 8.0, "fits": 64.0, "batch": 64}
OUT_OF_MEMORY = {"at": "sampling", "error": "CUDA out of memory"}


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "run", resolve(()).model_dump(mode="json"))


def failing(doing: str, settings: dict, kind: type = MachineFailure):
    error = kind("vLLM failed")
    error.fault = EngineFault(doing, **settings)
    return error


def changes(config, folder, doing: str, settings: dict) -> list[str]:
    """What a run tries whose engine fails in the same way every time."""
    while fallback.record(config, folder, failing(doing, settings)) is not None:
        pass
    return [failure.change for failure in fallback.failures(folder)]


def engine_of(config, folder) -> dict:
    return fallback.applied(config, folder).engine.model_dump()


@pytest.mark.parametrize(
    ("doing", "settings", "expected"),
    [
        ("starting", ON_A_CARD, ["cuda_graphs", "transformers"]),
        ("receiving weights", ON_A_CARD, ["restart", "cuda_graphs", "transformers"]),
        ("sampling", ON_A_CARD, ["restart", "cuda_graphs", "transformers"]),
        ("going to sleep", ON_A_CARD, ["restart", "cuda_graphs", "transformers"]),
        ("running", ON_A_CARD, ["restart", "cuda_graphs", "transformers"]),
        ("importing", ON_A_CARD, ["transformers"]),
        ("starting", ON_A_CPU, ["transformers"]),
        ("sampling", ON_A_CPU, ["restart", "transformers"]),
    ],
)
def test_every_change_is_made_once_and_transformers_is_the_last(folder, doing, settings, expected):
    config = resolve((), {"engine.kind": "auto"})
    assert changes(config, folder, doing, settings) == expected
    assert fallback.applied(config, folder).engine.kind == "transformers"
    events = [json.loads(line) for line in (folder.path / "events.jsonl").read_text().splitlines()]
    assert [event["change"] for event in events] == expected and {event["kind"] for event in events} == {"engine fallback"}


def test_the_changes_add_up_and_leave_the_run_settings_alone(folder):
    config = resolve((), {"engine.kind": "auto"})
    fallback.record(config, folder, failing("sampling", FULL_CARD))
    for _ in range(2):
        fallback.record(config, folder, failing("sampling", ON_A_CARD))
    engine = engine_of(config, folder)
    assert (engine["kind"], engine["max_kv_gb"], engine["cuda_graphs"]) == ("auto", 4.0, False)
    assert [failure.change for failure in fallback.failures(folder)] == ["less memory", "restart", "cuda_graphs"]
    assert folder.settings().engine == resolve(()).engine


@pytest.mark.parametrize(("kind", "last"), [("auto", ["cuda_graphs", "transformers"]), ("vllm", ["cuda_graphs"])])
def test_where_memory_runs_out_the_cache_is_halved_down_to_two_completions(folder, monkeypatch, kind, last):
    """Without a plan to price the changes: in their order, each in a process of its own."""
    monkeypatch.setattr(fallback, "_step_s", lambda config: None)
    config, held = resolve((), {"engine.kind": kind}), []
    for fits in (64, 32, 16, 8, 4, 2, 2):
        settings = {**FULL_CARD, "kv_gb": fits / 8, "fits": fits, "cuda_graphs": len(held) < 6}
        held.append(fallback.record(config, folder, failing("sampling", settings)))
    assert [failure.change for failure in fallback.failures(folder)] == ["less memory"] * 5 + last
    sizes = [float(said.partition("cache of ")[2].split()[0]) for said in held[:5]]
    assert sizes == [4, 2, 1, 0.5, 0.25]
    # A quarter of the batch is 16 completions: below that it is said.
    assert [said.partition("holds only ")[2] for said in held[:5]] == [
        "", "", "8 of 64 completions of full length", "4 of 64 completions of full length", "2 of 64 completions of full length"
    ]  # fmt: skip
    assert kind == "auto" or held[-1] is None


@pytest.mark.parametrize(
    ("card", "kv_gb", "first"),
    [("A40", 15.97, "less memory"), ("T4", 1.73, "cuda_graphs")],
)
def test_of_the_changes_that_free_memory_the_plan_chooses_the_cheapest(tmp_path, monkeypatch, card, kv_gb, first):
    """On a T4 the cache is small already: half of it would make the batch wait, and graphs save little of a step."""
    monkeypatch.setattr(planning, "this_device", lambda: devices.find(card))
    config = resolve(("micro-r256",), {"budget.hours": 24.0})
    folder = RunFolder.create(tmp_path / "run", config.model_dump(mode="json"))
    fault = {"cuda_graphs": True, "out_of_memory": True, "kv_gb": kv_gb, "fits": 128 * kv_gb / 15.97, "batch": 128}
    said = fallback.record(config, folder, failing("receiving weights", fault))
    assert [failure.change for failure in fallback.failures(folder)] == [first]
    seconds = re.search(r"by the plan a step takes (\d+) s instead of (\d+)", said)
    before = plan.make(config, shape_of(config.model.name), devices.find(card)).step_s
    now = plan.make(fallback.applied(config, folder), shape_of(config.model.name), devices.find(card)).step_s
    assert (int(seconds[1]), int(seconds[2])) == (round(now), round(before)) and now < 1.2 * before


@pytest.mark.parametrize(("minutes", "flag", "is_dropped"), [(5, False, False), (61, False, True), (5, True, True)])
def test_a_run_resumed_by_hand_tries_its_own_settings_again(folder, minutes, flag, is_dropped):
    config = resolve(())
    fallback.record(config, folder, failing("sampling", FULL_CARD))
    record = json.loads((folder.path / names.ENGINE).read_text())
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=minutes)
    record["failures"][0]["time"] = then.isoformat(timespec="seconds")
    folder.write_json(names.ENGINE, record)
    fallback.forget(folder, at_once=flag)
    assert (fallback.failures(folder) == []) == is_dropped
    assert engine_of(config, folder)["max_kv_gb"] == (None if is_dropped else 4.0)
    assert ("engine settings restored" in (folder.path / "events.jsonl").read_text()) == is_dropped
    fallback.forget(folder, at_once=True)
    fallback.forget(folder, at_once=True)  # nothing is left to drop


def test_other_errors_and_other_engines_end_the_run(folder):
    config = resolve(())
    assert fallback.record(config, folder, UserError("no such column")) is None
    assert fallback.record(resolve((), {"engine.kind": "vllm"}), folder, failing("starting", ON_A_CARD)) is None
    assert not (folder.path / names.ENGINE).exists() and not fallback.failures(folder)


def test_a_change_that_cannot_be_written_ends_the_run(folder, monkeypatch):
    def full(name, value):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "write_json", full)
    assert fallback.record(resolve(()), folder, failing("starting", ON_A_CARD)) is None


def test_seconds_of_another_engine_are_not_believed():
    """An evaluation that took vLLM a second is planned anew for transformers, until steps are measured."""
    before = SimpleNamespace(seconds=1.0, mean_length=10.0)
    expected = {}
    for is_same in (True, False):
        budget = Budget(hours=1.0, steps=None, started=0.0, now=lambda: 0.0)
        Forecast(seconds_of(), budget, done=3, is_same_engine=is_same).evaluated(before)
        expected[is_same] = budget.evaluation_s
    assert expected == {True: 1.0, False: 40.0}


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_run_survives_errors_of_its_engine(tiny_arguments, tmp_path):
    done, out = script(tmp_path, [OUT_OF_MEMORY, {"at": "sampling"}], *tiny_arguments)
    assert survived(done, out) == [("sampling", "less memory"), ("sampling", "restart")]
    assert "vLLM ran out of memory while sampling, with a KV cache of " in done.stderr
    assert json.loads((out / "engine.json").read_text())["engine"]["max_kv_gb"] > 0
    assert json.loads((out / "config.json").read_text())["engine"]["max_kv_gb"] is None
    assert "illegal memory access" in (out / "crash.log").read_text()

    # A later process starts with the same settings.
    (tmp_path / "faults.json").write_text("[]")
    command = [sys.executable, SCRIPT, tmp_path / "faults.json"]
    more = processes.run([*command, "train", "--resume", out, "--steps", 4], timeout=600)
    assert more.returncode == 0, more.stderr
    assert len(json.loads((out / "engine.json").read_text())["failures"]) == 2


@pytest.mark.slow
def test_a_run_survives_an_engine_that_aborts(tiny_arguments, tmp_path):
    faults = [{"at": "sampling", "abort": True}, {"at": "going to sleep"}]
    done, out = script(tmp_path, faults, *tiny_arguments, run=started_anew)
    assert survived(done, out) == [("running", "restart"), ("going to sleep", "transformers")]
    assert "killed by SIGABRT" in done.stderr


@pytest.mark.slow
def test_a_run_survives_a_vllm_that_cannot_be_imported(tiny_arguments, tmp_path):
    done, out = script(tmp_path, [{"at": "importing"}], *tiny_arguments)
    assert survived(done, out) == [("importing", "transformers")]
    assert json.loads((out / "environment.json").read_text())["engine"] == "transformers"


@pytest.mark.slow
@pytest.mark.one_of_each
def test_before_the_first_step_a_run_ends_unless_auto_was_typed(tiny_arguments, tmp_path):
    plan = tmp_path / "faults.json"
    plan.write_text(json.dumps([{"at": "starting"}]))
    done = processes.run([sys.executable, SCRIPT, plan, "train", *tiny_arguments, "--steps", 3, "--out", tmp_path / "run"])
    assert done.returncode == 1 and "vLLM has failed before the first step: vLLM failed while starting" in done.stderr
    assert "pass --engine auto explicitly to go on" in done.stderr and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_without_auto_the_error_ends_the_run(tiny_arguments, tmp_path):
    done, out = script(tmp_path, [{"at": "sampling"}], *tiny_arguments, "--engine", "vllm")
    assert done.returncode == 1 and "vLLM failed while sampling: RuntimeError: CUDA error" in done.stderr, done.stderr
    assert "crash.log" in done.stderr and not (out / "engine.json").exists()


NOT_PROVED = {"at": "proving", "error": "the adapter of a layer is not the trainer's"}


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ([{"at": "starting"}], [("starting", "transformers")]),
        ([{"at": "receiving weights"}], [("receiving weights", "restart")]),
        ([NOT_PROVED], [("receiving weights", "restart")]),  # of the random adapter
        ([{"at": "sampling"}, {"at": "sampling"}], [("sampling", "restart"), ("sampling", "transformers")]),
        ([{"at": "going to sleep"}], [("going to sleep", "restart")]),
        ([{"at": "sampling", "abort": True}], [("running", "restart")]),
        ([OUT_OF_MEMORY] * 2, [("sampling", "less memory")] * 2),
        ([OUT_OF_MEMORY, {"at": "starting"}], [("sampling", "less memory"), ("starting", "transformers")]),
    ],
)
def test_a_run_survives_whatever_vllm_does(tiny_arguments, tmp_path, faults, expected):
    """The real one, on whatever this machine has."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    done, out = script(tmp_path, faults, *tiny_arguments, run=started_anew)
    assert survived(done, out) == expected
    engine = json.loads((out / "environment.json").read_text())["engine"]
    assert engine == ("transformers" if expected[-1][1] == "transformers" else "vllm")


@pytest.mark.vllm
@pytest.mark.slow
def test_with_vllm_asked_for_a_lack_of_memory_does_not_end_the_run(tiny_arguments, tmp_path):
    pytest.importorskip("vllm", reason="vLLM is not installed")
    faults = [{"at": "starting", "error": "CUDA out of memory"}, OUT_OF_MEMORY]
    done, out = script(tmp_path, faults, *tiny_arguments, "--engine", "vllm", run=started_anew)
    assert survived(done, out) == [("starting", "less memory"), ("sampling", "less memory")]
    assert json.loads((out / "environment.json").read_text())["engine"] == "vllm"


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize(("fault", "status"), [({"at": "starting"}, 1), ({"at": "receiving weights"}, 1), (NOT_PROVED, 4)])
def test_with_vllm_asked_for_its_failures_end_the_run(tiny_arguments, tmp_path, fault, status):
    pytest.importorskip("vllm", reason="vLLM is not installed")
    done, out = script(tmp_path, [fault], *tiny_arguments, "--engine", "vllm", run=started_anew)
    assert done.returncode == status and not (out / "engine.json").exists(), done.stderr
