"""Groups of episodes: conversations of the policy with a model's tools, put together from an engine's completions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from typing import Protocol

from microrl.errors import UserError
from microrl.rollout.requests import Pace, Queue, Request
from microrl.types import Completion, Episode, Group, Prompt, Sampling

THREADS = 128
"""Environments that work at once. Their threads only wait for other processes."""
AT_ONCE = 1024
"""Episodes with a process each."""
Complete = Callable[[Queue, Sampling], Iterator[tuple[Request, int, Completion]]]


class EpisodeConversation(Protocol):
    """The environment's side of one episode."""

    prompt: Prompt
    """With what the environment has said first."""

    def reply(self, turn: Completion, room: int) -> Sequence[int] | None:
        """What it answers to a turn, as tokens up to the policy's next one; None: the episode is over.

        `room`: tokens that the completion may still have, the policy's next one among them. An answer that does not leave room
        for that one is as good as none: it is rolled back.
        """
        ...

    def ended(self) -> Episode:
        """What the episode was. Called once, at its end."""
        ...

    def text(self, token_ids: Sequence[int]) -> str:
        """Tokens as people read them, with those that mark whose turn it is."""
        ...


class EpisodeEnvironment(Protocol):
    """An environment."""

    def begin(self, prompt: Prompt) -> EpisodeConversation:
        """Begin an episode with this prompt. Called from many threads."""
        ...

    def give_up(self) -> None:
        """Nobody waits for an answer any more."""
        ...

    def end(self) -> None:
        """End all episodes. Called when nothing works on them any more."""
        ...


class EpisodeInProgress:
    """One episode in progress. Its tokens are appended and never changed: what was drawn, then what was answered, token by token.

    It works in one thread at a time.
    """

    def __init__(self, conversation: EpisodeConversation) -> None:
        self._conversation = conversation
        self._turns: list[Completion] = []
        self._replies: list[tuple[int, ...]] = []
        self.completion: Completion | None = None
        """All turns as one; None as long as the episode goes on."""

    def go_on(self, turn: Completion, key: tuple[int, ...], limit: int) -> Request | None:
        """Add a turn and have it answered; returns the request for the next one, or None at the end of the episode.

        `key`: that of the episode. `limit`: the most tokens that a completion may have, answers included.
        """
        self._turns.append(turn)
        written = sum(len(ids) for ids, _ in self._parts())
        if turn.finish == "stop":
            reply = self._conversation.reply(turn, limit - written)
            if reply is not None and written + len(reply) < limit:
                self._replies.append(tuple(reply))
                token_ids = tuple(chain.from_iterable(ids for ids, _ in self._parts()))
                return Request(
                    (*key, len(self._turns)), self._conversation.prompt.token_ids + token_ids, 1, written=len(token_ids)
                )
            if reply is not None:
                self._turns[-1] = replace(turn, finish="length")
        self.completion = self._whole()
        return None

    def _parts(self) -> Iterator[tuple[tuple[int, ...], tuple[float, ...] | None]]:
        """Tokens in order, with the log-probabilities of those that the policy drew."""
        for number, turn in enumerate(self._turns):
            yield turn.token_ids, turn.logprobs
            if number < len(self._replies):
                yield self._replies[number], None

    def _whole(self) -> Completion:
        """Its text is the last turn's: what a tool has said is no answer of the policy's."""
        last, parts = self._turns[-1], list(self._parts())
        token_ids = tuple(chain.from_iterable(ids for ids, _ in parts))
        # The conversation is not told of a turn that was cut off.
        whole = replace(last, episode=replace(self._conversation.ended(), turns=len(self._turns)))
        if not self._replies:
            return whole
        return replace(
            whole,
            token_ids=token_ids,
            logprobs=tuple(chain.from_iterable((0.0,) * len(ids) if drawn is None else drawn for ids, drawn in parts)),
            drawn=tuple(chain.from_iterable((drawn is not None,) * len(ids) for ids, drawn in parts)),
            transcript=self._conversation.text(token_ids),
        )


def episodes(
    complete: Complete,
    asked: Mapping[int, Prompt],
    sampling: Sampling,
    *,
    stream: tuple[int, ...],
    pace: Pace | None,
    environment: EpisodeEnvironment,
) -> Iterator[tuple[int, Group]]:
    """As `Sampler.groups`, by position. The randomness of a turn follows from (*stream, position, number, turn).

    At most `AT_ONCE` episodes begin together; when they are over, the next ones do.
    """
    positions, groups = [*asked], max(AT_ONCE // sampling.group_size, 1)
    for number, first in enumerate(range(0, len(positions), groups)):
        if pace is not None and pace.is_over():
            return
        some = {position: asked[position] for position in positions[first : first + groups]}
        yield from _begun_together(complete, some, sampling, number, stream=stream, pace=pace, environment=environment)


def _begun_together(
    complete: Complete,
    asked: Mapping[int, Prompt],
    sampling: Sampling,
    part: int,
    *,
    stream: tuple[int, ...],
    pace: Pace | None,
    environment: EpisodeEnvironment,
) -> Iterator[tuple[int, Group]]:
    """A group's first turns are one request; each later turn is one of its own. Environments work while others decode."""
    size, depth = sampling.group_size, len(stream)
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="environment")
    try:
        begun = {position: [pool.submit(environment.begin, prompt) for _ in range(size)] for position, prompt in asked.items()}
        prompts: dict[int, Prompt] = {}
        in_progress: dict[int, list[EpisodeInProgress]] = {}
        for position, futures in begun.items():
            group = [future.result() for future in futures]
            prompts[position] = _shared(group)
            in_progress[position] = [EpisodeInProgress(conversation) for conversation in group]
        requests = (Request((*stream, position), prompt.token_ids, size) for position, prompt in prompts.items())
        # Where an engine has one seed for all that it decodes, each part has another.
        queue = Queue(requests, stream=(*stream, part) if part else stream, pace=pace)

        answered: deque[int] = deque()
        """The positions of turns that have been answered, of which the group may be finished."""

        def over() -> Iterator[tuple[int, Group]]:
            while answered:
                position = answered.popleft()
                completions = tuple(one.completion for one in in_progress.get(position, ()) if one.completion is not None)
                if len(completions) == size:
                    del in_progress[position]
                    yield position, Group(prompts[position], completions)

        def go_on(turn: Completion, episode: tuple[int, ...]) -> Request | None:
            position, number = episode[depth:]
            try:
                return in_progress[position][number].go_on(turn, episode, sampling.max_tokens)
            finally:
                answered.append(position)

        for request, number, turn in complete(queue, sampling):
            episode = request.episode(number)
            queue.expect(episode, pool.submit(go_on, turn, episode))
            yield from over()
        yield from over()
    finally:
        environment.give_up()
        pool.shutdown(wait=True, cancel_futures=True)
        environment.end()


def _shared(group: Sequence[EpisodeConversation]) -> Prompt:
    """The prompt of a group's episodes. Advantages compare answers to one question, so it has to be the same."""
    first = group[0].prompt
    if any(conversation.prompt != first for conversation in group):
        raise UserError(
            f"row {first.row}: `reset` of the environment says different things to the rollouts of one question",
            "draw what is random in it from the row, for example random.Random(row['question'])",
        )
    return first
