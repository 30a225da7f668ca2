"""From a configuration to an adapter on a model, and from PEFT's layers to their update: the table of all families."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from microrl.adapters.adalora import AdaLora
from microrl.adapters.adapter import Adapter, snapshot_of, tuned
from microrl.adapters.full import Full
from microrl.adapters.ia3 import Ia3
from microrl.adapters.lora import Dora, Lora, LoraFa, LoraPlus, ResidualLora, RsLora, SingularLora
from microrl.adapters.miss import Miss
from microrl.adapters.norms import Norms
from microrl.adapters.starts import Progress
from microrl.adapters.tinylora import TinyLora
from microrl.adapters.vera import Vera
from microrl.config import adapters as configs
from microrl.errors import UserError
from microrl.types import AdapterSnapshot

FAMILIES: dict[type[configs.BaseAdapterConfig], type[Adapter]] = {
    configs.AdaLoraConfig: AdaLora,  # before Lora: in PEFT its layers are LoRA layers, too
    configs.LoraConfig: Lora,
    configs.RsLoraConfig: RsLora,
    configs.LoraPlusConfig: LoraPlus,
    configs.LoraFaConfig: LoraFa,
    configs.DoraConfig: Dora,
    configs.DctConfig: Lora,
    configs.WaveletConfig: Lora,
    configs.RlpoConfig: SingularLora,
    configs.RlmoConfig: SingularLora,
    configs.PissaConfig: ResidualLora,
    configs.MiloraConfig: ResidualLora,
    configs.OloraConfig: ResidualLora,
    configs.OloraQrConfig: ResidualLora,
    configs.OloraTailConfig: ResidualLora,
    configs.MissConfig: Miss,
    configs.VeraConfig: Vera,
    configs.TinyLoraConfig: TinyLora,
    configs.Ia3Config: Ia3,
    configs.LnConfig: Norms,
    configs.FullConfig: Full,
}


def targets(model: PreTrainedModel, config: configs.BaseAdapterConfig) -> dict[str, torch.nn.Linear]:
    """The linear layers that this adapter changes, by name. Raises UserError for targets and ranks that cannot be."""
    return FAMILIES[type(config)].layers(model, config)


def attach(
    model: PreTrainedModel,
    config: configs.BaseAdapterConfig,
    *,
    seed: int,
    fresh: bool = True,
    progress: Progress = lambda items, *_: items,
) -> Adapter:
    """Put the adapter on the model. Everything random follows from `seed`.

    Not `fresh`: a state will be loaded, and what takes long to compute is left out. Raises UserError for targets that match
    nothing and for ranks that cannot be.
    """
    return FAMILIES[type(config)](model, config, seed=seed, fresh=fresh, progress=progress)


def export(model: torch.nn.Module, version: int) -> AdapterSnapshot:
    """The update of PEFT's layers, whoever put them on the model. Raises UserError for a kind that has no exact form here."""
    layers = tuned(model)
    rounds = any(_family(layer).rounds for layer in layers.values())
    return snapshot_of(layers, lambda layer: _family(layer).update(layer), version, None if rounds else 0)


def _family(layer: Any) -> type[Adapter]:
    for family in FAMILIES.values():
        if isinstance(layer, family.peft_layer):
            return family
    raise UserError(
        f"adapters of the type {type(layer).__module__} are not supported", "merge the adapter with the library that made it"
    )
