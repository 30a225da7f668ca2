"""The order of prompts: every prompt once per epoch, shuffled by the seed, resumable by a position."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Generic, TypeVar

Item = TypeVar("Item")


class PromptSampler(Generic[Item]):
    """Draws prompts or solutions endlessly. `position`, the number of draws so far, is the whole state."""

    def __init__(self, prompts: Sequence[Item], seed: int, position: int = 0) -> None:
        self._prompts = prompts
        self._seed = seed
        self.position = position
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def draw(self, count: int) -> list[Item]:
        """The next `count` items."""
        drawn = []
        for position in range(self.position, self.position + count):
            epoch, index = divmod(position, len(self._prompts))
            drawn.append(self._prompts[self._order(epoch)[index]])
        self.position += count
        return drawn

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(len(self._prompts)))
        random.Random(f"{self._seed}/{epoch}").shuffle(order)
        return order
