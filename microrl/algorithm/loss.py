"""What losses are made of: weights of tokens, the clipped surrogate, the KL term, importance weights. Pure functions of tensors.

Every loss is `sum(weight_BT * term_BT)`: the term is the algorithm's objective times its importance weight, plus beta times the
KL term; the weight is its share in the average. The weights are counted over one whole optimizer mini-batch before any
micro-batch is run, so that gradients accumulated over micro-batches of any size equal those of one big batch.
"""

from __future__ import annotations

import torch

MIN_LOGPROB = -100.0
"""Nats. A token below this is less likely than the smallest float32; an engine may call one that it has sampled impossible."""
MAX_MISMATCH = 10.0
"""Nats by which a token may be likelier in the trainer than in the engine and count in full in `policy/kl_sampler`: exp(10) is
2e4, so a single impossible token in 2e5 makes 0.1 nats a token, and the mean stays finite. The loss's KL has no such bound."""


def sequence_mean(mask_NT: torch.Tensor) -> torch.Tensor:
    """Weights 1 / (own length * N): the mean over tokens, then over completions. Shapes [N, T]; the mask is 1 on tokens that
    count."""
    mask_NT = mask_NT.to(torch.float64)
    return mask_NT / mask_NT.sum(dim=1, keepdim=True).clamp(min=1) / mask_NT.shape[0]


def token_mean(mask_NT: torch.Tensor) -> torch.Tensor:
    """Weights 1 / all tokens of the mini-batch."""
    mask_NT = mask_NT.to(torch.float64)
    return mask_NT / mask_NT.sum().clamp(min=1)


def constant_length(mask_NT: torch.Tensor, max_tokens: int) -> torch.Tensor:
    """Weights 1 / (N * max_tokens), the same whatever the completions' lengths are."""
    mask_NT = mask_NT.to(torch.float64)
    return mask_NT / (mask_NT.shape[0] * max_tokens)


def surrogate(
    new_BT: torch.Tensor,
    old_BT: torch.Tensor,
    advantages_B: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    per_sequence: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each token's clipped surrogate loss, and where the clip was active. Shapes [B, T] and [B].

    -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) with r = exp(new - old) (PPO eq. 7; DAPO eq. 8 with two clips).
    `dual_clip` = c bounds the objective below by c A where A < 0 (Ye et al. 2020, eq. 5).
    `per_sequence`: r = exp(mean over the completion's tokens of new - old), the same for all its tokens (GSPO eq. 7).
    """
    logratio_BT = (new_BT - old_BT) * mask_BT
    if per_sequence:
        logratio_B1 = logratio_BT.sum(1, keepdim=True) / mask_BT.sum(1, keepdim=True).clamp(min=1)
        logratio_BT = logratio_B1.expand_as(new_BT)
    ratio_BT = logratio_BT.exp()
    advantages_B1 = advantages_B.unsqueeze(1)
    plain_BT = ratio_BT * advantages_B1
    clipped_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high) * advantages_B1
    objective_BT = torch.minimum(plain_BT, clipped_BT)
    active_BT = clipped_BT < plain_BT
    if dual_clip is not None:
        bound_BT = (dual_clip * advantages_B1).where(advantages_B1 < 0, -torch.inf)
        active_BT = active_BT | (objective_BT < bound_BT)
        objective_BT = torch.maximum(objective_BT, bound_BT)
    return -objective_BT, active_BT


def k3(ref_BT: torch.Tensor, new_BT: torch.Tensor) -> torch.Tensor:
    """Schulman's k3 estimate of KL(policy, reference) for each sampled token: exp(ref - new) - (ref - new) - 1."""
    logratio_BT = ref_BT - new_BT
    return torch.expm1(logratio_BT) - logratio_BT


def mismatch(old_BT: torch.Tensor, engine_BT: torch.Tensor) -> torch.Tensor:
    """old - engine, nats, of trainer against sampler at the same weights. Finite: what is below -100 nats counts as -100, and so
    does -inf, which a sampled token has where its probability is rounded to 0, and NaN.
    """
    return finite(old_BT) - finite(engine_BT)


def finite(logprobs_BT: torch.Tensor) -> torch.Tensor:
    """The same, but at least -100 nats."""
    return torch.nan_to_num(logprobs_BT, nan=MIN_LOGPROB).clamp(min=MIN_LOGPROB)


def importance_weights(
    old_BT: torch.Tensor, engine_BT: torch.Tensor, cap: float, mask_BT: torch.Tensor | None = None, mode: str = "token_truncate"
) -> torch.Tensor:
    """Importance weights exp(old - engine), detached: trainer against sampler at the same weights. [B, T], or [B, 1] by sequence.

    `mode`: a "token" has its own weight, a "sequence" the product of its tokens' in the mask (None: of all). A weight above the
    cap becomes the cap ("truncate") or 0 ("mask"). The names are TRL's.
    """
    logratio_BT = mismatch(old_BT, engine_BT)
    if mode.startswith("sequence"):
        drawn_BT = logratio_BT if mask_BT is None else logratio_BT.masked_fill(~mask_BT, 0.0)
        logratio_BT = drawn_BT.sum(1, keepdim=True)
    weights_BT = logratio_BT.exp().detach()
    return weights_BT.clamp(max=cap) if mode.endswith("truncate") else weights_BT.masked_fill(weights_BT > cap, 0.0)
