"""Where A and B start: orthonormal rows, and parts of a weight's own spectrum.

The singular vectors come from the eigenvectors of the smaller Gram matrix, W^T W or W W^T, in float64. On a 1536 x 1536 and
an 8960 x 1536 Gaussian weight they span the exact subspace (float64 SVD) to 1e-12 at either end, where a full float32 SVD
is off by 1e-4 in about the same time. A randomised one (four power iterations) takes a sixth of it, but on a spectrum
this flat finds another space altogether, and it cannot give the small end at all: it is not offered.
"""

from __future__ import annotations

import hashlib
import math
import os
import resource
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from microrl import clock
from microrl.config.adapters import (
    Adapter,
    DctConfig,
    MiloraConfig,
    OloraConfig,
    OloraQrConfig,
    OloraTailConfig,
    PissaConfig,
    RankedAdapter,
    RlmoConfig,
    RlpoConfig,
    TinyLoraConfig,
    WaveletConfig,
)  # fmt: skip
from microrl.models.hub import cache_folder
from microrl.models.tensors import dequantize

End = Literal["largest", "smallest"]
Progress = Callable[[Iterable[str], int, str], Iterable[str]]
"""(items, how many, label) to the same items, with a bar."""
FLAT = 1e-6
"""Below this share of the largest singular value the Gram matrix, which squares it, has lost its digits."""
MIN_CACHED_S = 10.0
"""What is computed faster than this is not worth a file."""


class Pair(NamedTuple):
    """A (r x in) and B (out x r) at the start; no B: zeros."""

    A_RI: torch.Tensor
    B_OR: torch.Tensor | None = None


class Start(NamedTuple):
    """Each layer's pair, and what it took. `peak_gb` is the card's, or how far the process's high-water mark rose."""

    pairs: dict[str, Pair]
    seconds: float
    peak_gb: float
    cached: bool


ENDS: dict[type[Adapter], End] = {
    PissaConfig: "largest", MiloraConfig: "smallest", OloraConfig: "largest", OloraTailConfig: "smallest",
    RlpoConfig: "largest", RlmoConfig: "smallest", TinyLoraConfig: "largest",
}  # fmt: skip
"""Which end of the spectrum a start is taken from."""


def has_start(config: Adapter) -> bool:
    """Whether A or B are to be computed, and not left as PEFT starts them."""
    return type(config) in ENDS or isinstance(config, DctConfig | WaveletConfig | OloraQrConfig)


@torch.no_grad()
def compute(
    layers: Mapping[str, torch.nn.Linear], config: RankedAdapter, *, seed: int, progress: Progress = lambda items, *_: items
) -> Start:
    """The start of every layer, on the layer's own device. Singular vectors are kept in the user's cache, by weights and rank."""
    began, before = clock.now_s(), _memory_mark()
    end = ENDS.get(type(config))
    kept = _kept(layers, end, config.rank) if end is not None else None
    spectra = _read(kept, layers) if kept is not None else None
    cached = spectra is not None
    if spectra is None:
        spectra = {}
    pairs: dict[str, Pair] = {}
    generator = torch.Generator().manual_seed(seed)
    for name in progress(layers, len(layers), f"start of {config.name}"):
        weight_OI = dequantize(layers[name].weight)
        if end is not None and not cached:
            # In float32, as the cache gives them back: a second run starts from the same bits.
            spectra[name] = Spectrum(*(part.float() for part in singular(weight_OI, min(config.rank, *weight_OI.shape), end)))
        pairs[name] = _pair(config, weight_OI, spectra.get(name), generator)
    seconds = clock.now_s() - began
    if kept is not None and not cached and seconds > MIN_CACHED_S:
        _keep(kept, spectra)
    return Start(pairs, clock.now_s() - began, _memory_mark(before), cached)


def _pair(config: RankedAdapter, weight_OI: torch.Tensor, spectrum: Spectrum | None, generator: torch.Generator) -> Pair:
    rank, width, device = config.rank, weight_OI.shape[1], weight_OI.device
    if isinstance(config, DctConfig):
        return Pair(dct(rank, width).to(device))
    if isinstance(config, WaveletConfig):
        return Pair(wavelet(rank, width, generator).to(device))
    if isinstance(config, OloraQrConfig):
        Q_OK, R_KI = torch.linalg.qr(weight_OI.double())
        return Pair(R_KI[:rank].contiguous(), Q_OK[:, :rank].contiguous())
    assert spectrum is not None, config.name
    U_OR, S_R, V_IR = spectrum
    if isinstance(config, RlpoConfig | RlmoConfig):
        return Pair(V_IR.t())
    if isinstance(config, PissaConfig | MiloraConfig | TinyLoraConfig):
        root_R = (S_R / getattr(config, "scale", 1.0)).sqrt()
        return Pair(root_R[:, None] * V_IR.t(), U_OR * root_R)
    return Pair(V_IR.t(), U_OR)


class Spectrum(NamedTuple):
    """r singular triplets of a weight, largest first: W V = U S."""

    U_OR: torch.Tensor
    S_R: torch.Tensor
    V_IR: torch.Tensor


def singular(weight_OI: torch.Tensor, rank: int, end: End) -> Spectrum:
    """The r largest or smallest singular triplets of the thin SVD, in float64."""
    wide_OI = weight_OI.double()
    out, width = wide_OI.shape
    tall = out >= width
    values_K, vectors_KK = torch.linalg.eigh(wide_OI.t() @ wide_OI if tall else wide_OI @ wide_OI.t())  # smallest first
    chosen = slice(-rank, None) if end == "largest" else slice(0, rank)
    S_R = values_K[chosen].clamp(min=0).sqrt().flip(0)
    near = vectors_KK[:, chosen].flip(1)
    if float(S_R[-1]) <= FLAT * float(values_K[-1].clamp(min=0).sqrt()):
        U_OK, S_K, V_KI = torch.linalg.svd(wide_OI, full_matrices=False)
        part = slice(0, rank) if end == "largest" else slice(len(S_K) - rank, None)
        return Spectrum(U_OK[:, part], S_K[part], V_KI[part].t())
    far = (wide_OI @ near if tall else wide_OI.t() @ near) / S_R
    return Spectrum(far, S_R, near) if tall else Spectrum(near, S_R, far)


def dct(rank: int, width: int) -> torch.Tensor:
    """The first r rows of the orthonormal DCT-II matrix, [r, width], float64."""
    k_R1, j_1I = torch.arange(rank, dtype=torch.float64)[:, None], torch.arange(width, dtype=torch.float64)[None]
    rows_RI = torch.cos(math.pi * (j_1I + 0.5) * k_R1 / width) * math.sqrt(2 / width)
    rows_RI[0] /= math.sqrt(2)
    return rows_RI


def wavelet(rank: int, width: int, generator: torch.Generator) -> torch.Tensor:
    """Q^T of the QR of a Haar-transformed r x width Gaussian's transpose, [r, width], float64.

    The Haar transform is orthonormal, with as many levels as the width halves evenly: in distribution the rows are those of
    any random orthonormal matrix.
    """
    rows_RI = torch.randn(rank, width, generator=generator, dtype=torch.float64)
    length = width
    while length % 2 == 0:
        even, odd = rows_RI[:, 0:length:2].clone(), rows_RI[:, 1:length:2].clone()
        rows_RI[:, :length] = torch.cat([even + odd, even - odd], dim=1) / math.sqrt(2)
        length //= 2
    Q_IR, _ = torch.linalg.qr(rows_RI.t())
    return Q_IR.t().contiguous()


def norm(A_RI: torch.Tensor, B_OR: torch.Tensor) -> float:
    """||B A||_F, without the product."""
    return float(((B_OR.t().double() @ B_OR.double()) * (A_RI.double() @ A_RI.t().double())).sum().clamp(min=0).sqrt())


def _kept(layers: Mapping[str, torch.nn.Linear], end: End, rank: int) -> Path:
    """The cache's file for the singular vectors of just these weights."""
    digest = hashlib.sha256()
    for name, layer in layers.items():
        weight_OI = dequantize(layer.weight)
        digest.update(f"{name} {weight_OI.dtype} {tuple(weight_OI.shape)}".encode())
        digest.update(weight_OI.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return cache_folder() / "starts" / f"{digest.hexdigest()[:16]}-{end}-{rank}.safetensors"


def _read(path: Path, layers: Mapping[str, torch.nn.Linear]) -> dict[str, Spectrum] | None:
    if not path.is_file():
        return None
    try:
        found = load_file(path)
        return {
            name: Spectrum(*(found[f"{name}.{part}"].to(layer.weight.device) for part in "USV")) for name, layer in layers.items()
        }
    except (OSError, SafetensorError, KeyError):
        return None  # it is computed again, and overwritten


def _keep(path: Path, spectra: Mapping[str, Spectrum]) -> None:
    """Write them down for the next run, in float32; where there is no room the next run computes them again."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    tensors = {
        f"{name}.{part}": tensor.float().cpu().contiguous()
        for name, spectrum in spectra.items()
        for part, tensor in zip("USV", spectrum, strict=True)
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, temporary)
        temporary.replace(path)
    except (OSError, SafetensorError):
        temporary.unlink(missing_ok=True)


def _memory_mark(since: float = 0.0) -> float:
    """GB at the most, less `since`: what the card has held, or on a CPU the process."""
    if torch.cuda.is_available():
        if not since:
            torch.cuda.reset_peak_memory_stats()
            return torch.cuda.memory_allocated() / 1e9
        return torch.cuda.max_memory_allocated() / 1e9 - since
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9 - since
