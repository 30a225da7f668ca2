"""A key-value cache that is written in place.

transformers' own grows by concatenation and so copies all of it at every token; its static one attends over the full length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from transformers.cache_utils import Cache, DynamicLayer


class KeptRow(NamedTuple):
    """A row in a copy of several rows' keys and values: `length` tokens, from `start` on."""

    copy: list[tuple[torch.Tensor, torch.Tensor] | None]
    """[rows, heads, tokens, head size] of each layer; None where a layer reads another one's."""
    row: int
    start: int
    length: int


class _Block(NamedTuple):
    """Rows of a layer's keys and values, from one position to another, and which rows of a cache they become."""

    states: tuple[torch.Tensor, torch.Tensor]
    rows: torch.Tensor | slice
    start: int
    end: int
    places: torch.Tensor | slice


class _InPlaceLayer(DynamicLayer):
    """Keys and values [rows, heads, capacity, head size], of which the first `length` positions are filled."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity
        self._length = 0
        self._buffers: tuple[torch.Tensor, torch.Tensor]

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):  # type: ignore[no-untyped-def]
        """Append, and return views of all that is there."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._buffers = (self._empty_like(key_states, len(key_states)), self._empty_like(value_states, len(value_states)))
        count = key_states.shape[-2]
        for buffer, states in zip(self._buffers, (key_states, value_states)):
            buffer.narrow(2, self._length, count).copy_(states)
        self._set(self._buffers, self._length + count)
        return self.keys, self.values

    def _empty_like(self, states: torch.Tensor, rows: int) -> torch.Tensor:
        _, heads, _, size = states.shape
        return states.new_empty(rows, heads, self._capacity, size)

    def _set(self, buffers: tuple[torch.Tensor, torch.Tensor], length: int) -> None:
        self._buffers, self._length = buffers, length
        self.keys, self.values = buffers[0].narrow(2, 0, length), buffers[1].narrow(2, 0, length)

    def hold(self, blocks: Sequence[_Block], rows: int, length: int) -> None:
        """Hold these blocks (this layer's own may be among them) in so many rows, all of which end at `length`.

        What lies before shorter ones is 0: attention multiplies it by 0, which must not be NaN.
        """
        buffers = []
        for key_or_value in (0, 1):
            new = self._empty_like(blocks[0].states[key_or_value], rows)
            for block in blocks:
                first = length - (block.end - block.start)
                new[block.places, :, :first] = 0
                new[block.places, :, first:length] = block.states[key_or_value][block.rows, :, block.start : block.end]
            buffers.append(new)
        if not self.is_initialized:
            self.lazy_initialization(*buffers)
        self._set((buffers[0], buffers[1]), length)

    def copy(self, rows: torch.Tensor | slice) -> tuple[torch.Tensor, torch.Tensor] | None:
        """A copy of these rows; of a slice, a view."""
        return (self.keys[rows], self.values[rows]) if self.is_initialized else None


class InPlaceCache(Cache):
    """A cache for `layers` layers that holds up to `capacity` tokens a row."""

    def __init__(self, layers: int, capacity: int) -> None:
        super().__init__(layers=[_InPlaceLayer(capacity) for _ in range(layers)])

    def gather(self, parts: Sequence[tuple[InPlaceCache, torch.Tensor, int]]) -> None:
        """Hold these rows of these caches (this one may be among them), each cache's from a position on, and nothing else.

        Layer by layer, so that little is held twice.
        """
        for number, layer in enumerate(self.layers):
            if not parts[0][0].layers[number].is_initialized:  # of a layer that reads another one's keys and values
                continue
            blocks, row = [], 0
            for cache, rows, start in parts:
                keys, values = cache.layers[number].keys, cache.layers[number].values
                blocks.append(_Block((keys, values), rows, start, keys.shape[2], slice(row, row + len(rows))))
                row += len(rows)
            layer.hold(blocks, row, max(block.end - block.start for block in blocks))

    def copy(self, rows: Sequence[int], starts: Sequence[int], lengths: Sequence[int]) -> list[KeptRow]:
        """A copy of these rows, of each so many tokens from a position on.

        Of all rows it is a view, since `gather` writes into other memory, and takes no more than a copy would.
        """
        is_all = len(rows) == len(self.layers[0].keys)
        copy = [layer.copy(slice(None) if is_all else torch.tensor(rows)) for layer in self.layers]
        return [KeptRow(copy, row, start, length) for row, (start, length) in enumerate(zip(starts, lengths, strict=True))]

    def begin(self, kept: Sequence[KeptRow], lengths: Sequence[int], width: int) -> None:
        """Hold the first `lengths` tokens of each of these rows, all of which end at `width`."""
        together: dict[tuple[int, int], list[int]] = {}
        for index, (row, length) in enumerate(zip(kept, lengths, strict=True)):
            together.setdefault((id(row.copy), row.start + length), []).append(index)
        ends = []
        for (_, end), indices in together.items():
            # Rows that end at the same place are copied together. What lies before the shorter ones is padding there, too.
            rows, start = _index([kept[index].row for index in indices]), min(kept[index].start for index in indices)
            ends.append((kept[indices[0]].copy, rows, start, end, _index(indices)))
        for number, layer in enumerate(self.layers):
            blocks = [_Block(states, rows, start, end, at) for copy, rows, start, end, at in ends if (states := copy[number])]
            if blocks:
                layer.hold(blocks, len(kept), width)


def _index(numbers: Sequence[int]) -> torch.Tensor | slice:
    """Rows by number: a slice, which is copied faster, where they follow each other."""
    first, end = numbers[0], numbers[-1] + 1
    return slice(first, end) if [*numbers] == [*range(first, end)] else torch.tensor(numbers)
