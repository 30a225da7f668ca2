"""CISPO (MiniMax-M1 2025, arXiv 2506.13585, eq. 4 and 5): the capped ratio is a weight without a gradient, so that no token is
left out of the gradient as a clip leaves it out. As in DAPO, every token of the batch has the same weight."""

from __future__ import annotations

import torch

from microrl.algorithm import dapo, grpo


class Algorithm(dapo.Algorithm):
    def objective(self, tokens: grpo.Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        ratio_BT = (tokens.new_BT.detach() - tokens.old_BT).exp()
        cap = self.config.ratio_cap
        return -ratio_BT.clamp(max=cap) * tokens.advantages_B[:, None] * tokens.new_BT, ratio_BT > cap
