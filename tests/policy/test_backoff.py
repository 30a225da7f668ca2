"""Out of memory wherever it can come, and a full disk: the run goes on, with the same result, and says what happened."""

import hashlib
import json
import resource
import subprocess
import sys

import processes
import pytest
import torch
from safetensors.torch import load_file
from whole_runs import rows

from microrl import files
from microrl.algorithm import loss as losses
from microrl.models.gpu import is_out_of_memory
from microrl.policy import logprobs
from microrl.policy import policy as policy_module
from microrl.policy.architecture import load_checked
from microrl.policy.policy import Policy
from microrl.rollout import continuous, decoding
from microrl.rollout import transformers as engine_module
from microrl.run import checkpoint
from microrl.train import held_out, setup

ADAPTER = "final/adapter_model.safetensors"
SETS = ["sampling.max_completion_tokens=40", "sampling.group_size=8", "reward.overlong.buffer=39", "optim.lr=0.002",
        "data.validation=0.2", "validation.fraction=0.5", "optim.prompts_per_update=2", "loss.beta=0.01"]  # fmt: skip


@pytest.fixture(scope="module")
def arguments(tiny_arguments):
    return [*map(str, tiny_arguments), "--steps", "5", *(part for key in SETS for part in ("--set", key))]


@pytest.fixture(scope="module")
def whole(microrl, arguments, tmp_path_factory):
    out = tmp_path_factory.mktemp("backoff") / "whole"
    done = microrl("train", *arguments, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def raising(monkeypatch, owner, name, error, when):
    """Make calls of `owner.name` raise, those for whose number `when` is true; returns how many there were."""
    original, calls = getattr(owner, name), [0]

    def wrapped(*args, **kwargs):
        calls[0] += 1
        if when(calls[0]):
            raise error
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, wrapped)
    return calls


CARD = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
HOST = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
)
UPDATE = {
    "log-probabilities before": (Policy, "logprobs", 3),
    "forward": (policy_module, "hidden_states", 9),
    "head": (logprobs, "chosen_logprobs", 12),
    "loss": (losses, "surrogate", 4),
    "reference": (losses, "k3", 4),
    "backward": (torch.Tensor, "backward", 5),
    "norm": (torch.nn.utils, "clip_grad_norm_", 3),
    "optimizer": (torch.optim.AdamW, "step", 4),
    "first step": (torch.optim.AdamW, "step", 1),
}
SAMPLING = {
    "merging": (engine_module, "merge_lora", 20),
    "prefill": (decoding.DecodingBatch, "_prefill", 6),
    "decoding": (decoding.DecodingBatch, "step", 150),
    "choosing": (continuous, "sample_tokens", 200),
    "validation": (held_out, "evaluate", 2),
    "evaluation before": (held_out, "evaluate", 1),
}


ONE_OF_EACH = {"backward", "decoding"}


def marks(place):
    return (pytest.mark.slow, pytest.mark.one_of_each) if place in ONE_OF_EACH else (pytest.mark.slow,)


def test_a_diagnostic_that_runs_out_of_memory_is_left_out(inside, tiny_arguments, tmp_path, monkeypatch):
    raising(monkeypatch, Policy, "kl_to_base", CARD, lambda number: number == 2)
    done = inside("train", *tiny_arguments, "--steps", 3, "--set", "diagnostics.kl_ref_every=1", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    measured = [row["policy/kl_ref"] for row in rows(tmp_path / "run")]
    assert measured[1] is None and None not in (measured[0], measured[2])
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [(event["step"], event["message"]) for event in events if event["kind"] == "out of memory"] == [
        (1, "in the diagnostics: this step has no policy/kl_ref")
    ]


@pytest.mark.parametrize("number", [1, 2])
def test_measuring_a_fixed_rates_step_does_not_end_training(inside, tiny_arguments, tmp_path, monkeypatch, number):
    """The first pass precedes the update, the second follows it; both are done again in smaller micro-batches."""
    raising(monkeypatch, Policy, "logprobs", CARD, lambda call: call == number)
    reward = ["--set", "reward.overlong.buffer=11", "--set", "sampling.group_size=4"]  # some completions end before the limit
    done = inside("train", *tiny_arguments, *reward, "--steps", 1, "--lr", 0.002, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    (row,) = rows(tmp_path / "run")
    assert row["policy/step_kl"] > 0 and 0 < row["time/step_kl"] < row["time/update"]
    assert '"kind": "out of memory", "message": "in the update: ' in (tmp_path / "run" / "events.jsonl").read_text()


@pytest.mark.parametrize(
    ("place", "error"),
    [
        *(pytest.param(place, CARD, marks=marks(place), id=place) for place in [*UPDATE, *SAMPLING]),
        pytest.param("forward", HOST, marks=pytest.mark.slow, id="forward on the host"),
        pytest.param("choosing", HOST, marks=pytest.mark.slow, id="choosing on the host"),
    ],
)
def test_the_same_result_after_running_out_of_memory(inside, arguments, whole, tmp_path, monkeypatch, place, error):
    owner, name, count = {**UPDATE, **SAMPLING}[place]
    calls = raising(monkeypatch, owner, name, error, lambda number: number == count)
    out = tmp_path / "run"
    done = inside("train", *arguments, "--out", out)
    assert done.returncode == 0, done.stderr
    assert calls[0] > count, "the place was never reached"
    found, meant = rows(out, times=False), rows(whole, times=False)
    assert len(found) == len(meant) == 5
    for ours, theirs in zip(found, meant, strict=True):
        assert ours == {name: value and pytest.approx(value, rel=2e-4, abs=1e-6) for name, value in theirs.items()}
    adapter, wanted = load_file(out / ADAPTER), load_file(whole / ADAPTER)
    assert max(float((adapter[key] - wanted[key]).abs().max()) for key in wanted) < 2e-5
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    (event,) = [event for event in events if event["kind"] == "out of memory"]
    state = checkpoint.read_state(sorted((out / "checkpoints").iterdir())[-1])
    usual = checkpoint.read_state(sorted((whole / "checkpoints").iterdir())[-1])
    if place in UPDATE:
        assert state.tokens_per_microbatch == event["tokens_per_microbatch"] < usual.tokens_per_microbatch
    else:
        assert state.max_kv_gb == event["max_kv_gb"] and usual.max_kv_gb is None


@pytest.mark.one_of_each
@pytest.mark.slow
def test_what_was_learned_about_memory_outlives_the_process(inside, arguments, tmp_path, monkeypatch):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        raising(patch, torch.Tensor, "backward", CARD, lambda number: number == 1)
        raising(patch, decoding.DecodingBatch, "step", CARD, lambda number: number == 3)
        assert inside("train", *arguments, "--out", out).returncode == 0
    before = checkpoint.read_state(sorted((out / "checkpoints").iterdir())[-1])
    assert before.max_kv_gb
    seen = []
    original = Policy.update
    monkeypatch.setattr(
        Policy, "update", lambda self, *rest, **more: seen.append(self.max_tokens) or original(self, *rest, **more)
    )
    assert inside("train", "--resume", out, "--steps", 6).returncode == 0
    after = checkpoint.read_state(sorted((out / "checkpoints").iterdir())[-1])
    assert seen == [before.tokens_per_microbatch] == [after.tokens_per_microbatch] and after.max_kv_gb == before.max_kv_gb


@pytest.mark.slow
def test_the_last_resort_is_to_compute_activations_again(inside, arguments, whole, tmp_path, monkeypatch):
    """Out of memory until every row stands alone, and once more: then nothing is kept, and the run ends as it would have."""
    original, single = torch.Tensor.backward, []

    def full(self, *rest):
        from microrl.policy.policy import Policy as trainer

        policy = policies[-1]
        assert isinstance(policy, trainer)
        if not policy.checkpoints_activations:
            single.append(policy.max_tokens)
            raise CARD
        return original(self, *rest)

    policies = []
    made = Policy.__init__
    monkeypatch.setattr(Policy, "__init__", lambda self, *rest, **named: (made(self, *rest, **named), policies.append(self))[0])
    monkeypatch.setattr(torch.Tensor, "backward", full)
    out = tmp_path / "run"
    done = inside("train", *arguments, "--out", out)
    assert done.returncode == 0, done.stderr
    assert len(single) > 3 and single == sorted(single, reverse=True)
    adapter, wanted = load_file(out / ADAPTER), load_file(whole / ADAPTER)
    assert max(float((adapter[key] - wanted[key]).abs().max()) for key in wanted) < 2e-5
    assert checkpoint.read_state(sorted((out / "checkpoints").iterdir())[-1]).checkpoints_activations
    seen = []
    update = Policy.update
    monkeypatch.setattr(
        Policy, "update", lambda self, *rest, **more: seen.append(self.checkpoints_activations) or update(self, *rest, **more)
    )
    assert inside("train", "--resume", out, "--steps", 6).returncode == 0
    assert seen == [True]


@pytest.mark.cases(one_of_each=1)
@pytest.mark.slow
@pytest.mark.parametrize(("owner", "name", "first", "words"), [
    (torch.Tensor, "backward", 1, "out of memory in the update, with one completion at a time"),
    (decoding.DecodingBatch, "step", 1, "out of memory with the model alone, in a pass of a few tokens"),
    (decoding.DecodingBatch, "step", 20, "out of memory while sampling, with one group at a time"),
])  # fmt: skip
def test_where_nothing_smaller_is_left_it_says_so(inside, arguments, tmp_path, monkeypatch, owner, name, first, words):
    monkeypatch.setattr(setup, "load_checked", load_checked)  # also where another test has loaded this model
    raising(monkeypatch, owner, name, CARD, lambda number: number >= first)
    done = inside("train", *arguments, "--out", tmp_path / "run", "--set", "model.gradient_checkpointing=false")
    assert done.returncode == 1 and f"error: {words}" in done.stderr and "hint: " in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_a_lack_of_memory():
    assert is_out_of_memory(CARD) and is_out_of_memory(HOST) and is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("CUDA Error: out of memory at /vllm/csrc/cumem_allocator.cpp:62"))
    assert is_out_of_memory(ValueError("Free memory on device cuda:0 (3.1/44.5 GiB) on startup is less than desired"))
    assert not is_out_of_memory(RuntimeError("shapes do not match")) and not is_out_of_memory(OSError("out of memory"))


# ---- a full disk

LIMITED = """
import resource, sys
from microrl.cli import main
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
main()
"""


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_disk_that_fills_up_costs_checkpoints_and_not_the_run(microrl, arguments, tmp_path, monkeypatch):
    """A checkpoint that does not fit is told; the last good one stays, metrics wait in memory, and the run ends well."""
    out = tmp_path / "run"
    # No file may be larger than the adapter is: the optimiser's does not fit any more, the adapter does.
    probe = processes.run([sys.executable, "-c", LIMITED, 200_000, "train", *arguments, "--out", out], timeout=300)
    assert probe.returncode == 0, probe.stderr
    assert probe.stderr.count("\ndisk full: no room for checkpoints (there is none yet)") == 1, probe.stderr
    assert len(rows(out)) == 5 and (out / ADAPTER).is_file()
    assert json.loads((out / "summary.json").read_text())["status"] == "done"
    assert not list((out / "checkpoints").iterdir()), "nothing half written is left"


@pytest.mark.slow
def test_a_disk_without_room_for_the_adapter_ends_the_run_with_its_reason(arguments, tmp_path):
    out = tmp_path / "run"
    done = processes.run([sys.executable, "-c", LIMITED, 20_000, "train", *arguments, "--out", out], timeout=300)
    assert done.returncode == 1, done.stderr
    assert "error: the disk is full: no room for the final adapter" in done.stderr
    assert f"microrl train --resume {out}" in done.stderr and "Traceback" not in done.stderr


def test_metrics_wait_for_room(tmp_path):
    from microrl.run.folder import RunFolder

    folder = RunFolder(tmp_path)
    folder.append("metrics.jsonl", {"step": 0})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (folder.size("metrics.jsonl") + 3, before[1]))
    try:
        folder.append("metrics.jsonl", {"step": 1})
        folder.append("metrics.jsonl", {"step": 2})
        assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 0}\n', "no half line"
        with pytest.raises(OSError):
            folder.flush("metrics.jsonl")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    folder.flush("metrics.jsonl")
    assert [line["step"] for line in map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())] == [0, 1, 2]
    content = (tmp_path / "metrics.jsonl").read_bytes()
    assert folder.metrics_sum.at(len(content)) == hashlib.sha256(content).hexdigest()


def test_what_is_a_full_disk():
    assert files.is_full(OSError(28, "No space left on device"))
    assert files.is_full(ValueError("Error while serializing: I/O error: No space left on device (os error 28)"))
    assert not files.is_full(OSError(13, "Permission denied")) and not files.is_full(ValueError("os error"))
    assert files.is_refused(OSError(13, "Permission denied")) and not files.is_refused(ValueError("os error"))


@pytest.mark.one_of_each
@pytest.mark.slow
def test_a_disk_that_is_really_full(microrl, arguments, tmp_path):
    """The same on a file system of 1.1 MB, where one may be mounted."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1100k", "tmpfs", str(tmp_path)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("this user may not mount a file system")
    try:
        out = tmp_path / "run"
        done = microrl("train", *arguments, "--steps", 5, "--out", out)
        assert done.stderr.count("\ndisk full: no room for checkpoints (step-") == 1, done.stderr
        good = sorted((out / "checkpoints").iterdir())
        assert good and all(checkpoint.find_corruption(folder) is None for folder in (*good, out / "best"))
        lines = rows(out)
        assert [line["step"] for line in lines] == list(range(len(lines))) and len(lines) > 1
        assert done.returncode in (0, 1) and "Traceback" not in done.stderr
        assert (done.returncode == 0) is (out / ADAPTER).is_file()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
