"""From `--model` to a shape: a folder's or the hub's `config.json`, a `.gguf` file's header, or what ships here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from microrl.config import known_models
from microrl.config.paths import local_model
from microrl.errors import UserError
from microrl.files import read_json
from microrl.models import hub
from microrl.plan.shapes import Shape


def shape_of(name: str) -> Shape:
    """The shape of the model that `--model` names. Only a model of the hub whose configuration does not ship may need a network.

    Raises UserError for a path or name that leads nowhere, a gated model, or a hub out of reach.
    """
    path = local_model(name)
    if path is not None:
        return Shape.from_config(_gguf(path) if path.suffix == ".gguf" else read_json(path / "config.json", dict, follow=True))
    known = known_models.find(name)
    shipped = CONFIGS.get(name if known is None else known.name)
    return Shape.from_config(shipped or _from_hub(name if known is None else known.hub_id))


def is_at_hand(name: str) -> bool:
    """Whether `shape_of` needs neither a network nor, as for a `.gguf` file's header, seconds."""
    path, known = local_model(name), known_models.find(name)
    return path.suffix != ".gguf" if path is not None else (name if known is None else known.name) in CONFIGS


def _from_hub(name: str) -> dict[str, Any]:
    hub.reachable()  # where it is not, the hub's library must know before it is imported
    from huggingface_hub import hf_hub_download

    try:
        return read_json(Path(hf_hub_download(name, "config.json")), dict[str, Any], follow=True)
    except (OSError, ValueError) as error:  # the hub's errors are both
        raise hub.missing("model", name, error) from error


def _gguf(path: Path) -> dict[str, Any]:
    """A GGUF file's header as a configuration. Its library reads the vocabulary too, which takes seconds."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
    except (OSError, ValueError, IndexError) as error:
        raise UserError(
            f"{path} cannot be read as a GGUF file: {error}", "the download may be incomplete: download it again"
        ) from error
    architecture = str(reader.get_field("general.architecture").contents())
    tensors = {tensor.name: tensor for tensor in reader.tensors}

    def field(key: str) -> Any:
        gguf_field = reader.get_field(f"{architecture}.{key}")
        return None if gguf_field is None else gguf_field.contents()

    return {**_sizes(field), "model_type": _GGUF_TYPES.get(architecture, architecture), **_from_tensors(tensors)}


_GGUF_TYPES = {"gemma3": "gemma3_text"}


def _sizes(field: Any) -> dict[str, Any]:
    keys = {
        "hidden_size": "embedding_length",
        "intermediate_size": "feed_forward_length",
        "num_hidden_layers": "block_count",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "head_dim": "attention.key_length",
        "max_position_embeddings": "context_length",
    }
    sizes = {ours: field(theirs) for ours, theirs in keys.items()}
    return {key: value for key, value in sizes.items() if value is not None}


def _from_tensors(tensors: Mapping[str, Any]) -> dict[str, Any]:
    table = tensors["token_embd.weight"].shape
    return {
        "vocab_size": int(max(table)),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
    }


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


def _qwen3_5(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, value_heads: int) -> dict[str, Any]:
    return _config(
        "qwen3_5_text", hidden, inner, layers, heads, kv_heads, 248320, 262144, tied=True, head_dim=256,
        linear_num_key_heads=16, linear_key_head_dim=128, linear_num_value_heads=value_heads, linear_value_head_dim=128,
    )  # fmt: skip


def _gemma4(hidden: int, inner: int, layers: int, kv_heads: int, shared: int, **more: Any) -> dict[str, Any]:
    return _config(
        "gemma4_text", hidden, inner, layers, 8, kv_heads, 262144, 131072, tied=True, head_dim=256, global_head_dim=512,
        num_kv_shared_layers=shared, hidden_size_per_layer_input=256, vocab_size_per_layer_input=262144, **more,
    )  # fmt: skip


def _qwen3_4b(positions: int) -> dict[str, Any]:
    return _config("qwen3", 2560, 9728, 36, 32, 8, 151936, positions, tied=True, head_dim=128, attention_bias=False)


CONFIGS: dict[str, dict[str, Any]] = {
    # The models that `microrl.models.tiny` builds.
    known_models.QUICKSTART: _config("qwen2", 128, 256, 2, 2, 1, 288, 1024, tied=True),
    known_models.QUICKSTART_TOOLS: _config("qwen2", 128, 256, 2, 2, 1, 296, 1024, tied=True),
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
    "Qwen3.5-0.8B": _qwen3_5(1024, 3584, 24, 8, 2, 16),
    "Qwen3.5-2B": _qwen3_5(2048, 6144, 24, 8, 2, 16),
    "Qwen3.5-4B": _qwen3_5(2560, 9216, 32, 16, 4, 32),
    "LFM2.5-1.2B-Instruct": _config(
        "lfm2", 2048, 12288, 16, 32, 8, 65536, 128000, tied=True, full_attn_idxs=[2, 5, 8, 10, 12, 14]
    ),
    "gemma-4-E2B-it": _gemma4(
        1536, 6144, 35, 1, 20, use_double_wide_mlp=True, layer_types=[*["sliding_attention"] * 4, "full_attention"] * 7
    ),
    "gemma-4-E4B-it": _gemma4(2560, 10240, 42, 2, 18),
    "gemma-3-1b-it": _config("gemma3_text", 1152, 6912, 26, 4, 1, 262144, 32768, tied=True, head_dim=256),
}
"""Known models by the end of their hub ids, as far as a `config.json` there decides a size. Of those that also see or hear, it is
the language model.

Sources for hybrids: Qwen3.5's model cards ("Model Overview"). LFM2.5 has the sizes of LFM2-1.2B
(huggingface.co/FastFlowLM/LFM2-1.2B-NPU2). Gemma 4: github.com/google/gemma.cpp/pull/919, and what public tests of other programs
copy from its `config.json`. Each has exactly as many parameters as others count.
"""
