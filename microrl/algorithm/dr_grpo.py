"""Dr. GRPO (Liu et al. 2025): no length is favoured. That rewards are not divided by their deviation is its key's default."""

from __future__ import annotations

import torch

from microrl.algorithm import grpo
from microrl.algorithm import loss as terms


class Algorithm(grpo.Algorithm):
    def token_weights(self, counted_NT: torch.Tensor) -> torch.Tensor:
        return terms.constant_length(counted_NT, self.sampling.max_completion_tokens)
