"""From a configuration to an adapter on a model, and from PEFT's layers to their update."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from microrl.adapters.adapter import Adapter, snapshot_of, tuned
from microrl.config.adapter import BaseAdapterConfig
from microrl.config.adapters import KINDS
from microrl.errors import UserError
from microrl.models.load import Progress, unseen
from microrl.types import AdapterSnapshot


def targets(model: PreTrainedModel, config: BaseAdapterConfig) -> dict[str, torch.nn.Linear]:
    """The linear layers that this adapter changes, by name. Raises UserError for targets and ranks that cannot be."""
    return _family_of(type(config)).layers(model, config)


def attach(
    model: PreTrainedModel,
    config: BaseAdapterConfig,
    *,
    seed: int,
    fresh: bool = True,
    progress: Progress = unseen,
) -> Adapter:
    """Put the adapter on the model. Everything random follows from `seed`.

    Not `fresh`: a state will be loaded, and what takes long to compute is left out. Raises UserError for targets that match
    nothing and for ranks that cannot be.
    """
    return _family_of(type(config))(model, config, seed=seed, fresh=fresh, progress=progress)


def export(model: torch.nn.Module, version: int) -> AdapterSnapshot:
    """The update of PEFT's layers, whoever put them on the model. Raises UserError for a kind that has no exact form here."""
    layers = tuned(model)
    rounds = any(_family(layer).rounds for layer in layers.values())
    return snapshot_of(layers, lambda layer: _family(layer).update(layer), version, None if rounds else 0)


def _family(layer: Any) -> type[Adapter]:
    """The family whose PEFT layers these are: of several the most derived, since AdaLoRA's are LoRA layers, too."""
    families = [family for config in KINDS.values() if isinstance(layer, (family := _family_of(config)).peft_layer)]
    if not families:
        raise UserError(
            f"adapters of the type {type(layer).__module__} are not supported", "merge the adapter with the library that made it"
        )
    return max(families, key=lambda family: len(family.peft_layer.__mro__) if family.peft_layer else 0)


def _family_of(config: type[BaseAdapterConfig]) -> type[Adapter]:
    module, _, name = config.family.partition(".")
    return cast("type[Adapter]", getattr(import_module(f"microrl.adapters.{module}"), name))
