"""The end of an engine: what a run has written by then, and what vLLM may not keep."""

import json
import signal
import subprocess
import sys
import types
import weakref
from collections.abc import MutableMapping
from pathlib import Path
from types import SimpleNamespace

import processes
import pytest
import torch

from microrl.commands.weights import awake_throughout
from microrl.config import resolve
from microrl.rollout.transformers import TransformersEngine
from microrl.rollout.vllm import launch
from microrl.rollout.vllm.engine import VllmEngine

ABORTS = """
import os
from microrl.cli import main
from microrl.rollout.transformers import TransformersEngine
TransformersEngine.close = lambda self, **options: os.abort()
main()
"""
"""The command line with an engine whose end is the process's."""


@pytest.mark.slow
@pytest.mark.one_of_each
def test_an_engine_that_aborts_on_closing_leaves_a_finished_run(tiny_arguments, tmp_path):
    out = tmp_path / "run"
    done = processes.run([sys.executable, "-c", ABORTS, "train", *tiny_arguments, "--steps", 1, "--out", out], timeout=300)
    assert done.returncode == -signal.SIGABRT, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["status"] == "done" and summary["steps"] == 1 and summary["eval"]["after"]
    assert (out / "final" / "adapter_model.safetensors").is_file()


HANDLER = """
import atexit, os, sys, types
import torch
from microrl.cli import main
torch.cuda.is_initialized = lambda: True
sys.modules["vllm"] = types.ModuleType("vllm")
def register(function, *rest):
    real(function, *rest)
    real(os.abort)  # as vLLM's, registered later than main's own
real, atexit.register = atexit.register, register
sys.argv = ["microrl", "presets"]
main()
"""


@pytest.mark.slow
@pytest.mark.one_of_each
def test_an_exit_handler_that_aborts_does_not_change_the_status():
    done = processes.run([sys.executable, "-c", HANDLER], timeout=100)
    assert done.returncode == 0 and "quickstart" in done.stdout, (done.returncode, done.stderr)


@pytest.mark.parametrize(("device", "at_exit", "closed"), [("cuda", True, 0), ("cuda", False, 1), ("cpu", True, 1)])
def test_vllm_is_not_taken_down_at_the_end_of_a_process_on_a_gpu(device, at_exit, closed):
    calls = []
    engine = VllmEngine.__new__(VllmEngine)
    engine._base = SimpleNamespace(device=torch.device(device))
    engine._driver = SimpleNamespace(close=lambda: calls.append(1))
    engine.close(at_exit=at_exit)
    assert len(calls) == closed


def test_a_run_says_that_it_is_the_last_to_use_its_engine(inside, tiny_arguments, tmp_path, monkeypatch):
    """Training ends with the process; of an evaluation's two engines the first is really closed."""
    seen = []
    monkeypatch.setattr(TransformersEngine, "close", lambda self, *, at_exit=False: seen.append(at_exit))
    out = tmp_path / "run"
    assert inside("train", *tiny_arguments, "--steps", 1, "--out", out).returncode == 0
    assert inside("eval", out, "--base", tiny_arguments[1]).returncode == 0
    assert inside("sample", out, "What is 2 + 2?").returncode == 0
    assert seen == [True, False, True, True]


def test_an_evaluation_lets_its_engine_stay_awake():
    assert awake_throughout(resolve(())).engine.sleep == "off"
    assert awake_throughout(resolve((), {"engine.kind": "vllm", "engine.sleep": 2})).engine.sleep == 2
    transformers = resolve((), {"engine.kind": "transformers"})
    assert awake_throughout(transformers) is transformers


# ---- what vLLM's modules keep


def test_forgetting_is_by_what_there_is(monkeypatch):
    """Variables that exist are cleared; missing modules, missing names and other types are passed over."""
    for name in launch.HOLDERS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    launch.forget(model)
    fakes = {}
    for name, variables in launch.HOLDERS.items():
        fakes[name] = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, fakes[name])
        setattr(fakes[name], variables[0], {1: model[0].weight})
    layerwise = fakes["vllm.model_executor.model_loader.reload.layerwise"]
    layerwise.LAYERWISE_INFO = weakref.WeakKeyDictionary({model[0]: model[0].weight})
    fakes["vllm.lora.ops.triton_ops.utils"]._LORA_B_PTR_DICT = "of another type"
    hook = SimpleNamespace(removed=0)
    hook.remove = lambda: setattr(hook, "removed", hook.removed + 1)
    model[0]._bytecode_hook_handle, model._bytecode_hook_handle = hook, None
    launch.forget(model)
    left = [value for fake in fakes.values() for value in vars(fake).values() if isinstance(value, MutableMapping)]
    assert hook.removed == 1 and len(left) == 3 and not any(map(len, left))


SCRIPT = Path(__file__).parent / "close_leaks.py"


@pytest.mark.vllm
@pytest.mark.skipif(torch.cuda.is_available(), reason="the runners are chosen on a CPU")
@pytest.mark.parametrize(
    ("runner", "held"),
    [
        ("v1", "model.norm.weight"),
        *(pytest.param(*found, marks=pytest.mark.slow) for found in (("v2", "o_proj A0"), ("compiled", "inner"))),
    ],
)
def test_nothing_of_the_real_engine_outlives_its_closing(runner, held):
    """And without the clearing the same look finds what each of vLLM's three variables holds: layerwise loading, the adapter
    kernels' table, Dynamo's hook."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    # A process that imports vLLM itself: Triton's interpreter is chosen before that.
    done = subprocess.run([sys.executable, SCRIPT, runner], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stdout, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["alive"] == [] and found["watched"] >= 18, found
    assert (found["v2"], found["compiled"]) == (runner == "v2", runner == "compiled")
    assert any(name.endswith(held) for name in found["alive_uncleared"]), found
