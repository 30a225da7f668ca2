"""What is left to vLLM on a card: by hand, against the runner's own buffers, and against what vLLM makes of our options."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from places import FIXTURES, HELPERS, ROOT
from random_models import OnCard

from microrl.config import resolve
from microrl.limits import BATCHED_TOKENS
from microrl.plan import devices, make, memory, reserve
from microrl.plan.source import shape_of
from microrl.rollout import sync_check
from microrl.rollout.vllm import launch
from microrl.rollout.vllm.launch import VllmSettings

CARDS = json.loads((FIXTURES / "vllm_cards.json").read_text())
QWEN = shape_of("Qwen2.5-1.5B-Instruct")
A40 = (8, 6)
GB = 1e9


def built_for(*names, capability=A40, **flags):
    return reserve.served(resolve(names, flags), QWEN, 2, 4096, capability)


def test_graphs_by_hand():
    """Rank 256 on all layers: 10 kernels, and 10 + 3 x 4 with the adapter, in 28 layers, for each of 13 sizes."""
    found = reserve.reserve(built_for("micro-r256"), 40 * GB, 16 * GB)
    assert found.capture_sizes == (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128)
    # Shared: 128 rows of (1,536 + 3 x 8,960) x 2 bytes at the peak of a layer, and of 1,536 x 2 for the output.
    assert found.stays["CUDA graphs"] == 13 * 28 * (10 + 22) * 40_960 + 128 * (56_832 + 3_072) == 484_769_792
    merged = reserve.reserve(built_for("micro-r256", **{"engine.sync": "merge"}), 40 * GB, 16 * GB)
    assert merged.stays["CUDA graphs"] == 13 * 28 * 10 * 40_960 + 128 * (56_832 + 3_072)
    queries_and_values = built_for("micro-r256", **{"adapter.targets": ["q_proj", "v_proj"]})
    assert queries_and_values.wrapped == 1 and built_for("micro-r256").wrapped == 4
    # FlashAttention 3 adds up 32 parts of 12 heads' 128 sums and one log-sum, in float32.
    hopper = reserve.reserve(built_for("micro-r256", capability=(9, 0)), 40 * GB, 16 * GB)
    assert hopper.stays["CUDA graphs"] - found.stays["CUDA graphs"] == 128 * 32 * 12 * 129 * 4


def test_without_graphs_nothing_is_reserved_for_them():
    found = reserve.reserve(built_for("micro-r256", **{"engine.cuda_graphs": False}), 40 * GB, 16 * GB)
    assert "CUDA graphs" not in found.parts and found.capture_sizes == ()
    on, off = (
        make(resolve(["micro-r256"], {"engine.cuda_graphs": graphs}), QWEN, devices.DEVICES["a40"]).sampling_gb
        for graphs in (True, False)
    )
    assert on["CUDA graphs"] == pytest.approx(0.485, abs=1e-3) and "CUDA graphs" not in off


def test_buffers_and_the_largest_batch_by_hand():
    built = built_for("micro-r256")
    # A row: counts and two bits for each of 151,936 tokens, 4,481 words of the sampler's, two tables of 256 blocks. A token: 69.
    row = 4 * 151_936 + 2 * 4 * 4_748 + 4 * 4_481 + 2 * 4 * 256
    assert reserve.runner_bytes(built) == 128 * row + 4096 * 69 == 85_492_224
    found = reserve.reserve(built, 40 * GB, 16 * GB)
    # Top-p's rows of float32 logits, one for each of 128 completions; 5 MiB a layer of rounding.
    assert found.stays["vLLM's buffers"] == 85_492_224 + 128 * 151_936 * 4 + 28 * 5 * 2**20
    # Weights may be merged into it (sync=auto): the embeddings once more, 467 MB, are more than 4,096 tokens' 233 MB.
    assert found.passes["vLLM's largest batch"] == pytest.approx(1.1 * 151_936 * 1536 * 2)
    swapped = reserve.reserve(built_for("micro-r256", **{"engine.sync": "swap"}), 40 * GB, 16 * GB)
    assert swapped.passes["vLLM's largest batch"] == pytest.approx(1.1 * 4096 * 56_832)
    # 512 completions: their logits in 16 bits and in float32, beside 4,096 tokens' last states.
    many = reserve.reserve(replace(built, rows=512, loads_weights=False), 40 * GB, 16 * GB)
    assert many.passes["vLLM's largest batch"] == pytest.approx(1.1 * (512 * 151_936 * 6 + 4096 * 1536 * 2))
    precise = reserve.reserve(replace(built, rows=512, head_bytes=4, loads_weights=False), 40 * GB, 16 * GB)
    assert precise.passes["vLLM's largest batch"] == pytest.approx(1.1 * (512 * 151_936 * 8 + 4096 * 1536 * 2))


def test_the_probe_is_no_longer_than_what_is_reserved_for_it():
    assert len(sync_check.TEXTS) * sync_check.MAX_TOKENS <= reserve.SCORED_TOKENS


def test_graphs_are_captured_for_the_rows_that_the_cache_holds():
    """A completion at its mean length: 0.3 x 512 + 0.5 x 3,584 + 64 tokens, 28,672 bytes each."""
    built = built_for("micro-r256")
    assert built.row_bytes == pytest.approx(2009.6 * 28_672) and built.rows == 128
    beside = sum(reserve.reserve(replace(built, has_graphs=False), 0.0, 0.0).parts.values())
    for held, sizes in ((40.5, (1, 2, 4, 8, 16, 24, 32, 41)), (0.9, (1,)), (500.0, reserve.capture_sizes(128))):
        assert reserve.reserve(built, beside + held * built.row_bytes, 1e12).capture_sizes == sizes
    assert reserve.reserve(built, beside + 1e12, 2.2 * built.row_bytes).capture_sizes == (1, 2, 3)
    assert reserve.reserve(built, 0.0, 1e12).capture_sizes == (1,)


def test_every_number_of_rows_has_a_graph_that_is_little_larger():
    sizes = reserve.capture_sizes(512)
    assert sorted(set(sizes)) == list(sizes) and len(sizes) == 21 and sizes[-1] == 512
    for rows in range(1, 513):
        graph = next(size for size in sizes if size >= rows)
        assert graph - rows < max(8, rows / 2 if rows < 64 else rows / 4), rows
        assert reserve.capture_sizes(rows)[-1] == rows


@pytest.mark.parametrize("name", ["a40", "t4", "h100"])
def test_plan_and_run_reserve_the_same(monkeypatch, name):
    """Both ask the one function, with the same numbers for the same run."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from microrl.models import gpu
    from microrl.rollout import factory

    device, asked = devices.DEVICES[name], []
    monkeypatch.setattr(factory, "reserve", lambda built, room, wanted: asked.append((built, wanted)) or stop())
    monkeypatch.setattr(memory, "reserve", lambda built, room, wanted: asked.append((built, wanted)) or REAL(built, room, wanted))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: device_capability)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (int(40e9), int(48e9)))
    monkeypatch.setattr(gpu, "others_on_card", lambda: ())
    device_capability = device.capability
    sizes = {"hidden_size": QWEN.hidden, "intermediate_size": QWEN.intermediate, "num_hidden_layers": QWEN.layers,
             "num_attention_heads": QWEN.heads, "num_key_value_heads": QWEN.kv_heads, "vocab_size": QWEN.vocab,
             "max_position_embeddings": QWEN.max_positions, "tie_word_embeddings": True}  # fmt: skip
    with torch.device("meta"):
        model = Qwen2ForCausalLM(Qwen2Config(**sizes)).to(torch.float16 if name == "t4" else torch.bfloat16)
    config = resolve(["micro-r256"], {"engine.kind": "vllm"})
    with pytest.raises(Stopped):
        factory._vllm_settings(config, OnCard(model), factory.longest_sequence(config, model))
    make(config, shape_of("Qwen2.5-1.5B-Instruct"), device)
    (from_run, run_wanted), (from_plan, plan_wanted) = asked[0], asked[1]
    assert replace(from_run, shape=QWEN) == replace(from_plan, shape=QWEN)
    assert run_wanted == plan_wanted == 128 * (4096 + 256) * 28_672
    assert reserve.reserve(from_run, 30 * GB, run_wanted) == reserve.reserve(from_plan, 30 * GB, plan_wanted)


REAL = reserve.reserve


class Stopped(Exception):
    pass


def stop():
    raise Stopped


# ---- what vLLM makes of it


def options_of(monkeypatch, model, **settings):
    monkeypatch.setattr(launch, "import_vllm", lambda: SimpleNamespace(LLM=lambda **options: options))
    monkeypatch.setattr(launch, "register_loaded", lambda architecture: None)
    monkeypatch.setattr(launch, "dense_products", lambda options: nullcontext())
    fixed = {"targets": ("model.layers.0.self_attn.q_proj",), "rank": 8, "max_model_len": 128, "max_sequences": 8,
             "kv_bytes": 2**20, "sync": "swap", "sleep": "kv"}  # fmt: skip
    return launch.start(model, VllmSettings(**fixed | settings))


def test_only_decode_steps_are_captured_and_only_where_graphs_are_on(monkeypatch, model, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    on = options_of(monkeypatch, OnCard(model), capture_sizes=(1, 2, 3))
    assert on["compilation_config"] == {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 3]}
    assert not on["enforce_eager"] and on["max_num_batched_tokens"] == BATCHED_TOKENS
    off = options_of(monkeypatch, OnCard(model), cuda_graphs=False)
    assert "compilation_config" not in off and off["enforce_eager"]
    on_cpu = options_of(monkeypatch, model, max_model_len=5000)
    assert "compilation_config" not in on_cpu and on_cpu["max_num_batched_tokens"] == 5000


@pytest.mark.parametrize("capability", CARDS)
def test_vllm_captures_what_is_reserved_for(capability):
    """Resolved by vLLM 0.32.0's own code for each card (`pretend_card.py`)."""
    card = CARDS[capability]
    for rows in (128, 512):
        found, sizes = card[str(rows)], reserve.capture_sizes(rows)
        assert found["runner"] == "V2" and found["graphs"] == "FULL_DECODE_ONLY" and found["chunked_prefill"]
        assert found["sizes"] == list(sizes) and found["batched_tokens"] == BATCHED_TOKENS
        assert found["captured"] == {"FULL": 2 * len(sizes)}, "with an adapter and without"
    assert card["no graphs"]["captured"] == {}
    theirs = card["vLLM's own, 512"]
    assert theirs["captured"]["FULL"] == 102 and theirs["captured"]["PIECEWISE"] >= 102 and theirs["batched_tokens"] >= 8192
    built = built_for("micro-r256", capability=tuple(map(int, capability.split("."))))
    assert (reserve._attention_workspace(built) > 0) == (theirs["attention_order"][0] == "FLASHINFER")
    assert (theirs["attention"] == "TRITON_ATTN") == (capability == "7.5")


def in_a_process(script, *arguments, **environment):
    """What a script beside this file prints, in a process of its own: what it pretends must not stay."""
    done = subprocess.run(
        [sys.executable, HELPERS / script, *arguments], env=os.environ | environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.vllm
def test_the_runners_buffers_are_those_of_the_formula():
    """The real runner's constructors on the meta device, at three numbers of rows, vocabularies and lengths."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    cases = ((512, 151_936, 4096, 256), (128, 151_936, 32_000, 0), (40, 32_000, 512, 8))
    path = os.pathsep.join([str(ROOT), str(HELPERS)])
    counted = in_a_process("meta_runner.py", *(",".join(map(str, case)) for case in cases), PYTHONPATH=path)
    for (rows, vocab, length, rank), found in zip(cases, counted, strict=True):
        built = replace(built_for("micro-r256"), shape=replace(QWEN, vocab=vocab), rows=rows, length=length, rank=rank)
        assert reserve.runner_bytes(built) == pytest.approx(found, rel=0.005), (rows, vocab, length, rank)


@pytest.mark.vllm
@pytest.mark.slow
def test_the_cards_are_as_recorded(tmp_path):
    wheel = os.environ.get("MICRORL_TEST_VLLM_WHEEL")
    if wheel is None:
        pytest.skip("MICRORL_TEST_VLLM_WHEEL is not the folder of vLLM's unpacked CUDA wheel")
    path = os.pathsep.join([wheel, str(ROOT), str(HELPERS)])
    named = {"PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path), "VLLM_CACHE_ROOT": str(tmp_path / "vllm")}
    assert in_a_process("pretend_card.py", **named) == CARDS
