"""Tiny random models of the architectures that transformers has, sized by the names that their configurations use."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "padded_vocab_size", "unpadded_vocab_size"), 300),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "word_embed_proj_dim", "embedding_size", "emb_dim"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "intermediate_size_mlp", "d_inner", "dim_ff"), 96),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size", "ffn_hidden_size"), 32
    ),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "attention_heads", "num_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_head_kv"), 2),
    **dict.fromkeys(("head_dim", "dim_head", "v_head_dim", "qk_nope_head_dim", "kv_channels"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 24),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim"), 96),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 128),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), None),
}
"""For every name that a configuration has."""
DELTA_NET = {
    "layer_types": ["linear_attention", "full_attention"],
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4},
}
FIELDS: dict[str, dict[str, Any]] = {
    "dbrx": {"ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2}},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "modernbert-decoder": {**dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)},
    "cwm": {"bos_token_id": 0},
    "qwen3_5_text": DELTA_NET,
    "qwen3_next": DELTA_NET,
    "gemma4_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "sliding_window": 8,
        "vocab_size_per_layer_input": 300,
        "hidden_size_per_layer_input": 16,
        "per_layer_config": {"1": {"head_dim": 32}, "3": {"head_dim": 32}},
    },
    "granitemoehybrid": {
        "layer_types": ["linear_attention", "full_attention"],
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "shared_intermediate_size": 32,
    },
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_ssm": 64, "mamba_d_state": 16, "mamba_chunk_size": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "opt": {"pad_token_id": 1},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"]},
}
"""What some want besides."""
DROPOUT = 0.5
LARGEST = 20_000_000
"""Parameters: above them a configuration has sizes of its own, in a part for images for instance."""


def tiny(model_type: str, dropout: float = 0.0, **fields: Any) -> PreTrainedModel:
    """A random model in float32, in eval mode, with weights that make the next token matter. `fields` go into its configuration.

    Every dropout that the configuration knows has this probability. Raises ValueError where the sizes leave the model large.
    """
    cls = CONFIG_MAPPING[model_type]
    known = cls().to_dict() | {name: None for name in cls.attribute_map}
    wanted = {name: value for name, value in SIZES.items() if name in known}
    wanted |= {name: dropout for name, value in known.items() if "drop" in name and isinstance(value, float | int)}
    if "qk_rope_head_dim" in known:  # latent attention: every head has keys of its own, and the other sizes follow
        wanted = {"num_key_value_heads": 4, "n_group": 1, "topk_group": 1} | {k: v for k, v in wanted.items() if k != "head_dim"}
        wanted["num_key_value_heads"] = 4
    config = cls(**wanted | FIELDS.get(model_type, {}) | fields)
    with torch.device("meta"):
        size = AutoModelForCausalLM.from_config(copy.deepcopy(config)).num_parameters()
    if size > LARGEST:
        raise ValueError(f"{model_type} stays at {size:,} parameters")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(4)
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):  # ones would not be missed
            buffer.fill_(0.5)
    return model
