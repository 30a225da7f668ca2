"""The proof of a swap in the real vLLM: updates that are skipped, torn or wrong are caught, and nothing is sampled from them.

Each trap is shown twice: with the guard the engine is right, and with the guard taken out the same check sees it.
"""

import json
import sys
from dataclasses import replace

import processes
import pytest
import torch
from vllm_served import CLOSE, DEVICE, TINY, gap, prompts, sampled

from microrl.errors import SyncNotProved
from microrl.types import BASE, AdapterSnapshot, LowRank

pytestmark = pytest.mark.vllm


@pytest.mark.cases(vllm=2)
@pytest.mark.parametrize("mode", ["swap", "merge"])
@pytest.mark.parametrize("guard", ["bytes", "probe"])
def test_a_skipped_push_is_caught(served, mode, guard, monkeypatch):
    """By each of the two guards alone."""
    engine, old = served.in_mode(mode), served.change("lora", seed=40)
    sampled(engine, old.snapshot(), prompts(served, 1))
    policy = served.change("lora", seed=41)
    with monkeypatch.context() as patched:
        for push in ("load", "swap"):
            patched.setattr(engine.driver, push, lambda pushed: None)
        if guard == "probe":
            for difference in ("weights_difference", "adapter_difference"):
                patched.setattr(engine.driver, difference, lambda pushed: None)
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
    for _ in range(2):
        sampled(engine, policy.snapshot(), prompts(served, 1))
        assert engine.report.slope is None, "too small to be seen in the scores"
    assert not served.events
    said = [message for _, message, _ in served.shown if "too small to see in log-probabilities" in message]
    assert len(said) == 1, "however often it was so"
    policy = served.change("lora", seed=43, size=TINY)
    monkeypatch.setattr(engine.driver, "swap", lambda pairs: engine.driver.drop_adapters())
    with pytest.raises(SyncNotProved, match="no adapter of this version"), engine.awake(policy.snapshot()):
        pass


def test_a_push_that_fails_once_is_tried_again(served, monkeypatch):
    policy = served.change("lora", seed=44)
    engine = served.in_mode("swap")
    swap, calls = engine.driver.swap, []

    def once(pairs):
        calls.append(pairs)
        if len(calls) > 1:
            swap(pairs)

    monkeypatch.setattr(engine.driver, "swap", once)
    groups = sampled(engine, policy.snapshot(), prompts(served, 2))
    assert len(calls) == 2 and gap(policy, groups) < CLOSE
    assert [kind for kind, *_ in served.events] == ["swap retried"]


def test_the_second_try_pushes_everything(served, monkeypatch):
    """Damage to the base that a new adapter would not mend: the retry loads all weights again."""
    engine, policy = served.in_mode("swap"), served.change("lora", seed=48)
    sampled(engine, BASE, prompts(served, 1))  # whatever ran before: from here on only the adapter is to be pushed
    served.events.clear()
    load, swap, calls = engine.driver.load, engine.driver.swap, []

    def damaging(pairs):
        swap(pairs)
        calls.append("swap")
        if len(calls) == 1:
            engine.driver.runner.model.model.norm.weight.data.mul_(1.5)

    monkeypatch.setattr(engine.driver, "load", lambda snapshot: (calls.append("load"), load(snapshot)))
    monkeypatch.setattr(engine.driver, "swap", damaging)
    groups = sampled(engine, policy.snapshot(), prompts(served, 2))
    assert calls == ["swap", "load", "swap"] and gap(policy, groups) < CLOSE
    assert [kind for kind, *_ in served.events] == ["swap retried"]


def test_weights_that_did_not_come_back_are_seen_by_their_bytes(served, monkeypatch):
    """After dropped weights or a merge the base is loaded again: what went wrong there may lie below the noise."""
    policy = served.change("lora", seed=49)
    sampled(served.in_mode("merge"), policy.snapshot(), prompts(served, 1))
    engine = served.in_mode("swap")
    load, name = engine.driver.load, "model.layers.0.mlp.up_proj"
    stale = LowRank(torch.ones(1, 128, device=DEVICE), torch.ones(256, 1, device=DEVICE), 1e-4)
    monkeypatch.setattr(engine.driver, "load", lambda snapshot: load(AdapterSnapshot(0, {name: stale})))
    with pytest.raises(SyncNotProved, match=rf"`{name}\.weight` in vLLM's memory"), engine.awake(policy.snapshot()):
        pass
    monkeypatch.undo()
    assert gap(policy, sampled(engine, policy.snapshot(), prompts(served, 2))) < CLOSE


@pytest.mark.cases(vllm=2)
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
    driver = served.engine.driver

    def awake(base, settings):
        for what in ("weights", "kv_cache"):
            driver.wake(what)
        return driver

    served.restart(awake)
    engine = served.in_mode("swap")
    load, swap, drop, swapped = driver.load, driver.swap, driver.drop_adapters, []
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
    with pytest.raises(SyncNotProved, match=says), engine.awake(BASE):
        pass
    monkeypatch.undo()
    sampled(engine, BASE, prompts(served, 1))


def test_damage_is_named(served, monkeypatch):
    """One number of one layer's adapter, changed in vLLM's own memory."""
    policy = served.change("lora", seed=45)
    engine = served.in_mode("swap")
    swap = engine.driver.swap

    def damaging(pairs):
        swap(pairs)
        engine.driver.adapter_manager.modules["model.layers.1.mlp.down_proj"].lora_b_stacked[0][0, 0, 3, 2] += 0.01

    monkeypatch.setattr(engine.driver, "swap", damaging)
    with pytest.raises(SyncNotProved, match=r"layers\.1\.mlp\.down_proj"), engine.awake(policy.snapshot()):
        pass


def halved(pairs):
    return {name: replace(pair, scale=pair.scale / 2) for name, pair in pairs.items()}


def test_a_wrong_scale_is_told_from_a_missing_adapter(served, monkeypatch):
    policy = served.change("lora", seed=46, size=0.02)
    engine = served.in_mode("swap")
    for name in ("swap", "adapter_difference"):
        real = getattr(engine.driver, name)
        monkeypatch.setattr(engine.driver, name, lambda pairs, real=real: real(halved(pairs)))
    with pytest.raises(SyncNotProved, match="scale is wrong"), engine.awake(policy.snapshot()):
        pass


UNPROVED = """
from microrl.cli import main
from microrl.rollout.vllm.driver import VllmDriver
VllmDriver.adapter_difference = lambda self, pairs: "`x` in vLLM's memory is not the trainer's"
main()
"""


def test_a_swap_that_cannot_be_proved_ends_with_4(tiny_arguments, tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, "-c", UNPROVED, "train", *tiny_arguments, "--engine", "vllm", "--steps", 2, "--out", out]
    done = processes.run(command, timeout=900)
    assert done.returncode == 4, done.stderr
    assert done.stderr.count("\nerror: ") == 1 and "\nhint: " in done.stderr and "Traceback" not in done.stderr
    assert json.loads((out / "summary.json").read_text())["status"] == "unproved"
