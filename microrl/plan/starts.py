"""Seconds of computing where A and B begin: singular vectors, by each weight's smaller Gram matrix in float64.

On a CPU the constants are measured (one core, torch's LAPACK, sides of 128 to 1536) and hold within a factor of three, as a test
does again; the README's 23 to 30 s for SmolLM2-135M come out as 26. On a GPU they are stated: the paper on orthonormal starts has
210 s for the full SVDs of Qwen2.5-7B on an A100 (its table 7), and these give half of that.
"""

from __future__ import annotations

from microrl.config.adapter import BaseAdapterConfig, Linear, RankedConfig
from microrl.plan.devices import Device
from microrl.plan.shapes import Shape

EIGEN_OPERATIONS = 20
"""An eigen-decomposition of side k takes as long as a product of this many k^3 operations: 14 (k = 1536) to 39 (k = 128)."""
QR_FACTOR = 4
"""How much longer than a product of as many operations a QR takes: 2 (a square of 1536) to 5 (64 columns)."""
WAVELET_ELEMENT_S = 60e-9
"""Drawing a number and its part in the Haar transform, on the processor."""
GPU_EIGEN = 0.15
"""Share of a GPU's float64 rate that an eigen-decomposition reaches; half of it is bound by memory."""
GPU_EIGEN_SIDE_S = 35e-6
"""Launches for each row of an eigen-decomposition: a 4080 takes 4.5 ms for a side of 128."""
GPU_PRODUCT = 0.5
HASH_BYTES_S = 1e9
"""The weights are hashed, to find their singular vectors in the cache."""


def seconds(config: BaseAdapterConfig, shape: Shape, device: Device, dtype_bytes: int, *, cpu_flops: float) -> float:
    """All layers' starts; 0 where PEFT's own serves. `dtype_bytes` are of a weight, `cpu_flops` the processor's float32 rate."""
    if not isinstance(config, RankedConfig):
        return 0.0
    on_cpu = cpu_flops / 2  # float64
    total = 0.0
    for linear in shape.targets(config):
        each = 0.0
        if config.start_by == "svd":
            product, eigen = spectral(linear, config.rank)
            if device.is_cpu:
                each += (product + eigen) / on_cpu
            else:
                side_s = GPU_EIGEN_SIDE_S * min(linear.n_in, linear.n_out)
                each += product / (GPU_PRODUCT * device.fp64) + eigen / (GPU_EIGEN * device.fp64) + side_s
            each += linear.n_in * linear.n_out * dtype_bytes / HASH_BYTES_S
        elif config.start_by == "qr":
            each += qr(linear.n_out, linear.n_in) / (on_cpu if device.is_cpu else GPU_PRODUCT * device.fp64)
        elif config.start_by == "haar":
            # On the processor, wherever the model is.
            each += qr(linear.n_in, config.rank) / on_cpu + WAVELET_ELEMENT_S * linear.n_in * config.rank
        total += linear.count * each
    return total


def spectral(linear: Linear, rank: int) -> tuple[float, float]:
    """(operations of the products, operations that the eigen-decomposition takes as long as), of one weight."""
    small, large = sorted((linear.n_in, linear.n_out))
    return 2.0 * large * small * (small + min(rank, small)), float(EIGEN_OPERATIONS * small**3)


def qr(rows: int, columns: int) -> float:
    """Operations that a reduced QR and its Q take as long as."""
    small, large = sorted((rows, columns))
    return QR_FACTOR * (4.0 * large * small**2 - 4 / 3 * small**3)
