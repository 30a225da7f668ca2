"""Batched decoding with the cache that a model makes itself: for states besides keys and values, which padding would change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from microrl.models.forward import cache_argument
from microrl.rollout.decoding import DecodingBatch, pieces
from microrl.rollout.kv_cache import KeptRow

MEASURED = (8, 16)
"""Lengths in tokens, of which a cache's bytes give those of a row and those of a token."""


@dataclass(slots=True)
class _Part:
    """Rows that have been as long as one another from the start."""

    cache: Any
    places_R: torch.Tensor
    """Of its rows in the batch."""


class OwnCacheBatch(DecodingBatch):
    """Rows that are never padded: a forward pass for all that have joined at once with prompts of one length."""

    def __init__(self, model: PreTrainedModel, capacity: int, *, fp32_head: bool) -> None:
        super().__init__(model, capacity, fp32_head=fp32_head)
        self._parts: list[_Part] = []
        self._rows = 0

    @staticmethod
    @torch.inference_mode()
    def row_bytes(model: PreTrainedModel) -> tuple[int, int]:
        """See `DecodingBatch.row_bytes`; measured."""
        short, long = (_bytes(_forward(model, torch.zeros(1, length, dtype=torch.long))[1]) for length in MEASURED)
        token = (long - short) // (MEASURED[1] - MEASURED[0])
        return short - token * MEASURED[0], token

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> list[KeptRow]:
        """See `DecodingBatch.keep`: the state behind a token that is not the last one is gone."""
        return []

    def gather(
        self,
        rows: torch.Tensor,
        prompts: Sequence[tuple[int, ...]] = (),
        counts: Sequence[int] = (),
        kept: Sequence[KeptRow] = (),
    ) -> None:
        """See `DecodingBatch.gather`; nothing is kept."""
        self._keep(rows)
        of_length: dict[int, list[int]] = {}
        for number, ids in enumerate(prompts):
            of_length.setdefault(len(ids), []).append(number)
        places = torch.arange(sum(counts), device=rows.device).split(list(counts))
        computed = []
        for numbers in of_length.values():
            for span in pieces(len(prompts[number]) for number in numbers):
                joining = numbers[span]
                states_PD, cache = _forward(self._model, torch.tensor([prompts[number] for number in joining]))
                counts_P = torch.tensor([counts[number] for number in joining], device=rows.device)
                repeated_R = torch.arange(len(joining), device=rows.device).repeat_interleave(counts_P)
                cache.reorder_cache(repeated_R)
                places_R = torch.cat([places[number] for number in joining])
                self._parts.append(_Part(cache, len(rows) + places_R))
                computed.append((self._logits(states_PD)[repeated_R], places_R))
        if computed:
            self._set(computed)
        self._rows = len(rows) + sum(counts)

    def step(self, tokens_R: torch.Tensor) -> None:
        """See `DecodingBatch.step`."""
        computed = []
        for part in self._parts:
            states_RD, _ = _forward(self._model, tokens_R[part.places_R, None], part.cache)
            computed.append((self._logits(states_RD), part.places_R))
        self._set(computed)

    def _keep(self, rows: torch.Tensor) -> None:
        place_R = torch.full((self._rows,), -1, device=rows.device)
        place_R[rows] = torch.arange(len(rows), device=rows.device)
        parts, self._parts = self._parts, []
        for part in parts:
            places_R = place_R[part.places_R]
            kept_R = (places_R >= 0).nonzero().squeeze(1)
            if 0 < len(kept_R) < len(places_R):
                part.cache.reorder_cache(kept_R)
            if len(kept_R) > 0:
                self._parts.append(_Part(part.cache, places_R[kept_R]))

    def _set(self, computed: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Logits of some rows each, and the places of these."""
        logits, places = zip(*computed, strict=True)
        self.logits_RV = torch.cat(logits)[torch.cat(places).argsort()]


def _forward(model: PreTrainedModel, ids_RL: torch.Tensor, cache: Any = None) -> tuple[torch.Tensor, Any]:
    """The last tokens' states [R, D], and the model's own cache."""
    backbone = model.base_model
    kept = cache_argument(backbone, cache)
    output = backbone(input_ids=ids_RL.to(model.device), use_cache=True, **kept)
    return output.last_hidden_state[:, -1], output[next(iter(kept))]


def _bytes(cache: Any) -> int:
    held = tree_leaves([vars(layer) for layer in cache.layers])
    return sum(value.nbytes for value in held if isinstance(value, torch.Tensor))
