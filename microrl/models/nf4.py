"""The frozen base in 4 bits: QLoRA's NF4 (Dettmers et al. 2023, arXiv 2305.14314) by bitsandbytes, with scales in float32.

Whoever needs a weight as numbers asks `tensors.dequantize`. An engine samples from just these numbers, so that it and the trainer
differ by no more than rounding.
"""

from __future__ import annotations

import bitsandbytes
import torch
from transformers import PreTrainedModel

from microrl.limits import NF4_BYTES
from microrl.models import gpu
from microrl.models.tensors import linears


class Nf4Linear(bitsandbytes.nn.Linear4bit):
    """A linear layer with its weight in 4 bits, which computes in the type that the weight had. PEFT wraps it as a plain one.

    With an ordinary parameter in the weight's place, such as a merged one, it is an ordinary layer.
    """

    def __init__(self, layer: torch.nn.Linear, device: torch.device) -> None:
        dtype = layer.weight.dtype
        with torch.device("meta"):
            super().__init__(layer.in_features, layer.out_features, bias=False, compute_dtype=dtype)
        self.weight = bitsandbytes.nn.Params4bit(
            layer.weight.data, requires_grad=False, compress_statistics=False, quant_type="nf4", module=self
        ).to(device)
        self.bias = layer.bias
        # On some CPUs bitsandbytes would repack the weight at its first use, and nothing else could read it any more.
        self.support_avx512bf16_for_cpu = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As `torch.nn.Linear`, [..., in] to [..., out]; the output is in the layer's own type."""
        if getattr(self.weight, "quant_state", None) is None:
            return torch.nn.functional.linear(x, self.weight, self.bias)
        out = super().forward(x.to(self.compute_dtype))
        return out.clone() if out.requires_grad else out  # it may be a view, to which PEFT must not add in place


@torch.no_grad()
def quantize(model: PreTrainedModel, device: torch.device) -> None:
    """Replace every linear layer but the head, in place: one after the other, so that the device never holds the whole model."""
    for name, layer in linears(model).items():
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, Nf4Linear(layer, device))


def bytes_in_4_bits(model: PreTrainedModel) -> int:
    """Bytes that a model's parameters will take once it is quantised."""
    saved = sum(layer.weight.numel() * (layer.weight.element_size() - NF4_BYTES) for layer in linears(model).values())
    return int(gpu.weight_bytes(model) - saved)
