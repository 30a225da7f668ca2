"""GSPO (Zheng et al. 2025): one ratio for all tokens of a completion. Its tight clips are its keys' defaults."""

from __future__ import annotations

import torch

from microrl.algorithm import grpo


class Algorithm(grpo.Algorithm):
    def objective(self, tokens: grpo.Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        return self._surrogate(tokens, per_sequence=True)
