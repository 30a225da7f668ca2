"""The real vLLM between two phases of sampling: the order of waking, what sleep loses, and memory that runs out."""

from dataclasses import replace

import pytest
import torch
from samples import rows_of
from vllm_served import CLOSE, CUDA, gap, prompts, sampled

from microrl.errors import MachineFailure
from microrl.models import gpu
from microrl.models.forward import kv_bytes_per_token
from microrl.rollout.vllm.driver import VllmDriver
from microrl.types import BASE

pytestmark = pytest.mark.vllm


@pytest.fixture
def sleepy(served, monkeypatch):
    """The engine as if it slept: the real weights, pushes and proofs, with the card's memory played by a list of calls. On a card
    it sleeps and wakes, as it was built to."""
    engine, calls = served.in_mode("swap"), []
    # Whatever test came before: the engine has the base and a swapped adapter.
    sampled(engine, served.change("lora", seed=46).snapshot(), prompts(served, 1))

    def as_if(level, freed_bytes):
        monkeypatch.setattr(engine, "settings", replace(engine.settings, sleep=level))
        for name in ("load", "swap", "reset_cache", "score"):
            real = getattr(engine.driver, name)
            monkeypatch.setattr(engine.driver, name, lambda *a, name=name, real=real: (calls.append(name), real(*a))[1])
        wake, sleep = (engine.driver.wake, engine.driver.sleep) if CUDA else (lambda what: 0, lambda: 0)
        monkeypatch.setattr(engine.driver, "wake", lambda what: (calls.append(f"wake {what}"), wake(what))[1])
        monkeypatch.setattr(engine.driver, "sleep", lambda: (calls.append("sleep"), sleep(), freed_bytes)[2])
        return engine, calls

    return as_if


@pytest.mark.parametrize(("level", "pushed"), [("kv", ["swap"]), (1, ["swap"]), (2, ["load", "swap"])])
def test_the_order_of_waking(served, sleepy, level, pushed):
    """Weights, push, cache, proof; where the weights were dropped, the base goes before the adapter."""
    engine, calls = sleepy(level, int(1e12))
    sampled(engine, served.change("lora", seed=47).snapshot(), prompts(served, 1))
    assert calls == ["wake weights", *pushed, "reset_cache", "wake kv_cache", "score", "sleep"]
    assert not served.events and engine.report.freed_bytes == int(1e12)


def lost_in_sleep(driver, level):
    """The tensors whose content a sleep level loses: the cache at every level, all that was made at loading in level 2."""
    found = [tensor for cache in driver.runner.kv_caches for tensor in (cache if isinstance(cache, list | tuple) else [cache])]
    if level != 2:
        return found
    manager = driver.adapter_manager
    found += [parameter.data for parameter in driver.runner.model.parameters()]
    for module in manager.modules.values():
        found += [*module.lora_a_stacked, *module.lora_b_stacked]
    for wrapper in manager.punica_wrapper_mapping.values():
        found += [value for value in vars(wrapper).values() if isinstance(value, torch.Tensor)]
    return found


@pytest.mark.skipif(CUDA, reason="a card loses it by itself")
@pytest.mark.cases(vllm=1)
@pytest.mark.parametrize("level", ["kv", 1, 2])
def test_what_sleep_loses_is_replaced_by_poison_and_comes_back(served, monkeypatch, level):
    """A CPU does not sleep: here the content is lost as a card would lose it, and everything must be right again."""
    engine, policy = served.in_mode("swap"), served.change("lora", seed=48)
    driver, poisoned = engine.driver, []
    meant = rows_of(sampled(engine, policy.snapshot(), prompts(served, 2), stream=(4, 8)))

    def sleep():
        with torch.no_grad():
            for tensor in lost_in_sleep(driver, level):
                tensor.fill_(7)  # no NaN: the CPU's attention reads the free places of a block, with a weight of zero
                poisoned.append(tensor.numel())
        return int(1e12)

    monkeypatch.setattr(engine, "settings", replace(engine.settings, sleep=level))
    with monkeypatch.context() as asleep:
        asleep.setattr(driver, "sleep", sleep)
        asleep.setattr(driver, "wake", lambda what: 0)
        sampled(engine, policy.snapshot(), prompts(served, 1))
        assert sum(poisoned) > 0
        again = rows_of(sampled(engine, policy.snapshot(), prompts(served, 2), stream=(4, 8)))
    assert [row.completion_ids for row in again] == [row.completion_ids for row in meant] and not served.events
    assert gap(policy, sampled(engine, policy.snapshot(), prompts(served, 2))) < CLOSE, "the poison of the last sleep too"


def test_sleep_that_frees_less_than_promised_is_a_warning_with_its_cause(served, sleepy, monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setattr(gpu, "_vllm_reads_both_names", lambda: False)  # as before 0.32
    engine, _ = sleepy("kv", int(0.8 * served.engine.settings.kv_bytes))
    sampled(engine, BASE, prompts(served, 1))
    ((kind, message, details),) = served.events
    assert kind == "warning" and "PYTORCH_ALLOC_CONF enables expandable_segments" in message
    assert details["freed_bytes"] < details["promised_bytes"] == engine.settings.kv_bytes


@pytest.mark.cases(vllm=1)
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
    settings, fault = engine.settings, raised.value.fault
    assert (fault.doing, fault.out_of_memory, fault.kv_gb) == (doing, True, settings.kv_bytes / 1e9)
    longest = (settings.max_model_len + 256) * kv_bytes_per_token(engine.base)
    assert fault.fits == pytest.approx(settings.kv_bytes / longest) and fault.batch == settings.max_sequences
    with pytest.raises(MachineFailure, match="ran out of memory while sampling"):
        engine.shrink()
    assert gap(policy, sampled(engine, policy.snapshot(), prompts(served))) < CLOSE
