"""The proof of a merge into 16 bits, with an engine whose model is a copy of the trainer's."""

import pytest
import torch
from copied_model import Trained

from microrl.adapters.attach import attach
from microrl.config import resolve
from microrl.errors import SyncNotProved
from microrl.models.tensors import dequantize, updated
from microrl.models.tiny import build_model
from microrl.rollout.sync import Trial
from microrl.rollout.vllm import engine as engine_module
from microrl.types import AdapterSnapshot


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_right_merge_is_proved_at_every_size(dtype, tokenizer, monkeypatch):
    """From an update that rounding to nearest would lose whole to one that fills the weights. What the rounding adds to the gap
    is not held against the hand-over; on a small update, the slope is mostly of the two sides' arithmetic."""
    trained = Trained(tokenizer, dtype, monkeypatch)
    for size in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2):
        report = trained.sync(trained.step(size))
        assert report.mode == "merge"
    assert set(trained.events) == {"probe calibrated", "probe"}, "nothing had to be pushed twice"
    assert report.slope == pytest.approx(1, abs=0.2)


def test_the_gap_that_is_reported_is_to_the_trainers_own_scores(tokenizer, monkeypatch):
    trained, proofs = Trained(tokenizer, "bfloat16", monkeypatch), []
    read = engine_module.sync_check.Probe.read
    monkeypatch.setattr(
        engine_module.sync_check.Probe, "read", lambda self, *scores: (proofs.append(read(self, *scores)), proofs[-1])[1]
    )
    report = trained.sync(trained.step(1e-2))
    proof, reading = proofs[-2:]
    assert report.gap == reading.gap != proof.gap and report.slope == reading.slope != proof.slope
    assert proof.slope == pytest.approx(1, abs=0.05)


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize(
    ("damage", "guard"),
    [
        ("skipped", "bytes"),
        ("truncated", "bytes"),
        *((damage, "probe") for damage in ("skipped", "halved", "left out")),
    ],
)
def test_a_wrong_merge_is_caught(damage, guard, tokenizer, monkeypatch):
    """By each of the two guards alone: nothing pushed, half of the scale, half of the layers. What is cut off instead of rounded
    lies below the noise of the scores: the bytes show it."""
    trained = Trained(tokenizer, "bfloat16", monkeypatch)
    trained.sync(trained.step(3e-2))
    driver = trained.engine.driver
    load = driver.load

    def wrong(snapshot):
        pairs = {name: type(pair)(pair.A_RI, pair.B_OR, pair.scale / 2) for name, pair in snapshot.pairs.items()}
        if damage == "left out":
            pairs = {name: pair for name, pair in snapshot.pairs.items() if "layers.0" in name}
        if damage in ("halved", "left out"):
            load(AdapterSnapshot(snapshot.version, pairs, seed=snapshot.seed))
        if damage == "truncated":
            load(snapshot)
            for name in snapshot.pairs:
                weight = driver.held.get_parameter(f"{name}.weight")
                wide = updated(f"{name}.weight", dequantize(driver.base.get_parameter(f"{name}.weight")).float(), snapshot)
                weight.copy_((wide.view(torch.int32) & -(2**16)).view(torch.float32))

    monkeypatch.setattr(driver, "load", torch.no_grad()(wrong))
    if guard == "probe":
        monkeypatch.setattr(driver, "weights_difference", lambda snapshot: None)
    else:
        monkeypatch.setattr("microrl.rollout.sync_check.Reading.failure", lambda self: None)
    with pytest.raises(SyncNotProved):
        trained.sync(trained.step(3e-2))
    assert trained.events[-1] == "swap retried"


def test_auto_merges_into_16_bits(tokenizer, monkeypatch):
    """Three swaps, three merges that are confirmed, and the cheaper one from there on."""
    trained = Trained(tokenizer, "bfloat16", monkeypatch, sync="auto")
    modes = []
    for _ in range(7):
        mode = trained.choice.next()
        with trained.engine.awake(trained.step(1e-2), is_training=True):
            modes.append(trained.engine.report.mode)
        trained.choice.record(mode, Trial(0.1, 10, 1.0 if mode == "swap" else 0.5, 0.0, 1.0))
    assert modes == ["swap"] * 3 + ["merge"] * 4 and "merge put off" not in trained.events


def test_the_runs_seed_rounds(tokenizer, monkeypatch):
    trained = Trained(tokenizer, "bfloat16", monkeypatch)
    assert trained.policy.snapshot().seed == 4
    model = build_model(tokenizer, seed=3).requires_grad_(False)
    assert attach(model, resolve((), {"adapter.kind": "full"}).adapter, seed=4).snapshot(0).seed is None
