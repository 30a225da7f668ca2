"""What every adapter's configuration has: how it is served, and what it takes.

W0 is a layer's weight (out x in), r the rank, s = alpha / r. A LoRA pair (A, B) stands for the update s B A.

The bytes were counted with torch's hooks on saved tensors, for every adapter on a float32 and a bfloat16 base.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import Field, model_validator

from microrl.config.section import Positive, Section
from microrl.errors import UserError, did_you_mean
from microrl.limits import merging_takes_less

ALPHA_FROM_RANK = {"rank": 1.0, "2rank": 2.0}
"""What alpha can be instead of a number, and the factor of the rank that it then is."""
MANY = 1e6
"""Tokens of a micro-batch, where their number is not known yet."""


@dataclass(frozen=True, slots=True)
class Linear:
    """Linear layers of a network that are alike. The network need not exist."""

    names: tuple[str, ...]
    """Such as `model.layers.0.self_attn.q_proj`."""
    n_in: int
    n_out: int
    bias: bool = False

    @property
    def kind(self) -> str:
        """The name that `adapter.targets` takes."""
        return kind_of(self.names[0])

    @property
    def count(self) -> int:
        return len(self.names)

    @property
    def parameters(self) -> int:
        """Of one of them."""
        return self.n_in * self.n_out + (self.n_out if self.bias else 0)


class NetworkSize(Protocol):
    """A network that need not exist (`microrl.plan.shapes.Shape`)."""

    @property
    def layers(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def parameters(self) -> int: ...
    @property
    def norms(self) -> int: ...
    @property
    def norms_a_layer(self) -> int: ...
    @property
    def distinct_inputs(self) -> int:
        """Elements of the inputs of one decoder layer's linear layers, those that several layers share once."""
        ...


class BaseAdapterConfig(Section):
    """What every adapter's configuration has."""

    family: ClassVar[str]
    """Its class in `microrl/adapters/`, as `module.Class`."""
    is_one_product: ClassVar[bool] = False
    """Whether it is computed in one product with its base, in the base's type (`adapters/lora_linear.py`)."""
    trains_weights: ClassVar[bool] = False
    """Whether it trains the weights themselves, all of them."""
    quant_fault: ClassVar[str | None] = None
    """Why it cannot be trained on a frozen base in 4 bits; None: it can."""
    has_linears: ClassVar[bool] = True
    """Whether it changes linear layers."""
    computes_pair: ClassVar[bool] = False
    """Whether the pair for the engine is computed anew each time; else it consists of the trained tensors."""
    start_by: ClassVar[Literal["svd", "qr", "haar"] | None] = None
    """What takes longest in computing its start, for the plan: an SVD or a QR of each weight, or the Haar transform of random
    numbers; None: nothing that counts."""

    @property
    def name(self) -> str:
        """The kind and its rank, for display."""
        rank = getattr(self, "rank", None)
        kind = str(getattr(self, "kind", ""))
        return kind if rank is None else f"{kind} rank {rank}"

    @property
    def extra_rank(self) -> int:
        """Rank of the products that the trainer computes in addition to each targeted layer's own; 0 for none."""
        return 0

    @property
    def pair_rank(self) -> int | None:
        """Rank of the LoRA pair that is sent to the engine; None: merged weights."""
        return None

    @property
    def served(self) -> str:
        """How the engine gets it, for display."""
        return "as merged weights" if self.pair_rank is None else f"as a LoRA pair of rank {self.pair_rank}"

    # ---- what it takes: for the plan. `linears` are those that it changes.

    def trained_in(self, linear: Linear) -> int:
        """Parameters that it trains for one linear layer."""
        return 0

    def trained(self, network: NetworkSize, linears: Sequence[Linear]) -> int:
        """Parameters that it trains in the whole network."""
        return sum(linear.count * self.trained_in(linear) for linear in linears)

    def frozen_in(self, linear: Linear) -> int:
        """Elements that it keeps for one linear layer beside what it trains."""
        return 0

    def saved_bytes(self, network: NetworkSize, linears: Sequence[Linear], dtype_bytes: int) -> int:
        """Bytes that it keeps of one token for the backward pass, in one decoder layer, on a base of this type.

        What is not one product with its base keeps, in fp32: inputs (of a narrower base a copy each) and rank products.
        """
        return self._saved_inputs(network, linears, dtype_bytes) + self._saved_products(network, linears)

    def _saved_inputs(self, network: NetworkSize, linears: Sequence[Linear], dtype_bytes: int) -> int:
        inputs = sum(linear.count * linear.n_in for linear in linears) // network.layers
        return 4 * (inputs if dtype_bytes < 4 else network.distinct_inputs)

    def _saved_products(self, network: NetworkSize, linears: Sequence[Linear]) -> int:
        return 4 * getattr(self, "rank", 0) * sum(linear.count for linear in linears) // network.layers


class TargetedConfig(BaseAdapterConfig):
    """With a choice of linear layers."""

    takes_fewer: ClassVar[bool] = False
    """Whether a layer whose smaller side is below the rank takes as many directions as it has."""

    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Names of the linear layers that get an adapter; all-linear: all except the output head."""


class RankedConfig(TargetedConfig):
    """With a rank."""

    rank: Positive = 64
    """Rank of the update of every targeted linear layer."""

    @property
    def extra_rank(self) -> int:
        return self.rank

    @property
    def pair_rank(self) -> int | None:
        return self.rank

    def trained_in(self, linear: Linear) -> int:
        return self.rank * (linear.n_in + linear.n_out)


class LowRankConfig(RankedConfig):
    """With a rank and a scale."""

    family: ClassVar[str] = "lora.Lora"
    is_one_product: ClassVar[bool] = True
    is_ever_merged: ClassVar[bool] = True
    """Whether a trainer in float32 multiplies with the merged weights where that takes less (`adapters/lora_linear.py`)."""
    alpha: Annotated[float, Field(gt=0)] = 64.0
    """The update is scaled by alpha / rank (rslora: alpha / sqrt(rank)). `rank` and `2rank` become once and twice the rank."""

    @model_validator(mode="before")
    @classmethod
    def _alpha_from_rank(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not isinstance(rule := given.get("alpha"), str) or rule not in ALPHA_FROM_RANK:
            return given
        rank = given.get("rank", cls.model_fields["rank"].default)
        # A rank that is no number has an error of its own.
        return {**given, "alpha": ALPHA_FROM_RANK[rule] * rank if isinstance(rank, int) else 1.0}

    @property
    def scale(self) -> float:
        """s, the factor of B A."""
        return self.alpha / self.rank

    def is_merged(self, linear: Linear, tokens: float = MANY) -> bool:
        """Whether a trainer in float32 merges the pair for its products with this many tokens."""
        can_be = self.is_one_product and self.is_ever_merged
        return can_be and merging_takes_less(tokens, linear.n_in, linear.n_out, self.extra_rank)

    def saved_bytes(self, network: NetworkSize, linears: Sequence[Linear], dtype_bytes: int) -> int:
        """One product with its base keeps inputs and, unless it is merged, rank products in the base's type."""
        if not self.is_one_product:
            return super().saved_bytes(network, linears, dtype_bytes)
        beside = sum(linear.count for linear in linears if dtype_bytes < 4 or not self.is_merged(linear))
        return dtype_bytes * (network.distinct_inputs + self.extra_rank * beside // network.layers)


class ResidualConfig(LowRankConfig):
    """W0 x + s (B A - B0 A0) x: A and B start at A0 and B0, made from W0. W0 stays: the start is subtracted."""

    family: ClassVar[str] = "lora.ResidualLora"
    computes_pair: ClassVar[bool] = True
    start_by: ClassVar[Literal["svd", "qr", "haar"] | None] = "svd"

    def frozen_in(self, linear: Linear) -> int:
        return self.trained_in(linear)

    @property
    def extra_rank(self) -> int:
        return 2 * self.rank

    @property
    def pair_rank(self) -> int | None:
        return 2 * self.rank


def chosen(adapter: TargetedConfig, sides: Mapping[str, int]) -> set[str]:
    """The linear layers that an adapter changes, of these with their smaller sides.

    Raises UserError for a target that is none, where there are none, and for a rank above the smallest side.
    """
    kinds = {kind_of(name) for name in sides}
    if adapter.targets != "all-linear":
        for target in adapter.targets:
            if target not in kinds:
                raise UserError(f"no linear layer is called `{target}`", did_you_mean(target, sorted(kinds)))
        sides = {name: side for name, side in sides.items() if kind_of(name) in adapter.targets}
    if not sides:
        raise UserError(
            "the adapter has nothing to attach to", "--set adapter.targets=all-linear, or choose another model: --model NAME"
        )
    limit, narrowest = min((side, name) for name, side in sides.items())
    rank = getattr(adapter, "rank", 0)
    if rank > limit and not adapter.takes_fewer:
        kinds = {kind_of(name) for name, side in sides.items() if side >= rank}
        wide = json.dumps(sorted(kinds), separators=(",", ":"))
        others = f", or adapt only the wider layers: --set 'adapter.targets={wide}'" if kinds else ""
        raise UserError(f"rank {rank} is above {limit}, the smaller side of {narrowest}", f"--rank {limit} or less{others}")
    return set(sides)


def kind_of(name: str) -> str:
    """`q_proj` of `model.layers.0.self_attn.q_proj`: what `adapter.targets` names."""
    return name.rpartition(".")[2]
