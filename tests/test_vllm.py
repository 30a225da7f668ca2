"""The vLLM engine against the real vLLM, on whatever this machine has: every promise of a swap, and every trap set on purpose.

Each trap is shown twice: with the guard the engine is right, and with the guard taken out the same check sees it.
"""

import copy
import gc
import gzip
import json
import random
import signal
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import processes
import pytest
import torch
import v2_runner

pytest.importorskip("vllm", reason="vLLM is not installed")
pytestmark = pytest.mark.vllm
if v2_runner.is_chosen():
    v2_runner.choose()

from architectures import tiny  # noqa: E402
from test_adapters import RESIDUAL, alike_are_slow, config_of, ten_steps, train  # noqa: E402
from transformers import CONFIG_MAPPING  # noqa: E402

from microrl.algorithm.batch import Batch, Row  # noqa: E402
from microrl.config import resolve  # noqa: E402
from microrl.config.adapters import KINDS  # noqa: E402
from microrl.errors import MachineFailure, SyncNotProved  # noqa: E402
from microrl.models import gpu  # noqa: E402
from microrl.models.forward import kv_bytes_per_token, sequence_logprobs  # noqa: E402
from microrl.models.tiny import build_model  # noqa: E402
from microrl.policy.policy import Policy  # noqa: E402
from microrl.rollout.factory import make_engine  # noqa: E402
from microrl.rollout.sync import SyncChoice  # noqa: E402
from microrl.rollout.transformers import TransformersEngine  # noqa: E402
from microrl.rollout.vllm.driver import VllmDriver  # noqa: E402
from microrl.types import BASE, AdapterSnapshot, LowRank, Prompt, Sampling  # noqa: E402

CUDA = torch.cuda.is_available()
INTERPRETED = v2_runner.is_chosen()
LIKE_A_CARD = CUDA or INTERPRETED
DEVICE = "cuda" if CUDA else "cpu"
ONE_ENGINE = pytest.mark.skipif(CUDA, reason="on a GPU a process has one vLLM")
SETTINGS = {"engine.kind": "vllm", "adapter.rank": 6, "adapter.alpha": 9.0, "sampling.max_completion_tokens": 48,
            "data.max_prompt_tokens": 160, "sampling.prompts_per_step": 8, "sampling.group_size": 4, "sampling.temperature": 0.7,
            "model.dtype": "float16" if LIKE_A_CARD else "float32"}  # fmt: skip
DTYPE = torch.float16 if LIKE_A_CARD else torch.float32
# On a GPU vLLM computes adapters in 16 bits only; nothing of what is below has been run on one yet.
CLOSE, NEAR = (1e-2, 0.05) if LIKE_A_CARD else (1e-4, 0.01)
MANY, GROUP, LENGTH = (3, 2, 3) if INTERPRETED else (12, 4, 48)
STREAMED, STREAMED_LENGTH = (6, 40) if INTERPRETED else (MANY, LENGTH)
"""So many, and so long, that some end before others."""
"""Prompts, completions of each, and their tokens where there should be several: the interpreter is a thousand times slower."""
TINY = 1e-6 if LIKE_A_CARD else 1e-9
"""An update below the noise."""


def process_state():
    card = torch.cuda.get_rng_state() if CUDA else torch.zeros(1)
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), card.tolist()


@torch.no_grad()
def make_it_end(model, tokenizer):
    """Completions of different lengths from random weights: the head is tied, and the end of sequence becomes nearly as likely
    as the likeliest token."""
    ids = torch.tensor([tokenizer("What is 12 + 30?")["input_ids"]], device=model.device)
    likeliest = int(model(ids).logits[0].softmax(-1).mean(0).argmax())
    rows = model.get_input_embeddings().weight
    rows[tokenizer.eos_token_id] = rows[likeliest] * 1.2


class Served:
    """One model, its trainers, and the one vLLM engine of this process."""

    def __init__(self, tokenizer, **sets):
        self.tokenizer = tokenizer
        self.model = build_model(tokenizer, layers=1 if INTERPRETED else 3, seed=3).eval().requires_grad_(False).to(DEVICE, DTYPE)
        make_it_end(self.model, tokenizer)
        self.config = resolve((), {**SETTINGS, **sets})
        self.events = []
        before, set_threads, threads = process_state(), torch.set_num_threads, torch.get_num_threads()
        self.transformers = TransformersEngine(self.model, tokenizer, max_kv_gb=1)
        self.engine = make_engine(self.config, self.model, tokenizer)
        self.engine._on_event = lambda kind, message, **details: self.events.append((kind, message, details))
        self.engine._said = {True, False}  # what the probe shows has a test of its own
        self.untouched_by_building = (
            process_state() == before and torch.set_num_threads is set_threads and torch.get_num_threads() == threads
        )
        self.policies = {}
        models = {"lora": self.model, "rslora": copy.deepcopy(self.model)}
        for kind in ("lora", "rslora"):
            # The scale of rslora is larger by the root of the rank: a smaller alpha keeps the change alike.
            flags = {**SETTINGS, "adapter.kind": kind, "adapter.alpha": 9.0 if kind == "lora" else 4.0}
            self.policies[kind] = Policy(models[kind], resolve((), flags))
            self.change(kind, seed=1)

    def change(self, kind, seed, size=0.1):
        """A new version of an adapter."""
        policy = self.policies[kind]
        generator = torch.Generator().manual_seed(seed)
        for pair in policy.snapshot().pairs.values():
            pair.B_OR.copy_(torch.randn(pair.B_OR.shape, generator=generator) * size)
        policy.version += 1
        return policy

    def in_mode(self, mode):
        self.engine._choice = SyncChoice(mode, None, lambda *_: None)
        return self.engine


@pytest.mark.parametrize(
    "model_type", ["gemma2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("granite", "cohere"))]
)
def test_logits_are_bent_once(model_type, microrl, tokenizer, data_file, tmp_path):
    """vLLM caps or scales the logits of these itself: trainer and sampler agree where that is worth nats."""
    sizes = {
        "hidden_size": 128,
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "logits_scaling": 8.0,
        "max_position_embeddings": 256,
    }
    known = CONFIG_MAPPING[model_type]().to_dict()
    ends = {"vocab_size": 304, "eos_token_id": tokenizer.eos_token_id}
    model = tiny(model_type, **{name: value for name, value in sizes.items() if name in known}, **ends)
    model.get_output_embeddings().weight.mul_(4)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    sets = ["sampling.max_completion_tokens=24", "data.max_prompt_tokens=100", "data.system=", "evaluation.problems=0",
            "sampling.prompts_per_step=2", "sampling.group_size=4", "reward.overlong.buffer=20"]  # fmt: skip
    flags = [part for key in sets for part in ("--set", key)]
    done = microrl("train", "--model", tmp_path / "model", "--data", data_file, "--rank", 8, "--steps", 1, "--engine", "vllm",
                   "--out", tmp_path / "run", *flags)  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert row["policy/kl_sampler"] < 1e-5


@pytest.fixture(scope="module")
def served(tokenizer):
    made = Served(tokenizer)
    with made.engine.awake(BASE):  # the first time it calibrates its probe
        assert [kind for kind, *_ in made.events] == ["probe calibrated"]
    yield made
    made.engine.close()


@pytest.fixture(autouse=True)
def _fresh_events(request):
    if "served" in request.fixturenames:
        request.getfixturevalue("served").events.clear()


def prompts(served, count=8, most=MANY):
    count = min(count, most)
    more = "" if INTERPRETED else " Take care, and say it in words first."
    texts = [f"What is {11 * n} + {n}?{more}" * (1 + n % 2) for n in range(1, count + 1)]
    return [Prompt(text, "1", text, tuple(served.tokenizer(text)["input_ids"])) for text in texts]


def sampled(engine, snapshot, chosen, sampling=None, stream=(0, 0)):
    sampling = sampling or Sampling(GROUP, LENGTH, temperature=0.7)
    with engine.awake(snapshot) as sampler:
        return [group for _, group in sorted(sampler.groups(chosen, sampling, stream=stream), key=lambda item: item[0])]


def rows_of(groups):
    return [Row(g.prompt.token_ids, c.token_ids, c.logprobs, 1.0, True, 0) for g in groups for c in g.completions]


def gap(policy, groups):
    """Largest difference between the engine's log-probabilities and the trainer's."""
    rows = rows_of(groups)
    return max(
        float((torch.tensor(row.engine_logprobs, device=found.device) - found).abs().max())
        for row, found in zip(rows, policy.logprobs(rows), strict=True)
    )


def test_building_leaves_the_process_as_it_was(served):
    assert served.untouched_by_building


@pytest.mark.parametrize("mode", ["swap", "merge"])
@pytest.mark.parametrize("kind", ["lora", "rslora"])
def test_logprobs_agree_with_the_trainer(served, kind, mode):
    policy = served.change(kind, seed=5)
    groups = sampled(served.in_mode(mode), policy.snapshot(), prompts(served))
    assert gap(policy, groups) < CLOSE
    assert served.engine.report.mode == mode and served.engine.report.slope == pytest.approx(1, abs=NEAR)
    with policy.adapter.off():
        assert gap(policy, groups) > 0.1, "the base is another distribution: the adapter is really there"


@pytest.mark.parametrize("kind", alike_are_slow(KINDS))
def test_every_adapter_is_served_as_it_is_trained(served, kind):
    """Trained for some steps, handed over in every way that it can be, and proved; a second version after the first."""
    config = config_of(kind, rank=3 if kind in RESIDUAL else 6, alpha=6.0)  # the engine's buffers are for rank 6
    flags = {f"adapter.{name}": value for name, value in config.model_dump().items()}
    policy = Policy(
        copy.deepcopy(served.engine._base), resolve((), {**SETTINGS, "adapter.rank": None, "adapter.alpha": None, **flags})
    )
    for mode in ("swap", "merge") if config.pair_rank else ("merge",):
        for _ in range(2):
            train(policy.adapter, steps=2, lr=0.02 if kind in ("ln", "ia3", "vera", "tinylora") else 0.005)
            policy.version += 1
            groups = sampled(served.in_mode(mode), policy.snapshot(), prompts(served))
            assert served.engine.report.mode == mode and gap(policy, groups) < CLOSE
            assert served.engine.report.slope == pytest.approx(1.0, abs=NEAR)
    assert not served.events


@pytest.mark.parametrize("mode", ["swap", "merge"])
def test_the_base_comes_back(served, mode):
    policy = served.change("lora", seed=6)
    sampled(served.in_mode(mode), policy.snapshot(), prompts(served, 1))
    groups = sampled(served.engine, BASE, prompts(served))
    with policy.adapter.off():
        assert gap(policy, groups) < CLOSE


def test_from_one_mode_to_the_other(served):
    policy = served.change("lora", seed=7)
    for mode in ("merge", "swap", "merge", "swap"):
        assert gap(policy, sampled(served.in_mode(mode), policy.snapshot(), prompts(served, 3))) < CLOSE


@pytest.mark.parametrize("mode", ["swap", "merge"])
def test_ten_swaps_in_a_row_each_proved(served, mode):
    engine = served.in_mode(mode)
    sequences = [c.token_ids for g in sampled(engine, BASE, prompts(served, 4)) for c in g.completions if len(c.token_ids) > 1]
    for number in range(10):
        policy = served.change("lora", seed=100 + number, size=0.02 * (1 + number))
        with engine.awake(policy.snapshot()):
            theirs, ours = engine.score(sequences), policy.score(sequences)
        assert engine.report.gap < CLOSE and engine.report.slope == pytest.approx(1, abs=NEAR)
        assert max(float((a - b.cpu()).abs().max()) for a, b in zip(theirs, ours, strict=True)) < CLOSE
    assert not served.events, "no swap had to be tried again"


@pytest.mark.parametrize("mode", ["swap", "merge"])
def test_the_same_prompt_before_and_after_a_swap(served, mode, monkeypatch):
    """The stale cache: keys and values of a prompt that older weights have computed."""
    engine, chosen = served.in_mode(mode), prompts(served, 4)
    long = [Prompt("q", "1", "", prompt.token_ids[:1] * 140 + prompt.token_ids[1:15]) for prompt in chosen]
    block = engine._driver._engine.vllm_config.cache_config.block_size
    assert min(len(prompt.token_ids) for prompt in long) > block, "whole blocks alone are cached"
    for seed in (20, 21):
        policy = served.change("lora", seed=seed)
        assert gap(policy, sampled(engine, policy.snapshot(), long)) < CLOSE
    if mode == "merge":  # a swapped adapter has a new number too, which a merge has not: here the reset is the only guard
        monkeypatch.setattr(engine._driver._llm, "reset_prefix_cache", lambda: True)
        sampled(engine, policy.snapshot(), long)
        policy = served.change("lora", seed=22)
        assert gap(policy, sampled(engine, policy.snapshot(), long)) > (2 if LIKE_A_CARD else 10) * CLOSE, (
            "without the reset it is seen"
        )


def test_a_cache_that_cannot_be_reset_is_an_error(served, monkeypatch):
    engine = served.in_mode("swap")
    monkeypatch.setattr(engine._driver._llm, "reset_prefix_cache", lambda: False)
    said = "while receiving weights: RuntimeError: vLLM would not reset"
    with pytest.raises(MachineFailure, match=said) as raised, engine.awake(BASE):
        pass
    assert raised.value.fault.doing == "receiving weights" and not raised.value.fault.out_of_memory


@pytest.mark.parametrize("mode", ["swap", "merge"])
def test_the_trainers_tensors_are_never_written(served, mode):
    """The in-place scaling trap: vLLM multiplies an adapter's B by its scale in the very tensor that it is given."""
    from vllm.lora.lora_weights import LoRALayerWeights

    policy = served.change("lora", seed=30)
    pairs = policy.snapshot().pairs
    scale = next(iter(pairs.values())).scale
    assert scale == 1.5
    before = {name: (pair.A_RI.clone(), pair.B_OR.clone()) for name, pair in pairs.items()}
    weights = {name: parameter.clone() for name, parameter in served.model.named_parameters()}
    for _ in range(3):
        sampled(served.in_mode(mode), policy.snapshot(), prompts(served, 1))
    assert all(torch.equal(pairs[name].A_RI, A) and torch.equal(pairs[name].B_OR, B) for name, (A, B) in before.items())
    assert all(torch.equal(weights[name], parameter) for name, parameter in served.model.named_parameters())
    name, pair = next(iter(pairs.items()))
    live = LowRank(pair.A_RI.clone(), pair.B_OR.clone(), pair.scale)
    LoRALayerWeights(name, 6, 9, live.A_RI, live.B_OR).optimize()
    assert torch.equal(live.B_OR, pair.B_OR * scale), "the trap is real: handed over with its scale, the tensor is changed"


@pytest.mark.parametrize("mode", ["swap", "merge"])
@pytest.mark.parametrize("guard", ["bytes", "probe"])
def test_a_skipped_push_is_caught(served, mode, guard, monkeypatch):
    """By each of the two guards alone."""
    engine, old = served.in_mode(mode), served.change("lora", seed=40)
    sampled(engine, old.snapshot(), prompts(served, 1))
    policy = served.change("lora", seed=41)
    with monkeypatch.context() as patched:
        patched.setattr(engine, "_push", lambda snapshot, mode: None)
        if guard == "probe":
            patched.setattr(engine, "_difference", lambda snapshot, mode: None)
        else:
            patched.setattr("microrl.rollout.sync_check.Reading.failure", lambda self: None)
        with pytest.raises(SyncNotProved) as caught, engine.awake(policy.snapshot()):
            raise AssertionError("nothing may be sampled")
    assert [kind for kind, *_ in served.events] == ["swap retried"]
    assert "version" in caught.value.message and caught.value.hint
    assert gap(policy, sampled(engine, policy.snapshot(), prompts(served, 2))) < CLOSE, "and the engine still works"


def test_an_update_below_the_noise_is_decided_by_its_bytes(served, monkeypatch):
    policy = served.change("lora", seed=42, size=TINY)
    engine = served.in_mode("swap")
    monkeypatch.setattr(engine, "_said", set())
    for _ in range(2):
        sampled(engine, policy.snapshot(), prompts(served, 1))
        assert engine.report.slope is None, "too small to be seen in the scores"
    ((kind, message, _),) = served.events
    assert kind == "probe" and "too small to see in log-probabilities" in message
    policy = served.change("lora", seed=43, size=TINY)
    push = engine._push
    monkeypatch.setattr(engine, "_push", lambda snapshot, mode: push(BASE, mode))
    with pytest.raises(SyncNotProved, match="no adapter of this version"), engine.awake(policy.snapshot()):
        pass


def test_a_push_that_fails_once_is_tried_again(served, monkeypatch):
    policy = served.change("lora", seed=44)
    engine = served.in_mode("swap")
    push, calls = engine._push, []

    def once(snapshot, mode):
        calls.append(mode)
        if len(calls) > 1:
            push(snapshot, mode)

    monkeypatch.setattr(engine, "_push", once)
    groups = sampled(engine, policy.snapshot(), prompts(served, 2))
    assert len(calls) == 2 and gap(policy, groups) < CLOSE
    assert [kind for kind, *_ in served.events] == ["swap retried"]


def test_the_second_try_pushes_everything(served, monkeypatch):
    """Damage to the base that a new adapter would not mend: the retry loads all weights again."""
    engine, policy = served.in_mode("swap"), served.change("lora", seed=48)
    sampled(engine, BASE, prompts(served, 1))  # whatever ran before: from here on only the adapter is to be pushed
    served.events.clear()
    push, calls = engine._push, []

    def damaging(snapshot, mode):
        push(snapshot, mode)
        calls.append(engine._loaded)
        if len(calls) == 1:
            engine._driver._runner.model.model.norm.weight.data.mul_(1.5)

    monkeypatch.setattr(engine, "_push", damaging)
    groups = sampled(engine, policy.snapshot(), prompts(served, 2))
    assert calls == [False, True] and gap(policy, groups) < CLOSE
    assert [kind for kind, *_ in served.events] == ["swap retried"]


def test_weights_that_did_not_come_back_are_seen_by_their_bytes(served, monkeypatch):
    """After dropped weights or a merge the base is loaded again: what went wrong there may lie below the noise."""
    engine, policy = served.in_mode("swap"), served.change("lora", seed=49)
    load, name = engine._driver.load, "model.layers.0.mlp.up_proj"
    stale = LowRank(torch.ones(1, 128, device=DEVICE), torch.ones(256, 1, device=DEVICE), 1e-4)
    monkeypatch.setattr(engine._driver, "load", lambda snapshot: load(AdapterSnapshot(0, {name: stale})))
    monkeypatch.setattr(engine, "_is_merged", None)
    with pytest.raises(SyncNotProved, match=rf"`{name}\.weight` in vLLM's memory"), engine.awake(policy.snapshot()):
        pass
    monkeypatch.undo()
    engine._is_merged = None
    assert gap(policy, sampled(engine, policy.snapshot(), prompts(served, 2))) < CLOSE


@pytest.mark.parametrize(
    ("breaks", "says"),
    [
        ("base", "base model is not the trainer's"),
        ("pushed", "random test adapter did not reach vLLM: no adapter of this version"),
        ("seen", "random test adapter did not reach vLLM: the engine's change does not match"),
        ("gone", "still affects the scores"),
        ("unseen", "too far apart on the base model"),
    ],
)
def test_the_canary_catches(served, monkeypatch, breaks, says):
    """At the start: another base, a canary that does not arrive or is not seen, and one that does not leave."""
    engine = served.in_mode("swap")
    driver, load, swap, drop = engine._driver, engine._driver.load, engine._driver.swap, engine._driver.drop_adapters
    swapped = []
    if breaks == "base":
        stale = LowRank(torch.ones(1, 128, device=DEVICE), torch.ones(256, 1, device=DEVICE), 1e-3)
        monkeypatch.setattr(driver, "load", lambda snapshot: load(AdapterSnapshot(0, {"model.layers.0.mlp.up_proj": stale})))
    if breaks in ("pushed", "seen"):
        monkeypatch.setattr(driver, "swap", lambda pairs: drop())
    if breaks == "seen":
        monkeypatch.setattr(driver, "adapter_difference", lambda pairs: None)
    if breaks == "gone":
        monkeypatch.setattr(driver, "swap", lambda pairs: (swap(pairs), swapped.append(True)))
        monkeypatch.setattr(driver, "drop_adapters", lambda: None if swapped else drop())
    if breaks == "unseen":
        monkeypatch.setattr("microrl.rollout.sync_check.CANARY_TIMES_NOISE", 1e9)
    monkeypatch.setattr(engine, "_probe", None)
    monkeypatch.setattr(engine, "_is_merged", None)
    with pytest.raises(SyncNotProved, match=says), engine.awake(BASE):
        pass
    monkeypatch.undo()
    engine._is_merged = None
    sampled(engine, BASE, prompts(served, 1))


def test_damage_is_named(served, monkeypatch):
    """One number of one layer's adapter, changed in vLLM's own memory."""
    policy = served.change("lora", seed=45)
    engine = served.in_mode("swap")
    swap = engine._driver.swap

    def damaging(pairs):
        swap(pairs)
        engine._driver._manager().modules["model.layers.1.mlp.down_proj"].lora_b_stacked[0][0, 0, 3, 2] += 0.01

    monkeypatch.setattr(engine._driver, "swap", damaging)
    with pytest.raises(SyncNotProved, match=r"layers\.1\.mlp\.down_proj"), engine.awake(policy.snapshot()):
        pass


def test_a_wrong_scale_is_told_from_a_missing_adapter(served, monkeypatch):
    policy = served.change("lora", seed=46, size=0.02)
    engine = served.in_mode("swap")
    real = engine._driver._served
    monkeypatch.setattr(engine._driver, "_served", lambda pair: real(replace(pair, scale=pair.scale / 2)))
    with pytest.raises(SyncNotProved, match="scale is wrong"), engine.awake(policy.snapshot()):
        pass


def test_an_adapter_lies_in_the_engines_buffers_and_nowhere_else(served, monkeypatch):
    """What is handed over is copied into the buffers; at rank 256 the copies of a 1.5B model would be 0.6 GB of the card."""
    engine, handed = served.in_mode("swap"), []
    real = VllmDriver._served

    def watched(self, pair):
        factors = real(self, pair)
        handed.extend(map(weakref.ref, factors))
        return factors

    monkeypatch.setattr(VllmDriver, "_served", watched)
    policy = served.change("lora", seed=53)
    with engine.awake(policy.snapshot()) as sampler:
        groups = [group for _, group in sampler.groups(prompts(served, 2), Sampling(2, 8, temperature=0.7), stream=(0, 1))]
        gc.collect()
        assert len(handed) > 20 and not any(tensor() is not None for tensor in handed)
        assert len(engine._driver._manager().list_adapters()) == 1
    assert gap(policy, groups) < CLOSE, "and it is served from there"


def test_the_rank_is_rounded_up(served):
    modules = served.engine._driver._manager().modules.values()
    assert {module.lora_a_stacked[0].shape[2] for module in modules} == {8}, "rank 6 in buffers of 8"


@pytest.fixture
def sleepy(served, monkeypatch):
    """The engine as if it slept: the real weights, pushes and proofs, with the card's memory played by a list of calls."""
    engine, calls = served.in_mode("swap"), []
    # Whatever test came before: the engine has the base and a swapped adapter.
    sampled(engine, served.change("lora", seed=46).snapshot(), prompts(served, 1))

    def as_if(level, freed_bytes):
        monkeypatch.setattr(engine, "_settings", replace(engine._settings, sleep=level))
        for name in ("load", "swap", "reset_cache", "score"):
            real = getattr(engine._driver, name)
            monkeypatch.setattr(engine._driver, name, lambda *a, name=name, real=real: (calls.append(name), real(*a))[1])
        monkeypatch.setattr(engine._driver, "wake", lambda what: (calls.append(f"wake {what}"), 0)[1])
        monkeypatch.setattr(engine._driver, "sleep", lambda: (calls.append("sleep"), freed_bytes)[1])
        return engine, calls

    return as_if


@pytest.mark.parametrize(("level", "pushed"), [("kv", ["swap"]), (1, ["swap"]), (2, ["load", "swap"])])
def test_the_order_of_waking(served, sleepy, level, pushed):
    """Weights, push, cache, proof; where the weights were dropped, the base goes before the adapter."""
    engine, calls = sleepy(level, int(1e12))
    sampled(engine, served.change("lora", seed=47).snapshot(), prompts(served, 1))
    assert calls == ["wake weights", *pushed, "reset_cache", "wake kv_cache", "score", "sleep"]
    assert not served.events and engine.report.freed_bytes == int(1e12)


def lost_in_sleep(runner, level):
    """The tensors whose content a sleep level loses: the cache at every level, all that was made at loading in level 2."""
    found = [tensor for cache in runner.kv_caches for tensor in (cache if isinstance(cache, list | tuple) else [cache])]
    if level != 2:
        return found
    manager = runner.lora_manager._adapter_manager
    found += [parameter.data for parameter in runner.model.parameters()]
    for module in manager.modules.values():
        found += [*module.lora_a_stacked, *module.lora_b_stacked]
    for wrapper in manager.punica_wrapper_mapping.values():
        found += [value for value in vars(wrapper).values() if isinstance(value, torch.Tensor)]
    return found


@pytest.mark.parametrize("level", ["kv", 1, 2])
def test_what_sleep_loses_is_replaced_by_poison_and_comes_back(served, monkeypatch, level):
    """A CPU does not sleep: here the content is lost as a card would lose it, and everything must be right again."""
    engine, policy = served.in_mode("swap"), served.change("lora", seed=48)
    driver, poisoned = engine._driver, []
    meant = rows_of(sampled(engine, policy.snapshot(), prompts(served, 2), stream=(4, 8)))

    def sleep():
        with torch.no_grad():
            for tensor in lost_in_sleep(driver._runner, level):
                tensor.fill_(7)  # no NaN: the CPU's attention reads the free places of a block, with a weight of zero
                poisoned.append(tensor.numel())
        return int(1e12)

    monkeypatch.setattr(engine, "_settings", replace(engine._settings, sleep=level))
    monkeypatch.setattr(driver, "sleep", sleep)
    monkeypatch.setattr(driver, "wake", lambda what: 0)
    sampled(engine, policy.snapshot(), prompts(served, 1))
    assert sum(poisoned) > 0
    again = rows_of(sampled(engine, policy.snapshot(), prompts(served, 2), stream=(4, 8)))
    assert [row.completion_ids for row in again] == [row.completion_ids for row in meant] and not served.events
    monkeypatch.undo()
    if level == 2:
        engine._is_merged = None  # the poison of the last sleep is still in it
    assert gap(policy, sampled(engine, policy.snapshot(), prompts(served, 2))) < CLOSE


def test_sleep_that_frees_less_than_promised_is_a_warning_with_its_cause(served, sleepy, monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setattr(gpu, "_vllm_reads_both_names", lambda: False)  # as before 0.32
    engine, _ = sleepy("kv", int(0.8 * served.engine._settings.kv_bytes))
    sampled(engine, BASE, prompts(served, 1))
    ((kind, message, details),) = served.events
    assert kind == "warning" and "PYTORCH_ALLOC_CONF enables expandable_segments" in message
    assert details["freed_bytes"] < details["promised_bytes"] == engine._settings.kv_bytes


def test_groups_stream(served):
    seen, running = [], []
    with served.in_mode("swap").awake(BASE) as sampler:
        chosen = prompts(served, STREAMED, STREAMED)
        for position, group in sampler.groups(chosen, Sampling(1, STREAMED_LENGTH), stream=(3,)):
            seen.append(position)
            running.append(served.engine._driver._engine.has_unfinished_requests())
            for completion in group.completions:
                ids, end = completion.token_ids, served.tokenizer.eos_token_id
                assert len(ids) == len(completion.logprobs) and len(group.completions) == 1
                stopped = ids[-1] == end
                assert completion.finish == ("stop" if stopped else "length") and end not in ids[:-1]
                assert stopped or len(ids) == STREAMED_LENGTH
    assert sorted(seen) == list(range(STREAMED)) and seen != sorted(seen), "they come as they finish"
    assert running[0] and not running[-1], "the first comes while others are still decoded"


def test_an_evaluation_that_stops_early_leaves_nothing_behind(served):
    with served.in_mode("swap").awake(BASE) as sampler:
        next(iter(sampler.groups(prompts(served, STREAMED, STREAMED), Sampling(1, STREAMED_LENGTH), stream=(3,))))
        assert served.engine._driver._engine.has_unfinished_requests()
    core = served.engine._driver._engine.engine_core.engine_core
    assert not core.scheduler.has_requests() and not core.batch_queue, "asleep, vLLM has nothing in hand"
    assert len(sampled(served.engine, BASE, prompts(served))) == len(prompts(served))


def test_a_completion_depends_on_its_own_key(served):
    """Not on its neighbours nor the process's generators; and two samples of a prompt differ."""
    engine = served.in_mode("swap")
    together = sampled(engine, BASE, prompts(served), stream=(7, 1))
    torch.manual_seed(99)
    alone = sampled(engine, BASE, prompts(served)[:1], stream=(7, 1))
    other = sampled(engine, BASE, prompts(served), stream=(7, 2))
    ids = [[completion.token_ids for completion in group.completions] for group in together]
    if engine._driver.seeded:
        assert ids[0] == [completion.token_ids for completion in alone[0].completions]
    assert ids != [[completion.token_ids for completion in group.completions] for group in other]
    assert len(set(ids[0])) > 1


def test_sampling_leaves_the_generators_alone(served):
    before, threads = process_state(), torch.get_num_threads()
    policy = served.change("lora", seed=50)
    sampled(served.in_mode("swap"), policy.snapshot(), prompts(served))
    assert process_state() == before and torch.get_num_threads() == threads
    torch.set_num_threads(threads + 1)
    assert torch.get_num_threads() == threads + 1, "vLLM takes this function away on a CPU"
    torch.set_num_threads(threads)


def test_temperature_0_takes_the_likeliest_token(served):
    """vLLM samples one completion of a greedy request; it stands for all."""
    engine = served.in_mode("swap")
    groups = sampled(engine, BASE, prompts(served), Sampling(3, LENGTH, temperature=0.0))
    assert all(len(group.completions) == 3 and len(set(group.completions)) == 1 for group in groups)
    sure = sampled(engine, BASE, prompts(served), Sampling(1, LENGTH, top_p=1e-6))
    assert [one.completions[0].token_ids for one in sure] == [one.completions[0].token_ids for one in groups]


class Two:
    """A pace that lets two groups be decoded at once, and stops after so many looks."""

    def __init__(self, looks=10**9):
        self.looks, self.most = looks, 0

    def may_start(self, in_flight):
        self.most = max(self.most, in_flight)
        return in_flight < 2

    def is_over(self):
        self.looks -= 1
        return self.looks < 0


def test_a_pace_holds_groups_back_and_ends_the_sampling(served):
    chosen, sampling = prompts(served, STREAMED, STREAMED), Sampling(1, LENGTH)
    with served.in_mode("swap").awake(BASE) as sampler:
        pace = Two()
        held = dict(sampler.groups(chosen, sampling, stream=(5,), pace=pace))
        assert pace.most == 2 and held.keys() == set(range(len(chosen)))
        steps = sampler.decode_steps
        assert len(chosen) * LENGTH >= steps > 0
        cut = dict(sampler.groups(chosen, sampling, stream=(5,), pace=Two(looks=steps // 2)))
        assert 0 < len(cut) < len(chosen)
        part = dict(sampler.groups(chosen[1:], sampling, stream=(5,), positions=range(1, len(chosen))))
    if served.engine._driver.seeded:
        assert all(held[n].completions[0].token_ids == part[n].completions[0].token_ids for n in part)


def test_forced_length_and_nucleus(served):
    engine = served.in_mode("swap")
    groups = sampled(engine, BASE, prompts(served), Sampling(2, 9, min_tokens=9))
    assert {len(completion.token_ids) for group in groups for completion in group.completions} == {9}
    narrow = sampled(engine, BASE, prompts(served), Sampling(2, 9, top_p=1e-6))
    assert all(value == pytest.approx(0, abs=1e-6) for row in rows_of(narrow) for value in row.engine_logprobs)


def test_more_prompt_tokens_than_one_forward_pass_takes(served):
    """On a CPU vLLM stops where the prompt of a request with a seed is read in pieces; here there are pieces."""
    whole = prompts(served)[0].token_ids
    long = [Prompt("q", "1", "", (whole * 6)[n : n + 155]) for n in range(32)]
    policy = served.change("lora", seed=55)
    groups = sampled(served.in_mode("swap"), policy.snapshot(), long, Sampling(1, 8, temperature=0.7))
    assert len(groups) == 32 and gap(policy, groups) < CLOSE


def test_auto_measures_and_decides(served):
    chosen = []
    engine = served.engine
    engine._choice = SyncChoice("auto", None, lambda mode, why, table: chosen.append((mode, why, table)))
    modes = []
    for number in range(8):
        policy = served.change("lora", seed=60 + number, size=0.0 if number == 0 else 0.05)
        with engine.awake(policy.snapshot(), is_training=True) as sampler:
            list(sampler.groups(prompts(served, 4), Sampling(GROUP, LENGTH // 2), stream=(number,)))
        modes.append(engine.report.mode)
    ((mode, _, table),) = chosen
    assert modes[:6] == ["swap"] * 3 + ["merge"] * 3 and modes[6:] == [mode] * 2
    assert len(table) == 6 and all(row["tokens"] > 0 and row["decode_s"] > 0 for row in table)


def test_both_engines_over_five_updates(served):
    """At every version they score the same recorded tokens alike, and decode the same greedy tokens."""
    engine, policy = served.in_mode("swap"), served.change("lora", seed=70, size=0.05)
    greedy = {engine: Sampling(1, LENGTH // 2, temperature=0.0), served.transformers: Sampling(1, LENGTH // 2, temperature=1e-6)}
    before = None
    for version in range(5):
        snapshot = policy.snapshot()
        groups = sampled(engine, snapshot, prompts(served))
        sequences = [group.prompt.token_ids + c.token_ids for group in groups for c in group.completions]
        with engine.awake(snapshot):
            theirs = engine.score(sequences)
        with served.transformers.awake(snapshot):
            ours = sequence_logprobs(served.transformers._model, sequences, fp32_head=False)
        assert max(float((a - b.cpu()).abs().max()) for a, b in zip(theirs, ours, strict=True)) < CLOSE
        answers = [
            [group.completions[0].token_ids for group in sampled(one, snapshot, prompts(served), sampling)]
            for one, sampling in greedy.items()
        ]
        assert answers[0] == answers[1] or LIKE_A_CARD, "in 16 bits near ties may fall either way"
        assert answers[0] != before, "the update changes what is said"
        before = answers[0]
        rewards = torch.Generator().manual_seed(version)
        rows = [
            replace(row, advantage=float(torch.randn((), generator=rewards)), group=n // 4)
            for n, row in enumerate(rows_of(groups))
        ]

        update = policy.update(Batch(tuple(rows), 8, policy.version), lr=0.02)
        assert update.skipped == 0 and update.kl_sampler < (1e-4 if LIKE_A_CARD else 1e-6) and update.outside_share == 0


@pytest.mark.parametrize(
    ("place", "doing"), [("wake", "receiving weights"), ("swap", "receiving weights"), ("sample", "sampling")]
)
def test_a_lack_of_memory_says_how_much_the_engine_had(served, monkeypatch, place, doing):
    """Wherever memory runs out, the error says what the run's next process needs to know to take less."""
    engine, policy = served.in_mode("swap"), served.change("lora", seed=21)

    def full(self, *arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    with monkeypatch.context() as patch:
        patch.setattr(VllmDriver, place, full)
        with pytest.raises(MachineFailure, match=f"vLLM ran out of memory while {doing}") as raised:
            sampled(engine, policy.snapshot(), prompts(served), stream=(4, 2))
    settings, fault = engine._settings, raised.value.fault
    assert (fault.doing, fault.out_of_memory, fault.kv_gb) == (doing, True, settings.kv_bytes / 1e9)
    longest = (settings.max_model_len + 256) * kv_bytes_per_token(engine._base)
    assert fault.fits == pytest.approx(settings.kv_bytes / longest) and fault.batch == settings.max_sequences
    with pytest.raises(MachineFailure, match="ran out of memory while sampling"):
        engine.shrink()
    assert gap(policy, sampled(engine, policy.snapshot(), prompts(served))) < CLOSE


@pytest.fixture
def arguments(tiny_arguments, tokenizer, tmp_path):
    """The smallest run whose groups differ: completions end at different lengths, and length costs."""
    folder = tmp_path / "model"
    model = build_model(tokenizer, seed=3).requires_grad_(False)
    make_it_end(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    more = ("engine.kind=vllm", "reward.overlong.buffer=10", "optim.lr=1e-3")
    return [*tiny_arguments, "--model", folder, *(part for key in more for part in ("--set", key))]


def test_a_whole_run(microrl, arguments, tmp_path):
    out = tmp_path / "run"
    done = microrl("train", *arguments, "--steps", 5, "--out", out)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 5
    for number, line in enumerate(lines):
        assert line["groups/useful"] > 0 and line["update/skipped"] == 0
        assert line["sync/probe_gap"] is not None and line["policy/kl_sampler"] < (1e-3 if CUDA else 1e-6)
        assert CUDA or (line["sync/slope"] is None) == (number == 0), (
            "step 0 samples from the base: there is no change to compare"
        )
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    # Step 0 samples from the base, where there is nothing to see; step 1 from an update that is seen.
    events = [event for event in events if "probe" in event["kind"]]
    assert [event["kind"] for event in events] == ["probe calibrated", "probe", "probe"]
    assert "the bit-by-bit comparison alone decides" in events[-2]["message"] and "slope on it is 1.000" in events[-1]["message"]
    assert json.loads((out / "environment.json").read_text())["engine"] == "vllm"
    # Resumed, it measures both modes, stores its choice, and another process takes that up.
    for steps in (12, 13):
        resumed = microrl("train", "--resume", out, "--steps", steps)
        assert resumed.returncode == 0, resumed.stderr
    stored = json.loads((out / "sync.json").read_text())
    assert stored["mode"] in ("swap", "merge") and len(stored["table"]) == 6
    events = [json.loads(line)["kind"] for line in (out / "events.jsonl").read_text().splitlines()]
    assert events.count("sync chosen") == 1 and events.count("resumed") == 2


@pytest.mark.slow
def test_a_killed_evaluation_goes_on_where_it_died(microrl, arguments, tmp_path):
    """The same completions and verdicts; the last bits of a log-probability follow from what else is in the batch."""
    run = tmp_path / "run"
    options = ["--samples", 4, "--problems", 6, "--set", "data.held_out=0.3", "--engine", "vllm"]
    done = microrl("train", *arguments, "--steps", 1, "--out", run)
    assert done.returncode == 0, done.stderr

    def evaluated():
        done = microrl("eval", run, *options)
        assert done.returncode == 0, done.stderr
        (path,) = (run / "eval").glob("held-out-n4*.jsonl.gz")
        lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        result = json.loads(path.with_name(path.name.replace("jsonl.gz", "json")).read_text())
        assert result["engine"].startswith("vllm")
        path.unlink()
        return done.stderr, lines, result

    _, whole, result = evaluated()
    killed = processes.run(
        [sys.executable, Path(__file__).parent / "killed.py", "journal", 3, "eval", run, *options], timeout=600
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    said, resumed, again = evaluated()
    assert "after 3 of 6 problems" in said and len(whole) == 24
    for ours, theirs in zip(resumed, whole, strict=True):
        assert ours == {
            key: pytest.approx(value, abs=1e-4) if isinstance(value, float) else value for key, value in theirs.items()
        }
    measured = ("seconds", "decode_steps", "entropy")
    assert result.keys() == again.keys() >= {*measured}
    assert all(again[key] == value for key, value in result.items() if key not in measured)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ten_steps_of_every_kind(microrl, arguments, tmp_path, kind):
    ten_steps(microrl, arguments, tmp_path, kind, "vllm")


@pytest.mark.parametrize(
    ("dtype", "mode"),
    [("bfloat16", "swap"), ("bfloat16", "merge"), pytest.param("float16", "merge", marks=pytest.mark.slow)],
)
def test_narrow_types(microrl, arguments, tmp_path, dtype, mode):
    out = tmp_path / "run"
    done = microrl("train", *arguments, "--steps", 2, "--out", out, "--set", f"model.dtype={dtype}",
                   "--set", "model.head_dtype=float32", "--set", f"engine.sync={mode}")  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert all(line["update/skipped"] == 0 and line["sync/probe_gap"] is not None for line in lines)
    assert all(line["policy/kl_sampler"] < 1e-3 for line in lines)


@ONE_ENGINE
@pytest.mark.xdist_group("engine")
def test_a_swap_that_cannot_be_proved_ends_with_4(tiny_arguments, tmp_path, inside, monkeypatch):
    from microrl.rollout.vllm.engine import VllmEngine

    monkeypatch.setattr(VllmEngine, "_difference", lambda self, snapshot, mode: "`x` in vLLM's memory is not the trainer's")
    out = tmp_path / "run"
    done = inside("train", *tiny_arguments, "--engine", "vllm", "--steps", 2, "--out", out)
    assert done.returncode == 4, done.stderr
    assert done.stderr.count("\nerror: ") == 1 and "\nhint: " in done.stderr and "Traceback" not in done.stderr
    assert json.loads((out / "summary.json").read_text())["status"] == "unproved"


def bench(*arguments):
    """`microrl bench` in a process of its own: one engine at a time."""
    done = processes.run([sys.executable, "-m", "microrl", "bench", *arguments, "--json"], timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def rollouts(*arguments):
    """A result for each architecture."""
    return bench("rollout", *arguments)["rollouts"]


def check_cycles(found):
    for one in found["cycles"]:
        assert one["gap"] is not None and (one["slope"] is None or one["slope"] == pytest.approx(1, abs=0.2))
    later = found["cycles"][1:]
    overhead = sum(one["push_s"] + one["proof_s"] + one["wake_s"] + one["sleep_s"] for one in later)
    return overhead / sum(one["seconds"] for one in later)


@pytest.mark.slow
def test_throughput_is_that_of_vllm_itself():
    """A CPU is noisy: the bar of 0.95 is for a GPU."""
    (found,) = rollouts("--device", DEVICE, "--pairs", 5, "--tokens", 48, "--prompts", 8)
    check_cycles(found)
    assert found["ratio"] > 0.75


FOUR = ("llama", "qwen3", "gemma3_text", "phi3")


@pytest.mark.parametrize(
    ("sync", "architectures"),
    [
        ("swap", ("qwen3", "phi3")),
        ("merge", ("gemma3_text",)),
        *(pytest.param(sync, FOUR, marks=pytest.mark.slow) for sync in ("swap", "merge")),
    ],
)
def test_other_architectures_and_one_engine_after_the_other(sync, architectures):
    """Separate and tied heads, normed queries, sliding windows, layers that the checkpoint has fused already."""
    together = architectures if CUDA else [",".join(architectures)]
    found = [
        one for arch in together
        for one in rollouts("--device", DEVICE, "--arch", arch, "--sync", sync, "--rank", 5, "--prompts", 2, "--group", 2,
                            "--tokens", 8, "--cycles", 2, "--pairs", 1)
    ]  # fmt: skip
    assert [one["arch"] for one in found] == list(architectures)
    for one in found:
        assert all(cycle["gap"] < CLOSE and cycle["slope"] == pytest.approx(1, abs=NEAR) for cycle in one["cycles"])


DECODE_STEPS = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from test_vllm import make_it_end
from microrl.config import resolve
from microrl.models.tiny import build_model, build_tokenizer
from microrl.rollout.factory import make_engine
from microrl.types import BASE, Prompt, Sampling
tokenizer = build_tokenizer()
model = build_model(tokenizer, layers=2, seed=3).eval().requires_grad_(False)
make_it_end(model, tokenizer)
model.get_input_embeddings().weight[tokenizer.eos_token_id] *= 1.5
texts = [f"What is {11 * n} + {n}?" * (1 + n % 2) for n in range(1, 201)]
sampling, prompts = Sampling(4, 128), [Prompt(text, "1", text, tuple(tokenizer(text)["input_ids"])) for text in texts]
flags = {"engine.kind": "vllm", "adapter.rank": 6, "data.max_prompt_tokens": 64, "sampling.prompts_per_step": len(prompts),
         "sampling.group_size": sampling.group_size, "sampling.max_completion_tokens": sampling.max_tokens}
engine = make_engine(resolve((), flags), model, tokenizer)
found = {}
with engine.awake(BASE) as sampler:
    groups = [group for _, group in sampler.groups(prompts, sampling, stream=(0,))]
    found["at_once"] = sampler.decode_steps
with engine.awake(BASE) as sampler:
    for start in range(0, 200, 16):
        chunk = range(start, min(start + 16, 200))
        list(sampler.groups([prompts[n] for n in chunk], sampling, stream=(0,), positions=chunk))
    found["in_chunks"] = sampler.decode_steps
found["lengths"] = sorted(len(one.token_ids) for group in groups for one in group.completions)
print("FOUND" + json.dumps(found), flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_an_evaluation_without_barriers_takes_a_fifth_of_the_decode_steps():
    """As in `test_engine.py`, by vLLM's own steps."""
    done = processes.run([sys.executable, "-c", DECODE_STEPS, Path(__file__).parent], timeout=900)
    assert "FOUND" in done.stdout, done.stderr[-3000:]
    found = json.loads(done.stdout.rpartition("FOUND")[2])
    assert found["lengths"][400] < 25 and found["lengths"][-1] > 100
    print(found["at_once"], found["in_chunks"], found["lengths"][::50])
    assert found["in_chunks"] > 5 * found["at_once"]


def test_only_the_targets_are_wrapped():
    """One of three layers that vLLM keeps in one, and another; what is not trained costs nothing."""
    (found,) = rollouts(
        "--device", DEVICE, "--targets", "q_proj,down_proj", "--prompts", 2, "--group", 2, "--tokens", 8, "--pairs", 1
    )
    assert found["wrapped"] == ["down_proj", "qkv_proj"]
    check_cycles(found)


@pytest.mark.parametrize(
    ("head", "computed"), [("float32", "float32"), pytest.param("model", "bfloat16", marks=pytest.mark.slow)]
)
def test_the_heads_type_reaches_the_engine(head, computed):
    (found,) = rollouts("--device", DEVICE, "--dtype", "bfloat16", "--head", head, "--prompts", 2, "--group", 2, "--tokens", 8,
                     "--cycles", 1, "--pairs", 1)  # fmt: skip
    assert found["head"] == computed


def test_pushes_of_two_adapters():
    """A LoRA pair goes over in both ways, DoRA is merged; only what an adapter trains is counted."""
    found = bench("sync", "--adapters", "lora,dora", "--layers", 1, "--rank", 4, "--versions", 2)["syncs"]
    assert [(row["kind"], row["mode"]) for row in found] == [("lora", "swap"), ("lora", "merge"), ("dora", "merge")]
    lora = 4 * (3 * (128 + 128) - 64 - 64 + (128 + 128) + 3 * (128 + 256))  # q, k, v; o; gate, up, down
    norms = 128 + 64 + 64 + 128 + 256 + 256 + 128
    assert [row["trained"] for row in found] == [lora, lora, lora + norms]
    assert all(len(row["all_s"]) == 2 and min(row["all_s"]) <= row["push_s"] <= max(row["all_s"]) for row in found)
    assert all(row["push_s"] > 0 for row in found)


@pytest.mark.skipif(not CUDA, reason="sleep needs a GPU")
@pytest.mark.parametrize(("sleep", "sync"), [("kv", "swap"), (1, "swap"), (2, "swap"), (2, "merge")])
def test_three_cycles_at_rank_256_on_a_gpu(sleep, sync):
    (found,) = rollouts("--shape", "1.5b", "--rank", 256, "--sleep", sleep, "--sync", sync, "--tokens", 512)
    promised = found["kv_gb"] + (0 if sleep == "kv" else 3.0)
    assert all(one["freed_gb"] > 0.9 * promised for one in found["cycles"])
    assert check_cycles(found) < 0.05 and found["ratio"] > 0.95


def test_doctor(microrl):
    done = microrl("doctor", "--json")
    found = {finding["about"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert done.returncode == 0, found
    assert found["vLLM"]["status"] == "ok" and found["self-test"]["says"].startswith("vllm on ")
    assert "weight sync verified" in found["self-test"]["says"]
