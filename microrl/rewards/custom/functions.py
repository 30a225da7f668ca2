"""Custom reward functions: each runs in a process of its own, is called once a group, and is killed at its deadline.

A reward function has this signature:

>>> def brevity(prompts: list[str], completions: list[str], rows: list[dict]) -> list[float | None]:
...     return [1 - min(len(text) / 1000, 1) for text in completions]
>>> brevity(["1 + 1?"] * 2, ["2", "2" * 500], [{}, {}])
[0.999, 0.5]

`prompts` are the prompts as the model read them, chat template included; `completions` its answers as text; `rows` the raw rows
of the data set, with JSON's types. The three have the same length, and so has what is returned: a finite number for each
completion, or None, which leaves the completion out. A value must depend on its own prompt, completion and row alone: a call has
the completions of one group, in no order that may be relied on, and a call that fails is made again one completion at a time.

A function with the parameters of TRL's reward functions is called as TRL does, by name; of such a function, None means that it
does not apply to the completion, whose other parts count.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from microrl.clock import now_s
from microrl.config.reward import RewardConfig, RewardFunction, parse_functions
from microrl.errors import UserError
from microrl.rewards.custom.process import CustomProcess
from microrl.sandbox.worker import LOOK_S, Cancelled, NoReply, never
from microrl.types import Group

NOT_CALLED = "it was not called"
KILLS = 2
"""Calls a step that may be killed. After these the function is not called any more in it."""

Value = float | None


class Failure(NamedTuple):
    """The completion at this index of a call got no value, and why."""

    completion: int
    why: str


class Asked(NamedTuple):
    """What functions with TRL's parameters get besides. No `token_ids`: no model has written the completion."""

    question: str
    answer: str
    token_ids: tuple[int, ...] = ()


class Item(NamedTuple):
    """What a function is given of one completion. `row` is JSON; empty for none."""

    prompt: str
    completion: str
    row: str
    asked: Asked


class CustomReward(CustomProcess):
    """One reward function. Use it from one thread at a time."""

    def __init__(self, function: RewardFunction, config: RewardConfig) -> None:
        super().__init__(function.target, config.path, confined=config.confine_functions)
        self.function = function
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="reward")
        """A thread of its own: a slow function does not keep another one waiting."""
        self._deadline_s = config.function_deadline_s
        self._raised = False
        self.kills = 0
        """Calls that were killed since the step began."""

    def values(self, items: Sequence[Item], is_cancelled: Cancelled) -> tuple[list[Value], list[Failure]]:
        """One value for each completion, and why those that are missing are, but for the function's own None."""
        if self.kills >= KILLS:
            outcome: list[Any] | str = f"{NOT_CALLED}: {KILLS} calls in this step have been killed"
        else:
            outcome = self._call(items, is_cancelled)
            if self._raised and len(items) > 1:
                # One completion that it cannot read must not cost the others of its group their rewards.
                outcome = self._one_by_one(items, is_cancelled)
        if isinstance(outcome, str):
            outcome = [{"bad": outcome}] * len(items)
        values = [None if isinstance(result, dict) else result for result in outcome]
        return values, [Failure(index, result["bad"]) for index, result in enumerate(outcome) if isinstance(result, dict)]

    def _one_by_one(self, items: Sequence[Item], is_cancelled: Cancelled) -> list[Any]:
        """Retry one by one, sharing one deadline."""
        until = now_s() + self._deadline_s
        results: list[Any] = []
        for item in items:
            if self.kills >= KILLS or now_s() > until:
                results.append({"bad": f"{NOT_CALLED} again: the time of reward.function_deadline_s was up"})
                continue
            outcome = self._call([item], is_cancelled)
            results.append({"bad": outcome} if isinstance(outcome, str) else outcome[0])
        return results

    def _call(self, items: Sequence[Item], is_cancelled: Cancelled) -> list[Any] | str:
        """The values of one call, or in words why there are none. `_raised` says whether it raised an exception."""
        self._raised = False
        request: dict[str, Any] = {
            "prompts": [item.prompt for item in items],
            "completions": [item.completion for item in items],
            "rows": [json.loads(item.row) if item.row else {} for item in items],
        }
        try:
            self.wait_until_ready(is_cancelled)
            if self.is_by_name:
                questions, answers, token_ids = zip(*(item.asked for item in items), strict=True)
                request |= {"questions": questions, "answers": answers, "token_ids": token_ids}
            reply = self.call(request, self._deadline_s, is_cancelled)
            self._raised = reply.get("raised") is True
            return _checked(reply, len(items))
        except NoReply as error:
            why = error.why or f"it took longer than {self._deadline_s:g} s (reward.function_deadline_s)"
        except UserError as error:  # it was imported once: the run goes on without it
            why = error.message
        self.kills += not is_cancelled()
        return why


def _checked(reply: dict[str, Any], count: int) -> list[Any] | str:
    """The values of an answer, each a finite number, None or `{"bad": why}`; or why there are none.

    Checked here too: what a function does in its process cannot make a number of anything else.
    """
    if "error" in reply:
        return str(reply["error"])
    values = reply.get("values")
    if not isinstance(values, list) or len(values) != count:
        return f"its process sent no list of {count} values"
    return [value if _is_value(value) else {"bad": "its process sent something that is not a number"} for value in values]


def _is_value(value: Any) -> bool:
    if isinstance(value, dict):
        return set(value) == {"bad"} and isinstance(value["bad"], str)
    return value is None or (type(value) in (int, float) and math.isfinite(value))


@dataclass(slots=True)
class Missing:
    """How often a function gave no value in a step, and the first call that failed: the data's row, and why."""

    name: str
    count: int
    row: int
    why: str


@dataclass(slots=True)
class Calls:
    """The calls for the groups of one scoring: begun while others are sampled, and waited for in the end."""

    rewards: Sequence[CustomReward]
    look: Callable[[], None]
    missing: dict[str, Missing]
    is_cancelled: Cancelled
    _begun: dict[int, tuple[Group, list[Future[tuple[list[Value], list[Failure]]]]]] = field(default_factory=dict)

    def ask(self, position: int, group: Group) -> None:
        """Begin to score a group."""
        prompt = group.prompt
        items = [
            Item(prompt.text, completion.text, prompt.raw, Asked(prompt.question, prompt.answer, completion.token_ids))
            for completion in group.completions
        ]
        self._begun[position] = (group, [reward.pool.submit(reward.values, items, self.is_cancelled) for reward in self.rewards])

    def settle(self) -> dict[int, list[dict[str, Value]]]:
        """For each group's position and completion, every function's value, but for functions that do not apply to it.

        Raises what `look` raises, and UserError.
        """
        pending = {future for _, futures in self._begun.values() for future in futures}
        while pending:
            self.look()
            done, pending = wait(pending, LOOK_S, FIRST_EXCEPTION)
            for future in done:
                future.result()
        by_position = {}
        for position, (group, futures) in sorted(self._begun.items()):
            given: list[dict[str, Value]] = [{} for _ in group.completions]
            for reward, future in zip(self.rewards, futures, strict=True):
                values, failures = future.result()
                self._note(reward.function.name, group.prompt.row, failures)
                failed = {failure.completion for failure in failures}
                for index, value in enumerate(values):
                    if value is not None or index in failed or not reward.is_by_name:
                        given[index][reward.function.name] = value
            by_position[position] = given
        return by_position

    def _note(self, name: str, row: int, failures: Sequence[Failure]) -> None:
        if not failures:
            return
        entry = self.missing.setdefault(name, Missing(name, 0, row, failures[0].why))
        entry.count += len(failures)
        whys = [failure.why for failure in failures if not failure.why.startswith(NOT_CALLED)]
        if whys and entry.why.startswith(NOT_CALLED):  # a call that failed says more than one that was not made
            entry.row, entry.why = row, whys[0]


class CustomRewards:
    """All reward functions of a run. Close it at the end."""

    def __init__(self, config: RewardConfig) -> None:
        self._rewards = [CustomReward(function, config) for function in parse_functions(config.functions)]
        self._closed = False
        self.missing: dict[str, Missing] = {}
        """By function, values that are missing since the last `reset`, other than by its own None."""

    @property
    def functions(self) -> tuple[RewardFunction, ...]:
        """In the order in which they were given."""
        return tuple(reward.function for reward in self._rewards)

    def leaves_out(self, function: RewardFunction) -> bool:
        """Whether its None leaves out the whole completion. To be asked once it has been called."""
        return bool(function.weight) and not any(one.is_by_name for one in self._rewards if one.function == function)

    def start(self) -> None:
        """Start the processes while others load."""
        for reward in self._rewards:
            reward.start()

    def reset(self) -> None:
        """A new step begins."""
        self.missing = {}
        for reward in self._rewards:
            reward.kills = 0

    @contextmanager
    def calls(self, look: Callable[[], None]) -> Iterator[Calls]:
        """The calls of one scoring; those that are not settled when the block ends are given up."""
        is_over = False
        try:
            yield Calls(self._rewards, look, self.missing, lambda: is_over or self._closed)
        finally:
            is_over = True

    def import_all(self, is_cancelled: Cancelled = never) -> None:
        """Wait until every function is imported. Raises UserError for one that cannot be, and NoReply once `is_cancelled()`."""
        for reward in self._rewards:
            reward.pool.submit(reward.wait_until_ready, lambda: self._closed or is_cancelled()).result()

    def values_of(
        self, prompts: Sequence[str], completions: Sequence[str], rows: Sequence[str], asked: Sequence[Asked] = ()
    ) -> Iterator[tuple[RewardFunction, list[Value], list[Failure]]]:
        """Call every function now, one after the other. Without `asked`, the prompts are the questions, which have no answers."""
        asked = asked or [Asked(prompt, "") for prompt in prompts]
        items = [*map(Item, prompts, completions, rows, asked)]
        for reward in self._rewards:
            yield (reward.function, *reward.pool.submit(reward.values, items, lambda: self._closed).result())

    def close(self) -> None:
        """End the processes and threads; what is still being scored is given up."""
        if self._closed:
            return
        self._closed = True
        for reward in self._rewards:
            reward.pool.submit(reward.kill)  # after the call that it is in, which sees that it is given up
            reward.pool.shutdown(wait=True)
