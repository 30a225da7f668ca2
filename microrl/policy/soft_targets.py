"""A teacher's stored scores: the likeliest tokens at each position, and the divergence of a student from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

from microrl.limits import chunk_elements
from microrl.models.forward import Head
from microrl.policy.microbatch import MicroBatch
from microrl.types import SoftTargets

PASSES = 4
"""Tensors of a chunk's size that the backward pass holds at once."""


class TopScores(NamedTuple):
    """Log-probability of each token that was drawn, and the likeliest tokens with theirs, falling; nats."""

    logprobs_N: torch.Tensor
    ids_NK: torch.Tensor
    top_NK: torch.Tensor


def top_scores(hidden_BTD: torch.Tensor, batch: MicroBatch, head: Head, *, count: int, vocabulary: int) -> TopScores:
    """The `count` likeliest tokens below the id `vocabulary` at each position that was drawn, row after row.

    A token of the vocabulary is always left beside them, so that a student with a head of that size has one, too. A head may have
    more rows than the tokenizer has tokens; these are never chosen.
    """
    scores_by_chunk, head = [], head.to(hidden_BTD.dtype)
    hidden_ND, drawn_N = hidden_BTD[batch.mask_BT], batch.completions_BT[batch.mask_BT]
    for hidden_CD, drawn_C in zip(*(_chunks(tensor, head) for tensor in (hidden_ND, drawn_N)), strict=True):
        logprobs_CV = (head.logits(hidden_CD) / head.temperature).log_softmax(1)
        own_C = logprobs_CV.gather(1, drawn_C[:, None]).squeeze(1)
        top_CK, ids_CK = logprobs_CV[:, :vocabulary].topk(min(count, vocabulary - 1, logprobs_CV.shape[1] - 1), dim=1)
        scores_by_chunk.append(TopScores(own_C, ids_CK, top_CK))
    return TopScores(*(torch.cat(parts) for parts in zip(*scores_by_chunk, strict=True)))


def kl_to_top(hidden_BTD: torch.Tensor, batch: MicroBatch, head: Head, *, targets: Sequence[SoftTargets]) -> torch.Tensor:
    """KL(teacher || student) at each position that was drawn, row after row, [N] (nats), between distributions of K + 1 outcomes:
    each of the K stored tokens, and all others together.

    KL = sum_k p_k (log p_k - log q_k) + p_rest (log p_rest - log q_rest). `targets` are those of the batch's rows. The logits are
    computed again in the backward pass, chunk by chunk.
    """
    ids_NK, logprobs_NK = (
        torch.cat([torch.tensor(array) for array in arrays]).to(hidden_BTD.device)
        for arrays in zip(*((one.ids_TK, one.logprobs_TK) for one in targets), strict=True)
    )

    def kl(hidden_CD: torch.Tensor, ids_CK: torch.Tensor, logprobs_CK: torch.Tensor) -> torch.Tensor:
        logits_CV = head.to(hidden_CD.dtype).logits(hidden_CD) / head.temperature
        all_C, logprobs_CK = logits_CV.logsumexp(1), logprobs_CK.to(logits_CV.dtype)
        rest_C = logits_CV.scatter(1, ids_CK, -torch.inf).logsumexp(1) - all_C
        own_CK = logits_CV.gather(1, ids_CK) - all_C[:, None]
        beside_C = (1 - logprobs_CK.double().exp().sum(1)).clamp(min=0).to(all_C.dtype)
        of_top_C = (logprobs_CK.exp() * (logprobs_CK - own_CK)).sum(1)
        return of_top_C + torch.xlogy(beside_C, beside_C) - beside_C * rest_C

    chunks = (_chunks(tensor, head) for tensor in (hidden_BTD[batch.mask_BT], ids_NK.long(), logprobs_NK))
    return torch.cat(
        [checkpoint(kl, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in zip(*chunks, strict=True)]
    )


def _chunks(tensor_N: torch.Tensor, head: Head) -> tuple[torch.Tensor, ...]:
    """The positions in chunks whose logits take a bounded amount of memory."""
    size = chunk_elements(len(head.weight), on_cpu=not tensor_N.is_cuda) // PASSES // len(head.weight)
    return tensor_N.split(max(size, 1))
