"""A key-value cache that is written in place.

transformers' own grows by concatenation and so copies all of it at every token; its static one attends over the full length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from transformers.cache_utils import Cache, DynamicLayer


class KeptRow(NamedTuple):
    """A copy of a row's keys and values, [heads, length, head size] of each layer; None where a layer reads another one's."""

    length: int
    layers: list[tuple[torch.Tensor, torch.Tensor] | None]


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
            self._buffers = (self._empty_like(key_states), self._empty_like(value_states))
        count = key_states.shape[-2]
        for buffer, states in zip(self._buffers, (key_states, value_states)):
            buffer.narrow(2, self._length, count).copy_(states)
        self._set(self._buffers, self._length + count)
        return self.keys, self.values

    def _empty_like(self, states: torch.Tensor) -> torch.Tensor:
        rows, heads, _, size = states.shape
        return states.new_empty(rows, heads, self._capacity, size)

    def _set(self, buffers: tuple[torch.Tensor, torch.Tensor], length: int) -> None:
        self._buffers, self._length = buffers, length
        self.keys, self.values = buffers[0].narrow(2, 0, length), buffers[1].narrow(2, 0, length)

    def gather(self, parts: Sequence[tuple[_InPlaceLayer, torch.Tensor, int]]) -> None:
        """Hold these rows of these layers (this one may be among them), each layer's from a position on.

        All end at the same position. What lies before shorter ones is 0: attention multiplies it by 0, which must not be NaN.
        """
        length = max(layer._length - start for layer, _, start in parts)
        sample, total = parts[0][0], sum(len(rows) for _, rows, _ in parts)
        gathered = []
        for number in (0, 1):
            _, heads, _, size = sample._buffers[number].shape
            new = sample._buffers[number].new_empty(total, heads, self._capacity, size)
            row = 0
            for layer, rows, start in parts:
                first, end = length - (layer._length - start), row + len(rows)
                new[row:end, :, :first] = 0
                new[row:end, :, first:length] = layer._buffers[number][:, :, start : layer._length][rows]
                row = end
            gathered.append(new)
        if not self.is_initialized:
            self.lazy_initialization(*gathered)
        self._set((gathered[0], gathered[1]), length)

    def row(self, row: int, start: int, length: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """A copy of a part of a row."""
        if not self.is_initialized:
            return None
        keys, values = (buffer[row, :, start : start + length].clone() for buffer in self._buffers)
        return keys, values

    def begin(self, rows: Sequence[tuple[torch.Tensor, torch.Tensor]], lengths: Sequence[int], width: int) -> None:
        """Hold the first `lengths` tokens of each of these rows, all of which end at `width`."""
        buffers = []
        for number in (0, 1):
            heads, _, size = rows[0][number].shape
            new = rows[0][number].new_empty(len(rows), heads, self._capacity, size)
            for row, (states, length) in enumerate(zip(rows, lengths, strict=True)):
                new[row, :, : width - length] = 0
                new[row, :, width - length : width] = states[number][:, :length]
            buffers.append(new)
        self.lazy_initialization(*buffers)
        self._set((buffers[0], buffers[1]), width)


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
            layer.gather([(cache.layers[number], rows, start) for cache, rows, start in parts])

    def row(self, row: int, start: int, length: int) -> KeptRow:
        """A copy of `length` tokens of a row, from a position on."""
        return KeptRow(length, [layer.row(row, start, length) for layer in self.layers])

    def begin(self, rows: Sequence[KeptRow], lengths: Sequence[int], width: int) -> None:
        """Hold the first `lengths` tokens of each of these rows, all of which end at `width`."""
        for number, layer in enumerate(self.layers):
            if rows[0].layers[number] is not None:
                layer.begin([row.layers[number] for row in rows], lengths, width)
