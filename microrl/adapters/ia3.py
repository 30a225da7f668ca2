"""IA3: layers whose output, or for `down_proj` the input, is multiplied by a trained vector."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import peft
import torch
from peft.tuners.ia3 import IA3Layer

from microrl.adapters.adapter import TASK, Adapter, Update, rounding_notes
from microrl.config.adapters import Ia3Config
from microrl.types import Merge


class Ia3(Adapter):
    config: Ia3Config
    peft_layer = IA3Layer
    prefix = "ia3_"
    rounds = True

    def peft_config(self, kinds: list[str]) -> peft.PeftConfig:
        inputs = [kind for kind in kinds if kind == "down_proj"]
        return peft.IA3Config(feedforward_modules=inputs, target_modules=kinds, task_type=TASK)

    @staticmethod
    def update(layer: Any) -> Update:
        (name,) = layer.active_adapters
        vector = layer.ia3_l[name].detach()  # [1, in] or [out, 1]
        merges: dict[str, Merge] = {"weight": partial(_times, vector)}
        if not layer.is_feedforward and layer.get_base_layer().bias is not None:
            merges["bias"] = partial(_times, vector.flatten())
        return merges

    def notes_for(self, layers: Mapping[str, torch.nn.Linear]) -> list[str]:
        return rounding_notes(self.config.kind, self.dtype)


def _times(vector: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    return base.to(vector) * vector
