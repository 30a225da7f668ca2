"""A linear layer with a LoRA pair beside it, W0 x + s B A x, as one step of autograd.

PEFT computes the pair in float32 beside a base in 16 bits: x is copied to float32, two products run at float32's speed, and four
more passes over the output scale, add and round. Here the products are in the base's type, as in the engine that serves the pair,
and both go into one buffer.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora.layer import Linear as PeftLinear
from torch.nn import functional

from microrl.limits import gradients_take_less_by_weights, merging_takes_less
from microrl.models import onednn
from microrl.models.gated_mlp import Gated, gated, to_factors
from microrl.models.tensors import dequantize


class LoraProduct(torch.autograd.Function):
    """y = x W^T + b + s (x A^T) B^T, in the type of x. Shapes: x [N, I], W [O, I], b [O], A [R, I], B [O, R]; y [N, O].

    A and B are the trained masters (float32 or wider): rounded to the type of x for the products, with gradients of their own
    type. W and b are frozen, and W may be in 4 bits. Kept for the backward pass: x, where A is trained, and x A^T.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_NI: torch.Tensor,
        weight_OI: torch.Tensor,
        bias_O: torch.Tensor | None,
        A_RI: torch.Tensor,
        B_OR: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        xA_NR = onednn.product(x_NI, A_RI.to(x_NI.dtype).t())
        y_NO = onednn.unpacked_linear(x_NI, dequantize(weight_OI), bias_O)
        onednn.add_product_(y_NO, xA_NR, B_OR.to(x_NI.dtype).t(), scale)
        ctx.save_for_backward(x_NI if ctx.needs_input_grad[3] else None, xA_NR, A_RI, B_OR)
        ctx.weight_OI, ctx.scale = weight_OI, scale
        return y_NO

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x_NI, xA_NR, A_RI, B_OR = ctx.saved_tensors
        g_NO = gradients[0]
        to_x, to_A, to_B = ctx.needs_input_grad[0], ctx.needs_input_grad[3], ctx.needs_input_grad[4]
        to_x_NI = to_A_RI = to_B_OR = None
        if to_x or to_A:
            gB_NR = onednn.product(g_NO, B_OR.to(g_NO.dtype))
        if to_x:
            to_x_NI = onednn.product(g_NO, dequantize(ctx.weight_OI))
            onednn.add_product_(to_x_NI, gB_NR, A_RI.to(g_NO.dtype), ctx.scale)
        if to_A:
            to_A_RI = onednn.scaled_product(gB_NR.t(), x_NI, ctx.scale).to(A_RI.dtype)
        if to_B:
            to_B_OR = onednn.scaled_product(g_NO.t(), xA_NR, ctx.scale).to(B_OR.dtype)
        return to_x_NI, None, None, to_A_RI, to_B_OR, None


class MergedLoraProduct(torch.autograd.Function):
    """The same as x V^T + b with V = W + s B A, merged for this call. All in one type, float32 or wider.

    Kept for the backward pass: x, where A or B is trained. With `up_NI`, x stands for silu(x) * up: kept are these two, and their
    product is computed again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_NI: torch.Tensor,
        weight_OI: torch.Tensor,
        bias_O: torch.Tensor | None,
        A_RI: torch.Tensor,
        B_OR: torch.Tensor,
        scale: float,
        up_NI: torch.Tensor | None = None,
    ) -> torch.Tensor:
        keeps_x = up_NI is not None or any(ctx.needs_input_grad[3:5])
        ctx.save_for_backward(x_NI if keeps_x else None, up_NI, A_RI, B_OR)
        ctx.weight_OI, ctx.scale = weight_OI, scale
        inner_NI = x_NI if up_NI is None else gated(x_NI, up_NI)
        y_NO = onednn.product(inner_NI, _merged(weight_OI, A_RI, B_OR, scale).t())
        return y_NO if bias_O is None else y_NO.add_(bias_O)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x_NI, up_NI, A_RI, B_OR = ctx.saved_tensors
        g_NO = gradients[0]
        to_x_NI = to_A_RI = to_B_OR = to_up_NI = None
        silu_NI = None if up_NI is None else functional.silu(x_NI)
        if x_NI is not None:
            to_A_RI, to_B_OR = _to_pair(
                g_NO, x_NI if silu_NI is None else silu_NI * up_NI, A_RI, B_OR, ctx.scale, ctx.needs_input_grad[3:5]
            )
        if ctx.needs_input_grad[0] or any(ctx.needs_input_grad[6:]):
            to_x_NI = onednn.product(g_NO, _merged(ctx.weight_OI, A_RI, B_OR, ctx.scale))
            if silu_NI is not None:
                to_x_NI, to_up_NI = to_factors(to_x_NI, x_NI, up_NI, silu_NI)
        return to_x_NI, None, None, to_A_RI, to_B_OR, None, to_up_NI


def merges(x_NI: torch.Tensor, A_RI: torch.Tensor, B_OR: torch.Tensor) -> bool:
    """Whether the merged form is taken: where it is cheaper, with many rows or in small layers.

    In 16 bits merging would round a small update away. The rule depends on shapes alone, so that a run repeats.
    """
    (rows, inputs), (outputs, rank) = x_NI.shape, B_OR.shape
    return x_NI.dtype is A_RI.dtype and merging_takes_less(rows, inputs, outputs, rank)


def _merged(weight_OI: torch.Tensor, A_RI: torch.Tensor, B_OR: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.addmm(dequantize(weight_OI), B_OR, A_RI, alpha=scale)


def _to_pair(
    g_NO: torch.Tensor, x_NI: torch.Tensor, A_RI: torch.Tensor, B_OR: torch.Tensor, scale: float, needed: tuple[bool, ...]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The gradients of A and B where they are needed: s (g B)^T x and s g^T (x A^T), or with G = g^T x, s B^T G and s G A^T."""
    to_A, to_B = needed
    if gradients_take_less_by_weights(*x_NI.shape, *B_OR.shape):
        G_OI = onednn.product(g_NO.t(), x_NI)
        return (
            onednn.scaled_product(B_OR.t(), G_OI, scale) if to_A else None,
            onednn.scaled_product(G_OI, A_RI.t(), scale) if to_B else None,
        )
    return (
        onednn.scaled_product(onednn.product(g_NO, B_OR).t(), x_NI, scale) if to_A else None,
        onednn.scaled_product(g_NO.t(), onednn.product(x_NI, A_RI.t()), scale) if to_B else None,
    )


class LoraLinear(PeftLinear):
    """PEFT's LoRA layer with `LoraProduct` as its forward pass, or with its merged form where that is cheaper."""

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """x [..., I] to [..., O]; the untouched base where the adapter is off."""
        base = self.get_base_layer()
        if self.disable_adapters or self.merged:
            return base(x)
        A_RI, B_OR, scale = pair_of(self)
        x_NI = x.reshape(-1, x.shape[-1])
        product = MergedLoraProduct if self._merges(x_NI, A_RI, B_OR) else LoraProduct
        y_NO = product.apply(x_NI, base.weight, base.bias, A_RI, B_OR, scale)
        return y_NO.view(*x.shape[:-1], -1)

    def of_gated(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """`forward` of silu(gate) * up, [..., I] each. A merged pair keeps these two, and not their product."""
        base = self.get_base_layer()
        if self.disable_adapters or self.merged:
            return base(Gated.apply(gate, up))
        gate_NI, up_NI = gate.reshape(-1, gate.shape[-1]), up.reshape(-1, up.shape[-1])
        A_RI, B_OR, scale = pair_of(self)
        if not self._merges(gate_NI, A_RI, B_OR):
            return self(Gated.apply(gate, up))
        y_NO = MergedLoraProduct.apply(gate_NI, base.weight, base.bias, A_RI, B_OR, scale, up_NI)
        return y_NO.view(*gate.shape[:-1], -1)

    def _merges(self, x_NI: torch.Tensor, A_RI: torch.Tensor, B_OR: torch.Tensor) -> bool:
        # Where A is frozen, it is so that no input has to be kept. A merged pair keeps it.
        return merges(x_NI, A_RI, B_OR) and self.lora_A[self.active_adapters[0]].weight.requires_grad


def pair_of(layer: Any) -> tuple[torch.Tensor, torch.Tensor, float]:
    """A layer's update as one pair: A [R, I], B [O, R] and their scale s.

    A residual form's s (B A - B0 A0) is s [B - B0, B0] [A; A - A0]. Written as s [B, -B0] [A; A0] it would be the same, but then
    two large products have to cancel in 16 bits.
    """
    trained, *start = layer.active_adapters
    A_RI, B_OR = layer.lora_A[trained].weight, layer.lora_B[trained].weight
    for other in start:
        A0_RI, B0_OR = layer.lora_A[other].weight, layer.lora_B[other].weight
        A_RI, B_OR = torch.cat([A_RI, A_RI - A0_RI]), torch.cat([B_OR - B0_OR, B0_OR], dim=1)
    return A_RI, B_OR, float(layer.scaling[trained])


def compute_as_one_product(layer: Any) -> None:
    """Give one of PEFT's layers `LoraLinear`'s forward pass, where it is a plain pair; DoRA and other variants keep PEFT's."""
    if type(layer) is PeftLinear and not layer.lora_variant:
        layer.__class__ = LoraLinear
