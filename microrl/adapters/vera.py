"""VeRA: W0 x + b * (B (d * (A x))), with one random A and B for all layers."""

from __future__ import annotations

from typing import Any

import peft
import torch
from peft.tuners.vera import VeraLayer

from microrl.adapters.adapter import ADAPTER, TASK, Adapter, Update
from microrl.config.adapters import VeraConfig
from microrl.types import LowRank


class Vera(Adapter):
    config: VeraConfig
    peft_layer = VeraLayer
    prefix = "vera_"

    def peft_config(self, kinds: list[str]) -> peft.PeftConfig:
        rank, d = self.config.rank, self.config.d_initial
        return peft.VeraConfig(r=rank, projection_prng_key=self.seed, d_initial=d, target_modules=kinds, task_type=TASK)

    def finish_layer(self, layer: Any) -> None:
        d_R = layer.vera_lambda_d[ADAPTER]
        d_R.data = torch.full_like(d_R, self.config.d_initial, dtype=torch.promote_types(d_R.dtype, torch.float32))

    @staticmethod
    def update(layer: Any) -> Update:
        """A' = diag(d) A, B' = diag(b) B, each cut to the layer's own sides."""
        (name,) = layer.active_adapters
        d_R, b_O = layer.vera_lambda_d[name].detach(), layer.vera_lambda_b[name].detach()
        A_RI, B_OR = layer.vera_A[name][:, : layer.in_features], layer.vera_B[name][: layer.out_features]
        return LowRank(d_R[:, None] * A_RI.to(d_R), b_O[:, None] * B_OR.to(b_O), 1.0)
