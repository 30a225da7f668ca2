"""Log-probabilities and exact entropies of chosen tokens, without ever holding a `tokens x vocabulary` tensor of a batch."""

from __future__ import annotations

from typing import Any

import torch

from microrl.rollout.base_model import project

CHUNK_ELEMENTS = 2**24
"""Logits held at a time: 64 MiB in fp32."""


def chosen_logprobs(
    hidden_ND: torch.Tensor, targets_N: torch.Tensor, head: torch.nn.Linear, temperature: float, *, fp32_head: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each position the target's log-probability and the entropy over the whole vocabulary (nats), both [N].

    Entropy per position: H = -sum_v p(v) log p(v) (micro, eq. 1). It carries no gradient. The head must be frozen.
    Precision is fp32, or the hidden states' own where that is finer; with `fp32_head` the logits are not rounded before it.
    """
    assert not head.weight.requires_grad, "the head is trained: its gradient is not computed here"
    return _ChosenLogprobs.apply(hidden_ND, targets_N, head.weight, head.bias, temperature, fp32_head)


class _ChosenLogprobs(torch.autograd.Function):
    """The gradient with respect to the hidden states is worked out in the forward pass, while the logits are there.

    d log p(y) / d h = (W_y - sum_v p_v W_v) / temperature: one row of D numbers a token is kept, instead of V logits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: torch.Tensor,
        targets_N: torch.Tensor,
        weight_VD: torch.Tensor,
        bias_V: torch.Tensor | None,
        temperature: float,
        fp32_head: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.promote_types(hidden_ND.dtype, torch.float32)
        count = hidden_ND.shape[0]
        logprobs_N = hidden_ND.new_empty(count, dtype=wide)
        entropy_N = hidden_ND.new_empty(count, dtype=wide)
        slope_ND = torch.empty_like(hidden_ND) if ctx.needs_input_grad[0] else None
        size = max(1, CHUNK_ELEMENTS // weight_VD.shape[0])
        for start in range(0, count, size):
            part = slice(start, start + size)
            targets_C1 = targets_N[part].unsqueeze(1)
            logprobs_CV = project(hidden_ND[part], weight_VD, bias_V, fp32=fp32_head).to(wide)
            if temperature != 1.0:
                logprobs_CV /= temperature
            logprobs_CV -= logprobs_CV.logsumexp(dim=1, keepdim=True)
            logprobs_N[part] = logprobs_CV.gather(1, targets_C1).squeeze(1)
            probabilities_CV = logprobs_CV.exp()
            entropy_N[part] = -torch.linalg.vecdot(probabilities_CV, logprobs_CV)
            if slope_ND is not None:
                # The difference is taken between probabilities, in fp32: between rows of bf16 weights a confident token's
                # gradient would be lost in rounding.
                probabilities_CV.neg_().scatter_add_(1, targets_C1, torch.ones_like(targets_C1, dtype=wide))
                slope_ND[part] = (probabilities_CV.to(weight_VD.dtype) @ weight_VD) / temperature
        if slope_ND is not None:
            ctx.save_for_backward(slope_ND)
        ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None, None]:
        (slope_ND,) = ctx.saved_tensors
        return (gradients[0].unsqueeze(1) * slope_ND).to(slope_ND.dtype), None, None, None, None, None
