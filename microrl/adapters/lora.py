"""LoRA and what is PEFT's LoRA with another scale, start, learning rate or form: W0 x + s B A x."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import peft
import torch
from peft.tuners.lora import LoraLayer

from microrl.adapters import starts
from microrl.adapters.adapter import ADAPTER, TASK, Adapter, Update, tuned
from microrl.adapters.lora_linear import compute_as_one_product, pair_of
from microrl.adapters.starts import Pair
from microrl.config.adapter import LowRankConfig, ResidualConfig
from microrl.config.adapters import LoraPlusConfig
from microrl.models.load import Progress
from microrl.models.tensors import dequantize
from microrl.types import LowRank

START = "start"
"""PEFT's name for the frozen start that a residual form subtracts."""


class Lora(Adapter):
    """lora itself; dct and wavelet, which only start elsewhere."""

    config: LowRankConfig
    peft_layer = LoraLayer
    prefix = "lora_"
    options: ClassVar[Mapping[str, bool]] = {}
    """Of PEFT's configuration, what differs from plain LoRA."""

    def peft_config(self, kinds: list[str]) -> peft.PeftConfig:
        return peft.LoraConfig(
            r=self.config.rank,
            lora_alpha=self.config.alpha,  # PEFT says int, and takes any number
            lora_dropout=0.0,
            bias="none",
            target_modules=kinds,
            task_type=TASK,
            **self.options,
        )

    def set_start(self, layer: Any, pair: Pair) -> None:
        _write(layer, ADAPTER, pair)

    def put_on(self, layers: Mapping[str, torch.nn.Linear], fresh: bool, progress: Progress) -> None:
        super().put_on(layers, fresh, progress)
        if self.config.is_one_product:  # else PEFT's forward pass stays
            for layer in tuned(self.model).values():
                compute_as_one_product(layer)

    @staticmethod
    def update(layer: Any) -> Update:
        """s B A, by `pair_of`."""
        if layer.lora_variant:
            return Dora.update(layer)
        A_RI, B_OR, scale = pair_of(layer)
        return LowRank(A_RI.detach(), B_OR.detach(), scale)


class RsLora(Lora):
    options: ClassVar = {"use_rslora": True}


class LoraPlus(Lora):
    config: LoraPlusConfig

    def groups(self) -> list[dict[str, Any]]:
        sides: dict[bool, list[torch.nn.Parameter]] = {False: [], True: []}
        for name, parameter in self.parameters.items():
            sides["lora_B" in name].append(parameter)
        return [{"params": sides[False], "factor": 1.0}, {"params": sides[True], "factor": self.config.ratio}]


class LoraFa(Lora):
    def finish_layer(self, layer: Any) -> None:
        layer.lora_A[ADAPTER].weight.requires_grad_(False)


class Dora(Lora):
    options: ClassVar = {"use_dora": True}

    def finish_layer(self, layer: Any) -> None:
        base_OI = dequantize(layer.get_base_layer().weight)
        wide = torch.promote_types(base_OI.dtype, torch.float32)
        layer.lora_magnitude_vector[ADAPTER].weight.data = torch.linalg.vector_norm(base_OI.to(wide), dim=1)

    @staticmethod
    def update(layer: Any) -> Update:
        (name,) = layer.active_adapters
        A_RI, B_OR = layer.lora_A[name].weight.detach(), layer.lora_B[name].weight.detach()
        magnitude_O, scale = layer.lora_magnitude_vector[name].weight.detach(), float(layer.scaling[name])

        def weight(base_OI: torch.Tensor) -> torch.Tensor:
            """m (W0 + s B A) / |W0 + s B A|, norms by output row."""
            moved_OI = torch.addmm(base_OI.to(A_RI), B_OR, A_RI, alpha=scale)
            return magnitude_O[:, None] * moved_OI / torch.linalg.vector_norm(moved_OI, dim=1, keepdim=True)

        return {"weight": weight}


class SingularLora(Lora):
    """lora-rlpo, lora-rlmo: A starts at singular vectors."""

    def notes_for(self, layers: Mapping[str, torch.nn.Linear]) -> list[str]:
        rank = self.config.rank
        whole = [name for name, layer in layers.items() if rank == min(layer.in_features, layer.out_features)]
        if not whole:
            return []
        return [
            f"rank {rank} is the full rank of {len(whole)} layers, such as {whole[0]}: there lora-rlpo and lora-rlmo span the "
            "same space"
        ]


class ResidualLora(Lora):
    """pissa, milora, olora, olora-qr, olora-tail: s (B A - B0 A0), by a second and frozen LoRA of the scale -s."""

    config: ResidualConfig

    def wrap(self, settings: peft.PeftConfig, layers: Mapping[str, torch.nn.Linear]) -> peft.PeftModel:
        wrapped = super().wrap(settings, layers)
        wrapped.add_adapter(START, self.peft_config(list(settings.target_modules)))
        wrapped.base_model.set_adapter([ADAPTER, START])
        return wrapped

    def set_start(self, layer: Any, pair: Pair) -> None:
        _write(layer, ADAPTER, pair)
        _write(layer, START, pair)

    def finish_layer(self, layer: Any) -> None:
        layer.scaling[START] = -self.config.scale
        layer.lora_A[START].weight.requires_grad_(False)
        layer.lora_B[START].weight.requires_grad_(False)

    def start_norm(self) -> float:
        sizes = [starts.norm(layer.lora_A[START].weight, layer.lora_B[START].weight) for layer in tuned(self.model).values()]
        return sum(sizes) / len(sizes)


def _write(layer: Any, adapter: str, pair: Pair) -> None:
    layer.lora_A[adapter].weight.copy_(pair.A_RI)
    if pair.B_OR is not None:
        layer.lora_B[adapter].weight.copy_(pair.B_OR)
