"""float32 matrix products on a CPU with oneDNN. torch itself uses MKL for them.

On AMD processors MKL does not use AVX-512. On two EPYC machines with AVX-512 (two threads), oneDNN is 1.1 and about 2 times as
fast for 1,100 rows, also for LoRA's thin products. Without AVX-512, MKL is 1.1 to 1.8 times as fast as oneDNN with weights as
they are; on an Intel processor with AVX-512 it takes 0.6 to 1.0 of oneDNN's time. With or without AVX-512, frozen weights are
packed for x W^T, that is, rearranged once and not in every call. This makes products with 32 rows 1.2 to 2.7 times as fast. Other
types and devices, and small products, are left to torch.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch.nn.functional import pad
from torch.utils.weak import WeakTensorKeyDictionary

from microrl.limits import CPU_PACKED_MAX, CPU_PACKED_MIN

MIN_WORK = 2**20
"""Multiplications below which a product is left to torch: a call of oneDNN takes 10 microseconds more."""
MIN_ELEMENTS = CPU_PACKED_MIN
MAX_ELEMENTS = CPU_PACKED_MAX
"""Larger weights, heads of large vocabularies, are not packed: their copies would take gigabytes."""


def product(left_NK: torch.Tensor, right_KO: torch.Tensor) -> torch.Tensor:
    """left right, [N, O]. Only for what autograd does not record."""
    return _multiply(left_NK, right_KO.t()) if _gains(left_NK, right_KO.shape[1]) else left_NK @ right_KO


def add_product_(out_NO: torch.Tensor, left_NK: torch.Tensor, right_KO: torch.Tensor, scale: float) -> torch.Tensor:
    """out + scale * left right, in place of `out`. Only for what autograd does not record."""
    if _gains(left_NK, right_KO.shape[1]):
        return out_NO.add_(_multiply(left_NK, right_KO.t()), alpha=scale)
    return out_NO.addmm_(left_NK, right_KO, alpha=scale)


def scaled_product(left_NK: torch.Tensor, right_KO: torch.Tensor, scale: float) -> torch.Tensor:
    """scale * left right, [N, O]. Only for what autograd does not record."""
    if not _gains(left_NK, right_KO.shape[1]):  # torch does it in one pass: with beta = 0 the first argument is not read
        unread = torch.empty((), dtype=left_NK.dtype, device=left_NK.device)
        return torch.addmm(unread, left_NK, right_KO, beta=0, alpha=scale)
    if len(left_NK) > right_KO.shape[1]:  # oneDNN is twice as fast with the smaller dimension as rows: the gradient of LoRA's B
        return _multiply(right_KO.t(), left_NK).mul_(scale).t()
    return _multiply(left_NK, right_KO.t()).mul_(scale)


def is_float32_on_cpu(tensor: torch.Tensor) -> bool:
    """Whether oneDNN may compute with this."""
    return tensor.device.type == "cpu" and tensor.dtype is torch.float32 and torch.backends.mkldnn.is_available()


@cache
def _beats_mkl() -> bool:
    """Whether the processor has AVX-512 and MKL does not use it."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512") and not _is_intel()


def _is_intel() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return False


def _gains(left_NK: torch.Tensor, columns: int) -> bool:
    """Whether oneDNN is the faster one for a product of which nothing is packed. What is compiled has torch's own products."""
    if torch.compiler.is_compiling():
        return False
    return _beats_mkl() and left_NK.numel() * columns >= MIN_WORK and is_float32_on_cpu(left_NK)


def _multiply(x: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> torch.Tensor:
    """x W^T + b. For each new shape oneDNN generates code of about 1 MB and keeps part of it for ever.

    The number of tokens changes in every step. Zeros fill it up to one of few sizes.
    """
    rows, columns = x.shape[:-1].numel(), len(weight_OI)
    more_rows = _more(rows)
    more_inner, more_columns = (0, 0) if weight_OI.is_mkldnn else (_more(x.shape[-1]), _more(columns))
    padded_x, padded_O = x, bias_O
    if more_rows or more_inner:
        padded_x = pad(x.reshape(rows, x.shape[-1]), (0, more_inner, 0, more_rows))
    if more_columns or more_inner:
        weight_OI = pad(weight_OI, (0, more_inner, 0, more_columns))
        padded_O = None if bias_O is None else pad(bias_O, (0, more_columns))
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(padded_x, weight_OI, padded_O, "none", [], "")
    return out[:rows, :columns].reshape(*x.shape[:-1], columns) if more_rows or more_columns or more_inner else out


def _more(size: int) -> int:
    """How many zeros to add to a dimension above 64: at most an eighth, up to one of eight sizes for each power of two."""
    return -size % (1 << size.bit_length() - 4) if size > 64 else 0


def pack(weight_OI: torch.Tensor) -> torch.Tensor | None:
    """A copy of the weights for `linear`; None where they are not float32 on a CPU, too small to gain, or too large to copy."""
    if not is_float32_on_cpu(weight_OI) or not MIN_ELEMENTS <= weight_OI.numel() <= MAX_ELEMENTS:
        return None
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach().contiguous())
    return packed


def linear(x: torch.Tensor, packed: torch.Tensor, bias_O: torch.Tensor | None = None) -> torch.Tensor:
    """x W^T + b with packed weights: x [..., I] to [..., O]. It has no gradient."""
    return _multiply(x, packed, bias_O)


def times_transposed(x_NI: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> torch.Tensor:
    """x W^T + b with a frozen weight, [N, O]."""
    if (packed := _packed(x_NI, weight_OI, 0)) is not None:
        return linear(x_NI, packed, bias_O)
    if weight_OI.numel() < MIN_ELEMENTS:
        return unpacked_linear(x_NI, weight_OI, bias_O)
    return torch.nn.functional.linear(x_NI, weight_OI, bias_O)


def unpacked_linear(x_NI: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> torch.Tensor:
    """x W^T + b, [N, O], without a packed copy of the weights. Only for what autograd does not record."""
    if _gains(x_NI, len(weight_OI)):
        return _multiply(x_NI, weight_OI, bias_O)
    return torch.nn.functional.linear(x_NI, weight_OI, bias_O)


def times(g_NO: torch.Tensor, weight_OI: torch.Tensor) -> torch.Tensor:
    """g W with a frozen weight, [N, I]. Without AVX-512, packing W gains nothing over MKL: no copy is kept."""
    if _beats_mkl() and (packed := _packed(g_NO, weight_OI, 1)) is not None:
        return linear(g_NO, packed)
    return product(g_NO, weight_OI) if weight_OI.numel() < MIN_ELEMENTS else g_NO @ weight_OI


_PACKED: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""By weight: its version, and what of W (0) and its transpose (1) is packed; None: it cannot be."""


def _packed(rows: torch.Tensor, weight_OI: torch.Tensor, side: int) -> torch.Tensor | None:
    """The weight (side 0) or its transpose (1) as packed at the first call, and again should it have changed."""
    if weight_OI.numel() < MIN_ELEMENTS or not is_float32_on_cpu(rows):
        return None
    version, sides = _PACKED.get(weight_OI, (None, {}))
    if version != weight_OI._version:
        sides = {}
        _PACKED[weight_OI] = (weight_OI._version, sides)
    if side not in sides:
        sides[side] = pack(weight_OI.t() if side else weight_OI)
    packed: torch.Tensor | None = sides[side]
    return packed
