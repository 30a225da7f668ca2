"""Log-probabilities and exact entropies of chosen tokens, without ever holding a `tokens x vocabulary` tensor of a batch."""

from __future__ import annotations

from typing import Any

import torch

from microrl.limits import CPU_BLOCK_ELEMENTS, chunk_elements
from microrl.models.forward import Head
from microrl.models.onednn import times
from microrl.policy.divergence import Comparison
from microrl.policy.microbatch import MicroBatch, at_drawn


def chosen_logprobs(
    hidden_ND: torch.Tensor, targets_N: torch.Tensor, head: Head, *, compared: Comparison | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each position the target's log-probability and the entropy over the whole vocabulary (nats), both [N].

    Entropy per position: H = -sum_v p(v) log p(v) (micro, eq. 1). It carries no gradient.
    Precision is fp32, or the hidden states' own where that is finer. `compared` looks at the same logits; its divergence gets a
    gradient.
    """
    logprobs_N, entropy_N, divergence_N = _ChosenLogprobs.apply(hidden_ND, targets_N, head.weight, head.bias, head, compared)
    if compared is not None:
        compared.divergence_N = divergence_N
    return logprobs_N, entropy_N


def of_batch(
    hidden_BTD: torch.Tensor, batch: MicroBatch, head: Head, *, compared: Comparison | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """`chosen_logprobs` of every token that the policy drew, [B, T] each; the others hold 0."""
    mask_BT = batch.mask_BT
    scores = chosen_logprobs(hidden_BTD[mask_BT], batch.completions_BT[mask_BT], head, compared=compared)
    return at_drawn(scores[0], mask_BT), at_drawn(scores[1], mask_BT)


class _ChosenLogprobs(torch.autograd.Function):
    """The gradient with respect to the hidden states is worked out in the forward pass, while the logits are there.

    d log p(y) / d h = (W_y - sum_v p_v W_v) / temperature: one row of D numbers a token is kept, instead of V logits.
    Only where the head itself is trained are the logits worked out once more, for d log p(y) / d W_v = (1[v = y] - p_v) h / T.
    Where the model bends its logits, W_v in the first and h in the second come times the transform's slope at v.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: torch.Tensor,
        targets_N: torch.Tensor,
        trained_VD: torch.Tensor,
        trained_V: torch.Tensor | None,
        given: Head,
        compared: Comparison | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        wide = torch.promote_types(hidden_ND.dtype, torch.float32)
        head = given.to(hidden_ND.dtype)
        weight_VD = head.weight
        is_frozen = weight_VD is trained_VD and not ctx.needs_input_grad[2]
        count = hidden_ND.shape[0]
        logprobs_N = hidden_ND.new_empty(count, dtype=wide)
        entropy_N = hidden_ND.new_empty(count, dtype=wide)
        divergence_N = None if compared is None else compared.divergence_N
        has_slope = ctx.needs_input_grad[0] and (compared is None or compared.has_policy_gradient)
        slope_ND = torch.empty_like(hidden_ND) if has_slope else None
        apart_ND = torch.empty_like(hidden_ND) if ctx.needs_input_grad[0] and divergence_N is not None else None  # its gradient

        def to_states(slope_CV: torch.Tensor) -> torch.Tensor:
            return (times(slope_CV, weight_VD) if is_frozen else slope_CV @ weight_VD) / head.temperature

        vocab = weight_VD.shape[0]
        size = max(1, chunk_elements(vocab, on_cpu=not hidden_ND.is_cuda) // vocab)
        # The passes over a chunk's logits go by blocks that a CPU's cache holds.
        rows = size if hidden_ND.is_cuda else max(1, CPU_BLOCK_ELEMENTS // vocab)
        for start in range(0, count, size):
            part = slice(start, start + size)
            logits_CV = head.logits(hidden_ND[part], frozen=is_frozen)
            if compared is not None:
                apart_CV = None if apart_ND is None else torch.empty_like(logits_CV, dtype=weight_VD.dtype)
                compared.look(logits_CV, part, head, apart_CV)
                if apart_ND is not None and apart_CV is not None:
                    apart_ND[part] = to_states(apart_CV)
                del apart_CV
            for first in range(0, len(logits_CV), rows):
                block, positions = slice(first, first + rows), slice(start + first, start + min(first + rows, size))
                _score_(
                    logits_CV[block], targets_N[positions], logprobs_N[positions], entropy_N[positions], head,
                    _in_place_of(logits_CV[block], weight_VD.dtype) if slope_ND is not None else None,
                )  # fmt: skip
            if slope_ND is not None:
                slope_CV = _in_place_of(logits_CV, weight_VD.dtype)
                slope_ND[part] = to_states(slope_CV)
                del slope_CV
            del logits_CV  # before the next chunk's logits are there
        again = (hidden_ND, targets_N, trained_VD) if ctx.needs_input_grad[2] else ()
        ctx.save_for_backward(slope_ND, apart_ND, *again)
        ctx.size, ctx.head, ctx.compared = (size, given, compared) if again else (None, None, None)
        ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N, divergence_N

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        slope_ND, apart_ND, *again = ctx.saved_tensors
        given_N1, apart_N1 = (None if one is None else one.unsqueeze(1) for one in (gradients[0], gradients[2]))
        pairs = ((given_N1, slope_ND), (apart_N1, apart_ND))
        parts = [(given_N1 * kept_ND).to(kept_ND.dtype) for given_N1, kept_ND in pairs if kept_ND is not None]
        to_hidden_ND = sum(parts) if parts else None
        if not again:
            return to_hidden_ND, *[None] * 5
        hidden_ND, targets_N, weight_VD = again
        to_weight_VD, head = torch.zeros_like(weight_VD), ctx.head.to(hidden_ND.dtype)
        to_bias_V = None if head.bias is None else torch.zeros_like(head.bias)
        for start in range(0, len(hidden_ND), ctx.size):
            part = slice(start, start + ctx.size)
            logits_CV = head.logits(hidden_ND[part])
            if apart_N1 is not None:
                apart_CV = torch.empty_like(logits_CV)
                ctx.compared.look(logits_CV, part, head, apart_CV)
            slope_CV = -(logits_CV / head.temperature).softmax(dim=1)
            slope_CV.scatter_add_(1, targets_N[part].unsqueeze(1), torch.ones_like(slope_CV[:, :1]))
            slope_CV *= given_N1[part] / head.temperature
            if head.transform is not None:
                slope_CV *= head.transform.slope(logits_CV)
            if apart_N1 is not None:
                slope_CV += apart_CV.mul_(apart_N1[part] / head.temperature)
                del apart_CV
            to_weight_VD.addmm_(slope_CV.t().to(weight_VD.dtype), hidden_ND[part].to(weight_VD.dtype))
            if to_bias_V is not None:
                to_bias_V += slope_CV.sum(0)
        ctx.compared = None  # its divergence is an output of this node: they would keep each other alive
        return to_hidden_ND, None, to_weight_VD, to_bias_V, None, None


def _score_(
    logits_CV: torch.Tensor,
    targets_C: torch.Tensor,
    logprobs_C: torch.Tensor,
    entropy_C: torch.Tensor,
    head: Head,
    slope_CV: torch.Tensor | None,
) -> None:
    """Write the targets' log-probabilities, the entropies, and, where there is a `slope_CV`, the log-probabilities' gradient with
    respect to the head's output, times the temperature. The logits are used up, and the slope may lie in their place.

    With z = logits - max: log p(v) = z_v - log S and H = log S - sum_v z_v exp(z_v) / S, where S = sum_v exp(z_v).
    """
    targets_C1 = targets_C.unsqueeze(1)
    transform_CV = head.transform.slope(logits_CV) if head.transform is not None and slope_CV is not None else None
    if head.temperature != 1.0:
        logits_CV /= head.temperature
    logits_CV -= logits_CV.amax(dim=1, keepdim=True)
    exp_CV = logits_CV.exp()
    sum_C = exp_CV.sum(dim=1)
    logprobs_C.copy_(logits_CV.gather(1, targets_C1).squeeze(1) - sum_C.log())
    logits_CV *= exp_CV  # not `vecdot`, which makes a tensor of its own
    entropy_C.copy_(sum_C.log() - logits_CV.nansum(dim=1) / sum_C)  # a logit of -inf has made -inf * 0
    if slope_CV is None:
        return
    # A target's difference is taken between probabilities, in fp32: between rows of bf16 weights a confident token's gradient
    # would be lost in rounding.
    negative_C1 = -1 / sum_C.unsqueeze(1)
    at_target_C1 = exp_CV.gather(1, targets_C1) * negative_C1 + 1
    if transform_CV is None:
        torch.mul(exp_CV, negative_C1, out=slope_CV)  # a GPU rounds as it writes: one pass
    else:
        slope_CV.copy_(exp_CV.mul_(negative_C1).mul_(transform_CV))
        at_target_C1 *= (
            transform_CV.gather(1, targets_C1) if isinstance(transform_CV, torch.Tensor) else transform_CV
        )  # or a scale alone
    slope_CV.scatter_(1, targets_C1, at_target_C1.to(slope_CV.dtype))


def _in_place_of(logits_CV: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor [C, V] of this type, no wider than the logits', in their memory: each row at the start of a row of theirs."""
    return logits_CV.view(dtype)[:, : logits_CV.shape[1]]
