"""The quickstart learns for any seed, and does not where it must not. Minutes long."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import HELPERS
from safetensors.torch import load_file

from microrl import clock
from microrl.config import resolve
from microrl.run.folder import RunFolder

pytestmark = pytest.mark.slow


@pytest.mark.slow(minutes=1)
@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.one_of_each), 1, 2])
def test_the_quickstart_learns(tmp_path, seed):
    """All of its steps, however long they take here; what they take of a processor is what its three minutes are about."""
    out = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "microrl",
        "train",
        "quickstart",
        "--steps",
        "60",
        "--hours",
        "1",
        "--seed",
        str(seed),
        "--out",
        str(out),
    ]
    before = os.times()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    assert done.returncode == 0, done.stderr
    evaluation = json.loads((out / "summary.json").read_text())["eval"]
    print(f"seed {seed}: {seconds:.0f} s, {evaluation['before']} -> {evaluation['after']}, {evaluation['paired_gain']}")
    assert 0.2 < evaluation["before"]["accuracy"] < 0.45  # 0.25 to 0.40 on the warm start's own, larger validation set
    assert evaluation["paired_gain"]["mean"] >= 0.25
    assert evaluation["paired_gain"]["ci95"][0] > 0
    assert seconds < 180
    events = [json.loads(line)["kind"] for line in (out / "events.jsonl").read_text().splitlines()]
    assert "best" in events and "guard" not in events, "a healthy run is left alone"


def gain_of(sets: list[str], out: Path, *, steps: int, seed: int = 0, preset: str = "quickstart") -> dict:
    """A quickstart in this process."""
    from microrl.train.loop import train

    config = resolve([preset], {"seed": seed, "budget.steps": steps}, sets)
    folder = RunFolder.create(out, config.model_dump(mode="json"))
    summary = train(config, folder, started=clock.now_s())
    assert summary["steps"] == steps
    return summary["eval"]["paired_gain"]


@pytest.mark.slow(minutes=1.5)
@pytest.mark.parametrize(("seed", "steps"), [pytest.param(0, 20, marks=pytest.mark.one_of_each), (1, 30), (2, 30)])
def test_the_quickstart_with_tools_learns_to_call(tmp_path, seed, steps):
    gain = gain_of([], tmp_path / "run", steps=steps, seed=seed, preset="quickstart-tools")
    first, *_, last = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    print(gain, first["tools/calls"], last["tools/calls"])
    assert gain["ci95"][0] > 0.3
    assert first["tools/calls"] < 0.6 and last["tools/calls"] > 0.85 and last["tools/failures"] < 0.1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_broken_calculator_teaches_nobody_to_call(tmp_path, seed):
    sets = ["env.target=made_tools:Broken", f"env.path={HELPERS}"]
    gain = gain_of(sets, tmp_path / "run", steps=30, seed=seed, preset="quickstart-tools")
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    print(gain, last["tools/calls"])
    assert last["tools/calls"] < 0.2


@pytest.mark.one_of_each
def test_without_a_learning_rate_nothing_is_learned(tmp_path):
    gain = gain_of(["optim.lr=0"], tmp_path / "run", steps=6)
    assert gain["ci95"][0] <= 0 <= gain["ci95"][1]
    weights = load_file(tmp_path / "run" / "final" / "adapter_model.safetensors")
    assert all(tensor.abs().max() == 0 for name, tensor in weights.items() if "lora_B" in name)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_shuffled_rewards_teach_nothing(tmp_path, seed):
    """What `--control shuffle` runs, with small steps of a fixed rate: the model stays as it is."""
    gain = gain_of(["reward.shuffle=true", "optim.step_kl=none", "optim.lr=1.3e-4"], tmp_path / "run", steps=60, seed=seed)
    print(gain)
    assert gain["ci95"][0] <= 0 <= gain["ci95"][1]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_steered_steps_with_nothing_to_follow_make_it_forget(tmp_path, seed):
    """As large as those of a run that learns, they lead away from what the model could do. How far differs with the seed and the
    processor, from 4 points to 20: fewer questions could not show it."""
    gain = gain_of(["reward.shuffle=true", "evaluation.problems=256"], tmp_path / "run", steps=60, seed=seed)
    print(gain)
    assert gain["ci95"][1] < 0
