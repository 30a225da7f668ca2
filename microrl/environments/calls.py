"""The tool calls in a turn of the policy."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from microrl.types import Completion

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)


class Call(NamedTuple):
    """A tool by its name, and its arguments. `bad` says what is wrong with a call that cannot be read."""

    name: str
    arguments: dict[str, Any]
    bad: str = ""


Parse = Callable[[Completion], list[Call]]


def parser(tokenizer: Any, opening: str) -> Parse:
    """How this tokenizer's model writes its calls: as its own response template says where it has one, else as Qwen and Hermes
    do. `opening` is what the chat template writes before a turn."""
    if getattr(tokenizer, "response_template", None) is None:
        return lambda turn: list(_tagged(turn.text))

    def parsed(turn: Completion) -> list[Call]:
        try:
            message = tokenizer.parse_response(tokenizer.decode(turn.token_ids), prefix=opening)
        except Exception as error:  # what a model wrote need not be what the template expects
            return [Call("", {}, f"the call cannot be read: {error}")]
        return [_call(one.get("function", one)) for one in message.get("tool_calls") or ()]

    return parsed


def _tagged(text: str) -> Iterator[Call]:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as often as the text has it."""
    for match in _CALL.finditer(text):
        try:
            yield _call(json.loads(match[1]))
        except (ValueError, RecursionError):
            yield Call("", {}, "the call is no JSON")


def _call(value: Any) -> Call:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return Call("", {}, 'the call has no "name"')
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        return Call(value["name"], {}, 'the call\'s "arguments" are no object')
    return Call(value["name"], arguments)
