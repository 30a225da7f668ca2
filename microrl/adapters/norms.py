"""ln: the gains of all norms are trained."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import peft
import torch
from peft.tuners.ln_tuning.layer import LNTuningLayer
from transformers import PreTrainedModel

from microrl.adapters.adapter import TASK, Adapter, Update, narrow_products, replace_base, rounding_notes
from microrl.config.adapters import LnConfig
from microrl.errors import UserError
from microrl.models.tensors import norms


class Norms(Adapter):
    config: LnConfig
    peft_layer = LNTuningLayer
    rounds = True

    @staticmethod
    def layers(model: PreTrainedModel, config: Any) -> dict[str, torch.nn.Linear]:
        if not norms(model):
            raise UserError("this model's norms have no gains: there is nothing for `ln` to train", "--adapter lora")
        return {}

    def peft_config(self, kinds: list[str]) -> peft.PeftConfig:
        return peft.LNTuningConfig(target_modules=list(norms(self.model)), task_type=TASK)

    @staticmethod
    def update(layer: Any) -> Update:
        (name,) = layer.active_adapters
        return {leaf: partial(replace_base, tensor.detach()) for leaf, tensor in layer.ln_tuning_layers[name].named_parameters()}

    def precision(self) -> AbstractContextManager[Any]:
        return narrow_products(self.model, self.dtype)

    def tensor_kind(self, name: str) -> str:
        return "norm"

    def notes_for(self, layers: Mapping[str, torch.nn.Linear]) -> list[str]:
        return rounding_notes(self.config.kind, self.dtype)
