"""The same seed gives the same bits: with several threads, uneven groups and busy cores."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from random_models import random_model, with_adapter
from torch.utils._python_dispatch import TorchDispatchMode

from microrl.algorithm.batch import Batch, Row
from microrl.models import threads
from microrl.models.load import use_own_parts
from microrl.run import metrics

LOSSES = ("grpo", "dapo", "dr_grpo", "gspo")
VARYING = ("time/", "budget/", "memory/", "tokens/per_second", "seconds")


def uneven_batch(groups=12):
    """Groups of 2 to 13 completions of 3 to 59 tokens: a thread's part of the sums ends within a group."""
    generator = torch.Generator().manual_seed(0)

    def draw(low, high):
        return int(torch.randint(low, high, (), generator=generator))

    def ids(count):
        return tuple(torch.randint(5, 250, (count,), generator=generator).tolist())

    rows = []
    for group in range(groups):
        prompt = ids(draw(4, 40))
        for number in range(draw(2, 14)):
            completion = ids(draw(3, 60))
            rows.append(Row(prompt, completion, (-5.0,) * len(completion), (-1.0) ** number, True, group))
    return Batch(tuple(rows), groups, 0)


def policy_of(architecture, **flags):
    model = random_model(architecture)
    use_own_parts(model)
    policy = with_adapter(model, **flags)
    policy.optimizer_step = lambda has_gradient, tally, progress: None
    return policy


@pytest.mark.slow
@pytest.mark.usefixtures("busy_cores")
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    ("architecture", "flags"),
    [
        ("llama", {}),
        ("gemma3", {}),
        *(("qwen3", {"loss.kind": loss, "loss.beta": 0.1}) for loss in LOSSES),
        ("llama", {"model.gradient_checkpointing": True}),
    ],
)
def test_gradients_are_the_same_every_time(architecture, flags, count, monkeypatch):
    monkeypatch.setattr(threads, "available_cores", lambda: count)
    monkeypatch.setattr("microrl.limits.CPU_SMALL_PARAMETERS", 0)
    policy, batch = policy_of(architecture, **flags), uneven_batch()
    assert policy.update_threads == count

    def gradients():
        for parameter in policy.parameters:
            parameter.grad = None
        policy.update(batch, 1e-3)
        policy.version = 0
        return [parameter.grad for parameter in policy.parameters]

    first = gradients()
    for _ in range(8):
        assert all(map(torch.equal, gradients(), first))


class _RepeatedSums(TorchDispatchMode):
    """Names the operations that add to one element several times with atomics, and so in the order of the threads."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        name = function.overloadpacket.__name__
        if name.lstrip("_").startswith("index_put"):
            accumulates = bool(arguments[3]) if len(arguments) > 3 else bool((named or {}).get("accumulate"))
            is_mask = any(x is not None and x.dtype is torch.bool for x in arguments[1])  # which repeats nothing
            if accumulates and not is_mask:
                places = torch.stack(torch.broadcast_tensors(*(x for x in arguments[1] if x is not None))).flatten(1)
                if places.unique(dim=1).shape[1] < places.shape[1]:
                    self.seen.add(name)
        return function(*arguments, **(named or {}))


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(
    "architecture", ["llama", "gemma3", *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen2", "qwen3"))]
)
def test_no_gradient_is_summed_with_atomics(architecture):
    """Red on one core too, where no two threads ever meet."""
    policy = policy_of(architecture)
    with _RepeatedSums() as sums:
        policy.update(uneven_batch(groups=3), 1e-3)
    assert not sums.seen


@pytest.fixture
def busy_cores():
    """Two processes that never wait."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


def train(out, seed, loss, count, *more, steps=12, kill_at=None):
    """A quickstart of so many steps in a process of its own; with `kill_at` it is killed after so many and resumed."""
    command = [sys.executable, "-m", "microrl", "train"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(count)}
    wanted = [
        "quickstart",
        "--seed",
        str(seed),
        "--steps",
        str(steps),
        "--loss",
        loss,
        "--set",
        "budget.hours=1",
        "--out",
        str(out),
        *more,
    ]
    if kill_at is not None:
        process = subprocess.Popen([*command, *wanted], env=environment, stderr=subprocess.DEVNULL)
        path = out / "metrics.jsonl"
        while process.poll() is None and not (path.exists() and path.read_text().count("\n") >= kill_at):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        wanted = ["--resume", str(out)]
    done = subprocess.run([*command, *wanted], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def rows_of(path):
    """The lines of a run's metrics, but for times."""
    lines = map(json.loads, path.read_text().splitlines())
    return [{name: value for name, value in line.items() if not name.startswith(VARYING)} for line in lines]


def results(out):
    """A run's adapter, its rollouts, and its evaluations."""
    files = [*(out / "final").glob("*.safetensors"), *(out / "rollouts").glob("*"), *(out / "eval").glob("*.gz")]
    return {path.relative_to(out): path.read_bytes() for path in files}


def traces(out, steps=12):
    """All that a run computed."""
    rows, files = rows_of(out / "metrics.jsonl"), results(out)
    assert len(rows) == steps and set(rows[0]) < set(metrics.METRICS) and len(files) >= steps + 3
    return rows, files


def microrl(count, *arguments):
    """A command in a process of its own, with so many threads."""
    command = [sys.executable, "-m", "microrl", *map(str, arguments)]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": str(count)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("busy_cores")
@pytest.mark.parametrize(
    ("seed", "loss", "count", "kill_at"),
    [
        (31, "grpo", 2, None),
        *((seed, loss, count, None) for seed, (loss, count) in enumerate(itertools.product(LOSSES, (2, 4)), start=40)),
        *((seed, loss, 2, 3 + seed % 7) for seed, loss in enumerate(LOSSES, start=60)),
        *((seed, "grpo", 2, None) for seed in range(70, 77)),
    ],
)
def test_two_runs_of_one_seed_are_equal_on_busy_cores(tmp_path, seed, loss, count, kill_at):
    train(tmp_path / "a", seed, loss, count)
    train(tmp_path / "b", seed, loss, count, kill_at=kill_at)
    assert traces(tmp_path / "a") == traces(tmp_path / "b")


@pytest.mark.slow(minutes=0.4)
@pytest.mark.one_of_each
def test_two_short_runs_of_one_seed_are_equal(tmp_path):
    """On cores that are as busy as the other tests keep them."""
    for name in ("a", "b"):
        train(tmp_path / name, 31, "grpo", 2, "--set", "evaluation.problems=8", steps=3)
    assert traces(tmp_path / "a", 3) == traces(tmp_path / "b", 3)


@pytest.mark.slow
@pytest.mark.usefixtures("busy_cores")
@pytest.mark.parametrize("seed", [80, 81])
def test_two_sweeps_are_equal_on_busy_cores(tmp_path, seed):
    """Though one of them evaluates the base model for trials of which another is the first."""
    for name, ranks in (("a", "2,8"), ("b", "8,2")):
        microrl(2, "sweep", "quickstart", "--ranks", ranks, "--seeds", seed, "--steps", 6, "--out", tmp_path / name)
    for trial in ("r2", "r8"):
        trial = f"{trial}-seed{seed}"
        assert traces(tmp_path / "a" / trial, 6) == traces(tmp_path / "b" / trial, 6)


@pytest.mark.slow
@pytest.mark.usefixtures("busy_cores")
@pytest.mark.parametrize("seed", [90, 91])
def test_two_evaluations_are_equal_on_busy_cores(tmp_path, seed):
    microrl(2, "train", "quickstart", "--seed", seed, "--steps", 2, "--set", "budget.hours=1", "--out", tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name in ("a", "b"):
        words = ["--samples", 16, "--problems", 48, "--seed", seed, "--base", "quickstart"]
        microrl(2, "eval", tmp_path / name, *words)
    stored = [results(tmp_path / name) for name in ("a", "b")]
    assert stored[0] == stored[1] and sum("n16" in path.name for path in stored[0]) >= 1


@pytest.mark.slow
@pytest.mark.usefixtures("busy_cores")
@pytest.mark.parametrize("seed", [100, 101])
def test_two_runs_of_sft_alone_are_equal_on_busy_cores(tmp_path, seed):
    found = []
    for name in ("a", "b"):
        words = ["--seed", seed, "--set", "sft.only=true", "--set", "sft.steps=24", "--set", "budget.hours=1"]
        microrl(2, "train", "quickstart", *words, "--out", tmp_path / name)
        found.append((rows_of(tmp_path / name / "sft.jsonl"), results(tmp_path / name)))
        assert len(found[-1][0]) == 24 and len(found[-1][1]) == 3
    assert found[0] == found[1]
