"""The same seed gives the same bits: with several threads, uneven groups and busy cores."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from test_engine import random_model, with_adapter
from torch.utils._python_dispatch import TorchDispatchMode

from microrl.algorithm.batch import Batch, Row
from microrl.models import threads
from microrl.models.load import use_own_parts
from microrl.run import metrics

LOSSES = ("grpo", "dapo", "dr_grpo", "gspo")
VARYING = ("time/", "budget/", "memory/", "tokens/per_second")


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
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    ("architecture", "flags"),
    [
        pytest.param("llama", {}, marks=pytest.mark.one_of_each),
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


def train(out, seed, loss, count, *more, kill_at=None):
    """A quickstart of 12 steps in a process of its own; with `kill_at` it is killed after so many and resumed."""
    command = [sys.executable, "-m", "microrl", "train"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(count)}
    wanted = [
        "quickstart",
        "--seed",
        str(seed),
        "--steps",
        "12",
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


def traces(out):
    """All that a run computed: its metrics but for times, its adapter, its rollouts, and its evaluations."""
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    rows = [{name: value for name, value in line.items() if not name.startswith(VARYING)} for line in lines]
    assert len(rows) == 12 and set(rows[0]) < set(metrics.METRICS)
    files = [*(out / "final").glob("*.safetensors"), *(out / "rollouts").iterdir(), *(out / "eval").glob("*.gz")]
    assert len(files) >= 15
    return rows, {path.relative_to(out): path.read_bytes() for path in files}


@pytest.mark.slow
@pytest.mark.usefixtures("busy_cores")
@pytest.mark.parametrize(
    ("seed", "loss", "count", "kill_at"),
    [
        pytest.param(31, "grpo", 2, None, marks=pytest.mark.one_of_each),
        *((seed, loss, count, None) for seed, (loss, count) in enumerate(itertools.product(LOSSES, (2, 4)), start=40)),
        *((seed, loss, 2, 3 + seed % 7) for seed, loss in enumerate(LOSSES, start=60)),
        *((seed, "grpo", 2, None) for seed in range(70, 77)),
    ],
)
def test_two_runs_of_one_seed_are_equal_on_busy_cores(tmp_path, seed, loss, count, kill_at):
    train(tmp_path / "a", seed, loss, count)
    train(tmp_path / "b", seed, loss, count, kill_at=kill_at)
    assert traces(tmp_path / "a") == traces(tmp_path / "b")
