"""Episodes with an environment: the policy's calls go to an instance of its class, whose answers become tokens."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from microrl.clock import now_s
from microrl.config.data import DataConfig
from microrl.config.environment import RUNS_CODE, EnvironmentConfig
from microrl.data.load import Question
from microrl.data.prompts import Tools, render
from microrl.environments.calls import Call, parser
from microrl.environments.forks import LONGEST_ANSWER
from microrl.environments.process import Instance, Instances, Interface
from microrl.environments.template import Continuation
from microrl.errors import UserError
from microrl.rewards.custom.host import LARGEST
from microrl.sandbox.worker import NO_ANSWER, Cancelled, NoReply
from microrl.types import Completion, Episode, Prompt

LONGEST_ERROR = 1000
"""Characters."""


class Environment:
    """A run's environments, of which it has one or several: each row has its own. Close it at the end."""

    def __init__(self, config: EnvironmentConfig) -> None:
        self._config = config
        self.kinds = {name: Kind(one) for name, one in config.each.items()}
        self._given_up = 0

    @property
    def only(self) -> Kind:
        """The environment of a run that has one."""
        (kind,) = self.kinds.values()
        return kind

    def start(self) -> None:
        """Start the classes, which takes seconds. Raises UserError for one that cannot be used."""
        for kind in self.kinds.values():
            _ = kind.interface

    @property
    def paying(self) -> list[str]:
        """The names of those that give a reward of their own."""
        return [name for name, kind in self.kinds.items() if kind.interface.rewards]

    def tools(self, question: Question) -> Tools:
        """The JSON schemas of its tools. Raises UserError for one that names no environment, where there are several."""
        return self.kinds[self._config.name_for(question.row, question.raw)].interface.tools

    def use_template(self, tokenizer: Any, data: DataConfig, stops: Collection[int] | None = None) -> None:
        """Take over the words of a model's chat template. `stops` as for `Continuation`. Raises UserError for a template that
        cannot continue a conversation."""
        for kind in self.kinds.values():
            kind.use_template(tokenizer, data, stops)

    def begin(self, prompt: Prompt) -> Conversation:
        """See `EpisodeEnvironment.begin`. Raises UserError where `reset` fails."""
        given_up = self._given_up
        return self.kinds[self._config.name_for(prompt.row, prompt.raw)].begin(prompt, lambda: self._given_up != given_up)

    def give_up(self) -> None:
        """See `EpisodeEnvironment.give_up`."""
        self._given_up += 1

    def end(self) -> None:
        """See `EpisodeEnvironment.end`."""
        for kind in self.kinds.values():
            for instance in [*kind.instances.open]:
                instance.end()

    def close(self) -> None:
        """End the processes."""
        self.give_up()
        self.end()
        for kind in self.kinds.values():
            kind.instances.close()


class Kind:
    """One class, and its words in the model's chat template."""

    def __init__(self, config: EnvironmentConfig) -> None:
        self._config = config
        self.instances = Instances(config)
        self.deadline_s = config.deadline_s

    @cached_property
    def interface(self) -> Interface:
        """What its class offers; asking for it first takes seconds. Raises UserError for a class that cannot be used."""
        return self.instances.describe()

    def use_template(self, tokenizer: Any, data: DataConfig, stops: Collection[int] | None = None) -> None:
        """See `Environment.use_template`."""
        self.tokenizer = tokenizer
        self.continuation = Continuation(tokenizer, self.interface.tools, data.thinking, stops)
        self.parse = parser(tokenizer, self.continuation.opening, self.continuation.call, self.interface.tools)
        self._data = data

    def begin(self, prompt: Prompt, is_cancelled: Cancelled) -> Conversation:
        """See `Environment.begin`."""
        try:
            instance = self.instances.begin()
            # What runs a model's code could find the right answer in its own memory.
            row = {} if self._config.target in RUNS_CODE else json.loads(prompt.raw)
            reply = instance.ask({"reset": row}, self._config.deadline_s, is_cancelled)
        except NoReply as error:
            reply = {"error": error.why or f"it took longer than {self._config.deadline_s:g} s (env.deadline_s)"}
        if "error" in reply:
            raise UserError(
                f"row {prompt.row}: `reset` of the environment `{self._config.target}` fails: {reply['error']}",
                "write `def reset(self, **row)`: it gets each column of the row; if it is slow, --set env.deadline_s=60",
            )
        return Conversation(self, instance, self._with(reply["said"], prompt), is_cancelled)

    def _with(self, said: str | None, prompt: Prompt) -> Prompt:
        """The prompt with what `reset` has said behind its question, where it has said something."""
        if said is None:
            return prompt
        rendered = render(
            prompt.question + said, prompt.answer, self.tokenizer, self._data.system, self._data.system_role,
            thinking=self._data.thinking, tools=self.interface.tools,
        )  # fmt: skip
        if len(rendered.token_ids) > self._data.max_prompt_tokens:
            raise UserError(
                f"row {prompt.row}: with what `reset` says, the prompt has {len(rendered.token_ids)} tokens; the limit is "
                f"{self._data.max_prompt_tokens}",
                f"--set data.max_prompt_tokens={len(rendered.token_ids)}",
            )
        return replace(prompt, text=rendered.text, token_ids=rendered.token_ids)


class Conversation:
    """See `EpisodeConversation`. `is_cancelled()`: nobody waits any more."""

    def __init__(self, environment: Kind, instance: Instance, prompt: Prompt, is_cancelled: Cancelled) -> None:
        self.prompt = prompt
        self._environment, self._instance, self._is_cancelled = environment, instance, is_cancelled
        self._died: str | None = None
        self._turns = self._calls = self._failures = 0

    def reply(self, turn: Completion, room: int) -> Sequence[int] | None:
        """See `EpisodeConversation.reply`. All the calls of a turn have one deadline. At it, the instance is killed and the
        episode ends."""
        environment = self._environment
        self._turns += 1
        # Only where a turn ends as the template ends it, what follows can be written behind it.
        calls = environment.parse(turn) if turn.token_ids[-1] == environment.continuation.end_id else []
        until, answers = now_s() + environment.deadline_s, []
        for call in calls[: room + 1]:  # each answer has a token at least
            self._calls += 1
            answer = self._answer(call, until)
            self._failures += "error" in answer
            if answer.get("done", False):  # what is called after the end of the episode is not carried out
                return None
            answers.append((call.name, json.dumps(answer) if "error" in answer else answer["answer"]))
        return environment.continuation.ids(answers) if answers and self._died is None else None

    def _answer(self, call: Call, until: float) -> dict[str, Any]:
        """`{"answer": text, "done": bool}`, or `{"error": why}`."""
        if call.bad:
            return {"error": call.bad}
        known = [tool["function"]["name"] for tool in self._environment.interface.tools]
        if call.name not in known:
            return {"error": f"there is no tool `{call.name}`; the tools are: {', '.join(known)}"}
        reply = self._asked({"call": call.name, "arguments": call.arguments}, until)
        if isinstance(answer := reply.get("answer"), str):
            return {"answer": answer[:LONGEST_ANSWER], "done": reply.get("done") is True}
        return {"error": str(reply.get("error", NO_ANSWER))[:LONGEST_ERROR]}

    def _asked(self, request: dict[str, Any], until: float) -> dict[str, Any]:
        """What the process sends, which what a model wrote may have written."""
        if self._died is not None:
            return {"error": "the environment has ended"}
        try:
            return self._instance.ask(request, until - now_s(), self._is_cancelled)
        except RecursionError:  # of arguments that could just be read; nothing has been sent
            return {"error": "the call is nested too deeply"}
        except NoReply as error:
            self._died = error.why or f"it took longer than {self._environment.deadline_s:g} s (env.deadline_s)"
            return {"error": self._died}

    def ended(self) -> Episode:
        """See `EpisodeConversation.ended`."""
        reward: float | None = 0.0
        if self._environment.interface.rewards:
            given = self._asked({"reward": True}, now_s() + self._environment.deadline_s).get("reward")
            reward = given if isinstance(given, float) and abs(given) <= LARGEST else None
        self._instance.end()
        return Episode(self._turns, self._calls, self._failures, reward, self._died)

    def text(self, token_ids: Sequence[int]) -> str:
        """See `EpisodeConversation.text`."""
        return str(self._environment.tokenizer.decode(token_ids))
