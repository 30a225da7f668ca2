"""A vLLM engine whose model is a copy of the trainer's: it gets tensors as vLLM does, and needs no vLLM."""

import copy

import torch

from microrl.config import resolve
from microrl.models.forward import adapted, sequence_logprobs
from microrl.models.tensors import weights
from microrl.models.tiny import build_model
from microrl.policy.policy import Policy
from microrl.rollout.sync import SyncChoice
from microrl.rollout.vllm import engine as engine_module
from microrl.rollout.vllm.engine import VllmEngine
from microrl.rollout.vllm.launch import VllmSettings
from microrl.types import AdapterSnapshot

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class CopyDriver:
    """An engine without vLLM: a second model that weights are loaded into, or that a pair runs beside. It has the trainer's
    16-bit weights and computes in float32, so that its arithmetic is another, as vLLM's is."""

    lora_products, closed = "dense", 0

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

    def close(self):
        self.closed += 1


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
        self.choice = SyncChoice(sync, None, lambda mode, why, table: self.events.append("sync chosen"))
        self.engine = VllmEngine(
            model, tokenizer, settings, self.choice, lambda kind, message, **details: self.events.append(kind)
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
