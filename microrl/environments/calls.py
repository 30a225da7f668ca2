"""The tool calls in a turn of the policy."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from microrl.errors import UserError
from microrl.types import Completion

TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
LISTED = re.compile(r"<\|tool_call_start\|>(.*?)(?:<\|tool_call_end\|>|$)", re.DOTALL)
BARE = re.compile(r"(?:<\|python_tag\|>)?\s*(?=\{)")
"""At the beginning of a turn, all of which is calls then."""
_FUNCTION = re.compile(r"\s*<function=([^>]*)>(.*?)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>]*)>\n?(.*?)\n?</parameter>", re.DOTALL)
NO_JSON = "the call is not valid JSON"
_TRIED = {"count": 3, "text": "so"}


class Call(NamedTuple):
    """A tool by its name, and its arguments. `bad` says what is wrong with a call that cannot be read."""

    name: str
    arguments: dict[str, Any]
    bad: str = ""


Parse = Callable[[Completion], list[Call]]
Schemas = Sequence[Mapping[str, Any]]
Reader = Callable[[str, Schemas], Iterator[Call]]
"""From a turn, special tokens included, to its calls. The JSON schemas of the tools say what is a text."""


def parser(tokenizer: Any, opening: str, written: Callable[[str, dict[str, Any]], str], tools: Schemas) -> Parse:
    """How this tokenizer's model writes its calls: as its own response template says where it has one, else as its chat template
    writes them; where that writes none, as Qwen and Hermes do.

    `opening`: what the chat template writes before a turn. `written(tool, arguments)`: a turn with this call, as the chat
    template writes it; empty where it leaves calls out. Raises UserError for one that writes them in an unknown way.
    """
    if getattr(tokenizer, "response_template", None) is None:
        reader = _reader(written, tools)
        return lambda turn: list(reader(tokenizer.decode(turn.token_ids), tools))

    def parsed(turn: Completion) -> list[Call]:
        try:
            message = tokenizer.parse_response(tokenizer.decode(turn.token_ids), prefix=opening)
        except Exception as error:  # what a model wrote need not be what the template expects
            return [Call("", {}, f"the call cannot be read: {error}")]
        return [_call(one.get("function", one)) for one in message.get("tool_calls") or ()]

    return parsed


def _reader(written: Callable[[str, dict[str, Any]], str], tools: Schemas) -> Reader:
    name = tools[0]["function"]["name"]
    text = written(name, _TRIED)
    if not text:
        return _tagged
    for reader in (_tagged, _bare, _listed):
        if [*reader(text, ())] == [Call(name, _TRIED)]:
            return reader
    raise UserError(
        f"--env does not work with this model's chat template: it writes a tool call as {text!r}, which microrl cannot read",
        "set the tokenizer's `response_template`, by which transformers reads calls, or use another model, such as Qwen3",
    )


def _tagged(text: str, tools: Schemas) -> Iterator[Call]:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen2.5, Qwen3, SmolLM3), or with
    `<function=NAME><parameter=KEY>VALUE</parameter></function>` inside (Qwen3-Coder, Qwen3.5, Nemotron 3); as often as the text
    has it."""
    for match in TAGGED.finditer(text):
        if (function := _FUNCTION.fullmatch(match[1])) is not None:
            yield Call(function[1], _typed(function[1], dict(_PARAMETER.findall(function[2])), tools))
        else:
            yield _json(match[1])


def _typed(name: str, texts: Mapping[str, str], tools: Schemas) -> dict[str, Any]:
    """Arguments that were written without quotes: JSON, unless the tool expects a text or they are none."""
    functions = [tool["function"] for tool in tools if tool["function"]["name"] == name]
    kinds = functions[0].get("parameters", {}).get("properties", {}) if functions else {}
    values: dict[str, Any] = {}
    for key, text in texts.items():
        try:
            values[key] = text if kinds.get(key, {}).get("type") == "string" else json.loads(text)
        except (ValueError, RecursionError):
            values[key] = text
    return values


def _bare(text: str, tools: Schemas) -> Iterator[Call]:
    """A turn that is `{"name": ..., "parameters": {...}}`, or several of them with semicolons between (Llama 3.1 and later)."""
    start = BARE.match(text)
    if start is None:
        return
    place, decoder = start.end(), json.JSONDecoder()
    while place < len(text) and text[place] == "{":
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            yield Call("", {}, NO_JSON)
            return
        yield _call(value, "parameters")
        while place < len(text) and text[place] in "; \n":
            place += 1


def _listed(text: str, tools: Schemas) -> Iterator[Call]:
    """`<|tool_call_start|>[NAME(KEY=VALUE, ...), ...]<|tool_call_end|>`, as Python writes them (LFM2)."""
    for match in LISTED.finditer(text):
        try:
            calls = ast.parse(match[1].strip(), mode="eval").body
            for one in calls.elts if isinstance(calls, ast.List) else [calls]:
                if not isinstance(one, ast.Call) or one.args:
                    raise ValueError("no call with named arguments")
                arguments = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in one.keywords}
                yield Call(ast.unparse(one.func), json.loads(json.dumps(arguments)))
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            yield Call("", {}, "the call cannot be read: expected [tool(argument=value)]")


def _json(text: str) -> Call:
    try:
        return _call(json.loads(text))
    except (ValueError, RecursionError):
        return Call("", {}, NO_JSON)


def _call(value: Any, key: str = "arguments") -> Call:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return Call("", {}, 'the call has no "name"')
    arguments = value.get(key, {})
    if not isinstance(arguments, dict):
        return Call(value["name"], {}, f'"{key}" must be a JSON object, for example {{"a": 1}}')
    return Call(value["name"], arguments)
