"""What a sampler is asked for: completions of token sequences, and the queue in which they wait for room."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Pace(Protocol):
    """Keeps sampling within a time limit."""

    def may_start(self, in_flight: int) -> bool:
        """Whether one more group may start while so many are being decoded. Asked again whenever a group is finished."""
        ...

    def is_over(self) -> bool:
        """Whether to stop here, between two tokens. Groups that are not finished are lost."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """`count` completions of one token sequence. They start together, so that its prefill is shared.

    The randomness of completion n (from 0) follows from (*key, n) alone.
    """

    key: tuple[int, ...]
    token_ids: tuple[int, ...]
    count: int


class Queue:
    """Requests that wait for room, first come first served, as far as the pace lets them start.

    `stream` is the beginning of all their keys.
    """

    def __init__(self, requests: Iterable[Request], *, stream: tuple[int, ...], pace: Pace | None = None) -> None:
        self.stream = stream
        self.in_flight = 0
        """Requests that have started and are not finished."""
        self._waiting, self._pace = deque(requests), pace

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def longest(self) -> int:
        """The most tokens of a waiting request; 1 if there is none."""
        return max((len(request.token_ids) for request in self._waiting), default=1)

    def is_over(self) -> bool:
        """Whether the pace wants sampling to stop here, between two tokens."""
        return self._pace is not None and self._pace.is_over()

    def ready(self, room: int | None = None) -> list[Request]:
        """The requests that may start now, in their order. Their completions fill at most `room` rows; None: any number."""
        found: list[Request] = []
        rows = 0
        for request in self._waiting:
            rows += request.count
            if room is not None and rows > room:
                break
            if self._pace is not None and not self._pace.may_start(self.in_flight + len(found)):
                break
            found.append(request)
        return found

    def start(self, ready: Sequence[Request]) -> None:
        """Take out what `ready` has returned."""
        self.in_flight += len(ready)
        for _ in ready:
            self._waiting.popleft()

    def finished(self) -> None:
        """One of the requests that have started is finished."""
        self.in_flight -= 1
