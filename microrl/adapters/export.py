"""The one way out of an adapter: plain LoRA pairs where it is low rank, openly or in disguise; merged tensors where it is not.

Both are relative to the untouched base, and exact. The engines, `microrl merge` and the run's `final/` folder use nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from peft.tuners.adalora.layer import AdaLoraLayer
from peft.tuners.ia3 import IA3Layer
from peft.tuners.ln_tuning.layer import LNTuningLayer
from peft.tuners.lora import LoraLayer
from peft.tuners.miss import MissLayer
from peft.tuners.tinylora import TinyLoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.tuners.vera import VeraLayer

from microrl.errors import UserError
from microrl.types import AdapterSnapshot, LowRank, Merge


def tuned(model: torch.nn.Module) -> dict[str, Any]:
    """PEFT's wrappers by the names that the wrapped modules have in the base model."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, BaseTunerLayer)}


@torch.no_grad()
def export(model: torch.nn.Module, version: int) -> AdapterSnapshot:
    """The current update of every wrapped module. Raises UserError for a kind of PEFT's that has no exact form here."""
    pairs: dict[str, LowRank] = {}
    merged: dict[str, Merge] = {}
    for name, layer in tuned(model).items():
        pair = next((read(layer) for kind, read in _PAIRS.items() if isinstance(layer, kind)), None)
        if pair is not None:
            pairs[name] = pair
            continue
        merge = next((read for kind, read in _MERGED.items() if isinstance(layer, kind)), None)
        if merge is None:
            raise UserError(f"{type(layer).__module__} has no exact form as a LoRA pair or as merged weights here")
        merged |= {f"{name}.{leaf}": function for leaf, function in merge(layer).items()}
    return AdapterSnapshot(version, pairs, merged)


def _lora(layer: Any) -> LowRank | None:
    """s B A as it is; None for DoRA.

    A residual form's s (B A - B0 A0) is s [B - B0, B0] [A; A - A0]. Written as s [B, -B0] [A; A0] it would be the same, but
    then two large products are to cancel in an engine that computes in 16 bits.
    """
    if layer.lora_variant:
        return None
    trained, *start = layer.active_adapters
    A_RI, B_OR = layer.lora_A[trained].weight.detach(), layer.lora_B[trained].weight.detach()
    for other in start:
        A0_RI, B0_OR = layer.lora_A[other].weight, layer.lora_B[other].weight
        A_RI, B_OR = torch.cat([A_RI, A_RI - A0_RI]), torch.cat([B_OR - B0_OR, B0_OR], dim=1)
    return LowRank(A_RI, B_OR, float(layer.scaling[trained]))


def _adalora(layer: Any) -> LowRank:
    """A' = E Q, B' = P, s = alpha / (r + 1e-5)."""
    (name,) = layer.active_adapters
    scale = float(layer.scaling[name] / (layer.ranknum[name] + 1e-5))
    return LowRank((layer.lora_A[name] * layer.lora_E[name]).detach(), layer.lora_B[name].detach(), scale)


def _miss(layer: Any) -> LowRank | None:
    """B' = D^T, A' the 0/1 matrix that adds up every r-th input: A'[i, j] = 1 where j mod r = i."""
    if layer.miss_fn is not True:
        raise UserError(f"MiSS in its `{layer.miss_fn}` mode is not served here", "its plain mode is")
    (name,) = layer.active_adapters
    D_RO = layer.miss_block[name].detach()
    rank = len(D_RO)
    places_I = torch.arange(layer.in_features, device=D_RO.device) % rank
    return LowRank((places_I[None] == torch.arange(rank, device=D_RO.device)[:, None]).to(D_RO.dtype), D_RO.t(), 1.0)


def _vera(layer: Any) -> LowRank:
    """A' = diag(d) A, B' = diag(b) B, each cut to the layer's own sides."""
    (name,) = layer.active_adapters
    d_R, b_O = layer.vera_lambda_d[name].detach(), layer.vera_lambda_b[name].detach()
    A_RI, B_OR = layer.vera_A[name][:, : layer.in_features], layer.vera_B[name][: layer.out_features]
    return LowRank(d_R[:, None] * A_RI.to(d_R), b_O[:, None] * B_OR.to(b_O), 1.0)


def _tinylora(layer: Any) -> LowRank:
    """A' = (sum_i v_i P_i) A, B' = B."""
    (name,) = layer.active_adapters
    mix_RR = layer._compute_R(name).detach()
    return LowRank(mix_RR @ layer.tinylora_A[name].to(mix_RR), layer.tinylora_B[name].to(mix_RR), 1.0)


def _dora(layer: Any) -> dict[str, Merge]:
    (name,) = layer.active_adapters
    A_RI, B_OR = layer.lora_A[name].weight.detach(), layer.lora_B[name].weight.detach()
    magnitude_O, scale = layer.lora_magnitude_vector[name].weight.detach(), float(layer.scaling[name])

    def weight(base_OI: torch.Tensor) -> torch.Tensor:
        """m (W0 + s B A) / |W0 + s B A|, norms by output row."""
        moved_OI = torch.addmm(base_OI.to(A_RI), B_OR, A_RI, alpha=scale)
        return magnitude_O[:, None] * moved_OI / torch.linalg.vector_norm(moved_OI, dim=1, keepdim=True)

    return {"weight": weight}


def _ia3(layer: Any) -> dict[str, Merge]:
    (name,) = layer.active_adapters
    vector = layer.ia3_l[name].detach()  # [1, in] or [out, 1]
    found: dict[str, Merge] = {"weight": partial(_times, vector)}
    if not layer.is_feedforward and layer.get_base_layer().bias is not None:
        found["bias"] = partial(_times, vector.flatten())
    return found


def _ln(layer: Any) -> dict[str, Merge]:
    (name,) = layer.active_adapters
    return {leaf: partial(constant_merge, tensor.detach()) for leaf, tensor in layer.ln_tuning_layers[name].named_parameters()}


def _times(vector: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    return base.to(vector) * vector


def constant_merge(tensor: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """A merge that knows the whole tensor already."""
    return tensor


_PAIRS: dict[type, Callable[[Any], LowRank | None]] = {
    AdaLoraLayer: _adalora, LoraLayer: _lora, MissLayer: _miss, VeraLayer: _vera, TinyLoraLayer: _tinylora,
}  # fmt: skip
_MERGED: dict[type, Callable[[Any], dict[str, Merge]]] = {LoraLayer: _dora, IA3Layer: _ia3, LNTuningLayer: _ln}
