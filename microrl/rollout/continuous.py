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
    is kept between two turns as long as there is room for it: each takes that of a row. Rows that leave together are one copy, of
    which nothing is given back before its last row is.
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
        kept_R = (~self._finished_R).nonzero().squeeze(1)
        room = self._rows - len(kept_R) - sum(request.count for request in joining)
        self._leave(going_on, {request.episode(0) for request in joining if request.written}, room)
        begun, joining = self._begun(joining)
        slots, written, uniforms = [], [], []
        for request in joining:
            for number in range(request.count):
                slots.append(self._free.pop())
                written.append(request.written)
                self._owner[slots[-1]] = (request, number)
                uniforms.append(_uniforms((*request.key, number), self._sampling.max_tokens))
        if slots:
            self._uniforms_ST[slots] = torch.from_numpy(np.stack(uniforms)).to(kept_R.device)
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

    def _leave(self, going_on: Collection[tuple[int, ...]], joining: Collection[tuple[int, ...]], room: int) -> None:
        """Take back the finished rows' slots. The cache of those whose episode goes on is kept: of `joining`, the episodes that
        join now, and of as many others as there is room for. What is needed last is dropped first."""
        leaving_R = self._finished_R.nonzero().squeeze(1)
        slots = self._slots_R[leaving_R].tolist()
        leaving: dict[tuple[int, ...], tuple[int, int]] = {}
        for row, slot in zip(leaving_R.tolist(), slots, strict=True):
            request, number = self._owner.pop(slot)
            if (read := self._read.pop(slot, None)) is not None:
                leaving[request.episode(number)] = row, read
        self._free += reversed(slots)
        candidates = [episode for episode in (*self._kept, *leaving) if episode in going_on]
        waiting = [episode for episode in candidates if episode not in joining]
        dropped = set(waiting[room:])
        self._kept = {episode: self._kept[episode] for episode in candidates if episode in self._kept and episode not in dropped}
        added = [episode for episode in candidates if episode in leaving and episode not in dropped]
        if added:
            rows, lengths = zip(*(leaving[episode] for episode in added), strict=True)
            self._kept |= zip(added, self._batch.keep(rows, lengths))  # none, where it could not be continued

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
        ending_slots_R, until = slots_R[ending_R], int(drawn_R[ending_R].max())
        for slot, drawn, stopped, tokens, logprobs in zip(
            ending_slots_R.tolist(),
            drawn_R[ending_R].tolist(),
            stopped_R[ending_R].tolist(),
            self._tokens_ST[ending_slots_R, :until].tolist(),
            self._logprobs_ST[ending_slots_R, :until].tolist(),
            strict=True,
        ):
            request, number = self._owner[slot]
            if stopped:
                self._read[slot] = len(request.token_ids) + drawn - request.written - 1
            ids = tokens[request.written : drawn]
            completion = Completion(
                token_ids=tuple(ids),
                logprobs=tuple(logprobs[request.written : drawn]),
                finish="stop" if stopped else "length",
                version=self._version,
                text=self._tokenizer.decode(ids, skip_special_tokens=True),
            )
            yield request, number, completion


def _uniforms(key: tuple[int, ...], count: int) -> np.ndarray:
    """Numbers in [0, 1) that follow from the key alone: one for each token of a completion."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key))).random(count)
