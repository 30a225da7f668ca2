"""MiSS: W0 x + D^T E x, where E adds up every r-th input."""

from __future__ import annotations

from typing import Any

import peft
import torch
from peft.tuners.miss import MissLayer

from microrl.adapters.adapter import TASK, Adapter, Update
from microrl.config.adapters import MissConfig
from microrl.errors import UserError
from microrl.types import LowRank


class Miss(Adapter):
    config: MissConfig
    peft_layer = MissLayer
    prefix = "miss_"

    def peft_config(self, kinds: list[str]) -> peft.PeftConfig:
        return peft.MissConfig(r=self.config.rank, init_weights=True, target_modules=kinds, task_type=TASK)

    @staticmethod
    def update(layer: Any) -> Update:
        """B' = D^T, A' the 0/1 matrix that adds up every r-th input: A'[i, j] = 1 where j mod r = i."""
        if layer.miss_fn is not True:
            raise UserError(
                f"the MiSS variant `{layer.miss_fn}` is not supported",
                "only plain MiSS (PEFT's init_weights=True) can be loaded: merge this one with the library that made it",
            )
        (name,) = layer.active_adapters
        D_RO = layer.miss_block[name].detach()
        rank = len(D_RO)
        rows_I = torch.arange(layer.in_features, device=D_RO.device) % rank
        return LowRank((rows_I[None] == torch.arange(rank, device=D_RO.device)[:, None]).to(D_RO.dtype), D_RO.t(), 1.0)
