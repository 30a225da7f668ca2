"""Weights that are not finite: not made, not saved, not read."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from algorithms import GRPO, MASKED
from command_line import in_process
from random_models import random_model, with_adapter
from safetensors.torch import load_file, save_file
from samples import scored_groups

from microrl.algorithm.batch import assemble
from microrl.errors import UserError
from microrl.models.tensors import not_finite

NAN, INF = float("nan"), float("inf")


def test_what_is_not_finite_is_found_by_name_in_every_type():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        largest = torch.full((9,), torch.finfo(dtype).max, dtype=dtype)  # whose squares are not finite
        fine = {"a": largest, "none": torch.empty(0, dtype=dtype), "packed": torch.ones(3, dtype=torch.uint8)}
        assert not_finite(fine) is None
        for value in (NAN, INF, -INF):
            assert not_finite({**fine, "b": torch.tensor([[1.0, value]], dtype=dtype), "c": largest}) == "b"
    assert not_finite({}) is None


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("kind", ["lora", "adalora"])
@pytest.mark.parametrize("several", [False, True])
def test_a_step_that_makes_weights_infinite_ends_the_run(kind, several, tokenizer):
    """The gradients are finite; the rate is not of this world. What had several steps is put back as it was."""
    model = random_model("qwen2")
    policy = with_adapter(model, **{"adapter.kind": kind, "optim.prompts_per_update": 1 if several else None})
    batch = assemble(scored_groups(model, policy, tokenizer), GRPO)
    before = [parameter.clone() for parameter in policy.parameters]
    with pytest.raises(UserError, match=r"non-finite weights: `.*lora_[ABE]") as caught:
        policy.update(batch, 3.4e38)
    assert "--step-kl 0.00025" in caught.value.hint, "a quarter of the default"
    assert policy.is_consistent is several
    if several:
        assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters))


def test_the_reason_of_a_skipped_update_is_true(tokenizer):
    """Rewards differ, but every completion is masked: nobody is told that they do not differ."""
    model = random_model("qwen2")
    policy = with_adapter(model)
    groups = scored_groups(model, policy, tokenizer, tokens=5)
    reason = policy.update(assemble(groups, MASKED), 1e-3).reason
    assert "masked" in reason and "no group's rewards differ" not in reason


@pytest.fixture(scope="module")
def run(model_folder, data_file, tmp_path_factory):
    """A finished run of two steps with a checkpoint after each."""
    out = tmp_path_factory.mktemp("run") / "run"
    assert in_process(*arguments(model_folder, data_file, out)).returncode == 0
    return out


def arguments(model, data, out, *more):
    sets = ["sampling.prompts_per_step=4", "sampling.group_size=8", "sampling.max_completion_tokens=40", "data.system=",
            "reward.overlong.buffer=39", "data.held_out=0.2", "evaluation.problems=2", "evaluation.samples=1",
            "evaluation.pass_k=[1]", *more]  # fmt: skip
    flags = [part for key in sets for part in ("--set", key)]
    return ["train", "--model", model, "--data", data, "--rank", 2, "--steps", 2, "--out", out, *flags]


def test_a_run_whose_weights_become_infinite_is_not_done(inside, model_folder, data_file, tmp_path, monkeypatch):
    done = inside(*arguments(model_folder, data_file, tmp_path / "eps", "optim.eps=1e-300"))
    assert done.returncode == 2 and "optim.eps" in done.stderr and "hint: " in done.stderr and not (tmp_path / "eps").exists()
    out = tmp_path / "lr"
    monkeypatch.setattr("microrl.train.step.scheduled", lambda *_, **__: 1e44)  # no configuration has such a rate
    done = inside(*arguments(model_folder, data_file, out))
    assert done.returncode == 2 and "non-finite weights" in done.stderr and "hint: " in done.stderr, done.stderr
    assert json.loads((out / "summary.json").read_text())["status"] == "failed" and not (out / "final").exists()
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert any("non-finite weights" in event["message"] for event in events), events
    assert not [tensor for path in out.rglob("*.safetensors") for tensor in load_file(path).values() if not_finite({"": tensor})]


def spoil(path, value):
    """One number of the last tensor."""
    tensors = load_file(path)
    list(tensors.values())[-1].view(-1)[-1] = value
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize("value", [NAN, INF])
def test_what_is_not_finite_is_not_read(value, inside, run, model_folder, data_file, tmp_path):
    """final/, an adapter's folder and a base, by merge, eval and sample: the tensor is named, and nothing is left behind."""
    theirs = Path(shutil.copytree(run, tmp_path / "run"))
    spoil(theirs / "final" / "adapter_model.safetensors", value)
    apart = Path(shutil.copytree(theirs / "final", tmp_path / "adapter"))
    model = Path(shutil.copytree(model_folder, tmp_path / "model"))
    spoil(model / "model.safetensors", value)
    out = tmp_path / "out"
    for words, tensor in (
        (["merge", theirs, "--out", out], "lora_"),
        (["merge", theirs, "--as", "full", "--out", out], "lora_"),
        (["merge", apart, "--out", out], "lora_"),
        (["eval", theirs], "lora_"),
        (["sample", theirs, "1 + 1?"], "lora_"),
        (["merge", run, "--as", "full", "--out", out], None),
        (["merge", run / "final", "--model", model, "--as", "full", "--out", tmp_path / "other"], "model."),
        (["eval", model, "--data", data_file, "--problems", 1], "model."),
        (arguments(model, data_file, tmp_path / "new"), "model."),
    ):
        done = inside(*words)
        if tensor is None:
            assert done.returncode == 0, done.stderr
            shutil.rmtree(out)
            continue
        assert done.returncode == 2 and "not finite: `" in done.stderr and tensor in done.stderr, (words, done.stderr)
        assert "hint: " in done.stderr and not out.exists() and not (tmp_path / "other").exists()
    assert not list(tmp_path.glob(".*")) and not list(tmp_path.glob("new/final"))


def test_a_checkpoint_that_is_not_finite_is_not_gone_on_with(inside, run, model_folder, data_file, tmp_path):
    """Its checksums are right: it was written so. Neither --resume nor --init takes it."""
    import hashlib

    theirs = Path(shutil.copytree(run, tmp_path / "run"))
    (theirs / "summary.json").unlink()
    for place in (theirs / "checkpoints").iterdir():
        spoil(place / "adapter.safetensors", NAN)
        lines = [line.split("  ") for line in (place / "SHA256SUMS").read_text().splitlines()]
        sums = [f"{hashlib.sha256((place / name).read_bytes()).hexdigest()}  {name}\n" for _, name in lines]
        (place / "SHA256SUMS").write_text("".join(sums))
    for words in (
        ["train", "--resume", theirs, "--steps", 3],
        [*arguments(model_folder, data_file, tmp_path / "x"), "--init", theirs],
    ):
        done = inside(*words)
        assert done.returncode == 2 and "are not finite" in done.stderr and "lora_" in done.stderr, done.stderr
        assert "hint: " in done.stderr


def test_an_update_that_overflows_is_not_exported(inside, run, tmp_path):
    """Finite tensors whose product is not."""
    theirs = Path(shutil.copytree(run, tmp_path / "run"))
    path = theirs / "final" / "adapter_model.safetensors"
    save_file({name: torch.full_like(tensor, 1e30) for name, tensor in load_file(path).items()}, path, metadata={"format": "pt"})
    for words in (["merge", theirs, "--out", tmp_path / "out"], ["eval", theirs], ["sample", theirs, "1 + 1?"]):
        done = inside(*words)
        assert done.returncode == 2 and "is not finite in float32" in done.stderr and "hint: " in done.stderr, done.stderr
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*"))
