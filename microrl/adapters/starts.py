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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, TypeGuard

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from microrl import clock
from microrl.config.adapter import BaseAdapterConfig, RankedConfig
from microrl.config.adapters import (  # fmt: skip
    DctConfig,
    MiloraConfig,
    OloraConfig,
    OloraQrConfig,
    OloraTailConfig,
    PissaConfig,
    RlmoConfig,
    RlpoConfig,
    TinyLoraConfig,
    WaveletConfig,
)
from microrl.files import one_at_a_time
from microrl.models import gpu
from microrl.models.hub import cache_folder
from microrl.models.load import Progress, unseen
from microrl.models.tensors import dequantize

End = Literal["largest", "smallest"]
FLAT = 1e-6
"""Below this fraction of the largest singular value the Gram matrix, which squares it, has lost its digits."""
MIN_CACHED_S = 10.0
"""What is computed faster than this is not cached."""


class Pair(NamedTuple):
    """A (r x in) and B (out x r) at the start; no B: zeros."""

    A_RI: torch.Tensor
    B_OR: torch.Tensor | None = None


class Start(NamedTuple):
    """Each layer's pair, and what computing them took. `peak_gb` is the card's, or how far the process's high-water mark rose."""

    pairs: dict[str, Pair]
    seconds: float
    peak_gb: float
    cached: bool


class Spectrum(NamedTuple):
    """r singular triplets of a weight, largest first: W V = U S."""

    U_OR: torch.Tensor
    S_R: torch.Tensor
    V_IR: torch.Tensor


def _singular_values(spectrum: Spectrum, scale: float) -> Pair:
    """B A = U S V^T / s, the singular values shared out evenly."""
    U_OR, S_R, V_IR = spectrum
    root_R = (S_R / scale).sqrt()
    return Pair(root_R[:, None] * V_IR.t(), U_OR * root_R)


def _singular_vectors(spectrum: Spectrum, scale: float) -> Pair:
    return Pair(spectrum.V_IR.t(), spectrum.U_OR)


def _right_vectors(spectrum: Spectrum, scale: float) -> Pair:
    return Pair(spectrum.V_IR.t())


def _qr(rank: int, weight_OI: torch.Tensor, generator: torch.Generator) -> Pair:
    Q_OK, R_KI = torch.linalg.qr(weight_OI.double())
    return Pair(R_KI[:rank].contiguous(), Q_OK[:, :rank].contiguous())


def _dct(rank: int, weight_OI: torch.Tensor, generator: torch.Generator) -> Pair:
    return Pair(dct(rank, weight_OI.shape[1]).to(weight_OI.device))


def _wavelet(rank: int, weight_OI: torch.Tensor, generator: torch.Generator) -> Pair:
    return Pair(wavelet(rank, weight_OI.shape[1], generator).to(weight_OI.device))


SPECTRAL: dict[type[BaseAdapterConfig], tuple[End, Callable[[Spectrum, float], Pair]]] = {
    PissaConfig: ("largest", _singular_values),
    MiloraConfig: ("smallest", _singular_values),
    TinyLoraConfig: ("largest", _singular_values),
    OloraConfig: ("largest", _singular_vectors),
    OloraTailConfig: ("smallest", _singular_vectors),
    RlpoConfig: ("largest", _right_vectors),
    RlmoConfig: ("smallest", _right_vectors),
}
"""The starts that need singular vectors: the end of the spectrum, and a function of (spectrum, s)."""
OTHER: dict[type[BaseAdapterConfig], Callable[[int, torch.Tensor, torch.Generator], Pair]] = {
    OloraQrConfig: _qr, DctConfig: _dct, WaveletConfig: _wavelet,
}  # fmt: skip
"""The starts that do not: functions of (rank, weight, generator)."""


def has_start(config: BaseAdapterConfig) -> TypeGuard[RankedConfig]:
    """Whether the start is computed here; else it is PEFT's."""
    return type(config) in SPECTRAL or type(config) in OTHER


@torch.no_grad()
def compute(layers: Mapping[str, torch.nn.Linear], config: RankedConfig, *, seed: int, progress: Progress = unseen) -> Start:
    """The start of every layer, on the layer's own device. Singular vectors are kept in the user's cache, by weights and rank."""
    began, before = clock.now_s(), _memory_mark()
    label, pairs, cached = f"initialising {config.name}", {}, False
    if type(config) in OTHER:
        generator = torch.Generator().manual_seed(seed)
        for name in progress(layers, len(layers), label):
            pairs[name] = OTHER[type(config)](config.rank, dequantize(layers[name].weight), generator)
    else:
        end, from_spectrum = SPECTRAL[type(config)]
        cache = _cache_path(layers, end, config.rank)
        with one_at_a_time(cache):  # trials that begin together compute it once: on a large model that takes minutes
            known = _read_cache(cache, layers)
            spectra, cached = known or {}, known is not None
            for name in progress(layers, len(layers), label):
                if not cached:
                    weight_OI = dequantize(layers[name].weight)
                    triplets = singular(weight_OI, min(config.rank, *weight_OI.shape), end)
                    # In float32, as the cache gives them back: a second run starts from the same bits.
                    spectra[name] = Spectrum(*(part.float() for part in triplets))
                pairs[name] = from_spectrum(spectra[name], getattr(config, "scale", 1.0))
            if not cached and clock.now_s() - began > MIN_CACHED_S:
                _write_cache(cache, spectra)
    return Start(pairs, clock.now_s() - began, _memory_mark(before), cached)


def singular(weight_OI: torch.Tensor, rank: int, end: End) -> Spectrum:
    """The r largest or smallest singular triplets of the thin SVD, in float64."""
    wide_OI = weight_OI.double()
    out, in_features = wide_OI.shape
    tall = out >= in_features
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


def dct(rank: int, in_features: int) -> torch.Tensor:
    """The first r rows of the orthonormal DCT-II matrix, [r, in_features], float64."""
    k_R1, j_1I = torch.arange(rank, dtype=torch.float64)[:, None], torch.arange(in_features, dtype=torch.float64)[None]
    rows_RI = torch.cos(math.pi * (j_1I + 0.5) * k_R1 / in_features) * math.sqrt(2 / in_features)
    rows_RI[0] /= math.sqrt(2)
    return rows_RI


def wavelet(rank: int, in_features: int, generator: torch.Generator) -> torch.Tensor:
    """Q^T of the QR of a Haar-transformed r x in_features Gaussian's transpose, [r, in_features], float64.

    The Haar transform is orthonormal, as deep as `in_features` halves evenly. The rows are distributed as those of any random
    orthonormal matrix.
    """
    rows_RI = torch.randn(rank, in_features, generator=generator, dtype=torch.float64)
    length = in_features
    while length % 2 == 0:
        even, odd = rows_RI[:, 0:length:2].clone(), rows_RI[:, 1:length:2].clone()
        rows_RI[:, :length] = torch.cat([even + odd, even - odd], dim=1) / math.sqrt(2)
        length //= 2
    Q_IR, _ = torch.linalg.qr(rows_RI.t())
    return Q_IR.t().contiguous()


def norm(A_RI: torch.Tensor, B_OR: torch.Tensor) -> float:
    """||B A||_F, without the product."""
    return float(((B_OR.t().double() @ B_OR.double()) * (A_RI.double() @ A_RI.t().double())).sum().clamp(min=0).sqrt())


def _cache_path(layers: Mapping[str, torch.nn.Linear], end: End, rank: int) -> Path:
    """The cache's file for the singular vectors of just these weights."""
    digest = hashlib.sha256()
    for name, layer in layers.items():
        weight_OI = dequantize(layer.weight)
        digest.update(f"{name} {weight_OI.dtype} {tuple(weight_OI.shape)}".encode())
        digest.update(weight_OI.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return cache_folder() / "starts" / f"{digest.hexdigest()[:16]}-{end}-{rank}.safetensors"


def _read_cache(path: Path, layers: Mapping[str, torch.nn.Linear]) -> dict[str, Spectrum] | None:
    if not path.is_file():
        return None
    try:
        tensors = load_file(path)
        return {
            name: Spectrum(*(tensors[f"{name}.{part}"].to(layer.weight.device) for part in "USV"))
            for name, layer in layers.items()
        }
    except (OSError, SafetensorError, KeyError):
        return None  # it is computed again, and overwritten


def _write_cache(path: Path, spectra: Mapping[str, Spectrum]) -> None:
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
    if not torch.cuda.is_available():
        return gpu.peak_gb() - since
    if since:
        return torch.cuda.max_memory_allocated() / 1e9 - since
    with gpu.new_phase():
        return torch.cuda.memory_allocated() / 1e9
