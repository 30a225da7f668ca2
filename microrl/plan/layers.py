"""What the decoder layers of an architecture consist of, from its configuration. Sizes are numbers of elements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

FULL = "full_attention"
CHUNK = 64
"""Tokens."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What every architecture has."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.kv_heads * self.head_dim


class Product(NamedTuple):
    """A linear layer."""

    path: str
    """Its name inside its layer, such as `self_attn.q_proj`."""
    n_in: int
    n_out: int
    bias: bool = False


class DeltaNet(NamedTuple):
    """A gated delta network (arXiv 2412.06464), as transformers' own code computes it: in float32, in chunks of `CHUNK` tokens.

    The constants are fitted to counts, op by op, of layers of several sizes and lengths in bfloat16.
    """

    heads: int
    """Of the values; keys are repeated for them."""
    keys: int
    values: int
    """Of all heads together."""

    @property
    def state(self) -> int:
        """Kept of a sequence however long it is, in float32."""
        return self.keys * self.values // self.heads

    def saved_bytes(self, dtype_bytes: int) -> int:
        """Kept of a token for the backward pass: among them pairs of the tokens in a chunk, and a state for each chunk."""
        wide = 8 * self.keys + 6 * self.values + 199 * self.heads + self.state // CHUNK
        return dtype_bytes * (4 * self.keys + 2 * self.values) + 4 * wide

    def moved_bytes(self, length: float) -> float:
        """By the elementwise operations for a token of a row of this length, forward and backward.

        Going back, every chunk writes a gradient for all of them, which is 0 but for its own.
        """
        once = 440 * self.keys + 407 * self.values + 8500 * self.heads + 42 * self.state / CHUNK
        return once + length / CHUNK * (48 * self.keys + 37 * self.values + 980 * self.heads)


class Layer(NamedTuple):
    """A decoder layer, or what stands beside them."""

    products: tuple[Product, ...]
    norms: int
    """Gains."""
    queries: int = 0
    """0: none that are compared with the keys of all tokens before."""
    keys: int = 0
    """Kept of each token, and as many values; 0: none, or it reads another layer's."""
    others: int = 0
    """Parameters beside those of products and norms."""
    saved: int = 0
    """Kept of a token for the backward pass, in the weights' type, by a gate or a short convolution."""
    conv_state: int = 0
    """Kept of a sequence however long it is, in the weights' type."""
    delta: DeltaNet | None = None

    def sizes(self) -> Iterator[int]:
        """Those that a model has to have where it has the part at all."""
        for product in self.products:
            yield from (product.n_in, product.n_out)
        yield from self.delta or ()
        yield from (size for size in (self.others, self.conv_state) if size)


@dataclass(frozen=True, slots=True)
class Family:
    """What the architectures do differently; `None` in a rule on biases means the configuration says."""

    qkv_bias: bool | None = None
    o_bias: bool | None = None
    mlp_bias: bool | None = None
    qk_norms: bool = False
    norms: int = 2
    tied: bool = False
    head_dim: int | None = None
    """Default where the configuration names none; None: hidden size / heads."""


LLAMA = Family()
FAMILIES = {
    "llama": LLAMA,
    "mistral": Family(qkv_bias=False, o_bias=False, mlp_bias=False),
    "qwen2": Family(qkv_bias=True, o_bias=False, mlp_bias=False),
    "qwen3": Family(mlp_bias=False, qk_norms=True, head_dim=128),
    "smollm3": LLAMA,
    "gemma3_text": Family(mlp_bias=False, qk_norms=True, norms=4, tied=True, head_dim=256),
    "gemma4_text": Family(tied=True, head_dim=256),
    "lfm2": Family(tied=True),
    "qwen3_5_text": Family(head_dim=256),
}


def family_of(model_type: str, config: Mapping[str, Any]) -> Family | None:
    """None: not known, such as Gemma 4 with experts, or with keys that are the values, too."""
    if config.get("enable_moe_block") or config.get("attention_k_eq_v"):
        return None
    return FAMILIES.get(model_type)


def decoder(model_type: str, family: Family, config: Mapping[str, Any], sizes: Sizes) -> dict[str, Layer]:
    """Its layers, and what linear layers and norms it has beside them, by the beginning of their parameters' names."""
    if model_type == "qwen3_5_text":
        layers: Iterable[Layer] = (_qwen3_5(kind, config, sizes) for kind in _kinds(config, sizes, every=4))
    elif model_type == "lfm2":
        attends = config.get("full_attn_idxs")
        kinds = config.get("layer_types") or [
            FULL if attends is None or number in attends else "conv" for number in range(sizes.layers)
        ]
        layers = (_lfm2(kind, config, sizes) for kind in kinds)
    elif model_type == "gemma4_text":
        shared_from = sizes.layers - int(config.get("num_kv_shared_layers") or 0)
        kinds = [*_kinds(config, sizes, every=6)[:-1], FULL]
        layers = (_gemma4(kind, number >= shared_from, config, sizes) for number, kind in enumerate(kinds))
    else:
        layers = [_dense(family, config, sizes)] * sizes.layers
    parts = {f"model.layers.{number}.": layer for number, layer in enumerate(layers)}
    own = int(config.get("hidden_size_per_layer_input") or 0) if model_type == "gemma4_text" else 0
    beside = (Product("per_layer_model_projection", sizes.hidden, sizes.layers * own),) if own else ()
    return parts | {"model.": Layer(beside, sizes.hidden + own)}


def _kinds(config: Mapping[str, Any], sizes: Sizes, *, every: int) -> list[str]:
    """Of each layer; where the configuration does not say, one in so many attends to all tokens."""
    every = int(config.get("full_attention_interval") or every)
    named = config.get("layer_types")
    return [*named] if named else [FULL if number % every == every - 1 else "other" for number in range(sizes.layers)]


def _dense(family: Family, config: Mapping[str, Any], sizes: Sizes) -> Layer:
    def bias(rule: bool | None, key: str) -> bool:
        return bool(config.get(key)) if rule is None else rule

    qkv, out, mlp = (
        bias(family.qkv_bias, "attention_bias"),
        bias(family.o_bias, "attention_bias"),
        bias(family.mlp_bias, "mlp_bias"),
    )
    products = (*_attention(sizes, qkv, out_bias=out), *_mlp(sizes.hidden, sizes.intermediate, mlp))
    norms = family.norms * sizes.hidden + (2 * sizes.head_dim if family.qk_norms else 0)
    return Layer(products, norms, sizes.query_width, sizes.key_width)


def _attention(
    sizes: Sizes, bias: bool = False, *, out_bias: bool = False, out: str = "o_proj", gates: int = 0
) -> tuple[Product, ...]:
    return (
        Product("self_attn.q_proj", sizes.hidden, sizes.query_width + gates, bias),
        Product("self_attn.k_proj", sizes.hidden, sizes.key_width, bias),
        Product("self_attn.v_proj", sizes.hidden, sizes.key_width, bias),
        Product(f"self_attn.{out}", sizes.query_width, sizes.hidden, out_bias),
    )


def _mlp(
    hidden: int,
    inner: int,
    bias: bool = False,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    of: str = "mlp",
) -> tuple[Product, ...]:
    gate, up, down = names
    return (
        Product(f"{of}.{gate}", hidden, inner, bias),
        Product(f"{of}.{up}", hidden, inner, bias),
        Product(f"{of}.{down}", inner, hidden, bias),
    )


def _qwen3_5(kind: str, config: Mapping[str, Any], sizes: Sizes) -> Layer:
    """Gated attention, with a gate for each query; else a gated delta network."""
    hidden, mlp = sizes.hidden, _mlp(sizes.hidden, sizes.intermediate)
    if kind == FULL:
        attention = _attention(sizes, gates=sizes.query_width)
        return Layer(
            (*attention, *mlp), 2 * hidden + 2 * sizes.head_dim, sizes.query_width, sizes.key_width, saved=2 * sizes.query_width
        )
    key_heads, value_heads = int(config.get("linear_num_key_heads") or 16), int(config.get("linear_num_value_heads") or 32)
    key_dim, value_dim = int(config.get("linear_key_head_dim") or 128), int(config.get("linear_value_head_dim") or 128)
    kernel = int(config.get("linear_conv_kernel_dim") or 4)
    keys, values = key_heads * key_dim, value_heads * value_dim
    convolved = 2 * keys + values
    products = (
        Product("linear_attn.in_proj_qkv", hidden, convolved),
        Product("linear_attn.in_proj_z", hidden, values),
        Product("linear_attn.out_proj", values, hidden),
    )
    # The convolution; two gates for each head, with a bias and a rate; and the gains of the gated norm. None of them is adapted.
    others = kernel * convolved + 2 * value_heads * (hidden + 1) + value_dim
    delta = DeltaNet(value_heads, value_heads * key_dim, values)
    return Layer((*products, *mlp), 2 * hidden, others=others, conv_state=kernel * convolved, delta=delta)


def _lfm2(kind: str, config: Mapping[str, Any], sizes: Sizes) -> Layer:
    """Attention or a short gated convolution (arXiv 2511.23404)."""
    hidden, bias = sizes.hidden, bool(config.get("conv_bias"))
    mlp = _mlp(hidden, sizes.intermediate, names=("w1", "w3", "w2"), of="feed_forward")
    if kind == FULL:
        return Layer(
            (*_attention(sizes, out="out_proj"), *mlp), 2 * hidden + 2 * sizes.head_dim, sizes.query_width, sizes.key_width
        )
    kernel = int(config.get("conv_L_cache") or 3)
    products = (Product("conv.in_proj", hidden, 3 * hidden, bias), Product("conv.out_proj", hidden, hidden, bias))
    others = (kernel + bias) * hidden
    return Layer((*products, *mlp), 2 * hidden, others=others, saved=6 * hidden, conv_state=kernel * hidden)


def lfm2_width(config: Mapping[str, Any], inner: int) -> int:
    """Of its MLP: two thirds of what the configuration names, in whole multiples, unless it says to take it as it is."""
    inner = int(config.get("block_ff_dim") or inner)
    if not config.get("block_auto_adjust_ff_dim", True):
        return inner
    multiple = int(config.get("block_multiple_of") or 256)
    return -(-int(float(config.get("block_ffn_dim_multiplier") or 1.0) * (2 * inner // 3)) // multiple) * multiple


def _gemma4(kind: str, is_shared: bool, config: Mapping[str, Any], sizes: Sizes) -> Layer:
    """Wider heads where it attends to all tokens. The last layers read the keys and values of earlier ones."""
    hidden = sizes.hidden
    own_sizes = replace(sizes, head_dim=_global_head_dim(config)) if kind == FULL else sizes
    query, key, value, out = _attention(own_sizes)
    inner = sizes.intermediate * (2 if is_shared and config.get("use_double_wide_mlp") else 1)
    own = int(config.get("hidden_size_per_layer_input") or 0)
    gated = (Product("per_layer_input_gate", hidden, own), Product("per_layer_projection", own, hidden)) if own else ()
    projections = (query, out) if is_shared else (query, key, value, out)
    norms = (5 if own else 4) * hidden + (1 if is_shared else 2) * own_sizes.head_dim
    return Layer(
        (*projections, *_mlp(hidden, inner), *gated), norms, own_sizes.query_width, 0 if is_shared else own_sizes.key_width
    )


def _global_head_dim(config: Mapping[str, Any]) -> int:
    """As the hub's file names it, or as transformers writes it out: by layer, where it differs."""
    differing = config.get("per_layer_config") or {}
    named = next((layer["head_dim"] for layer in differing.values() if "head_dim" in layer), None)
    return int(named or config.get("global_head_dim") or 512)
