"""DPPO (Qi et al. 2026, arXiv 2602.04879, eq. 12) with the Binary-TV mask: where PPO asks how far the ratio is from 1, it asks
how much probability a token has gained or lost, compared with the engine that sampled it.

The ratio to the engine is the product of the policy ratio and the importance weight, which is capped here (`importance_cap`).
prime-rl's is not, and adds a quadratic KL term that the paper does not have.
"""

from __future__ import annotations

import torch

from microrl.algorithm import dapo, grpo
from microrl.algorithm import loss as terms


class Algorithm(dapo.Algorithm):
    def objective(self, tokens: grpo.Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """-ratio * advantage, and 0 where the advantage would push a token on that is already too far from the engine."""
        advantages_B1 = tokens.advantages_B[:, None]
        moved_BT = terms.finite(tokens.new_BT.detach()).exp() - terms.finite(tokens.engine_BT).exp()
        is_above_BT = (advantages_B1 > 0) & (moved_BT > self.config.mask_high)
        is_below_BT = (advantages_B1 < 0) & (moved_BT < -self.config.mask_low)
        masked_BT = is_above_BT | is_below_BT
        ratio_BT = (tokens.new_BT - tokens.old_BT).exp()
        return (-ratio_BT * advantages_B1).masked_fill(masked_BT, 0.0), masked_BT
