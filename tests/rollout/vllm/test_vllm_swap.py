"""The weights that the real vLLM serves, swapped or merged: those that are trained, of every adapter, and no others."""

import copy
import gc
import weakref
from dataclasses import replace

import pytest
import torch
from every_adapter import RESIDUAL, alike_are_slow, config_of, train
from samples import rows_of
from vllm_served import CLOSE, CUDA, GROUP, LENGTH, LIKE_A_CARD, NEAR, SETTINGS, gap, prompts, sampled

from microrl.algorithm.batch import Batch
from microrl.config import resolve
from microrl.config.adapters import KINDS
from microrl.errors import MachineFailure
from microrl.models.forward import sequence_logprobs
from microrl.policy.policy import Policy
from microrl.rollout.sync import SyncChoice
from microrl.types import BASE, LowRank, Prompt, Sampling

pytestmark = pytest.mark.vllm


def test_building_leaves_the_process_as_it_was(served):
    assert served.untouched_by_building


def test_building_needs_no_second_import_of_vllm(served):
    """vLLM's own way, a second process at each architecture's first start on a machine, took 8 s on a CPU."""
    from vllm.model_executor.models.registry import ModelRegistry, _LazyRegisteredModel

    known = ModelRegistry.models[type(served.model).__name__]
    assert not isinstance(known, _LazyRegisteredModel)


@pytest.mark.cases(vllm=2)
@pytest.mark.parametrize("mode", ["swap", "merge"])
@pytest.mark.parametrize("kind", ["lora", "rslora"])
def test_logprobs_agree_with_the_trainer(served, kind, mode):
    policy = served.change(kind, seed=5)
    groups = sampled(served.in_mode(mode), policy.snapshot(), prompts(served))
    assert gap(policy, groups) < CLOSE
    assert served.engine.report.mode == mode and served.engine.report.slope == pytest.approx(1, abs=NEAR)
    with policy.adapter.off():
        assert gap(policy, groups) > 0.1, "the base is another distribution: the adapter is really there"


@pytest.mark.cases(vllm=4)
@pytest.mark.parametrize("kind", alike_are_slow(KINDS))
def test_every_adapter_is_served_as_it_is_trained(served, kind):
    """Trained for some steps, handed over in every way that it can be, and proved; a second version after the first."""
    config = config_of(kind, rank=3 if kind in RESIDUAL else 6, alpha=6.0)  # the engine's buffers are for rank 6
    flags = {f"adapter.{name}": value for name, value in config.model_dump().items()}
    policy = Policy(
        copy.deepcopy(served.engine.base), resolve((), {**SETTINGS, "adapter.rank": None, "adapter.alpha": None, **flags})
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


@pytest.mark.cases(vllm=1)
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
    block = engine.driver.engine.vllm_config.cache_config.block_size
    assert min(len(prompt.token_ids) for prompt in long) > block, "whole blocks alone are cached"
    for seed in (20, 21):
        policy = served.change("lora", seed=seed)
        assert gap(policy, sampled(engine, policy.snapshot(), long)) < CLOSE
    if mode == "merge":  # a swapped adapter has a new number too, which a merge has not: here the reset is the only guard
        monkeypatch.setattr(engine.driver.llm, "reset_prefix_cache", lambda: True)
        sampled(engine, policy.snapshot(), long)
        policy = served.change("lora", seed=22)
        found = gap(policy, sampled(engine, policy.snapshot(), long))
        if CUDA:
            assert found < CLOSE, "sleep gives the cache's memory away, and what was in it is forgotten with it"
        else:
            assert found > (2 if LIKE_A_CARD else 10) * CLOSE, "without the reset it is seen"


def test_a_cache_that_cannot_be_reset_is_an_error(served, monkeypatch):
    engine = served.in_mode("swap")
    monkeypatch.setattr(engine.driver.llm, "reset_prefix_cache", lambda: False)
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


def test_an_adapter_lies_in_the_engines_buffers_and_nowhere_else(served, monkeypatch):
    """What is handed over is copied into the buffers; at rank 256 the copies of a 1.5B model would be 0.6 GB of the card."""
    engine, handed = served.in_mode("swap"), []
    manager = engine.driver.adapter_manager
    add_adapter = manager.add_adapter

    def watched(adapter):
        handed.extend(weakref.ref(factor) for layer in adapter.loras.values() for factor in (layer.lora_a, layer.lora_b))
        return add_adapter(adapter)

    monkeypatch.setattr(manager, "add_adapter", watched)
    policy = served.change("lora", seed=53)
    with engine.awake(policy.snapshot()) as sampler:
        groups = [group for _, group in sampler.groups(prompts(served, 2), Sampling(2, 8, temperature=0.7), stream=(0, 1))]
        gc.collect()
        assert len(handed) == 2 * len(policy.snapshot().pairs) and not any(tensor() is not None for tensor in handed)
        assert len(engine.driver.adapter_manager.list_adapters()) == 1
    assert gap(policy, groups) < CLOSE, "and it is served from there"


def test_the_rank_is_rounded_up(served):
    modules = served.engine.driver.adapter_manager.modules.values()
    assert {module.lora_a_stacked[0].shape[2] for module in modules} == {8}, "rank 6 in buffers of 8"


def test_auto_measures_and_decides(served):
    chosen = []
    engine = served.engine
    engine.choice = SyncChoice("auto", None, lambda mode, why, table: chosen.append((mode, why, table)))
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
            ours = sequence_logprobs(served.transformers.model, sequences, fp32_head=False)
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
