"""A network's shape, from its configuration alone: every parameter counted, nothing built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from microrl.config.adapter import BaseAdapterConfig, Linear, TargetedConfig, chosen
from microrl.errors import UserError
from microrl.plan.layers import LLAMA, DeltaNet, Layer, Product, Sizes, decoder, family_of, lfm2_width

MAX_LAYERS = 10_000
"""Of a configuration that is believed: each is counted apart."""


@dataclass(frozen=True, slots=True)
class Shape(Sizes):
    """A decoder-only transformer with gated MLPs. Sizes are numbers of elements."""

    model_type: str
    vocab: int
    tied: bool
    """Whether the output head is the embedding table, which then counts once."""
    max_positions: int | None
    linears: tuple[Linear, ...]
    norms: int
    """Gains of all norms."""
    queries: int
    """Of all layers that compare them with the keys of every token before."""
    attending: int
    """Number of these layers."""
    keys: int
    """That all layers together keep of a token, and as many values."""
    others: int = 0
    """Further parameters: embeddings that are looked up layer by layer, convolutions, gates."""
    saved: int = 0
    """Kept of a token for the backward pass, in the weights' type, by gates and short convolutions of all layers."""
    conv_state: int = 0
    """Kept of a sequence however long it is, in the weights' type."""
    delta: DeltaNet | None = None
    delta_layers: int = 0
    note: str | None = None
    """What is not sure about the counts; None: nothing."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Shape:
        """From a Hugging Face `config.json`. Raises UserError where sizes are missing."""
        model_type, note = str(config.get("model_type", "")), None
        if isinstance(config.get("text_config"), Mapping):
            note = f"only the language-model part of {model_type} is counted"
            model_type = str(config["text_config"].get("model_type", model_type))
            config = _filled(config["text_config"], model_type)
        config = {key: config[other] for key, others in _ALIASES.items() for other in others if other in config} | dict(config)
        known = family_of(model_type, config)
        family = known or LLAMA
        if known is None:
            note = f"unknown architecture {model_type or '(none named)'}: parameters are counted as for Llama"
        try:
            hidden, layers = (int(config[key]) for key in ("hidden_size", "num_hidden_layers"))
            inner = int(config.get("intermediate_size") or 4 * hidden)
            heads, vocab = int(config["num_attention_heads"]), int(config["vocab_size"])
            kv_heads = int(config.get("num_key_value_heads") or heads)
            head_dim = int(config.get("head_dim") or family.head_dim or hidden // max(heads, 1))
            if model_type == "lfm2":
                inner = lfm2_width(config, inner)
            if min(hidden, layers, inner, heads, kv_heads, head_dim, vocab) < 1 or layers > MAX_LAYERS:
                raise ValueError(f"a size is below 1, or there are more than {MAX_LAYERS:,} layers")
            sizes = Sizes(layers, hidden, inner, heads, kv_heads, head_dim)
            parts = decoder(model_type, family, config, sizes)
            if len(parts) != layers + 1:
                raise ValueError(f"the kinds of {len(parts) - 1} layers are named, but there are {layers} layers")
            if any(size < 1 for layer in parts.values() for size in layer.sizes()):
                raise ValueError("a size is below 1")
            looked_up = int(config.get("vocab_size_per_layer_input") or 0) * int(config.get("hidden_size_per_layer_input") or 0)
            positions = config.get("max_position_embeddings")
            positions = None if positions is None else int(positions)
            experts = max(int(config.get(key) or 0) for key in _EXPERTS) if known is None else 0
            width = int(config.get("moe_intermediate_size") or inner)
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise UserError(
                f"cannot read the model's size from its configuration: {why}", "pass a text-generation model: --model NAME"
            ) from None
        if experts > 1:
            note = f"{note}, with {experts} experts of width {width:,} in each layer"
        tied = config.get("tie_word_embeddings")
        each = parts.values()
        deltas = [layer.delta for layer in each if layer.delta is not None]
        return cls(
            **asdict(sizes),
            model_type=model_type,
            vocab=vocab,
            tied=family.tied if tied is None else bool(tied),
            max_positions=positions,
            linears=_linears(parts),
            norms=sum(layer.norms for layer in each),
            queries=sum(layer.queries for layer in each),
            attending=sum(layer.queries > 0 for layer in each),
            keys=sum(layer.keys for layer in each),
            # Experts beside the MLP that is counted as for Llama: so a token's arithmetic is that of one MLP.
            others=sum(layer.others for layer in each) + layers * (looked_up + (experts > 1) * experts * 3 * hidden * width),
            saved=sum(layer.saved for layer in each),
            conv_state=sum(layer.conv_state for layer in each),
            delta=next(iter(deltas), None),
            delta_layers=len(deltas),
            note=note,
        )

    @property
    def head(self) -> int:
        """Parameters that the output head multiplies with, and as many of the embedding table, whether or not they are those."""
        return self.vocab * self.hidden

    @property
    def body(self) -> int:
        """Parameters of all decoder layers' linear layers: what one token is multiplied with, the head apart."""
        return sum(linear.count * linear.parameters for linear in self.linears)

    @property
    def body_weights(self) -> int:
        """The same without biases: what 4 bits hold."""
        return sum(linear.count * linear.n_in * linear.n_out for linear in self.linears)

    @property
    def parameters(self) -> int:
        """All parameters, tied ones once."""
        return (1 if self.tied else 2) * self.head + self.others + self.body + self.norms

    @property
    def norms_a_layer(self) -> int:
        """Gains of one decoder layer's norms, on average."""
        return (self.norms - self.hidden) // self.layers

    @property
    def distinct_inputs(self) -> int:
        """See `NetworkSize.distinct_inputs`."""
        return 2 * self.hidden + self.intermediate

    def kv_bytes(self, width: int) -> int:
        """Bytes of one token's keys and values in all layers, `width` bytes an element."""
        return 2 * self.keys * width

    def state_bytes(self, width: int) -> int:
        """Bytes of what is kept of a sequence however long it is."""
        return self.conv_state * width + 4 * self.recurrent_state

    @property
    def recurrent_state(self) -> int:
        """Elements of all delta networks' states."""
        return 0 if self.delta is None else self.delta_layers * self.delta.state

    def row_bytes(self, tokens: float, width: int) -> float:
        """Bytes of all that is kept of a sequence of so many tokens."""
        return tokens * self.kv_bytes(width) + self.state_bytes(width)

    def targets(self, adapter: BaseAdapterConfig) -> tuple[Linear, ...]:
        """The linear layers that this adapter changes. Raises UserError as `chosen` does."""
        if not isinstance(adapter, TargetedConfig):
            return self.linears if adapter.has_linears else ()
        kinds = {linear.kind for linear in self.linears}
        if self.note is not None and adapter.targets != "all-linear" and not kinds.issuperset(adapter.targets):
            return self.linears  # it has layers that are not known here; `adapters.attach.targets` knows them
        names = chosen(adapter, {linear.names[0]: min(linear.n_in, linear.n_out) for linear in self.linears})
        return tuple(linear for linear in self.linears if linear.names[0] in names)

    def trainable(self, adapter: BaseAdapterConfig) -> int:
        """Parameters that are trained with this adapter. Raises UserError as `targets` does."""
        return adapter.trained(self, self.targets(adapter))

    def products(self, adapter: BaseAdapterConfig) -> int:
        """Elements of the factors that the trainer multiplies with beside the base's weights."""
        return adapter.extra_rank * sum(linear.count * (linear.n_in + linear.n_out) for linear in self.targets(adapter))

    def frozen(self, adapter: BaseAdapterConfig) -> int:
        """Elements that an adapter keeps beside what it trains: the start that a residual form subtracts, LoRA-FA's A."""
        return sum(linear.count * adapter.frozen_in(linear) for linear in self.targets(adapter))


def _filled(config: Mapping[str, Any], model_type: str) -> Mapping[str, Any]:
    """With the class's defaults where sizes are missing: those that equal them are not written down in the text part of, for
    example, gemma-3-4b-it."""
    if "num_attention_heads" in config and "vocab_size" in config:
        return config
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type]().to_dict() | dict(config) if model_type in CONFIG_MAPPING else config


_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_ALIASES = {
    "hidden_size": ("n_embd", "d_model"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "attention_heads"),
    "num_key_value_heads": ("num_kv_heads",),
    "max_position_embeddings": ("n_positions", "max_seq_len"),
    "tie_word_embeddings": ("tie_embedding",),
}
"""Other architectures' names for the sizes. Where none says how wide the MLP is, it is 4 x the hidden size, as in GPT-2."""


def _linears(parts: Mapping[str, Layer]) -> tuple[Linear, ...]:
    """Those of the same name inside their layer and of the same size are one."""
    names: dict[Product, list[str]] = {}
    for start, layer in parts.items():
        for product in layer.products:
            names.setdefault(product, []).append(start + product.path)
    return tuple(Linear(tuple(where), one.n_in, one.n_out, one.bias) for one, where in names.items())
