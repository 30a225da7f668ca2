"""The end of an engine: what a run has written by then."""

import json
import signal
import sys

import processes
import pytest
import torch
from copied_model import Trained

from microrl.commands.weights import awake_throughout
from microrl.config import resolve
from microrl.errors import MachineFailure

ABORTS = """
import os
from microrl.cli import main
from microrl.rollout.transformers import TransformersEngine
TransformersEngine.close = lambda self: os.abort()
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


@pytest.mark.parametrize(("device", "closed"), [("cuda", 0), ("cpu", 1)])
def test_vllm_is_never_taken_down_on_a_gpu(device, closed, tokenizer, monkeypatch):
    engine = Trained(tokenizer, "float32", monkeypatch).engine
    monkeypatch.setattr(type(engine.base), "device", torch.device(device))
    engine.close()
    assert engine.driver.closed == closed


@pytest.mark.parametrize("is_proved", [True, False])
def test_only_weights_that_were_not_proved_are_pushed_again(is_proved, tokenizer, monkeypatch):
    """A time limit ends the sampling of what was proved: the final evaluation then has the base already."""
    trained = Trained(tokenizer, "float32", monkeypatch, sync="swap")
    trained.sync(trained.step(0.01))
    driver, loads = trained.engine.driver, []
    load, reset_cache = driver.load, driver.reset_cache
    monkeypatch.setattr(driver, "load", lambda snapshot: (loads.append(snapshot), load(snapshot)))
    if not is_proved:
        monkeypatch.setattr(driver, "reset_cache", lambda: 1 / 0)
    with pytest.raises((KeyError, MachineFailure)), trained.engine.awake(trained.step(0.01)):
        raise KeyError
    monkeypatch.setattr(driver, "reset_cache", reset_cache)
    assert not loads
    trained.sync(trained.step(0.01))
    assert len(loads) == (0 if is_proved else 1)


def test_an_evaluation_lets_its_engine_stay_awake():
    assert awake_throughout(resolve(())).engine.sleep == "off"
    assert awake_throughout(resolve((), {"engine.kind": "vllm", "engine.sleep": 2})).engine.sleep == 2
    transformers = resolve((), {"engine.kind": "transformers"})
    assert awake_throughout(transformers) is transformers
