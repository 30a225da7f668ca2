"""Batched decoding with a model in this process: the cache and the logits of the rows of a batch, and how a token is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from microrl.models.forward import Head, LogitTransform, cache_argument, kv_bytes_per_token
from microrl.rollout.kv_cache import InPlaceCache, KeptRow
from microrl.rollout.plain_step import PlainStep
from microrl.types import Sampling

PREFILL_TOKENS = 8192
"""Prompt tokens, padding included, in one forward pass."""
SAMPLED_LOGITS = 2**25
"""Logits from which tokens are drawn at once: with the copies that top-p needs, they take a GB."""
DRAW_BLOCK = 128
"""Tokens whose probabilities are summed before one of them is drawn."""


class DecodingBatch:
    """The network's side of the rows that are being decoded: their cache, their mask, and the logits of their next tokens.

    All rows end at the same position of the cache, at most `capacity`. Shorter ones are padded on the left.
    """

    def __init__(self, model: PreTrainedModel, capacity: int, *, fp32_head: bool) -> None:
        self._model, self._capacity, self._fp32_head = model, capacity, fp32_head
        self._transform = LogitTransform.of(model)
        self._cache = InPlaceCache(model.config.num_hidden_layers, capacity)
        self._plain_step = PlainStep.of(model, capacity)
        self._width = 0
        self._lengths_R = torch.zeros(0, dtype=torch.long, device=model.device)
        self._mask_RC: torch.Tensor | None = None
        """Of all positions up to the capacity. None where nothing is padded: attention without a mask is the faster kernel."""
        self.logits_RV: torch.Tensor
        """Of the next tokens: after `gather` of the rows that have joined, after `step` of all."""

    @staticmethod
    def row_bytes(model: PreTrainedModel) -> tuple[int, int]:
        """What a row's cache takes whatever its length, and what each of its tokens adds."""
        return 0, kv_bytes_per_token(model)

    @property
    def is_full(self) -> bool:
        """Whether no further token fits. `gather` then makes room, as long as no row is `capacity` tokens long."""
        return self._width == self._capacity

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> list[KeptRow]:
        """A copy of the cache of these rows' first tokens, so many of each; empty where it could not be continued."""
        lengths_R = self._lengths_R.tolist()
        return self._cache.copy(rows, [self._width - lengths_R[row] for row in rows], lengths)

    def gather(
        self,
        rows: torch.Tensor,
        prompts: Sequence[tuple[int, ...]] = (),
        counts: Sequence[int] = (),
        kept: Sequence[KeptRow] = (),
    ) -> None:
        """Go on with these rows only, followed by as many rows of each of these prompts as `counts` says.

        `kept`: the cache of the beginning of each of the first prompts; these tokens are not read again.
        """
        lengths_R, parts, logits, counted = self._lengths_R[rows], [], [], iter(counts)
        if len(rows):
            # What all rows are padded with is dropped.
            parts.append((self._cache, rows, self._width - int(lengths_R.max())))
        unread, fresh = [len(ids) - row.length for ids, row in zip(prompts, kept)], prompts[len(kept) :]
        begun = ((prompts[span], kept[span]) for span in pieces(unread))
        read = [*begun, *((fresh[span], ()) for span in pieces(map(len, fresh)))]
        is_all = not parts and len(read) == 1 and set(counts) == {1}  # what is read then is the batch, and is not copied into it
        for piece, begins in read:
            cache, lengths_P, logits_PV = self._prefill(piece, begins, self._capacity if is_all else None)
            counts_P = torch.tensor([next(counted) for _ in piece], device=lengths_P.device)
            repeated = torch.arange(len(piece), device=lengths_P.device).repeat_interleave(counts_P)
            parts.append((cache, repeated, 0))
            lengths_R = torch.cat([lengths_R, lengths_P[repeated]])
            logits.append(logits_PV[repeated])
        self._lengths_R = lengths_R
        if not parts:
            return
        if is_all:
            self._cache = parts[0][0]
        else:
            self._cache.gather(parts)
        if logits:
            self.logits_RV = logits[0] if len(logits) == 1 else torch.cat(logits)
        self._width = int(lengths_R.max())
        is_padded = int(lengths_R.min()) < self._width
        self._mask_RC = _mask(lengths_R, self._width, self._capacity) if is_padded else None

    def step(self, tokens_R: torch.Tensor) -> None:
        """Feed each row its token."""
        self._width += 1
        mask_RL = None if self._mask_RC is None else self._mask_RC[:, : self._width]
        if self._plain_step is not None:
            self.logits_RV = self._logits(self._plain_step(tokens_R[:, None], self._lengths_R[:, None], mask_RL, self._cache))
        else:
            self.logits_RV = self._forward(tokens_R[:, None], self._lengths_R[:, None], mask_RL, self._cache)
        self._lengths_R = self._lengths_R + 1

    def _prefill(
        self, prompts: Sequence[tuple[int, ...]], kept: Sequence[KeptRow], capacity: int | None
    ) -> tuple[InPlaceCache, torch.Tensor, torch.Tensor]:
        """The prompts' cache, with room for `capacity` tokens (None: for these), their lengths [P], and the logits of their next
        tokens [P, V].

        Of each prompt as many tokens are read as of the one of which fewest are kept, so that nothing lies between what is kept
        and what is read.
        """
        device = self._model.device
        lengths = [len(ids) for ids in prompts]
        lengths_P, width = torch.tensor(lengths, device=device), max(lengths)
        read = max(len(ids) - row.length for ids, row in zip(prompts, kept)) if kept else width
        ids_PL = torch.tensor([[0] * (read - len(ids)) + list(ids[-read:]) for ids in prompts], device=device)
        mask_PL = _mask(lengths_P, width)
        positions_PL = (mask_PL.cumsum(1) - 1).clamp(min=0)[:, -read:]
        cache = InPlaceCache(self._model.config.num_hidden_layers, capacity or width)
        if read < width:
            cache.begin(kept, [max(length - read, 0) for length in lengths], width - read)
        mask = None if bool(mask_PL.all()) else mask_PL
        if kept and self._plain_step is not None and self._plain_step.holds(len(prompts), read, width):
            return cache, lengths_P, self._logits(self._plain_step(ids_PL, positions_PL, mask, cache))
        return cache, lengths_P, self._forward(ids_PL, positions_PL, mask, cache)

    def _forward(
        self, ids_RL: torch.Tensor, positions_RL: torch.Tensor, mask_RL: torch.Tensor | None, cache: InPlaceCache
    ) -> torch.Tensor:
        backbone = self._model.base_model
        kept = cache_argument(backbone, cache)
        output = backbone(input_ids=ids_RL, attention_mask=mask_RL, position_ids=positions_RL, use_cache=True, **kept)
        return self._logits(output.last_hidden_state[:, -1])

    def _logits(self, last_RD: torch.Tensor) -> torch.Tensor:
        if self._fp32_head:
            return Head.of(self._model, True).logits(last_RD)
        logits_RV = self._model.get_output_embeddings()(last_RD)
        return logits_RV if self._transform is None else self._transform(logits_RV)


def _mask(lengths_R: torch.Tensor, width: int, capacity: int | None = None) -> torch.Tensor:
    """[R, capacity or width]: which positions of rows that end at `width` are not padding, which is on the left."""
    return torch.arange(capacity or width, device=lengths_R.device) >= width - lengths_R[:, None]


def pieces(lengths: Iterable[int]) -> Iterator[slice]:
    """Where prompts of these lengths are divided: into at most PREFILL_TOKENS tokens with their padding, or one prompt."""
    start = width = end = 0
    for end, length in enumerate(lengths):
        if end > start and max(width, length) * (end + 1 - start) > PREFILL_TOKENS:
            yield slice(start, end)
            start, width = end, 0
        width = max(width, length)
    if width:
        yield slice(start, end + 1)


def sample_tokens(
    logits_RV: torch.Tensor,
    uniforms_R: torch.Tensor,
    sampling: Sampling,
    forbidden: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row by inverting the cumulative distribution at a uniform number, and its log-probability (nats).

    The log-probability is the one under the distribution that was sampled from: after temperature, and after top-p. At
    temperature 0 the likeliest token is taken, and its log-probability is the one at temperature 1. `forbidden`: rows [N], and
    the tokens that these must not draw.
    """
    rows = max(SAMPLED_LOGITS // logits_RV.shape[1], 1)
    if len(logits_RV) > rows and forbidden is None:
        pieces = [sample_tokens(*piece, sampling) for piece in zip(logits_RV.split(rows), uniforms_R.split(rows), strict=True)]
        tokens, logprobs = zip(*pieces, strict=True)
        return torch.cat(tokens), torch.cat(logprobs)
    logits_RV = logits_RV.float() / (sampling.temperature or 1.0)
    if forbidden is not None:
        logits_RV[forbidden[0][:, None], forbidden[1]] = -torch.inf
    if sampling.temperature == 0:
        greedy_R1 = logits_RV.argmax(dim=-1, keepdim=True)
        return greedy_R1.squeeze(1), logits_RV.log_softmax(dim=-1).gather(1, greedy_R1).squeeze(1)
    probabilities_RV = logits_RV.softmax(dim=-1)
    if sampling.top_p < 1:
        probabilities_RV = _nucleus(probabilities_RV, sampling.top_p)
    tokens_R1 = _inverted(probabilities_RV, uniforms_R.unsqueeze(1))
    return tokens_R1.squeeze(1), probabilities_RV.gather(1, tokens_R1).log().squeeze(1)


def _inverted(probabilities_RV: torch.Tensor, uniforms_R1: torch.Tensor) -> torch.Tensor:
    """The first token of each row at which the cumulative distribution exceeds the uniform number, [R, 1].

    It is looked for among blocks of tokens, then in one block: float64 sums over a whole vocabulary take as long as a layer of a
    small model.
    """
    vocab = probabilities_RV.shape[1]
    if vocab <= 32 * DRAW_BLOCK:  # on a CPU, one search is then the quicker one
        return _located(probabilities_RV, uniforms_R1)[0]
    if missing := -vocab % DRAW_BLOCK:  # most vocabularies are multiples of it, and are not copied
        probabilities_RV = functional.pad(probabilities_RV, (0, missing))
    blocks_RNB = probabilities_RV.unflatten(1, (-1, DRAW_BLOCK))
    block_R1, within_R1 = _located(blocks_RNB.sum(dim=-1), uniforms_R1)
    token_R1, _ = _located(blocks_RNB.take_along_dim(block_R1.unsqueeze(2), dim=1).squeeze(1), within_R1)
    return (block_R1 * DRAW_BLOCK + token_R1).clamp(max=vocab - 1)


def _located(weights_RN: torch.Tensor, uniforms_R1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the weights, where the cumulative share exceeds the uniform number, and how far into that weight this is, in [0, 1)."""
    # In fp32 a cumulative sum is off by more than the probability of a rare token.
    ends_RN = weights_RN.cumsum(dim=-1, dtype=torch.float64)
    targets_R1 = uniforms_R1 * ends_RN[:, -1:]
    # NaN sorts last. It is kept in range, here and above; the log-probability shows it.
    index_R1 = torch.searchsorted(ends_RN, targets_R1, right=True).clamp(max=weights_RN.shape[1] - 1)
    weight_R1 = weights_RN.gather(1, index_R1).double()
    # The target is at least one rounding step below the end, so that this is below 1: nothing of probability 0 is drawn.
    return index_R1, (1 - (ends_RN.gather(1, index_R1) - targets_R1) / weight_R1).clamp(min=0)


def _nucleus(probabilities_RV: torch.Tensor, top_p: float) -> torch.Tensor:
    """The smallest set of most probable tokens whose probability reaches top_p, renormalised (Holtzman et al. 2020)."""
    sorted_RV, order_RV = probabilities_RV.sort(dim=-1, descending=True)
    before_RV = sorted_RV.cumsum(dim=-1) - sorted_RV
    outside_RV = torch.zeros_like(before_RV, dtype=torch.bool).scatter(1, order_RV, before_RV >= top_p)
    inside_RV = probabilities_RV.masked_fill(outside_RV, 0)
    return inside_RV / inside_RV.sum(dim=-1, keepdim=True)
