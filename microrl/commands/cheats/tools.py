"""What a model could gain from an environment without solving anything: its tools are called, as no model would need to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

from microrl.config.environment import EnvironmentConfig
from microrl.data.load import Question
from microrl.environments.process import Instance, Instances
from microrl.errors import UserError
from microrl.sandbox.worker import NoReply

SIMPLEST: dict[str, Any] = {"integer": 0, "number": 0.0, "string": "", "boolean": False, "array": [], "object": {}}
READS, PAYS, FAILS = "answer leaks", "unearned reward", "reward fails"
EXCERPT = 500


class Hole(NamedTuple):
    """Something that a model could use, or that would cost a run. `what`: one of READS, PAYS and FAILS; `where`: a method."""

    what: str
    where: str
    row: int
    details: str


def try_tools(env: EnvironmentConfig, asked: Sequence[tuple[Question, str | None]]) -> tuple[int, list[Hole]]:
    """(calls, what they found) for questions with their right answers, None where the data has none.

    Every tool is called once for each question, with the simplest arguments that its schema allows, in an instance of its own.
    An answer counts as read where it is in what the environment says of its question, and not in what it says of another one,
    so that a calculator's 0 is no leak. Raises UserError for a class that cannot be used.
    """
    with closing(Instances(env)) as instances:
        described, ask = instances.describe(), partial(_ask, instances, env.deadline_s)
        tools = {tool["function"]["name"]: simplest(tool["function"].get("parameters", {})) for tool in described.tools}
        holes: list[Hole] = []
        replies_by_question: list[dict[str, str]] = []
        for question, _ in asked:
            replies: dict[str, str] = {}
            for name, arguments in tools.items():
                begun, reply = ask(question, {"call": name, "arguments": arguments})
                if "error" in begun:
                    raise UserError(
                        f"row {question.row}: `reset` of the environment `{env.target}` fails: {begun['error']}",
                        "write `def reset(self, **row)`: it gets each column of the row; if it is slow, --set env.deadline_s=60",
                    )
                replies |= {"reset": begun.get("said") or "", name: str(reply.get("answer", reply.get("error", "")))}
            replies_by_question.append(replies)
            holes += _unearned(ask, question) if described.rewards else ()
        return len(tools) * len(asked), [*holes, *_leaks(asked, replies_by_question)]


def simplest(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The simplest arguments that a JSON schema allows: the required ones, as 0, empty or false, or the first of a choice."""
    properties = parameters.get("properties", {})
    return {name: _value(properties.get(name, {})) for name in parameters.get("required", ())}


def _value(schema: Mapping[str, Any]) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "string")
    return SIMPLEST.get(kind[0] if isinstance(kind, list) else kind, "")


def _ask(
    instances: Instances, deadline_s: float, question: Question, request: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a new instance replies to `reset` with the question's row, and then to the request."""
    instance: Instance | None = None
    replies: list[dict[str, Any]] = []
    try:
        instance = instances.begin()
        for one in ({"reset": json.loads(question.raw)}, request):
            replies.append(instance.ask(one, deadline_s))
    except NoReply as error:
        replies.append({"error": error.why or f"it took longer than {deadline_s:g} s"})
    finally:
        if instance is not None:
            instance.end()
    return replies[0], replies[-1]


def _unearned(ask: Callable[..., tuple[Any, dict[str, Any]]], question: Question) -> Iterator[Hole]:
    _, reply = ask(question, {"reward": True})
    if "error" in reply:
        yield Hole(FAILS, "get_reward", question.row, f"it fails without any tool call: {reply['error']}")
    elif reply["reward"] > 0:
        yield Hole(PAYS, "get_reward", question.row, f"it gives {reply['reward']:g} without any tool call or answer")


def _leaks(asked: Sequence[tuple[Question, str | None]], replies_by_question: Sequence[Mapping[str, str]]) -> Iterator[Hole]:
    for number, (question, gold) in enumerate(asked):
        if gold is None or not gold.strip():
            continue
        other = replies_by_question[number - 1] if len(replies_by_question) > 1 else {}
        is_there = re.compile(rf"(?<![\w.]){re.escape(gold.strip())}(?![\w])").search
        for where, text in replies_by_question[number].items():
            if is_there(text) and not is_there(other.get(where, "")):
                yield Hole(READS, where, question.row, f"it says {gold.strip()[:60]!r}, the right answer: {text[:EXCERPT]}")
