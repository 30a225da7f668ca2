"""The configurations of known models, as far as they decide a size: what their `config.json` on the hub says."""

from __future__ import annotations

from typing import Any

from microrl.config.known_models import QUICKSTART


def _config(
    model_type: str, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocab: int, positions: int, *,
    tied: bool, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    return {
        "model_type": model_type, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocab,
        "max_position_embeddings": positions, "tie_word_embeddings": tied, **more,
    }  # fmt: skip


def _qwen_1_5b(positions: int, *, tied: bool) -> dict[str, Any]:
    return _config("qwen2", 1536, 8960, 28, 12, 2, 151936, positions, tied=tied)


def _qwen3_4b(positions: int) -> dict[str, Any]:
    return _config("qwen3", 2560, 9728, 36, 32, 8, 151936, positions, tied=True, head_dim=128, attention_bias=False)


CONFIGS: dict[str, dict[str, Any]] = {
    # The model that `microrl.policy.tiny` builds.
    QUICKSTART: _config("qwen2", 128, 256, 2, 2, 1, 288, 1024, tied=True),
    "Qwen2.5-1.5B-Instruct": _qwen_1_5b(32768, tied=True),
    "Qwen2.5-3B-Instruct": _config("qwen2", 2048, 11008, 36, 16, 2, 151936, 32768, tied=True),
    "Qwen2.5-7B-Instruct": _config("qwen2", 3584, 18944, 28, 28, 4, 152064, 32768, tied=False),
    "Qwen2.5-Math-1.5B": _qwen_1_5b(4096, tied=True),
    "Qwen2.5-Math-1.5B-Instruct": _qwen_1_5b(4096, tied=True),
    "Qwen3-0.6B": _config("qwen3", 1024, 3072, 28, 16, 8, 151936, 40960, tied=True, head_dim=128, attention_bias=False),
    "Qwen3-1.7B": _config("qwen3", 2048, 6144, 28, 16, 8, 151936, 40960, tied=True, head_dim=128, attention_bias=False),
    "Qwen3-4B": _qwen3_4b(40960),
    "Qwen3-4B-Instruct-2507": _qwen3_4b(262144),
    "Qwen3-4B-Thinking-2507": _qwen3_4b(262144),
    "DeepSeek-R1-Distill-Qwen-1.5B": _qwen_1_5b(131072, tied=False),
    "DeepSeek-R1-Distill-Qwen-7B": _config("qwen2", 3584, 18944, 28, 28, 4, 152064, 131072, tied=False),
    "DeepScaleR-1.5B-Preview": _qwen_1_5b(131072, tied=False),
    "OpenMath-Nemotron-1.5B": _qwen_1_5b(131072, tied=True),
    "JustRL-DeepSeek-1.5B": _qwen_1_5b(131072, tied=False),
    "JustRL-Nemotron-1.5B": _qwen_1_5b(131072, tied=True),
    "SmolLM3-3B": _config("smollm3", 2048, 11008, 36, 16, 4, 128256, 65536, tied=True),
    "SmolLM2-135M-Instruct": _config("llama", 576, 1536, 30, 9, 3, 49152, 8192, tied=True),
    "Llama-3.2-1B-Instruct": _config("llama", 2048, 8192, 16, 32, 8, 128256, 131072, tied=True, head_dim=64),
    "Llama-3.2-3B-Instruct": _config("llama", 3072, 8192, 28, 24, 8, 128256, 131072, tied=True, head_dim=128),
    "gemma-3-1b-it": _config("gemma3_text", 1152, 6912, 26, 4, 1, 262144, 32768, tied=True, head_dim=256),
}
