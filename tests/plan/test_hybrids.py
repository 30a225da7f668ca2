"""Models whose layers differ: what they keep of a sequence, and of a token for the backward pass, against transformers itself."""

from dataclasses import replace

import pytest
import torch
from architectures import tiny
from planned import A40, planned
from traffic import Traffic
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

from microrl.adapters.attach import attach
from microrl.config import resolve
from microrl.config.adapters import KINDS
from microrl.config.schema import LoraConfig
from microrl.errors import UserError
from microrl.plan import Shape, make, memory
from microrl.plan.layers import DeltaNet
from microrl.plan.source import CONFIGS, shape_of

HYBRID = {"qwen3_5_text": {}, "lfm2": {}, "gemma4_text": {"sliding_window": 64}}


def kept_bytes(cache) -> int:
    """Of all tensors in the layers of transformers' cache that have more than one dimension."""
    values = [value for layer in cache.layers for value in vars(layer).values()]
    values += [one for value in values if isinstance(value, dict) for one in value.values()]
    return sum(value.nbytes for value in values if isinstance(value, torch.Tensor) and value.dim() > 1)


@pytest.mark.parametrize("model_type", HYBRID)
def test_a_sequence_keeps_what_transformers_keeps(model_type):
    model = tiny(model_type, **HYBRID[model_type])
    shape = Shape.from_config(model.config.to_dict())
    for tokens in (8, 24):
        cache = model(input_ids=torch.ones(1, tokens, dtype=torch.long), use_cache=True).past_key_values
        assert shape.row_bytes(tokens, 4) == kept_bytes(cache)


@pytest.mark.parametrize("model_type", HYBRID)
def test_every_adapter_trains_what_is_counted(model_type):
    for kind in ("lora", "vera", "tinylora", "ln", "full"):
        model, config = tiny(model_type), KINDS[kind]
        adapter = config.model_validate({"rank": 4} if "rank" in config.model_fields else {})
        attached = attach(model, adapter, seed=0)
        counted = Shape.from_config(model.config.to_dict()).trainable(adapter)
        assert counted == sum(parameter.numel() for parameter in attached.parameters.values()), kind


def test_keys_values_and_states_by_hand():
    """Two bytes an element; a delta network's state has four."""
    qwen, lfm = shape_of("Qwen3.5-0.8B"), shape_of("LFM2.5-1.2B-Instruct")
    assert qwen.kv_bytes(2) == 6 * 2 * (2 * 256) * 2
    assert qwen.state_bytes(2) == 18 * (16 * 128 * 128 * 4 + 4 * (3 * 16 * 128) * 2) == 19_759_104
    assert lfm.kv_bytes(2) == 6 * 2 * (8 * 64) * 2 and lfm.state_bytes(2) == 10 * 3 * 2048 * 2
    # The first 15 layers, of which three attend to all tokens, with heads twice as wide; the last 20 keep nothing.
    assert shape_of("gemma-4-E2B-it").kv_bytes(2) == 2 * (12 * 256 + 3 * 512) * 2
    assert shape_of("gemma-4-E4B-it").kv_bytes(2) == 2 * 2 * (20 * 256 + 4 * 512) * 2


def test_the_plan_has_room_for_the_states_and_moves_them():
    plan = planned("micro-r64", model__name="Qwen3.5-0.8B")
    # 128 completions of 512 + 3584 tokens and two blocks.
    assert plan.sampling_gb["KV cache"] == pytest.approx(128 * ((4096 + 256) * 12_288 + 19_759_104) / 1e9, abs=2e-3)
    assert any("Gated DeltaNet" in note for note in plan.notes)
    assert not any("DeltaNet" in note for note in planned("micro-r64", model__name="LFM2.5-1.2B-Instruct").notes)
    shape = shape_of("Qwen3.5-0.8B")
    seconds = [of(one).step_parts_s["generate"] for one in (shape, replace(shape, delta_layers=0))]
    moved = 2 * 18 * 16 * 128 * 128 * 4  # read and written for every token
    assert seconds[0] - seconds[1] == pytest.approx(128 * 1792 * moved / (696e9 * 0.72), rel=1e-3)


def of(shape: Shape):
    return make(resolve(["micro-r64"], {"engine.sync": "merge"}), shape, A40)


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        ("qwen3_5_text", {"layer_types": ["linear_attention"] * 2, "head_dim": 64}),
        ("qwen3_5_text", {"layer_types": ["full_attention"] * 2}),
        ("lfm2", {"layer_types": ["conv", "conv"]}),
        ("lfm2", {"layer_types": ["full_attention"] * 2}),
    ],
)
def test_saved_activations_are_what_torch_saves(model_type, fields):
    heads = {"linear_num_key_heads": 4, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 64}
    own = heads if model_type == "qwen3_5_text" else {"intermediate_size": 768}
    model = tiny(model_type, hidden_size=128, **own, **fields).to(torch.bfloat16)
    shape, adapter = Shape.from_config(model.config.to_dict()), LoraConfig(rank=8)
    attached = attach(model, adapter, seed=0)
    saved = []
    for rows in (1, 2):
        kept = {}

        def keep(tensor, kept=kept):
            kept[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), attached.precision():
            model.model(input_ids=torch.ones(rows, 64, dtype=torch.long), use_cache=False)
        saved.append(sum(tensor.untyped_storage().nbytes() for tensor in kept.values()))
    expected = memory.saved_bytes(adapter, shape, dtype_bytes=2, length=64)
    assert expected == pytest.approx((saved[1] - saved[0]) / (64 * shape.layers), rel=0.1)


def test_the_delta_rule_moves_what_is_counted():
    """Of two sequences, so that what grows with their length is told from what does not."""
    delta, moved = DeltaNet(heads=4, keys=4 * 64, values=4 * 64), {}
    for length in (256, 1024):
        parts = [torch.full((1, length, 4, 64), 0.01, requires_grad=True) for _ in range(3)]
        gates = [torch.full((1, length, 4), -0.1, requires_grad=True), torch.full((1, length, 4), 0.5, requires_grad=True)]
        with Traffic() as traffic:
            torch_chunk_gated_delta_rule(*parts, *gates, use_qk_l2norm_in_kernel=True)[0].sum().backward()
        moved[length] = traffic.elementwise_bytes / length
    grown = delta.moved_bytes(1024) - delta.moved_bytes(256)
    assert grown == pytest.approx(moved[1024] - moved[256], rel=0.05)
    # The rest of the layer, its gates and convolution, is not in this count.
    assert 0.6 * delta.moved_bytes(1024) < moved[1024] < delta.moved_bytes(1024)


def test_the_files_of_the_hub_have_the_shapes_that_ship():
    """As they name what differs, and as transformers' defaults do not say it."""
    qwen = {key: value for key, value in CONFIGS["Qwen3.5-0.8B"].items() if "linear_num" not in key}
    named = {"layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 6, "linear_num_key_heads": 16}
    composite = {"model_type": "qwen3_5", "text_config": {**qwen, **named, "linear_num_value_heads": 16}}
    note = "only the language-model part of qwen3_5 is counted"
    assert Shape.from_config(composite) == replace(shape_of("Qwen3.5-0.8B"), note=note)
    lfm = {
        key: value
        for key, value in CONFIGS["LFM2.5-1.2B-Instruct"].items()
        if key not in ("tie_word_embeddings", "full_attn_idxs")
    }
    kinds = ["full_attention" if layer in (2, 5, 8, 10, 12, 14) else "conv" for layer in range(16)]
    file = {**lfm, "layer_types": kinds, "intermediate_size": 8192, "block_ff_dim": 12288, "tie_embedding": True}
    assert Shape.from_config(file) == shape_of("LFM2.5-1.2B-Instruct")
    assert not Shape.from_config({**file, "tie_embedding": False}).tied
    exact = {**file, "block_ff_dim": 8192, "block_auto_adjust_ff_dim": False}
    assert Shape.from_config(exact) == shape_of("LFM2.5-1.2B-Instruct")


def test_what_is_not_known_is_said():
    experts = {**CONFIGS["gemma-4-E4B-it"], "enable_moe_block": True}
    assert "unknown architecture gemma4_text" in Shape.from_config(experts).note
    for damage in ({"layer_types": 5}, {"per_layer_config": [1]}, {"num_kv_shared_layers": "x"}):
        with pytest.raises(UserError, match="cannot read the model's size"):
            Shape.from_config({**CONFIGS["gemma-4-E4B-it"], **damage})


def test_sizes_that_no_model_has_are_refused():
    """Not planned with negative memory, and not counted layer by layer until the memory is full."""
    dense, delta, conv = (CONFIGS[name] for name in ("Qwen3-0.6B", "Qwen3.5-0.8B", "LFM2.5-1.2B-Instruct"))
    for config, damage in (
        (dense, {"num_hidden_layers": 0}), (dense, {"num_hidden_layers": 10**9}), (dense, {"num_hidden_layers": float("inf")}),
        (dense, {"num_attention_heads": 0, "head_dim": None}), (dense, {"hidden_size": -1024}), (dense, {"vocab_size": 0}),
        (delta, {"linear_num_value_heads": -16}), (delta, {"linear_conv_kernel_dim": -4}), (delta, {"layer_types": ["x"] * 23}),
        (conv, {"block_ffn_dim_multiplier": float("inf")}),
    ):  # fmt: skip
        with pytest.raises(UserError, match="cannot read the model's size"):
            Shape.from_config({**config, **damage})


def test_the_delta_rule_takes_operations_and_launches():
    """Three products of each head's state, and 37 operations for every 64 tokens of a mean row in each micro-batch."""
    shape, row = shape_of("Qwen3.5-0.8B"), 0.3 * 512 + 1792
    plan, without = of(shape), of(replace(shape, delta_layers=0))
    passes = 128 * row / plan.micro_batch_tokens
    assert plan.update_parts_s["launches"] == pytest.approx(passes * (24 * 3e-3 + 18 * row / 64 * 37 * 15e-6), rel=1e-3)
    more = plan.update_parts_s["base products"] - without.update_parts_s["base products"]
    assert more == pytest.approx(128 * row * 3.5 * 3 * 2 * 18 * 16 * 128 * 128 / (122e12 * 0.75), rel=0.01)
