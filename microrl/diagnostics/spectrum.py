"""Where an update lies in the spectrum of the weights that it changes: the papers' figures of it, as tensors in and numbers out.

Geometry-preserving orthonormal initialisation (ortho): figures 3, 7 and 9, table 4; Evaluating PEFT for RLVR (peft): figure 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Of W = U S V^T [O, I] and an update dW, in the order of W's singular values, largest first; K = min(O, I)."""

    singular_K: torch.Tensor
    strength_K: torch.Tensor
    """c_i = |u_i^T dW v_i|."""

    @property
    def share_K(self) -> torch.Tensor:
        """p_i = c_i / sum c; zeros for an update of zero."""
        return _shares(self.strength_K)

    @property
    def energy_K(self) -> torch.Tensor:
        """Cumulative energy: sum over j <= i of c_j^2, divided by the sum over all."""
        return _shares(self.strength_K.square()).cumsum(0)


@dataclass(frozen=True, slots=True)
class Similarity:
    """How much of a factor A [R, I] lies in the span of W's right singular vectors: ||A V||_F / ||A||_F, from 0 to 1."""

    top: float
    """V: the r vectors of the largest singular values."""
    bottom: float
    """V: the r vectors of the smallest ones of the thin decomposition."""
    by_chance: float
    """sqrt(r / I): the root mean square for a direction that has nothing to do with W."""


@dataclass(frozen=True, slots=True)
class Basis:
    """The thin singular value decomposition of a weight, in float64: W = U S V^T, largest first."""

    left_OK: torch.Tensor
    singular_K: torch.Tensor
    right_KI: torch.Tensor

    @classmethod
    def of(cls, weight_OI: torch.Tensor) -> Basis:
        return cls(*torch.linalg.svd(weight_OI.double(), full_matrices=False))


def spectrum(basis: Basis, update_OI: torch.Tensor) -> Spectrum:
    """An update in the basis of its weight (ortho, figure 3; peft, figure 3)."""
    strength_K = ((basis.left_OK.T @ update_OI.double()) * basis.right_KI).sum(1).abs()
    return Spectrum(basis.singular_K, strength_K)


def similarity(basis: Basis, factor_RI: torch.Tensor) -> Similarity:
    """Of a factor with the right singular vectors of its weight (ortho, figure 7); 0 for a factor of zero."""
    factor_RI, right_KI = factor_RI.double(), basis.right_KI
    rank, whole = min(factor_RI.shape[0], right_KI.shape[0]), float(torch.linalg.matrix_norm(factor_RI))
    top, bottom = (
        float(torch.linalg.matrix_norm(factor_RI @ part_RI.T)) / whole if whole else 0.0
        for part_RI in (right_KI[:rank], right_KI[-rank:])
    )
    return Similarity(top, bottom, float((rank / right_KI.shape[1]) ** 0.5))


def _shares(values_K: torch.Tensor) -> torch.Tensor:
    total = values_K.sum()
    return values_K / total if total > 0 else torch.zeros_like(values_K)
