"""CISPO (MiniMax-M1 2025, arXiv 2506.13585, eq. 4 and 5): the capped ratio is a weight without a gradient, so that no token is
left out of the gradient as a clip leaves it out."""

from __future__ import annotations

import torch

from microrl.algorithm import grpo
from microrl.algorithm import loss as terms


class Algorithm(grpo.Algorithm):
    def token_weights(self, counted_NT: torch.Tensor) -> torch.Tensor:
        return terms.token_mean(counted_NT)

    def objective(self, tokens: grpo.Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        ratio_BT = (tokens.new_BT.detach() - tokens.old_BT).exp()
        cap = self.config.ratio_cap
        return -ratio_BT.clamp(max=cap) * tokens.advantages_B[:, None] * tokens.new_BT, ratio_BT > cap
