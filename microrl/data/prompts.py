"""Render questions as prompts with the model's chat template, within the length limit."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from microrl.config.schema import DataConfig
from microrl.data.load import Question
from microrl.data.tokens import Masked
from microrl.errors import UserError, first_line
from microrl.types import Prompt

Role = Literal["system", "user"]
"""Whose message the text of `data.system` stands in."""
Tools = Sequence[dict[str, Any]]
"""JSON schemas of the tools that a model is told of."""
ToolsOf = Callable[[Question], Tools]
"""Those of a question: of several environments, each row has its own."""
SWITCH = "enable_thinking"
"""The variable by which chat templates turn a model's thinking on or off: Qwen3, Qwen3.5, SmolLM3, Gemma 4."""
DATE = datetime.date(2024, 7, 26)
"""Written by chat templates that ask for today's: a run that is resumed tomorrow has the same prompts. Llama 3's template has
this date where it is told none."""
_TODAY = re.compile(r"""strftime_now\((["'])(.*?)\1\)""")


def no_tools(question: Question) -> Tools:
    """Of a run without an environment."""
    return ()


def messages(question: str, system: str | None, role: Role = "system") -> list[dict[str, str]]:
    """The chat for a question: an optional system message, and the user's message. With the role `user`, the system message's
    text stands before the question in the user's."""
    if not system:
        return [{"role": "user", "content": question}]
    if role == "user":
        return [{"role": "user", "content": f"{system}\n\n{question}"}]
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


def to_prompt(question: Question) -> Prompt:
    """A question without chat template and tokens, for what needs no model."""
    return Prompt(question.text, question.answer, question.text, (), question.row, question.raw, question.cluster)


def template_options(tokenizer: Any, thinking: bool | None) -> dict[str, Any]:
    """What is passed to the chat template: `data.thinking`; and where the template writes today's date (SmolLM3, Llama 3), the
    same template with a date that stays. Raises UserError if the template would not read `data.thinking`."""
    options: dict[str, Any] = {}
    if isinstance(tokenizer.chat_template, str) and _TODAY.search(tokenizer.chat_template):
        options["chat_template"] = _TODAY.sub(lambda call: json.dumps(DATE.strftime(call[2])), tokenizer.chat_template)
    if thinking is None:
        return options
    if tokenizer.chat_template is None or SWITCH not in tokenizer.get_chat_template():
        raise UserError(
            f"data.thinking={str(thinking).lower()} has no effect: the model's chat template does not read {SWITCH}",
            "remove it: --set data.thinking=none",
        )
    return {**options, SWITCH: thinking}


def render(
    question: str,
    answer: str,
    tokenizer: Any,
    system: str | None,
    role: Role = "system",
    *,
    thinking: bool | None = None,
    tools: Tools = (),
) -> Prompt:
    """One prompt through the tokenizer's own chat template, generation prompt included. `role` as for `messages`, `thinking` as
    for `template_options`.

    Only the template writes special tokens; those in the question or the system message become plain text. Raises UserError
    if the tokenizer cannot do that, or the template fails or has no such switch.
    """
    options = template_options(tokenizer, thinking) | ({"tools": list(tools)} if tools else {})
    masked = Masked(tokenizer, question, system or "")
    asked, instruction = masked.mask(question), masked.mask(system) if system else None
    chat = messages(asked, instruction, role)
    if tokenizer.chat_template is None:
        text = "\n\n".join(message["content"] for message in chat) + "\n\n"
    else:
        try:
            text = _templated(tokenizer, chat, options)
        except UserError:
            if not system or role == "user":
                raise
            # Some templates (early Gemma) refuse a system message.
            text = _templated(tokenizer, messages(asked, instruction, "user"), options)
    # The template has already written the special tokens.
    ids = masked.ids(text, add_special_tokens=tokenizer.chat_template is None)
    return Prompt(question, answer, masked.unmask(text), tuple(ids))


def _templated(tokenizer: Any, chat: list[dict[str, str]], options: dict[str, Any]) -> str:
    try:
        return str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **options))
    except Exception as error:  # templates raise what they like
        raise UserError(
            f"the chat template fails: {first_line(error)}", "fix the chat template, or choose a model with another one"
        ) from error


def render_all(
    questions: Sequence[Question],
    tokenizer: Any,
    config: DataConfig,
    progress: Callable[[Iterable], Iterable] = iter,
    tools: ToolsOf = no_tools,
) -> list[Prompt]:
    """Render every question; a prompt over data.max_prompt_tokens is an error, dropped, or truncated on the left.

    Raises UserError.
    """
    template_options(tokenizer, config.thinking)  # otherwise the first row would be blamed
    prompts = []
    limit = config.max_prompt_tokens
    for question in progress(questions):
        try:
            text, answer = question.text, question.answer
            offered = tools(question)
            prompt = render(text, answer, tokenizer, config.system, config.system_role, thinking=config.thinking, tools=offered)
        except UserError as error:
            raise UserError(f"{config.name}, row {question.row}: {error.message}", error.hint) from None
        if len(prompt.token_ids) > limit:
            if config.long_prompts == "error":
                raise UserError(
                    f"{config.name}, row {question.row}: the prompt has {len(prompt.token_ids)} tokens; the limit is {limit}",
                    f"--set data.max_prompt_tokens={len(prompt.token_ids)} or --set data.long_prompts=drop (or truncate_left)",
                )
            if config.long_prompts == "drop":
                continue
            kept = prompt.token_ids[-limit:]
            prompt = Prompt(prompt.question, prompt.answer, tokenizer.decode(kept), kept)
        prompts.append(replace(prompt, row=question.row, raw=question.raw, cluster=question.cluster))
    return prompts


def none_fits(config: DataConfig) -> UserError:
    """The error if every prompt is too long."""
    return UserError(
        f"no prompt of {config.name} fits in {config.max_prompt_tokens} tokens",
        f"--set data.max_prompt_tokens=N with N above {config.max_prompt_tokens}, or --set data.long_prompts=truncate_left",
    )
