"""Try the reward functions before a model is loaded: on a few rows of the data, with completions that are made up."""

from __future__ import annotations

from collections.abc import Sequence

from microrl.errors import UserError
from microrl.rewards.custom.functions import Asked, CustomRewards
from microrl.types import Prompt

ROWS = 4
"""Rows of the data that are tried, spread over it."""


def made_up(answer: str) -> list[str]:
    """A right completion, one without an answer, and an empty one, as models write them."""
    return [
        f"<think>This completion is made up.</think> The answer is \\boxed{{{answer}}}.",
        "<think>This completion is made up.</think> I do not know.",
        "",
    ]


def spread(prompts: Sequence[Prompt], count: int = ROWS) -> list[Prompt]:
    """At most `count` of them, the first and the last among them."""
    if len(prompts) <= count:
        return list(prompts)
    return [prompts[number * (len(prompts) - 1) // (count - 1)] for number in range(count)]


def probe(rewards: CustomRewards, prompts: Sequence[Prompt], data: str) -> list[str]:
    """Call every function for a few prompts. Returns a warning about each that gave None every time.

    `data` is what the data set is called. Raises UserError for a function that cannot be imported, raises an exception, takes
    longer than its deadline, or gives anything but a finite number or None for each completion; it names the data's row.
    """
    rewards.import_all()
    silent = dict.fromkeys(rewards.functions)
    for prompt in spread(prompts):
        completions = made_up(prompt.answer)
        count = len(completions)
        for function, values, failures in rewards.values_of(
            [prompt.text] * count, completions, [prompt.raw] * count, [Asked(prompt.question, prompt.answer)] * count
        ):
            for failure in failures:
                raise UserError(
                    f"{data}, row {prompt.row}: the reward `{function.target}` gives no value for the completion "
                    f"{completions[failure.completion][:100]!r}: {failure.why}",
                    "it gets (prompts, completions, rows), or TRL's arguments by name, and returns a list with a finite number "
                    "or None for each completion; "
                    "a slow one needs a longer reward.function_deadline_s",
                )
            if any(value is not None for value in values):
                silent.pop(function, None)
    rewards.reset()
    return [
        f"the reward `{function.name}` gave None for every completion that it was tried on, which leaves "
        + ("them out of the update" if rewards.leaves_out(function) else "its own part out, and nothing else")
        for function in silent
    ]
