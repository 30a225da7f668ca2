"""What a sampler is asked for: completions of token sequences, and the queue in which they wait for room."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Protocol

from microrl.sandbox.worker import LOOK_S

REPLY_ROUNDS = 32
"""Rounds of decoding that a tool may take before the engine waits for it."""


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

    The randomness of completion n (from 0) follows from (*key, n) alone. `written`: how many of the tokens, the last ones, are
    part of the completion already, and so of its limit: an episode goes on. The last part of its key is then the turn's number.
    """

    key: tuple[int, ...]
    token_ids: tuple[int, ...]
    count: int
    written: int = 0

    def episode(self, number: int) -> tuple[int, ...]:
        """What names the episode of completion `number` in all its turns."""
        return self.key[:-1] if self.written else (*self.key, number)


class Queue:
    """Requests that wait for room, first come first served, as far as the pace lets them start.

    `stream` is the beginning of all their keys. Those that `expect` announces come first, and no pace holds them back: their
    episodes have started. They join a fixed number of rounds later, whenever their tools were done: what is decoded together
    affects the last bits of a result, and a run that is resumed has to repeat them.
    """

    def __init__(self, requests: Iterable[Request], *, stream: tuple[int, ...], pace: Pace | None = None) -> None:
        self.stream = stream
        self._unfinished: dict[tuple[int, ...], int] = {}
        """Completions that have not ended, by the key of a request that has started; an episode is one completion."""
        self._waiting, self._pace = deque(requests), pace
        self._later_turns: deque[Request] = deque()
        self._expected: deque[tuple[int, tuple[int, ...], Future[Request | None]]] = deque()
        self.going_on: set[tuple[int, ...]] = set()
        """Episodes that have had a turn and that are not known to be over. Like what starts when, it depends on no clock."""
        self._round = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def longest(self) -> int:
        """The most tokens of a waiting request; 1 if there is none."""
        return max((len(request.token_ids) for request in self._waiting), default=1)

    def is_over(self) -> bool:
        """Whether the pace wants sampling to stop here, between two tokens."""
        return self._pace is not None and self._pace.is_over()

    def expect(self, episode: tuple[int, ...], reply: Future[Request | None]) -> None:
        """A request for an episode's next turn that is being made; None will be the episode's end, and counts as `ended`."""
        self.going_on.add(episode)
        self._expected.append((self._round + REPLY_ROUNDS, episode, reply))

    def hurry(self) -> bool:
        """Nothing is decoded: whether there will be more to do nevertheless, for which `ready` now waits. Not if it `is_over`."""
        self._expected = deque((self._round, episode, reply) for _, episode, reply in self._expected)
        return bool(self._expected or self._later_turns) and not self.is_over()

    def _take_replies(self, look: Callable[[], None]) -> None:
        self._round += 1
        while self._expected and self._expected[0][0] <= self._round and not self.is_over():
            _, episode, reply = self._expected[0]
            if not wait([reply], LOOK_S).done:
                look()
                continue
            self._expected.popleft()
            if (request := reply.result()) is not None:
                self._later_turns.append(request)
            else:
                self.going_on.discard(episode)
                self.ended(episode)

    def ready(self, room: int | None = None, look: Callable[[], None] = lambda: None) -> list[Request]:
        """The requests that may start now, in their order. Their completions fill at most `room` rows; None: any number.

        To be asked once a round of decoding. `look` is called several times a second while it waits for tools, and what it raises
        ends that. Raises what a request's making has raised.
        """
        self._take_replies(look)
        ready: list[Request] = []
        rows = 0
        for request in self._later_turns:
            rows += request.count
            if room is not None and rows > room:
                return ready
            ready.append(request)
        fresh = -len(ready)
        for request in self._waiting:
            rows += request.count
            if room is not None and rows > room:
                break
            if self._pace is not None and not self._pace.may_start(len(self._unfinished) + fresh + len(ready)):
                break
            ready.append(request)
        return ready

    def start(self, ready: Sequence[Request]) -> None:
        """Take out what `ready` has returned."""
        for request in ready:
            if self._later_turns:
                self._later_turns.popleft()
            else:
                self._waiting.popleft()
                self._unfinished[request.key] = request.count

    def ended(self, completion: tuple[int, ...]) -> None:
        """A completion has ended, of which this is the request's key and the number. `expect` says it of episodes."""
        key = completion[:-1]
        self._unfinished[key] -= 1
        if not self._unfinished[key]:  # the next question may start
            del self._unfinished[key]
