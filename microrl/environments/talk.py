"""Episodes with an environment: the policy's calls go to an instance of its class, whose answers become tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import Any

from microrl.clock import now_s
from microrl.config.data import DataConfig
from microrl.config.environment import EnvironmentConfig
from microrl.data.prompts import Tools, render
from microrl.environments.calls import Call, parser
from microrl.environments.process import Described, Instance, Instances
from microrl.environments.template import Continuation
from microrl.errors import UserError
from microrl.sandbox.worker import NoReply
from microrl.types import Completion, Episode, Prompt


class Environment:
    """A run's environment: its class, and the instances of the episodes that are going on. Close it at the end."""

    def __init__(self, config: EnvironmentConfig) -> None:
        self._config = config
        self._instances = Instances(config)
        self.deadline_s = config.deadline_s
        self._open: set[Instance] = set()
        self._lock = Lock()
        self._given_up = 0

    @cached_property
    def described(self) -> Described:
        """What its class offers; asking for it first takes seconds. Raises UserError for a class that cannot be used."""
        return self._instances.describe()

    @property
    def tools(self) -> Tools:
        """The JSON schemas of its tools. Raises as `described` does."""
        return self.described.tools

    def speak(self, tokenizer: Any, data: DataConfig, stops: Collection[int] | None = None) -> None:
        """Take over the words of a model's chat template. `stops` as for `Continuation`. Raises UserError for a template that
        cannot continue a conversation."""
        self.tokenizer = tokenizer
        self.continuation = Continuation(tokenizer, self.described.tools, data.thinking, stops)
        self.parse = parser(tokenizer, self.continuation.opening, self.continuation.call, self.described.tools)
        self._data = data

    def begin(self, prompt: Prompt) -> Conversation:
        """See `Talks.begin`. Raises UserError where `reset` fails."""
        given_up = self._given_up

        def gone() -> bool:
            return self._given_up != given_up

        try:
            instance = self._instances.begin()
            with self._lock:
                self._open.add(instance)
            reply = instance.ask({"reset": json.loads(prompt.raw)}, self._config.deadline_s, gone)
        except NoReply as error:
            reply = {"error": error.why or f"it took longer than {self._config.deadline_s:g} s (env.deadline_s)"}
        if "error" in reply:
            raise UserError(
                f"row {prompt.row}: `reset` of the environment `{self._config.target}` fails: {reply['error']}",
                "it gets the columns of the row as keyword arguments",
            )
        return Conversation(self, instance, self._with(reply["said"], prompt), gone)

    def _with(self, said: str | None, prompt: Prompt) -> Prompt:
        """The prompt with what `reset` has said behind its question, where it has said something."""
        if said is None:
            return prompt
        rendered = render(
            prompt.question + said, prompt.answer, self.tokenizer, self._data.system, self._data.system_role,
            thinking=self._data.thinking, tools=self.described.tools,
        )  # fmt: skip
        if len(rendered.token_ids) > self._data.max_prompt_tokens:
            raise UserError(
                f"row {prompt.row}: with what `reset` says, the prompt has {len(rendered.token_ids)} tokens; the limit is "
                f"{self._data.max_prompt_tokens}",
                f"--set data.max_prompt_tokens={len(rendered.token_ids)}",
            )
        return replace(prompt, text=rendered.text, token_ids=rendered.token_ids)

    def give_up(self) -> None:
        """See `Talks.give_up`."""
        self._given_up += 1

    def end(self) -> None:
        """See `Talks.end`."""
        for instance in [*self._open]:
            self.closed(instance)

    def closed(self, instance: Instance) -> None:
        """An instance is needed no more."""
        with self._lock:
            self._open.discard(instance)
        instance.end()

    def close(self) -> None:
        """End the processes."""
        self.give_up()
        self.end()
        self._instances.close()


class Conversation:
    """See `Talk`. `gone()`: nobody waits any more."""

    def __init__(self, environment: Environment, instance: Instance, prompt: Prompt, gone: Callable[[], bool]) -> None:
        self.prompt = prompt
        self._environment, self._instance, self._gone = environment, instance, gone
        self._is_alive = True
        self._turns = self._calls = self._failures = 0

    def reply(self, turn: Completion, room: int) -> Sequence[int] | None:
        """See `Talk.reply`. All the calls of a turn have one deadline; at it, the instance is killed and the episode ends."""
        environment = self._environment
        self._turns += 1
        # Only where a turn ends as the template ends it, what follows can be written behind it.
        calls = environment.parse(turn) if turn.token_ids[-1] == environment.continuation.end_id else []
        until, answers, is_over = now_s() + environment.deadline_s, [], False
        for call in calls[: room + 1]:  # each answer has a token at least
            self._calls += 1
            answer = self._answer(call, until)
            self._failures += "error" in answer
            is_over |= answer.get("done", False)
            answers.append((call.name, json.dumps(answer) if "error" in answer else answer["answer"]))
        return environment.continuation.ids(answers) if answers and self._is_alive and not is_over else None

    def _answer(self, call: Call, until: float) -> dict[str, Any]:
        """`{"answer": text, "done": bool}`, or `{"error": why}`."""
        if call.bad:
            return {"error": call.bad}
        known = [tool["function"]["name"] for tool in self._environment.described.tools]
        if call.name not in known:
            return {"error": f"there is no tool `{call.name}`, but {', '.join(known)}"}
        return self._asked({"call": call.name, "arguments": call.arguments}, until)

    def _asked(self, request: dict[str, Any], until: float) -> dict[str, Any]:
        if not self._is_alive:
            return {"error": "the environment has ended"}
        try:
            return self._instance.ask(request, until - now_s(), self._gone)
        except NoReply as error:
            self._is_alive = False
            return {"error": error.why or f"it took longer than {self._environment.deadline_s:g} s"}

    def ended(self) -> Episode:
        """See `Talk.ended`."""
        reward: float | None = 0.0
        if self._environment.described.rewards:
            reward = self._asked({"reward": True}, now_s() + self._environment.deadline_s).get("reward")
        self._environment.closed(self._instance)
        return Episode(self._turns, self._calls, self._failures, reward)

    def text(self, token_ids: Sequence[int]) -> str:
        """See `Talk.text`."""
        return str(self._environment.tokenizer.decode(token_ids))
