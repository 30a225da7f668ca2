"""DAPO (Yu et al. 2025): every token of the batch has the same weight. Two clips and dynamic sampling are in its keys."""

from __future__ import annotations

import torch

from microrl.algorithm import grpo
from microrl.algorithm import loss as terms


class Algorithm(grpo.Algorithm):
    def token_weights(self, counted_NT: torch.Tensor) -> torch.Tensor:
        return terms.token_mean(counted_NT)
