"""Which modules of a model an adapter sits on."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from microrl.config.adapters import Adapter, LnConfig, RankedAdapter, TargetedAdapter, TinyLoraConfig
from microrl.errors import UserError, did_you_mean
from microrl.models.tensors import linears, norms


def targets(model: PreTrainedModel, config: Adapter) -> dict[str, torch.nn.Linear]:
    """The linear layers that this adapter changes, by name. Raises UserError for targets and ranks that cannot be."""
    found = linears(model)
    if isinstance(config, LnConfig):
        if not norms(model):
            raise UserError("this model's norms have no gains: there is nothing for `ln` to train", "--adapter lora")
        return {}
    if not isinstance(config, TargetedAdapter):
        return found
    kinds = {kind_of(name) for name in found}
    if config.targets != "all-linear":
        for target in config.targets:
            if target not in kinds:
                raise UserError(f"no linear layer is called `{target}`", did_you_mean(target, sorted(kinds)))
        found = {name: layer for name, layer in found.items() if kind_of(name) in config.targets}
    if not found:
        raise UserError(
            "the adapter has nothing to attach to",
            f"adapter.targets is empty; there are {', '.join(sorted(kinds))}" if kinds else "the model has no linear layers",
        )
    if isinstance(config, RankedAdapter) and not isinstance(config, TinyLoraConfig):  # which takes fewer where there are fewer
        limit, narrowest = min((min(layer.in_features, layer.out_features), name) for name, layer in found.items())
        if config.rank > limit:
            raise UserError(
                f"rank {config.rank} is above {limit}, the smaller side of {narrowest}",
                f"--rank {limit} or less, or leave that layer out with --set adapter.targets",
            )
    return found


def kind_of(name: str) -> str:
    """`q_proj` of `model.layers.0.self_attn.q_proj`: what `adapter.targets` names."""
    return name.rpartition(".")[2]
