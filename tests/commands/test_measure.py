"""`microrl doctor --measure`: its stages, its report, and the calibration that the plan then uses."""

import json
import os
import subprocess
from dataclasses import replace

import pytest
import torch
from places import ROOT

from microrl.commands.bench import measure
from microrl.commands.bench.measure import Outcome, Stage
from microrl.commands.bench.page import page
from microrl.commands.bench.page import text as text_of
from microrl.config import resolve
from microrl.errors import UserError
from microrl.models import gpu
from microrl.plan import calibration, devices, here, make
from microrl.plan.calibration import Calibration, Point
from microrl.plan.source import shape_of
from microrl.rollout.preflight import Installed

RATES = {"product_tflops": {"float32": 0.05}, "stream_gb_s": 10.0}


def calibrated(**changes) -> Calibration:
    """Sampling takes twice, an update three times as long as the roofline says."""
    values = {
        "device": "a40", "memory_gb": devices.DEVICES["a40"].memory_gb, "versions": calibration.versions(),
        "source": calibration.HERE, "date": "2026-11-01", "start_s": 30.0,
        "points": [Point(shape="1.5b", parameters=1_500_000_000, rank=256, decode={"swap": 2.0, "merge": 4.0}, update=3.0)],
    }  # fmt: skip
    return Calibration(**{**values, **changes})


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_a_calibration_is_found_on_its_device_alone(cache):
    a40 = devices.DEVICES["a40"]
    calibration.save(calibrated())
    assert calibration.find("a40", 1.01 * a40.memory_gb).calibration == calibrated()
    assert calibration.find("a40", 0.5 * a40.memory_gb) == (None, None), "a slice of it"
    assert calibration.find("l40s", a40.memory_gb) == (None, None)


def test_one_of_other_versions_is_named_and_not_used(cache):
    calibration.save(calibrated(versions={**calibration.versions(), "torch": "2.11.0"}))
    found = calibration.find("a40", devices.DEVICES["a40"].memory_gb)
    assert found.calibration is None and "torch 2.11.0 instead of" in found.warning and "doctor --measure" in found.warning
    device = replace(devices.DEVICES["a40"], calibration_warning=found.warning)
    plan = make(resolve((), {"budget.hours": 24.0}), shape_of("Qwen2.5-1.5B-Instruct"), device)
    assert plan.notes[-1] == found.warning and plan.times == "roofline"


def test_a_damaged_one_is_passed_over(cache):
    path = calibration.save(calibrated())
    path.with_name("b.json").write_text('{"device": "a40"}')
    path.with_name("c.json").write_text("{")
    assert calibration.find("a40", devices.DEVICES["a40"].memory_gb).calibration == calibrated()


def test_one_that_still_holds_the_rates_is_read(cache):
    path = calibration.save(calibrated())
    path.write_text(json.dumps({**json.loads(path.read_text()), **RATES}))
    assert calibration.find("a40", devices.DEVICES["a40"].memory_gb).calibration == calibrated()


def test_the_closest_size_counts():
    points = [Point(shape=name, parameters=size, rank=1, decode={"shared": 1.0}, update=1.0)
              for name, size in (("tiny", 300_000), ("135m", 135_000_000))]  # fmt: skip
    found = calibrated(points=points)
    assert [found.nearest(size).shape for size in (10_000, 5_000_000, 8_000_000, 1_500_000_000)] == [
        "tiny",
        "tiny",
        "135m",
        "135m",
    ]


@pytest.mark.parametrize(("sync", "factor"), [("swap", 2.0), ("merge", 4.0)])
def test_the_plan_multiplies_what_was_measured(sync, factor):
    config = resolve((), {"budget.hours": 24.0, "adapter.rank": 256, "engine.sync": sync})
    shape = shape_of("Qwen2.5-1.5B-Instruct")
    a40 = devices.DEVICES["a40"]
    plain, measured = (make(config, shape, device) for device in (a40, replace(a40, calibration=calibrated())))
    assert measured.step_parts_s["generate"] == pytest.approx(factor * plain.step_parts_s["generate"])
    assert measured.step_parts_s["update"] == pytest.approx(3 * plain.step_parts_s["update"])
    assert sum(measured.update_parts_s.values()) == pytest.approx(measured.step_parts_s["update"])
    assert plain.load_s - measured.load_s == pytest.approx(60 - 30)
    assert (plain.times, measured.times) == ("roofline", "measured here, 2026-11-01")
    value = json.loads(json.dumps(measured.to_json()))
    assert value["times"] == measured.times and "calibration" not in value["device"]


def outcome(kind: str, found: dict | None, **more) -> Outcome:
    return Outcome(Stage(kind, kind), 1.0, found, **more)


UPDATE = {"shape": "tiny", "parameters": 300_000, "rank": 4, "recompute": False, "factor": 1.5, "tokens": 64, "seconds": 0.1,
          "tflops": 0.01, "peak_gb": 0.5}  # fmt: skip
DECODE = {"shape": "tiny", "rank": 4, "sync": "shared", "factor": 2.5, "started_s": 1.0,
          "rows": [{"completions": 8, "seconds": 1.0, "tokens_per_s": 100.0}]}  # fmt: skip


def test_a_calibration_comes_from_sampling_and_update():
    outcomes = [outcome("rates", RATES), outcome("decode", DECODE), outcome("update", UPDATE)]
    outcomes.append(outcome("update", {**UPDATE, "recompute": True, "factor": 9.0}))
    found = measure.calibration_of(outcomes)
    (point,) = found.points
    assert (point.decode, point.update, point.parameters) == ({"shared": 2.5}, 1.5, 300_000) and found.start_s is None
    text = page(measure.report([*outcomes, outcome("cycles", None, error="it | crashed")], found))
    assert "## cycles: failed: it | crashed, 1 s\n" in text and "product_tflops.float32 0.05\n" in text
    lines = [line.split() for line in text.partition("## calibration")[2].splitlines()]
    assert lines[lines.index(["shape", "tiny"]) :][:5] == [
        ["shape", "tiny"],
        ["parameters", "300000"],
        ["rank", "4"],
        ["decode.shared", "2.5"],
        ["update", "1.5"],
    ]
    assert text_of({"tokens_per_s": 12345.6, "rows": [{"bytes": 2.5e6}]}).split() == ["tokens_per_s", "12346", "bytes", "2500000"]
    assert measure.calibration_of([outcome("rates", None, error="crashed"), *outcomes[1:]]) == found
    for left_out in (1, 2):
        assert measure.calibration_of(outcomes[:left_out] + outcomes[left_out + 1 : 3]) is None


def test_a_stage_that_dies_or_hangs_costs_only_itself():
    crashed = measure.run(Stage("x", "rates", variables={"PYTHONHOME": "/nonexistent"}))
    assert crashed.measured is None and crashed.error.startswith("failed with status")
    slow = measure.run(Stage("x", "rates"), deadline_s=0.01)
    assert slow.measured is None and "no answer" in slow.error


def test_on_a_gpu_correctness_comes_before_rates_of_the_run(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (int(40e9), int(48e9)))
    monkeypatch.setattr(gpu, "others_on_card", lambda: ())
    monkeypatch.setattr(measure, "installed", lambda: Installed("vllm", "0.32.0"))
    kinds = [(stage.kind, stage.options.get("sleep"), stage.options.get("sync")) for stage in measure.stages(None, None)]
    assert [kind for kind, *_ in kinds][:1] == ["rates"] and kinds[-1][0] == "update"
    assert {sleep for kind, sleep, _ in kinds if kind == "cycles"} == {"kv", "1", "2"}
    assert {sync for kind, _, sync in kinds if kind == "decode"} == {"swap", "merge"}
    assert [kind for kind, *_ in kinds].index("decode") > [kind for kind, *_ in kinds].index("cycles")
    monkeypatch.setattr(gpu, "others_on_card", lambda: (gpu.Other(7, int(20e9), "python"),))
    with pytest.raises(UserError, match=r"other processes use this GPU.*python 7 \(20.0 GB\)"):
        measure.stages(None, None)


@pytest.mark.parametrize("flags", [["--shape", "tiny"], ["--rank", 8], ["--peer", "python"], ["--out", "x"]])
def test_its_options_need_it(inside, flags):
    done = inside("doctor", "--no-self-test", *flags)
    assert done.returncode == 2 and f"{flags[0]}: only with --measure" in done.stderr


def test_an_unknown_shape(inside):
    done = inside("doctor", "--no-self-test", "--measure", "--shape", "tinny")
    assert done.returncode == 2 and "did you mean `tiny`" in done.stderr


@pytest.mark.parametrize(("flag", "says"), [("--peer", "file"), ("--out", "cannot write into")])
def test_what_would_fail_after_minutes_is_said_at_once(inside, monkeypatch, tmp_path, flag, says):
    monkeypatch.setattr(measure, "run", lambda stage: pytest.fail("it was measured first"))
    (tmp_path / "file").write_text("")
    done = inside("doctor", "--no-self-test", "--measure", flag, tmp_path / "file" / "x")
    assert done.returncode == 2 and says in done.stderr, done.stderr


@pytest.mark.slow
def test_the_error_of_a_stage_is_its_result():
    broken = measure.run(Stage("x", "update", {"shape": "no such"}))
    assert broken.measured is None and "TypeError" in broken.error


@pytest.mark.slow(minutes=0.4)
@pytest.mark.one_of_each
def test_this_machine_is_measured_and_its_plan_uses_it(microrl, tmp_path):
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = microrl("doctor", "--measure", "--no-self-test", "--shape", "tiny", "--out", tmp_path / "out", **cache)
    assert done.returncode == 0, done.stderr
    value = json.loads((tmp_path / "out" / "measured.json").read_text())
    assert all(stage["error"] is None for stage in value["stages"]) and value["calibration"]["source"] == calibration.HERE
    assert "## sampling, tiny: passed, " in (tmp_path / "out" / "measured.md").read_text()
    planned = microrl("plan", "quickstart", "--gpu", "cpu", "--json", **cache)
    assert json.loads(planned.stdout)["times"].startswith("measured here")
    assert here.calibration_name(devices.cpu(2, 24.0)) == value["calibration"]["device"]


def test_the_script_for_a_gpu_parses():
    script = ROOT / ".ci" / "gpu"
    if script.exists():
        assert os.access(script, os.X_OK)
        subprocess.run(["bash", "-n", script], check=True)
