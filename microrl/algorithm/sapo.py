"""SAPO (Gao et al. 2025, arXiv 2511.20347): a smooth gate where PPO has a clip: a token fades out and is not cut."""

from __future__ import annotations

import torch

from microrl.algorithm import grpo


class Algorithm(grpo.Algorithm):
    def objective(self, tokens: grpo.Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """-4 / tau * sigmoid(tau (ratio - 1)) * advantage; its slope at ratio 1 is PPO's. tau is that of the advantage's sign."""
        ratio_BT = (tokens.new_BT - tokens.old_BT).exp()
        advantages_B1 = tokens.advantages_B[:, None]
        positive, negative = self.config.temperature_positive, self.config.temperature_negative
        tau_B1 = torch.full_like(advantages_B1, negative).masked_fill(advantages_B1 > 0, positive)
        gate_BT = 4 / tau_B1 * (tau_B1 * (ratio_BT - 1)).sigmoid()
        return -gate_BT * advantages_B1, torch.zeros_like(tokens.mask_BT)
