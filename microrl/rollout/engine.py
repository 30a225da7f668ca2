"""What every generation engine promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from microrl.rollout.episodes import EpisodeEnvironment, episodes
from microrl.rollout.requests import Pace, Queue, Request
from microrl.types import AdapterSnapshot, Completion, Group, Prompt, Sampling


@dataclass(slots=True)
class SyncReport:
    """What the last `awake` did to hand the weights over, and what was proved about it. Seconds; gaps in nats a token.

    `gap` and `slope` are None where engine and trainer share their weights, `slope` also where the trainer's change since
    the base lies below the noise.
    """

    mode: Literal["shared", "swap", "merge"] = "shared"
    push_s: float = 0.0
    proof_s: float = 0.0
    wake_s: float = 0.0
    sleep_s: float = 0.0
    gap: float | None = None
    slope: float | None = None
    freed_bytes: int = 0
    retaken_bytes: int = 0


class Sampler(ABC):
    """An engine that is awake, with one snapshot's weights.

    An engine implements `complete`; groups are put together here:

    >>> class Parrot(Sampler):
    ...     def complete(self, queue, sampling):
    ...         while (ready := queue.ready()) or queue.hurry():
    ...             queue.start(ready)
    ...             for request in ready:
    ...                 echo = Completion(request.token_ids, (0.0,) * len(request.token_ids), "stop", 0, "hello")
    ...                 yield from ((request, number, echo) for number in range(request.count))
    >>> prompt = Prompt("Say hello.", "hello", "Say hello.", (7, 8))
    >>> [(position, group)] = Parrot().groups([prompt], Sampling(group_size=2, max_tokens=2), stream=(0,))
    >>> position, [completion.text for completion in group.completions]
    (0, ['hello', 'hello'])
    """

    decode_steps: int = 0
    """Decode steps so far: forward passes that give each row in flight one more token."""

    @abstractmethod
    def complete(self, queue: Queue, sampling: Sampling) -> Iterator[tuple[Request, int, Completion]]:
        """Each completion of each request with its number (from 0), as soon as it is finished, until nothing is left that may
        start and `queue.hurry()` is False. Once `queue.is_over()`, it ends between two tokens.

        Requests start in their order, as soon as there is room for them. Tokens depend on the weights, the request and
        `sampling` alone: not on what else is decoded. A completion and what is `written` of it have `sampling.max_tokens` in all.
        """

    def groups(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        stream: tuple[int, ...],
        positions: Sequence[int] | None = None,
        pace: Pace | None = None,
        environment: EpisodeEnvironment | None = None,
    ) -> Iterator[tuple[int, Group]]:
        """Each prompt's completions, as soon as the last of them is finished, with the prompt's position.

        The randomness of a completion follows from (*stream, position, number) alone. `positions` are the prompts' numbers;
        None: 0, 1, 2, ... `environment`: the environment that answers to each turn; None: a completion is a single one.
        """
        asked = dict(zip(range(len(prompts)) if positions is None else positions, prompts, strict=True))
        if environment is not None:
            yield from episodes(self.complete, asked, sampling, stream=stream, pace=pace, environment=environment)
            return
        requests = (Request((*stream, position), prompt.token_ids, sampling.group_size) for position, prompt in asked.items())
        queue = Queue(requests, stream=stream, pace=pace)
        finished: dict[int, dict[int, Completion]] = {position: {} for position in asked}
        for request, number, completion in self.complete(queue, sampling):
            position = request.key[-1]
            finished[position][number] = completion
            queue.ended(request.episode(number))
            if len(finished[position]) == request.count:
                yield position, Group(asked[position], tuple(one for _, one in sorted(finished.pop(position).items())))


class Engine(Protocol):
    """Sleeps outside `awake`, and then holds no memory that the trainer could use.

    >>> class Mute(Sampler):
    ...     def complete(self, queue, sampling):
    ...         return iter(())
    >>> class MuteEngine:
    ...     name, report, check_deadline = "mute", SyncReport(), staticmethod(lambda: None)
    ...     @contextmanager
    ...     def awake(self, snapshot, *, is_training=False):
    ...         yield Mute()
    ...     def shrink(self):
    ...         raise MachineFailure("there is nothing to shrink")
    ...     def close(self):
    ...         pass
    >>> engine: Engine = MuteEngine()
    >>> with engine.awake(BASE) as sampler:
    ...     list(sampler.groups([], Sampling(group_size=2, max_tokens=2), stream=(0,)))
    []
    """

    name: str
    report: SyncReport
    """Of the last `awake`; its `sleep_s` is there once that has ended."""
    check_deadline: Callable[[], None]
    """Called between two tokens. What it raises ends the sampling."""

    def awake(self, snapshot: AdapterSnapshot, *, is_training: bool = False) -> AbstractContextManager[Sampler]:
        """Wake up, take over the snapshot's weights, prove it, yield a sampler, and sleep again on exit.

        `is_training` marks a training step: there an engine may try, time and choose between its ways of taking weights over.

        Raises SyncNotProved where the engine cannot be shown to sample from these weights.
        """
        ...

    def shrink(self) -> float:
        """After running out of memory: go on with half of the cache for keys and values, from now on. Returns its GB.

        Raises MachineFailure where it holds a single group already, and for vLLM, which takes a new process for that.
        """
        ...

    def close(self) -> None:
        """Give everything back. The engine cannot be used again.

        On a GPU vLLM keeps its memory until the process ends: taking it down can abort the process, and no second one could be
        started in it.
        """
        ...
