"""Continuous batching: the rows that are being decoded, which leave the batch when they are finished and make room for others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from microrl.rollout.decoding import DecodingBatch, sample_tokens
from microrl.rollout.kv_cache import KeptRow
from microrl.rollout.requests import Request
from microrl.types import Completion, Sampling

_Finished = tuple[Request, int, Completion]
"""A completion, or a turn of one, with its request and its number in it."""
CHANGE_AT = 1 / 8
"""Share of finished rows at which they leave the batch, and of new ones at which these join it: below it, moving the cache costs
more than it saves."""


class InFlight:
    """The requests whose completions are being decoded, one row each, at most `rows` at once.

    A row keeps what it draws in a slot of its own, from when it joins the batch until it leaves it. The cache of an episode's row
    is kept between two turns as long as there is room for it: each takes that of a row.
    """

    def __init__(
        self, batch: DecodingBatch, rows: int, sampling: Sampling, stops: torch.Tensor, tokenizer: Any, version: int
    ) -> None:
        self._batch, self._rows, self._sampling = batch, rows, sampling
        self._stops, self._tokenizer, self._version = stops, tokenizer, version
        self._kept: dict[tuple[int, ...], KeptRow] = {}
        """Of each episode that is between two turns."""
        self._free = list(range(rows))
        self._owner: dict[int, tuple[Request, int]] = {}
        """Of each slot in use: its request, and the number of its completion."""
        self._read: dict[int, int] = {}
        """Of each slot whose row has ended by itself: how many tokens the network has read, which are all but the last."""
        limit, device = sampling.max_tokens, stops.device
        self._tokens_ST = torch.zeros(rows, limit, dtype=torch.long, device=device)
        self._logprobs_ST = torch.zeros(rows, limit, device=device)
        self._uniforms_ST = torch.zeros(rows, limit, dtype=torch.float64, device=device)
        # Of each row of the batch: its slot, how many tokens its completion has, how many it had before this turn, the last of
        # them, and whether it is finished.
        self._slots_R = torch.zeros(0, dtype=torch.long, device=device)
        self._drawn_R, self._written_R, self._last_R = (torch.zeros_like(self._slots_R) for _ in range(3))
        self._finished_R = torch.zeros_like(self._slots_R, dtype=torch.bool)
        self._finished = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is being decoded."""
        return self._finished == len(self._slots_R)

    @property
    def room(self) -> int:
        """How many rows can join once the finished ones have left."""
        return self._rows - len(self._slots_R) + self._finished

    def is_change_due(self, joining: int) -> bool:
        """Whether it is time to `change` the batch, if so many rows can join it."""
        rows = len(self._slots_R)
        enough = max(rows * CHANGE_AT, 1)
        return self._finished >= enough or joining >= enough or (rows > 0 and self._batch.is_full)

    def change(self, joining: Sequence[Request], going_on: Collection[tuple[int, ...]] = ()) -> Iterator[_Finished]:
        """Let the finished rows leave the batch, and these requests join it and draw their first tokens.

        Yields what is finished by that. `going_on`: the episodes that may have a further turn. What is kept for them follows from
        the order of requests and the number of rows alone.
        """
        self._leave(going_on)
        kept_R = (~self._finished_R).nonzero().squeeze(1)
        begun, joining = self._begun(joining)
        rows = len(kept_R) + sum(request.count for request in joining)
        while len(self._kept) > self._rows - rows:
            self._kept.popitem()  # the last one: it is needed last
        slots, written = [], []
        for request in joining:
            for number in range(request.count):
                slots.append(self._free.pop())
                written.append(request.written)
                self._owner[slots[-1]] = (request, number)
                uniforms = _uniforms((*request.key, number), self._sampling.max_tokens)
                self._uniforms_ST[slots[-1]] = torch.from_numpy(uniforms)
        prompts, counts = [request.token_ids for request in joining], [request.count for request in joining]
        self._batch.gather(kept_R, prompts, counts, begun)
        joined_2R = torch.tensor([slots, written], dtype=torch.long, device=kept_R.device)
        self._slots_R = torch.cat([self._slots_R[kept_R], joined_2R[0]])
        self._drawn_R = torch.cat([self._drawn_R[kept_R], joined_2R[1]])
        self._written_R = torch.cat([self._written_R[kept_R], joined_2R[1]])
        self._last_R = torch.cat([self._last_R[kept_R], torch.zeros_like(joined_2R[0])])
        self._finished_R = torch.zeros_like(self._slots_R, dtype=torch.bool)
        self._finished = 0
        if slots:
            yield from self._draw(len(kept_R))

    def _leave(self, going_on: Collection[tuple[int, ...]]) -> None:
        """Take back the finished rows' slots, and keep the cache of those whose episode goes on."""
        self._kept = {episode: row for episode, row in self._kept.items() if episode in going_on}
        leaving_R = self._finished_R.nonzero().squeeze(1)
        slots = self._slots_R[leaving_R].tolist()
        for row, slot in zip(leaving_R.tolist(), slots, strict=True):
            request, number = self._owner.pop(slot)
            read, episode = self._read.pop(slot, None), request.episode(number)
            if read is not None and episode in going_on and (kept := self._batch.keep(row, read)) is not None:
                self._kept[episode] = kept
        self._free += reversed(slots)

    def _begun(self, joining: Sequence[Request]) -> tuple[list[KeptRow], list[Request]]:
        """Take out the rows that are kept for these requests. Their requests are the first ones of those returned, and of these
        the first are those with the fewest tokens to read: what is read together is padded."""
        begun, fresh = [], []
        for request in joining:
            kept = self._kept.pop(request.episode(0), None) if request.written else None
            begun.append((request, kept)) if kept is not None else fresh.append(request)
        begun.sort(key=lambda pair: len(pair[0].token_ids) - pair[1].length)
        return [kept for _, kept in begun], [*(request for request, _ in begun), *fresh]

    def step(self) -> Iterator[_Finished]:
        """Decode one more token of each row; yields what is finished by it."""
        self._batch.step(self._last_R)
        yield from self._draw(0)

    def _draw(self, first: int) -> Iterator[_Finished]:
        """Draw a token for each row from this one on, which are those that the logits are of."""
        limit = self._sampling.max_tokens
        slots_R, drawn_R = self._slots_R[first:], self._drawn_R[first:]
        place_R = slots_R * limit + drawn_R.clamp(max=limit - 1)  # finished rows go on without consequence
        early_R = (drawn_R - self._written_R[first:] < self._sampling.min_tokens).nonzero().squeeze(1)
        tokens_R, logprobs_R = sample_tokens(
            self._batch.logits_RV,
            self._uniforms_ST.take(place_R),
            self._sampling,
            forbidden=(early_R, self._stops) if len(early_R) else None,
        )
        self._tokens_ST.put_(place_R, tokens_R)
        self._logprobs_ST.put_(place_R, logprobs_R)
        self._last_R[first:] = tokens_R
        drawn_R += 1
        stopped_R = torch.isin(tokens_R, self._stops)
        ending_R = ((stopped_R | (drawn_R == limit)) & ~self._finished_R[first:]).nonzero().squeeze(1)
        if len(ending_R) == 0:
            return
        self._finished_R[first + ending_R] = True
        self._finished += len(ending_R)
        for row in ending_R.tolist():
            slot = int(slots_R[row])
            request, number = self._owner[slot]
            place = slice(request.written, int(drawn_R[row]))
            if stopped := bool(stopped_R[row]):
                self._read[slot] = len(request.token_ids) + place.stop - place.start - 1
            yield request, number, self._completion(slot, place, stopped=stopped)

    def _completion(self, slot: int, place: slice, *, stopped: bool) -> Completion:
        ids = self._tokens_ST[slot, place].tolist()
        return Completion(
            token_ids=tuple(ids),
            logprobs=tuple(self._logprobs_ST[slot, place].tolist()),
            finish="stop" if stopped else "length",
            version=self._version,
            text=self._tokenizer.decode(ids, skip_special_tokens=True),
        )


def _uniforms(key: tuple[int, ...], count: int) -> np.ndarray:
    """Numbers in [0, 1) that follow from the key alone: one for each token of a completion."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key))).random(count)
