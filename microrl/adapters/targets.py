"""Which linear layers of a model an adapter sits on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from transformers import PreTrainedModel

from microrl.config.adapters import rank_hint
from microrl.errors import UserError, did_you_mean
from microrl.models.tensors import linears


def chosen_linears(model: PreTrainedModel, targets: Literal["all-linear"] | tuple[str, ...]) -> dict[str, torch.nn.Linear]:
    """The linear layers of `adapter.targets`, by name. Raises UserError for a target that is none, and where there are none."""
    found = linears(model)
    kinds = {kind_of(name) for name in found}
    if targets != "all-linear":
        for target in targets:
            if target not in kinds:
                raise UserError(f"no linear layer is called `{target}`", did_you_mean(target, sorted(kinds)))
        found = {name: layer for name, layer in found.items() if kind_of(name) in targets}
    if not found:
        raise UserError(
            "the adapter has nothing to attach to",
            "--set adapter.targets=all-linear, or choose another model: --model NAME",
        )
    return found


def refuse_rank(rank: int, layers: Mapping[str, torch.nn.Linear]) -> None:
    """Raise UserError for a rank above what the smallest of these layers can have."""
    limit, narrowest = min((_side(layer), name) for name, layer in layers.items())
    if rank > limit:
        raise UserError(
            f"rank {rank} is above {limit}, the smaller side of {narrowest}",
            rank_hint(limit, (kind_of(name) for name, layer in layers.items() if _side(layer) >= rank)),
        )


def _side(layer: torch.nn.Linear) -> int:
    return min(layer.in_features, layer.out_features)


def kind_of(name: str) -> str:
    """`q_proj` of `model.layers.0.self_attn.q_proj`: what `adapter.targets` names."""
    return name.rpartition(".")[2]
