"""Continuous batching: the rows that are being decoded, which leave the batch when they are finished and make room for others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from microrl.rollout.decoding import DecodingBatch, sample_tokens
from microrl.rollout.requests import Request
from microrl.types import Completion, Sampling

CHANGE_AT = 1 / 8
"""Share of finished rows at which they leave the batch, and of new ones at which these join it: below it, moving the cache costs
more than it saves."""


class InFlight:
    """The requests whose completions are being decoded, one row each, at most `rows` at once.

    A row keeps what it draws in a slot of its own, from when it joins the batch until it leaves it.
    """

    def __init__(
        self,
        batch: DecodingBatch,
        rows: int,
        sampling: Sampling,
        stops: torch.Tensor,
        tokenizer: Any,
        version: int,
    ) -> None:
        self._batch, self._rows, self._sampling = batch, rows, sampling
        self._stops, self._tokenizer, self._version = stops, tokenizer, version
        self._finished_of: dict[Request, dict[int, Completion]] = {}
        """Of each request: those of its completions that are finished, by number."""
        self._free = list(range(rows))
        self._owner: dict[int, tuple[Request, int]] = {}
        """Of each slot in use: its request, and the number of its completion."""
        limit, device = sampling.max_tokens, stops.device
        self._tokens_ST = torch.zeros(rows, limit, dtype=torch.long, device=device)
        self._logprobs_ST = torch.zeros(rows, limit, device=device)
        self._uniforms_ST = torch.zeros(rows, limit, dtype=torch.float64, device=device)
        # Of each row of the batch: its slot, how many tokens its completion has, the last of them, and whether it is finished.
        self._slots_R = torch.zeros(0, dtype=torch.long, device=device)
        self._drawn_R, self._last_R = torch.zeros_like(self._slots_R), torch.zeros_like(self._slots_R)
        self._finished_R = torch.zeros_like(self._slots_R, dtype=torch.bool)
        self._finished = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is being decoded."""
        return not self._finished_of

    @property
    def room(self) -> int:
        """How many rows can join once the finished ones have left."""
        return self._rows - len(self._slots_R) + self._finished

    def is_change_due(self, joining: int) -> bool:
        """Whether it is time to `change` the batch, if so many rows can join it."""
        rows = len(self._slots_R)
        enough = max(rows * CHANGE_AT, 1)
        return self._finished >= enough or joining >= enough or (rows > 0 and self._batch.is_full)

    def change(self, joining: Sequence[Request]) -> Iterator[tuple[Request, Sequence[Completion]]]:
        """Let the finished rows leave the batch, and these requests join it and draw their first tokens.

        Yields the requests that are finished by that.
        """
        leaving = self._slots_R[self._finished_R].tolist()
        for slot in leaving:
            del self._owner[slot]
        self._free += reversed(leaving)
        kept = (~self._finished_R).nonzero().squeeze(1)
        slots, written = [], []
        for request in joining:
            self._finished_of[request] = {}
            for number in range(request.count):
                slots.append(self._free.pop())
                written.append(request.written)
                self._owner[slots[-1]] = (request, number)
                uniforms = _uniforms((*request.key, number), self._sampling.max_tokens)
                self._uniforms_ST[slots[-1]] = torch.from_numpy(uniforms)
        self._batch.gather(kept, [request.token_ids for request in joining], [request.count for request in joining])
        joined_2R = torch.tensor([slots, written], dtype=torch.long, device=kept.device)
        self._slots_R = torch.cat([self._slots_R[kept], joined_2R[0]])
        self._drawn_R = torch.cat([self._drawn_R[kept], joined_2R[1]])
        self._last_R = torch.cat([self._last_R[kept], torch.zeros_like(joined_2R[0])])
        self._finished_R = torch.zeros_like(self._slots_R, dtype=torch.bool)
        self._finished = 0
        if slots:
            yield from self._draw(len(kept))

    def step(self) -> Iterator[tuple[Request, Sequence[Completion]]]:
        """Decode one more token of each row; yields the requests that are finished by it."""
        self._batch.step(self._last_R)
        yield from self._draw(0)

    def _draw(self, first: int) -> Iterator[tuple[Request, Sequence[Completion]]]:
        """Draw a token for each row from this one on, which are those that the logits are of."""
        limit = self._sampling.max_tokens
        slots_R, drawn_R = self._slots_R[first:], self._drawn_R[first:]
        place_R = slots_R * limit + drawn_R.clamp(max=limit - 1)  # finished rows go on without consequence
        early_R = (drawn_R < self._sampling.min_tokens).nonzero().squeeze(1)
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
            request, number = self._owner[int(slots_R[row])]
            finished = self._finished_of[request]
            place = slice(request.written, int(drawn_R[row]))
            finished[number] = self._completion(int(slots_R[row]), place, stopped=bool(stopped_R[row]))
            if len(finished) == request.count:
                del self._finished_of[request]
                yield request, [finished[n] for n in range(request.count)]

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
