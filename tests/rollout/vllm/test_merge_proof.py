"""The proof of a merge into 16 bits, with an engine whose model is a copy of the trainer's: it gets tensors as vLLM does."""

import copy

import pytest
import torch

from microrl.adapters.attach import attach
from microrl.config import resolve
from microrl.errors import SyncNotProved
from microrl.models.forward import adapted, sequence_logprobs
from microrl.models.tensors import dequantize, updated, weights
from microrl.models.tiny import build_model
from microrl.policy.policy import Policy
from microrl.rollout.sync import SyncChoice, Trial
from microrl.rollout.vllm import engine as engine_module
from microrl.rollout.vllm.engine import VllmEngine
from microrl.rollout.vllm.launch import VllmSettings
from microrl.types import AdapterSnapshot

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class CopyDriver:
    """An engine without vLLM: a second model that weights are loaded into, or that a pair runs beside. It has the trainer's
    16-bit weights and computes in float32, so that its arithmetic is another, as vLLM's is."""

    lora_products = "dense"

    def __init__(self, base, settings):
        self.base, self.settings = base, settings
        self.held, self.pairs = copy.deepcopy(base).float(), {}

    def load(self, snapshot):
        for name, tensor in weights(self.base, snapshot, for_engine=True):
            self.held.get_parameter(name).copy_(tensor)

    def weights_difference(self, snapshot):
        for name, tensor in weights(self.base, snapshot, for_engine=True):
            if not torch.equal(self.held.get_parameter(name), tensor.float()):
                return f"`{name}` differs"
        return None

    def swap(self, pairs):
        self.pairs = {name: type(pair)(pair.A_RI.clone(), pair.B_OR.clone(), pair.scale) for name, pair in pairs.items()}

    def drop_adapters(self):
        self.pairs = {}

    def adapter_difference(self, pairs):
        same = self.pairs.keys() == pairs.keys() and all(torch.equal(self.pairs[n].B_OR, pairs[n].B_OR) for n in pairs)
        return None if same else "the adapter differs"

    def score(self, sequences):
        with adapted(self.held, AdapterSnapshot(0, self.pairs)) as model:
            return sequence_logprobs(model, sequences, fp32_head=self.settings.fp32_head)

    def settle(self):
        pass

    reset_cache = settle

    def wake(self, what):
        return 0

    def sleep(self):
        return 0


class Trained:
    """A policy on the tiny model in 16 bits, and the engine that it is handed over to."""

    def __init__(self, tokenizer, dtype, monkeypatch, sync="merge"):
        monkeypatch.setattr(engine_module, "VllmDriver", CopyDriver)
        keys = {"adapter.rank": 16, "adapter.alpha": 16.0, "model.dtype": dtype, "model.head_dtype": "float32", "seed": 4}
        config = resolve((), keys)
        model = build_model(tokenizer, seed=3).eval().requires_grad_(False).to(getattr(torch, dtype))
        targets = tuple(name for name, _ in model.named_modules() if name.endswith(TARGETS))
        settings = VllmSettings(targets, 16, 256, 8, 10**9, sync, "off", fp32_head=True)
        self.events = []
        self.engine = VllmEngine(
            model,
            tokenizer,
            settings,
            SyncChoice(sync, None, lambda mode, why, table: self.events.append("sync chosen")),
            lambda kind, message, **details: self.events.append(kind),
        )
        self.policy = Policy(model, config)
        self.generator = torch.Generator().manual_seed(0)

    @torch.no_grad()
    def step(self, size):
        """An update of this size in B, as an optimizer's steps would add up."""
        for pair in self.policy.adapter.snapshot(0).pairs.values():
            pair.B_OR.add_(torch.randn(pair.B_OR.shape, generator=self.generator) * size)
        self.policy.version += 1
        return self.policy.snapshot()

    def sync(self, snapshot):
        with self.engine.awake(snapshot):
            return self.engine.report


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
    driver = trained.engine._driver
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
    choice, modes = trained.engine._choice, []
    for _ in range(7):
        mode = choice.next()
        with trained.engine.awake(trained.step(1e-2), is_training=True):
            modes.append(trained.engine.report.mode)
        trained.engine._choice.record(mode, Trial(0.1, 10, 1.0 if mode == "swap" else 0.5, 0.0, 1.0))
    assert modes == ["swap"] * 3 + ["merge"] * 4 and "merge put off" not in trained.events


def test_the_runs_seed_rounds(tokenizer, monkeypatch):
    trained = Trained(tokenizer, "bfloat16", monkeypatch)
    assert trained.policy.snapshot().seed == 4
    model = build_model(tokenizer, seed=3).requires_grad_(False)
    assert attach(model, resolve((), {"adapter.kind": "full"}).adapter, seed=4).snapshot(0).seed is None
