"""A gated MLP, down(silu(gate x) * up x), that keeps fewer activations, for float32 on a CPU.

Autograd keeps four tensors of the inner width: gate x, its silu, up x and their product. In SmolLM2 they are half of what a layer
keeps. Here gate x and up x are kept, and the rest is computed again: a few passes over them, beside three matrix products. The
product too is kept where `down` needs its input and is not a merged LoRA pair.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

MLPS = (LlamaMLP, Qwen2MLP, Qwen3MLP)
"""Of these exact types: a subclass may compute something else."""


def use_lean_mlps(model: PreTrainedModel) -> None:
    """Have the model's gated MLPs computed as here, where they are float32 on a CPU."""
    for module in model.modules():
        if type(module) in MLPS and module.config.hidden_act == "silu":
            weight = module.down_proj.weight
            if weight.device.type == "cpu" and weight.dtype is torch.float32:
                module.__class__ = GatedMlp


class GatedMlp(torch.nn.Module):
    """It replaces one of `MLPS`."""

    gate_proj: torch.nn.Module
    up_proj: torch.nn.Module
    down_proj: torch.nn.Module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., D], of any shape before the last dimension; so is what it returns."""
        gate, up = self.gate_proj(x), self.up_proj(x)
        # A LoRA pair keeps its input, unless it takes the factors of this one.
        of_gated = getattr(self.down_proj, "of_gated", None)
        y: torch.Tensor = self.down_proj(Gated.apply(gate, up)) if of_gated is None else of_gated(gate, up)
        return y


class Gated(torch.autograd.Function):
    """silu(gate) * up, keeping one tensor fewer than autograd does."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return gated(gate, up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return to_factors(gradients[0], *ctx.saved_tensors)


def gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, where autograd does not record."""
    return functional.silu(gate).mul_(up)


def to_factors(
    g: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, silu: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of `gated`'s arguments, from that of its result. `silu`: that of the gate, if it is there; it is used up."""
    return torch.ops.aten.silu_backward(g * up, gate), (functional.silu(gate) if silu is None else silu).mul_(g)
