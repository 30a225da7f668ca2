"""`microrl eval` where the engine may be vLLM: an engine for each process, and a failing one replaced in the next."""

import gzip
import json
import shutil
import sys
from pathlib import Path

import processes
import pytest
from places import HELPERS

from microrl.commands import evaluation_job
from microrl.commands import weights as commands_weights

SCRIPT = HELPERS / "failing_engine.py"
OUT_OF_MEMORY = {"at": "evaluating", "error": "CUDA out of memory"}
ASKED = ["--problems", 6, "--samples", 4, "--max-tokens", 12, "--set", "data.system="]
ONE_AT_A_TIME = ["--set", "engine.max_kv_gb=0.000001"]


def stored(out):
    """The texts of each file of completions, and the JSON record without what differs between engines and clocks."""
    texts = {path.name: gzip.decompress(path.read_bytes()) for path in out.glob("*.jsonl.gz")}
    (path,) = out.glob("*.json")
    assert not list(out.glob(".*.partial.jsonl"))
    return texts, without(json.loads(path.read_text()))


def without(value):
    if not isinstance(value, dict):
        return value
    left_out = ("seconds", "decode_steps", "engine", "packages")
    return {key: without(inner) for key, inner in value.items() if key not in left_out}


def test_one_engine_serves_a_run_and_its_untouched_model(inside, run, model_folder, data_file, tmp_path, monkeypatch):
    opened, loaded = [], []
    make, load = commands_weights.make_engine, evaluation_job.load_model
    monkeypatch.setattr(commands_weights, "make_engine", lambda *args, **named: opened.append(1) or make(*args, **named))
    monkeypatch.setattr(evaluation_job, "load_model", lambda *args: loaded.append(1) or load(*args))

    def evaluated(*arguments, out):
        opened.clear()
        loaded.clear()
        done = inside("eval", *arguments, "--data", data_file, *ASKED, "--out", tmp_path / out)
        assert done.returncode == 0, done.stderr
        return len(opened), len(loaded)

    assert evaluated(run, "--base", model_folder, out="both") == (1, 1)
    assert evaluated(run, out="ours") == evaluated(model_folder, out="theirs") == (1, 1)
    assert evaluated(run, "--base", shutil.copytree(run / "final", tmp_path / "adapter"), out="adapters") == (2, 2)
    (both, record), (ours, our_record), (theirs, their_record) = (stored(tmp_path / out) for out in ("both", "ours", "theirs"))
    (base,) = (name for name in both if name.endswith("-base.jsonl.gz"))
    assert both.pop(base) == next(iter(theirs.values())) != next(iter(ours.values())) == next(iter(both.values()))
    assert record["right"] == our_record["right"] and record["base"]["right"] == their_record["right"]
    assert record["base"]["model_sha256"] == their_record["model_sha256"] and record["base"]["adapter_sha256"] is None


def failing(faults, *arguments, cwd):
    """The evaluation with an engine that fails like this, and (process, bytes of cache, CUDA graphs) of each one started."""
    plan = cwd / "faults.json"
    plan.write_text(json.dumps(faults))
    started = plan.with_suffix(".started")
    started.write_text("")
    done = processes.run([sys.executable, SCRIPT, plan, "eval", *arguments], timeout=600, cwd=cwd)
    assert json.loads(plan.read_text()) == [], (done.returncode, done.stderr)
    return done, [line.split() for line in started.read_text().splitlines()]


def said(done):
    """What followed each failure."""
    return [line.partition("; continuing ")[2] for line in done.stderr.splitlines() if line.startswith("engine fallback: ")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["auto", "vllm"])
def test_each_of_two_models_has_a_process(inside, run, other_model, data_file, tmp_path, kind):
    options = [run, "--base", other_model, "--data", data_file, *ASKED, *ONE_AT_A_TIME]
    done = inside("eval", *options, "--engine", "transformers", "--out", tmp_path / "whole")
    assert done.returncode == 0, done.stderr

    done, started = failing([], *options, "--engine", kind, "--out", tmp_path / "apart", cwd=tmp_path)
    assert done.returncode == 0 and "evaluated in" in done.stderr, done.stderr
    assert len({pid for pid, *_ in started}) == len(started) == 2
    assert stored(tmp_path / "apart") == stored(tmp_path / "whole")
    (path,) = (tmp_path / "apart").glob("*.json")
    assert json.loads(path.read_text())["engine"] == "vllm"


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "models"), [pytest.param("auto", 1, marks=pytest.mark.one_of_each), ("auto", 2), ("vllm", 2)])
def test_a_process_that_fails_is_followed_by_another(inside, run, other_model, data_file, tmp_path, kind, models):
    options = [run, *(("--base", other_model) if models == 2 else ()), "--data", data_file, *ASKED]
    done = inside("eval", *options, "--engine", "transformers", "--out", tmp_path / "whole")
    assert done.returncode == 0, done.stderr

    out = tmp_path / "again"
    done, started = failing([OUT_OF_MEMORY], *options, "--engine", kind, "--out", out, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (words,) = said(done)
    assert words.startswith("in a new process, with a KV cache of ")
    sizes = [int(kv_bytes) for _, kv_bytes, _ in started]
    assert len({pid for pid, *_ in started}) == 1 + models
    assert set(sizes[1:]) == {sizes[0] // 2}, "the second model has it from the start"
    assert stored(out) == stored(tmp_path / "whole")


@pytest.mark.slow
def test_what_is_left_goes_on_where_it_died_down_to_transformers(inside, run, other_model, data_file, tmp_path):
    options = [run, "--base", other_model, "--data", data_file, *ASKED, *ONE_AT_A_TIME]
    assert inside("eval", *options, "--engine", "transformers", "--out", tmp_path / "whole").returncode == 0
    dies = {"at": "answer 3", "abort": True}
    done, started = failing([dies], *options, "--out", tmp_path / "a", cwd=tmp_path)
    assert done.returncode == 0 and said(done) == ["in a new process"], done.stderr
    assert "the child process that ran vLLM was killed by SIGABRT" in done.stderr and "after 3 of 6 problems" in done.stderr
    assert len({pid for pid, *_ in started}) == len(started) == 3
    assert stored(tmp_path / "a") == stored(tmp_path / "whole")

    done, started = failing([dies, {"at": "evaluating"}], *options, "--out", tmp_path / "b", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert said(done) == ["in a new process", "in a new process, with the transformers engine, which is slower"]
    assert len(started) == 2 and stored(tmp_path / "b") == stored(tmp_path / "whole")
    (path,) = (tmp_path / "b").glob("*.json")
    assert json.loads(path.read_text())["engine"] == "transformers"

    done, _ = failing([{"at": "answer 1", "exit": True}], *options, "--engine", "vllm", "--out", tmp_path / "c", cwd=tmp_path)
    assert done.returncode == 1 and "ended with status 7" in done.stderr and said(done) == []
    assert "hint: see the lines above for the cause; run the same command again to continue, or add --engine" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("faults", "options", "status", "says"), [
    ([{"at": "evaluating"}], [], 1, "vLLM failed while sampling: RuntimeError: CUDA error: an illegal memory access"),
    ([{"at": "answer 2", "abort": True}], [], 1, "error: the child process that ran vLLM was killed by SIGABRT"),
    ([], ["--hours", 1e-6], 2, "hint: pass larger --hours"),
])  # fmt: skip
def test_with_vllm_asked_for_an_error_ends_the_command_as_it_would_in_one_process(run, tmp_path, faults, options, status, says):
    here = Path(shutil.copytree(run, tmp_path / "run"))
    done, _ = failing(faults, here, *ASKED, "--engine", "vllm", *options, cwd=tmp_path)
    assert done.returncode == status and says in done.stderr and said(done) == [], done.stderr
    assert "Traceback" not in done.stderr
    if faults and "abort" not in faults[0]:
        assert "the traceback is in crash.log" in done.stderr
        assert "happens(" in (tmp_path / "crash.log").read_text()


@pytest.mark.vllm
@pytest.mark.slow
def test_two_models_on_the_real_vllm(inside, run, other_model, data_file, tmp_path):
    pytest.importorskip("vllm", reason="vLLM is not installed")
    options = [run, "--base", other_model, "--data", data_file, *ASKED]
    done = processes.run(
        [sys.executable, "-m", "microrl", "eval", *options, "--engine", "vllm", "--out", tmp_path / "a"], timeout=900
    )
    assert done.returncode == 0 and "paired gain, accuracy" in done.stdout, done.stderr
    _, record = stored(tmp_path / "a")
    assert record["base"]["adapter_sha256"] is None and record["base"]["model_sha256"] != record["model_sha256"]
    (path,) = (tmp_path / "a").glob("*.json")
    assert {json.loads(path.read_text())["engine"], json.loads(path.read_text())["base"]["engine"]} == {"vllm"}
