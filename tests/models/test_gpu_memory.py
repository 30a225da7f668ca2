"""Peak memory beside an allocator that sleeps, and which process is our own: with the numbers of a card that is not here."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pretend
import pytest
import torch

from microrl import resident
from microrl.models import gpu
from microrl.rollout.vllm.driver import VllmDriver

GB = 10**9


@pytest.fixture
def card(monkeypatch):
    """torch's statistics and vLLM's pool as they are on a GPU: what sleeps stays among the allocated bytes."""

    class Card:
        def __init__(self):
            self.allocated = self.peak = 0
            self.pool = {}

        def take(self, size):
            self.allocated += size
            self.peak = max(self.peak, self.allocated)

        def give(self, size):
            self.allocated -= size

        def pooled(self, tag, size):
            self.take(size)
            self.pool[tag] = SimpleNamespace(handle=(0, size, 0, None), is_asleep=False)

        def sleeps(self, tag, is_asleep=True):
            self.pool[tag].is_asleep = is_asleep

        def reset(self):
            self.peak = self.allocated

    found = Card()
    monkeypatch.setattr(gpu, "_highest", 0)
    for name, value in {
        "is_available": lambda: True, "max_memory_allocated": lambda: found.peak, "memory_allocated": lambda: found.allocated,
        "reset_peak_memory_stats": found.reset, "memory_reserved": lambda: found.allocated, "empty_cache": lambda: None,
        "mem_get_info": lambda *_: (0, 48 * GB),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    allocator = SimpleNamespace(CuMemAllocator=SimpleNamespace(instance=SimpleNamespace(pointer_to_data=found.pool)))
    monkeypatch.setitem(sys.modules, "vllm.device_allocator.cumem", allocator)
    return found


def engine_of(card, level):
    """The driver of a vLLM whose sleep is the pool's."""
    driver = object.__new__(VllmDriver)

    def wake_up(tags):
        for tag in tags:
            card.sleeps(tag, is_asleep=False)

    def sleep(level):
        for tag in ("weights", "kv_cache") if level == 2 else ():
            card.sleeps(tag)

    driver.settings = SimpleNamespace(sleep=level)
    driver.engine = SimpleNamespace(
        sleep=sleep, release_kv_cache_memory=lambda: card.sleeps("kv_cache"), wake_up=wake_up, is_sleeping=lambda: True
    )
    return driver


@pytest.mark.parametrize(("level", "peak"), [("kv", 41), (2, 38), ("off", 71)])
def test_what_sleeps_is_not_in_the_peak(card, level, peak):
    """A base of 3 GB, the engine's weights 4 and cache 30; an update takes 34 on top of the base.

    kv: 3 + 4 + 34 = 41; 2: 3 + 30 + 4 + 1 = 38 while it samples, as an update has 37; off: all of it. torch says 71 each time.
    """
    card.take(3 * GB)
    card.pooled("weights", 4 * GB)
    card.pooled("kv_cache", 30 * GB)
    engine = engine_of(card, level)
    for _ in range(2):
        engine.sleep()
        card.take(34 * GB)  # an update
        card.give(34 * GB)
        engine.wake("weights")
        engine.wake("kv_cache")
        card.take(1 * GB)  # sampling
        card.give(1 * GB)
    assert gpu.peak_gb() == pytest.approx(peak)


def test_a_wake_that_fails_ends_the_phase_too(card):
    card.take(3 * GB)
    card.pooled("kv_cache", 30 * GB)
    card.sleeps("kv_cache")
    card.take(20 * GB)
    card.give(20 * GB)
    with pytest.raises(RuntimeError), gpu.new_phase():
        raise RuntimeError("out of memory")
    card.sleeps("kv_cache", is_asleep=False)
    assert gpu.peak_gb() == 33, "33 awake now, 23 before"


def test_without_the_pool_nothing_sleeps(card, monkeypatch):
    card.pool[0] = SimpleNamespace(handle=(0, 5, 0, None))  # of a vLLM that does not tell what is asleep
    assert gpu.asleep_bytes() == 0
    monkeypatch.delitem(sys.modules, "vllm.device_allocator.cumem")
    assert gpu.asleep_bytes() == 0


def test_our_own_process_is_the_one_of_our_size(card, monkeypatch, tmp_path):
    """In a container the ids are the driver's. torch counts 40 GB, of which 30 sleep; the other process has 38."""
    apps = "GPU-a40, 1001, 9537, python\nGPU-a40, 2002, 36240, trainer\nGPU-other, 3003, 9537, python"
    monkeypatch.setenv("PATH", pretend.nvidia_smi(tmp_path / "bin", apps=apps))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: SimpleNamespace(uuid="a40"))
    card.take(10 * GB)
    card.pooled("kv_cache", 30 * GB)
    card.sleeps("kv_cache")
    ((other),) = gpu.others_on_card()
    assert (other.pid, other.name) == (2002, "trainer") and other.bytes == pytest.approx(38e9, rel=0.01)
    monkeypatch.setattr(gpu.os, "getpid", lambda: 2002)
    ((other),) = gpu.others_on_card()
    assert other.pid == 1001, "with the ids of this machine"


@pytest.mark.slow
@pytest.mark.skipif(not resident.STATUS.exists(), reason="only /proc tells a process's own peak")
def test_peak_memory_does_not_begin_at_that_of_the_process_that_started_this_one():
    """Linux lets `ru_maxrss` do so: a run that a large program starts would seem as large."""
    code = "from microrl.models import gpu; print(gpu.peak_gb())"
    parent = "import subprocess, sys; held = b'x' * 8 * 10**8; subprocess.run([sys.executable, *sys.argv[1:]], check=True)"
    command, environment = [sys.executable, "-c", parent, "-c", code], os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert 0.1 < float(done.stdout) < 0.8, done
