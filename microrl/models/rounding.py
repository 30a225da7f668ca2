"""Stochastic rounding to 16 bits: up or down at random, with the probabilities that make the result exact on average.

Rounded to nearest, an update below half a step of its weight is lost whole. Rounded so, it is kept on average: E[round(x)] = x
(Croci et al. 2022, "Stochastic rounding: implementation, error analysis and applications", section 2).

The random bits come from no generator. They are a hash of (seed, version, tensor name, row, column), computed in 32-bit integers
where the tensor is: the same on every device, whatever the blocks, the threads and what else was drawn. On one core (AMD EPYC,
AVX2, torch 2.13, blocks of 2^18) they take 1.2 ns a number, where torch.randint takes 3.4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch

BLOCK_ELEMENTS, BLOCK_ELEMENTS_ON_CARD = 2**18, 2**22
"""Of a tensor at a time: what a core's cache holds, and enough that a kernel takes longer than its launch."""
ROWS = 64
"""Blocks are cut at multiples of it. A product's last bits follow from how its rows fall on the library's kernels: cut so, MKL's
are the same for 1 to 8 threads and for every size of block."""
FIRST, SECOND = 0x7FEB352D, 0x846CA68B
"""Multipliers of the hash lowbias32 (Wellons 2018, https://nullprogram.com/blog/2018/07/31/)."""
WORD = 2**32 - 1


def blocks(matrix_OI: torch.Tensor) -> Iterator[slice]:
    """Its rows in blocks. A rest of fewer than `ROWS` goes with the block before it."""
    rows, columns = matrix_OI.shape
    elements = BLOCK_ELEMENTS_ON_CARD if matrix_OI.is_cuda else BLOCK_ELEMENTS
    starts = range(0, max(rows - ROWS, 0) + 1, max(ROWS, elements // columns // ROWS * ROWS))
    for start, end in zip(starts, [*starts[1:], rows], strict=True):
        yield slice(start, end)


class StochasticRounding:
    """Of one tensor of one version in one run."""

    def __init__(self, seed: int, version: int, name: str) -> None:
        digest = hashlib.blake2b(f"{seed} {version} {name}".encode(), digest_size=16).digest()
        self._keys = [int.from_bytes(digest[start : start + 4], "little") for start in range(0, 16, 4)]

    def __call__(self, wide_OI: torch.Tensor, dtype: torch.dtype, first_row: int) -> torch.Tensor:
        """Rows of the tensor from `first_row` on, float32, [O, I], in bfloat16 or float16. `wide_OI` is overwritten.

        Where the type has the number, it stays. Random bits are added below the last bit that the type keeps, and the rest is cut
        off: that is exact, but for numbers below float16's normal ones, which are taken to multiples of 2^-37 first, 2^-13 of
        a step. NaN, infinities and what is beyond the type's largest number are rounded to nearest.
        """
        limits = torch.finfo(dtype)
        low, high = torch.aminmax(wide_OI)
        fits = bool((low >= limits.min) & (high <= limits.max))  # NaN does not
        nearest_OI = None if fits else torch.where(wide_OI.abs() <= limits.max, 0, wide_OI).to(dtype)
        lift_OI = None
        if dtype is torch.float16:  # its steps below 2^-14 are those from 2^-14 to 2^-13, where 13 bits are cut off as elsewhere
            lift_OI = torch.where(wide_OI.abs() < limits.tiny, limits.tiny, 0.0).copysign_(wide_OI)
            wide_OI += lift_OI
        cut = 16 if dtype is torch.bfloat16 else 13
        bits_OI = wide_OI.view(torch.int32)
        bits_OI += self._bits(bits_OI, cut, first_row)
        bits_OI &= -(1 << cut)
        if lift_OI is not None:
            wide_OI -= lift_OI
        rounded_OI = wide_OI.to(dtype)
        return rounded_OI if nearest_OI is None else torch.where(nearest_OI == 0, rounded_OI, nearest_OI)

    def _bits(self, like_OI: torch.Tensor, count: int, first_row: int) -> torch.Tensor:
        """So many random bits an element, int32, [O, I]."""
        (rows, columns), device = like_OI.shape, like_OI.device
        row_O, column_I = (
            _hash(torch.arange(first, first + number, device=device), *keys)
            for first, number, keys in ((first_row, rows, self._keys[:2]), (0, columns, self._keys[2:]))
        )
        x_OI = row_O[:, None] ^ column_I
        x_OI *= FIRST
        x_OI ^= (x_OI >> 15).bitwise_and_(WORD >> 15)
        x_OI *= SECOND - 2**32  # the same 32 bits, with a sign
        x_OI >>= 32 - count
        x_OI &= (1 << count) - 1
        return x_OI


def _hash(numbers_N: torch.Tensor, first_key: int, second_key: int) -> torch.Tensor:
    """32 random bits for each number, int32, [N]: lowbias32, twice with a key."""
    x_N = numbers_N
    for key in (first_key, second_key):
        x_N = (x_N + key) & WORD
        x_N = ((x_N ^ (x_N >> 16)) * FIRST) & WORD
        x_N = ((x_N ^ (x_N >> 15)) * SECOND) & WORD
        x_N = x_N ^ (x_N >> 16)
    return x_N.to(torch.int32)
