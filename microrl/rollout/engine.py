"""What every generation engine promises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from microrl.types import AdapterSnapshot, Group, Prompt, Sampling


class Sampler(Protocol):
    """An engine that is awake, with one snapshot's weights."""

    def groups(self, prompts: Sequence[Prompt], sampling: Sampling, *, stream: tuple[int, ...]) -> Iterator[tuple[int, Group]]:
        """Each prompt's completions, as soon as the last of them is finished, with the prompt's position.

        The randomness of a completion follows from (*stream, position, sample) alone: not from the order of finishing,
        nor from what else is in the batch.
        """
        ...


class Engine(Protocol):
    """Sleeps outside `awake`, and then holds no memory that the trainer could use."""

    name: str

    def awake(self, snapshot: AdapterSnapshot) -> AbstractContextManager[Sampler]:
        """Wake up, take over the snapshot's weights, yield a sampler, and sleep again on exit."""
        ...
