"""A network's shape, from its configuration alone: every parameter counted, nothing built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from microrl.config.adapter import BaseAdapterConfig, Linear, TargetedConfig, chosen
from microrl.errors import UserError

FIRST_LAYER = "model.layers.0."


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder-only transformer with gated MLPs. Sizes are numbers of elements."""

    model_type: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    """Whether the output head is the embedding table, which then counts once."""
    max_positions: int | None
    linears: tuple[Linear, ...]
    norms_a_layer: int
    """Gains of one decoder layer's norms."""
    tables: int = 0
    """Further embeddings, in which tokens are looked up layer by layer."""
    note: str | None = None
    """What is not sure about the counts; None: nothing."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Shape:
        """From a Hugging Face `config.json`. Raises UserError where sizes are missing."""
        model_type, note = str(config.get("model_type", "")), None
        if isinstance(config.get("text_config"), Mapping):
            note = f"only the language-model part of {model_type} is counted"
            config = config["text_config"]
            model_type = str(config.get("model_type", model_type))
        config = {key: config[other] for key, others in _ALIASES.items() for other in others if other in config} | dict(config)
        family = _FAMILIES.get(model_type, _LLAMA)
        if model_type not in _FAMILIES:
            note = f"unknown architecture {model_type or '(none named)'}: parameters are counted as for Llama"
        try:
            hidden, layers = (int(config[key]) for key in ("hidden_size", "num_hidden_layers"))
            inner = int(config.get("intermediate_size") or 4 * hidden)
            heads, vocab = int(config["num_attention_heads"]), int(config["vocab_size"])
        except (KeyError, TypeError, ValueError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise UserError(
                f"cannot read the model's size from its configuration: {why}", "pass a text-generation model: --model NAME"
            ) from None
        kv_heads = int(config.get("num_key_value_heads") or heads)
        head_dim = int(config.get("head_dim") or family.head_dim or hidden // heads)
        tied = config.get("tie_word_embeddings")
        return cls(
            model_type=model_type,
            layers=layers,
            hidden=hidden,
            intermediate=inner,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocab=vocab,
            tied=family.tied if tied is None else bool(tied),
            max_positions=config.get("max_position_embeddings"),
            linears=_linears(family, config, hidden, inner, heads * head_dim, kv_heads * head_dim),
            norms_a_layer=family.norms * hidden + (2 * head_dim if family.qk_norms else 0),
            tables=layers
            * int(config.get("vocab_size_per_layer_input") or 0)
            * int(config.get("hidden_size_per_layer_input") or 0),
            note=note,
        )

    @property
    def head(self) -> int:
        """Parameters that the output head multiplies with, and as many of the embedding table, whether or not they are those."""
        return self.vocab * self.hidden

    @property
    def body(self) -> int:
        """Parameters of all decoder layers' linear layers: what one token is multiplied with, the head apart."""
        return self.layers * sum(linear.parameters for linear in self.linears)

    @property
    def body_weights(self) -> int:
        """The same without biases: what 4 bits hold."""
        return self.layers * sum(linear.n_in * linear.n_out for linear in self.linears)

    @property
    def parameters(self) -> int:
        """All parameters, tied ones once."""
        norms = self.layers * self.norms_a_layer + self.hidden
        return (1 if self.tied else 2) * self.head + self.tables + self.body + norms

    @property
    def distinct_inputs(self) -> int:
        """See `NetworkSize.distinct_inputs`."""
        return 2 * self.hidden + self.intermediate

    def kv_bytes(self, width: int) -> int:
        """Bytes of one token's keys and values in all layers, `width` bytes an element."""
        return 2 * self.layers * self.kv_heads * self.head_dim * width

    def targets(self, adapter: BaseAdapterConfig) -> tuple[Linear, ...]:
        """The linear layers of one decoder layer that this adapter changes. Raises UserError as `chosen` does."""
        if not isinstance(adapter, TargetedConfig):
            return self.linears if adapter.has_linears else ()
        linear_by_name = {FIRST_LAYER + linear.path: linear for linear in self.linears}
        kinds = {linear.kind for linear in self.linears}
        if self.note is not None and adapter.targets != "all-linear" and not kinds.issuperset(adapter.targets):
            return self.linears  # it has layers that are not known here; `adapters.attach.targets` knows them
        names = chosen(adapter, {name: min(linear.n_in, linear.n_out) for name, linear in linear_by_name.items()})
        return tuple(linear for name, linear in linear_by_name.items() if name in names)

    def trainable(self, adapter: BaseAdapterConfig) -> int:
        """Parameters that are trained with this adapter. Raises UserError as `targets` does."""
        return adapter.trained(self, self.targets(adapter))

    def products(self, adapter: BaseAdapterConfig) -> int:
        """Elements of the factors that the trainer multiplies with beside the base's weights."""
        return self.layers * adapter.extra_rank * sum(linear.n_in + linear.n_out for linear in self.targets(adapter))

    def frozen(self, adapter: BaseAdapterConfig) -> int:
        """Elements that an adapter keeps beside what it trains: the start that a residual form subtracts, LoRA-FA's A."""
        return self.layers * sum(map(adapter.frozen_in, self.targets(adapter)))


@dataclass(frozen=True, slots=True)
class _Family:
    """What the architectures do differently; `None` in a rule on biases means the configuration says."""

    qkv_bias: bool | None = None
    o_bias: bool | None = None
    mlp_bias: bool | None = None
    qk_norms: bool = False
    norms: int = 2
    tied: bool = False
    head_dim: int | None = None
    """Default where the configuration names none; None: hidden size / heads."""


_LLAMA = _Family()
_FAMILIES = {
    "llama": _LLAMA,
    "mistral": _Family(qkv_bias=False, o_bias=False, mlp_bias=False),
    "qwen2": _Family(qkv_bias=True, o_bias=False, mlp_bias=False),
    "qwen3": _Family(mlp_bias=False, qk_norms=True, head_dim=128),
    "smollm3": _LLAMA,
    "gemma3_text": _Family(mlp_bias=False, qk_norms=True, norms=4, tied=True, head_dim=256),
}

_ALIASES = {
    "hidden_size": ("n_embd", "d_model"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "attention_heads"),
    "num_key_value_heads": ("num_kv_heads",),
    "max_position_embeddings": ("n_positions", "max_seq_len"),
}
"""Other architectures' names for the sizes. Where none says how wide the MLP is, it is 4 x the hidden size, as in GPT-2."""


def _linears(family: _Family, config: Mapping[str, Any], hidden: int, inner: int, queries: int, keys: int) -> tuple[Linear, ...]:
    def bias(rule: bool | None, key: str) -> bool:
        return bool(config.get(key)) if rule is None else rule

    qkv, out, mlp = (
        bias(family.qkv_bias, "attention_bias"),
        bias(family.o_bias, "attention_bias"),
        bias(family.mlp_bias, "mlp_bias"),
    )
    return (
        Linear("self_attn.q_proj", hidden, queries, qkv),
        Linear("self_attn.k_proj", hidden, keys, qkv),
        Linear("self_attn.v_proj", hidden, keys, qkv),
        Linear("self_attn.o_proj", queries, hidden, out),
        Linear("mlp.gate_proj", hidden, inner, mlp),
        Linear("mlp.up_proj", hidden, inner, mlp),
        Linear("mlp.down_proj", inner, hidden, mlp),
    )
