"""The order of prompts: every prompt once per epoch, or more often those that still teach; repeatable and resumable."""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Item = TypeVar("Item", bound=Hashable)
History = dict[str, tuple[float, float]]
"""By an item's index: right answers and all answers so far, older ones with less weight."""


class PromptSampler(Generic[Item]):
    """Draws prompts or solutions endlessly: a new shuffled order each epoch. `position` is the number of draws so far."""

    def __init__(self, items: Sequence[Item], seed: int, position: int = 0) -> None:
        self.items = items
        self._seed = seed
        self.position = position
        self.history: History = {}
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def draw(self, count: int) -> list[Item]:
        """The next `count` items."""
        drawn = []
        for position in range(self.position, self.position + count):
            epoch, index = divmod(position, len(self.items))
            drawn.append(self.items[self._order(epoch)[index]])
        self.position += count
        return drawn

    def learn(self, answered: Sequence[tuple[Item, float, int]]) -> None:
        """Take in how a step's items were answered: (item, share of right answers, answers). The order here ignores it."""

    def restore(self, position: int, history: Mapping[str, tuple[float, float]]) -> None:
        """Go on as after so many draws, with this history."""
        self.position, self.history = position, dict(history)

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(len(self.items)))
        random.Random(f"{self._seed}/{epoch}").shuffle(order)
        return order


class CurriculumSampler(PromptSampler[Item]):
    """Draws each item with a weight: the probability that `group_size` answers to it differ, by what is known of it.

    A question that is answered always or never rightly gives a group without a gradient. Its success rate is estimated as
    (right + 1) / (answers + 2), older answers counting less, since the model changes. No weight falls below FLOOR, so that
    nothing is forgotten, and unseen items have the weight 1. A draw follows from the seed, the position and the history.
    """

    STREAM = 0xC0DE
    """First word of the random streams, which keeps them apart from others."""
    FLOOR = 0.1
    DECAY = 0.5
    """Weight of what was known, whenever an item is answered again."""

    def __init__(self, items: Sequence[Item], seed: int, group_size: int) -> None:
        super().__init__(items, seed)
        self._group_size = group_size
        self._index = {item: index for index, item in enumerate(items)}
        self._drawn: set[int] = set()
        """What was drawn since the last `learn`: it is not drawn again in the same step."""

    def draw(self, count: int) -> list[Item]:
        """The next `count` items, different ones as long as there are any."""
        import numpy as np

        drawn: list[int] = []
        while len(drawn) < count:
            if len(self._drawn) == len(self.items):
                self._drawn.clear()
            left = np.array([index for index in range(len(self.items)) if index not in self._drawn])
            generator = np.random.Generator(np.random.Philox(np.random.SeedSequence((self.STREAM, self._seed, self.position))))
            # The smallest of exponential variables, each divided by its weight: drawn without replacement (Efraimidis 2006).
            keys = generator.exponential(size=len(self.items))[left] / self._weights()[left]
            chosen = left[np.argsort(keys, kind="stable")[: count - len(drawn)]].tolist()
            self._drawn.update(chosen)
            drawn += chosen
            self.position += len(chosen)
        return [self.items[index] for index in drawn]

    def learn(self, answered: Sequence[tuple[Item, float, int]]) -> None:
        """See `PromptSampler.learn`."""
        for item, share, count in answered:
            name = str(self._index[item])
            right, total = self.history.get(name, (0.0, 0.0))
            self.history[name] = (self.DECAY * right + share * count, self.DECAY * total + count)
        self._drawn.clear()

    def restore(self, position: int, history: Mapping[str, tuple[float, float]]) -> None:
        """See `PromptSampler.restore`."""
        super().restore(position, {name: known for name, known in history.items() if int(name) < len(self.items)})
        self._drawn.clear()

    def _weights(self) -> NDArray[np.float64]:
        import numpy as np

        weights = np.ones(len(self.items))
        for name, (right, total) in self.history.items():
            rate = (right + 1) / (total + 2)
            differ = 1 - rate**self._group_size - (1 - rate) ** self._group_size
            weights[int(name)] = self.FLOOR + (1 - self.FLOOR) * differ
        return weights
