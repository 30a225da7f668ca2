"""TinyLoRA: W0 x + B (sum_i v_i P_i) A x; only the few numbers v are trained."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import peft
import torch
from peft.tuners.tinylora import TinyLoraLayer

from microrl.adapters.adapter import ADAPTER, TASK, Adapter, Update
from microrl.adapters.starts import Pair
from microrl.config.adapters import TinyLoraConfig
from microrl.types import LowRank


class TinyLora(Adapter):
    config: TinyLoraConfig
    peft_layer = TinyLoraLayer
    prefix = "tinylora_"

    def peft_config(self, kinds: list[str]) -> peft.PeftConfig:
        return peft.TinyLoraConfig(
            r=self.config.rank,
            u=self.config.size,
            weight_tying=self.config.tying,
            projection_seed=self.seed,
            init_weights=True,
            target_modules=kinds,
            task_type=TASK,
        )

    def wrap(self, settings: peft.PeftConfig, layers: Mapping[str, torch.nn.Linear]) -> peft.PeftModel:
        with skip_svd():
            return super().wrap(settings, layers)

    def set_start(self, layer: Any, pair: Pair) -> None:
        layer.tinylora_A[ADAPTER].copy_(pair.A_RI)
        layer.tinylora_B[ADAPTER].copy_(pair.B_OR)

    @staticmethod
    def update(layer: Any) -> Update:
        """A' = (sum_i v_i P_i) A, B' = B."""
        (name,) = layer.active_adapters
        mix_RR = layer._compute_R(name).detach()
        return LowRank(mix_RR @ layer.tinylora_A[name].to(mix_RR), layer.tinylora_B[name].to(mix_RR), 1.0)

    def notes_for(self, layers: Mapping[str, torch.nn.Linear]) -> list[str]:
        rank = self.config.rank
        narrow = [name for name, layer in layers.items() if rank > min(layer.in_features, layer.out_features)]
        if not narrow:
            return []
        return [
            f"rank {rank} exceeds the full rank of {len(narrow)} layers, such as {narrow[0]}; they use all their singular "
            "directions"
        ]


def skip_svd() -> AbstractContextManager[Any]:
    """PEFT computes the SVD of every weight that it wraps. Here A and B only get their shapes: `starts` or a file fills them."""

    def allocate(layer: Any, adapter: str, rank: int, fan_in_fan_out: bool) -> None:
        layer.r[adapter] = rank = min(rank, layer.in_features, layer.out_features)
        layer.tinylora_A[adapter] = torch.zeros(rank, layer.in_features)
        layer.tinylora_B[adapter] = torch.zeros(layer.out_features, rank)

    return mock.patch.object(TinyLoraLayer, "_init_svd", allocate)
