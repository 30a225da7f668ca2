"""A key-value cache that is written in place.

transformers' own grows by concatenation and so copies all of it at every token; its static one attends over the full length.
"""

from __future__ import annotations

import torch
from transformers.cache_utils import Cache, DynamicLayer


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
        end = self._length + key_states.shape[-2]
        for buffer, states in zip(self._buffers, (key_states, value_states)):
            buffer[:, :, self._length : end] = states
        self._set(self._buffers, end)
        return self.keys, self.values

    def _empty_like(self, states: torch.Tensor) -> torch.Tensor:
        rows, heads, _, size = states.shape
        return states.new_empty(rows, heads, self._capacity, size)

    def _set(self, buffers: tuple[torch.Tensor, torch.Tensor], length: int) -> None:
        self._buffers, self._length = buffers, length
        self.keys, self.values = (buffer[:, :, :length] for buffer in buffers)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep (or repeat) these rows."""
        moved = []
        for buffer in self._buffers:
            new = buffer.new_empty(len(indices), *buffer.shape[1:])
            new[:, :, : self._length] = buffer[indices, :, : self._length]
            moved.append(new)
        self._set((moved[0], moved[1]), self._length)


def in_place_cache(layers: int, capacity: int) -> Cache:
    """A cache for `layers` layers that holds up to `capacity` tokens a row."""
    return Cache(layers=[_InPlaceLayer(capacity) for _ in range(layers)])
