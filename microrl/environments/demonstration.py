"""Whole conversations with tools as examples to fine-tune on: what the model is to write, and what it only reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from microrl.answers import THINK
from microrl.data.prompts import template_options
from microrl.data.tokens import plain_ids
from microrl.environments.conversation import Kind
from microrl.environments.template import Message
from microrl.types import Completion, SftExample

NO_CALL = "with a tool call that is unknown, or that the chat template cannot express"


class Unusable(Exception):
    """Why a conversation cannot be an example, as the end of a sentence."""


class Demonstrations:
    """Makes examples of conversations for an environment that uses the model's template (`Kind.use_template`).

    Turns are written as the chat template writes them, or where it leaves out the calls, as Qwen and Hermes do; and the tools'
    answers as in an episode. So an example has the tokens that an episode with the same turns would have.
    """

    def __init__(self, environment: Kind, tokenizer: Any, thinking: bool | None) -> None:
        self._environment, self._tokenizer = environment, tokenizer
        self._options = template_options(tokenizer, thinking) | {"tools": list(environment.interface.tools)}
        self._end = tokenizer.decode([environment.continuation.end_id])

    def example(self, example: SftExample, messages: Sequence[Message]) -> SftExample | str:
        """The example with these turns as its completion: the model's, and the tools' answers, on which nothing is trained.

        Or why there is none, as the end of a sentence: a conversation has another form, or calls that would not be read back as
        what they are.
        """
        try:
            return self._example(example, messages)
        except Unusable as error:
            return str(error)

    def _example(self, example: SftExample, messages: Sequence[Message]) -> SftExample:
        opened = example.prompt.text.rstrip().endswith(THINK)
        ids: list[int] = []
        drawn: list[bool] = []
        for said, answers in _turns(messages):
            text = self._text(said)
            turn = plain_ids(text.removeprefix(THINK).lstrip("\n") if opened else text, self._tokenizer)
            turn.append(self._environment.continuation.end_id)
            heard = self._environment.continuation.ids(answers) if answers else []
            ids += turn + heard
            drawn += [True] * len(turn) + [False] * len(heard)
        return SftExample(example.prompt, tuple(ids), None if all(drawn) else tuple(drawn))

    def _text(self, message: Message) -> str:
        calls = [_function(call) for call in message.get("tool_calls") or ()]
        content = message.get("content") or ""
        if not isinstance(content, str):
            raise Unusable("with a turn whose content is not a string")
        if not calls:
            return content
        known = {tool["function"]["name"] for tool in self._environment.interface.tools}
        if not {call["name"] for call in calls} <= known:
            raise Unusable(NO_CALL)
        written = "".join(f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>\n" for call in calls).rstrip()
        for text in (self._rendered(content, calls), f"{content}\n{written}".lstrip()):
            if text is not None and self._parsed(text) == calls:
                return text
        raise Unusable(NO_CALL)

    def _rendered(self, content: str, calls: Sequence[dict[str, Any]]) -> str | None:
        """The turn as the chat template writes it; None where it does not begin as a prompt does."""
        asked = {"role": "user", "content": "What?"}
        said = {"role": "assistant", "content": content, "tool_calls": [{"type": "function", "function": call} for call in calls]}
        try:
            prompt = self._tokenizer.apply_chat_template([asked], tokenize=False, add_generation_prompt=True, **self._options)
            whole = self._tokenizer.apply_chat_template([asked, said], tokenize=False, **self._options)
        except Exception:  # templates raise what they like
            return None
        return whole.removeprefix(prompt).partition(self._end)[0] if whole.startswith(prompt) else None

    def _parsed(self, text: str) -> list[dict[str, Any]]:
        ids = (*plain_ids(text, self._tokenizer), self._environment.continuation.end_id)
        calls = self._environment.parse(Completion(ids, (0.0,) * len(ids), "stop", 0, text))
        return [{"name": call.name, "arguments": call.arguments} for call in calls if not call.bad]


def _turns(messages: Sequence[Message]) -> Iterator[tuple[Message, list[tuple[str, str]]]]:
    """Each turn of the model with the answers (tool, text) to it. Raises Unusable."""
    turns: list[tuple[Message, list[tuple[str, str]]]] = []
    for message in messages:
        if message.get("role") == "assistant" and (not turns or turns[-1][1]):
            turns.append((message, []))
        elif message.get("role") == "tool" and turns and (calls := turns[-1][0].get("tool_calls")):
            answers = turns[-1][1]
            if len(answers) == len(calls):
                raise Unusable("with more tool messages than tool calls")
            name = message.get("name") or _function(calls[len(answers)])["name"]
            answers.append((str(name), str(message.get("content") or "")))
        else:
            raise Unusable("with a conversation that is not a question, turns of the model and answers of tools")
    if not turns or turns[-1][1] or turns[-1][0].get("tool_calls"):
        raise Unusable("with a conversation that does not end with the model's answer")
    if any(len(answers) != len(said.get("tool_calls") or ()) for said, answers in turns):
        raise Unusable("with a tool call that has no tool message")
    return iter(turns)


def _function(call: Any) -> dict[str, Any]:
    """A call's name and arguments. Raises Unusable."""
    function = call.get("function", call) if isinstance(call, dict) else {}
    arguments = function.get("arguments") or {}
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else _given(arguments)
    except ValueError:
        raise Unusable(NO_CALL) from None
    if not isinstance(function.get("name"), str) or not isinstance(arguments, dict):
        raise Unusable(NO_CALL)
    return {"name": function["name"], "arguments": arguments}


def _given(arguments: Any) -> Any:
    """Without nulls: a columnar file gives each call the arguments of all calls."""
    return {name: value for name, value in arguments.items() if value is not None} if isinstance(arguments, dict) else arguments
