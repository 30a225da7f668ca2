"""What the quickstarts' models are shown before reinforcement learning: sums, each solved in a good way or in a lazy one.

Both ways are right in what is shown. Sampled, the model is lazy about two times in three, and then mostly wrong: what GRPO has
to find out is that the other way pays.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from transformers import PreTrainedTokenizerFast

from microrl.config import resolve
from microrl.config.environment import EnvironmentConfig
from microrl.data import arithmetic
from microrl.data.prompts import render
from microrl.data.sft_examples import sft_example
from microrl.data.tokens import plain_ids
from microrl.environments.conversation import Environment
from microrl.models import tiny
from microrl.types import Prompt, SftExample


class Working:
    """The quickstart's: a sum is worked out digit by digit, or guessed."""

    max_tokens: ClassVar[int] = 32
    validation: ClassVar[int] = 512
    """Questions on which the pretraining is checked."""
    words: ClassVar[tuple[Any, ...]] = (tiny.WORDS, tiny.CHAT_TEMPLATE)
    """What its tokenizer is made of."""
    environment: Environment | None = None

    @contextmanager
    def begun(self) -> Iterator[PreTrainedTokenizerFast]:
        """Its model's tokenizer."""
        yield tiny.build_tokenizer()

    def prompt(self, question: str, answer: str, tokenizer: Any) -> Prompt:
        """As in training."""
        return render(question, answer, tokenizer, None)

    def good(self, prompt: Prompt, tokenizer: Any) -> SftExample:
        """The solution that pays."""
        return sft_example(prompt, arithmetic.solve(prompt.question).worked, tokenizer)

    def lazy(self, prompt: Prompt, tokenizer: Any) -> SftExample:
        """The other one."""
        return sft_example(prompt, arithmetic.solve(prompt.question).guessed, tokenizer)


class Calling(Working):
    """That of `quickstart-tools`: a calculator is called, or the sum is guessed."""

    max_tokens, validation = 48, 64
    words = (tiny.WORDS, tiny.TOOL_TEMPLATE, tiny.TOOL_MARKUP)

    @contextmanager
    def begun(self) -> Iterator[PreTrainedTokenizerFast]:
        """Its model's tokenizer, with the calculator at hand."""
        tokenizer = tiny.build_tokenizer(calls=True)
        with closing(Environment(EnvironmentConfig(target="calculator"))) as self.environment:
            self.environment.use_template(tokenizer, resolve((), {}).data)
            self._calculator = self.environment.only
            yield tokenizer

    def prompt(self, question: str, answer: str, tokenizer: Any) -> Prompt:
        """As in training."""
        return replace(render(question, answer, tokenizer, None, tools=self._calculator.interface.tools), raw="{}")

    def good(self, prompt: Prompt, tokenizer: Any) -> SftExample:
        """A call, its answer, and that answer in a box. What the calculator writes is read only."""
        expression = prompt.question.removeprefix("What is ").removesuffix("?")
        turns = [f"{tiny.CALL}{expression}{tiny.END_CALL}", f"\\boxed{{{prompt.answer}}}"]
        call, last = ((*plain_ids(turn, tokenizer), tokenizer.eos_token_id) for turn in turns)
        tool = self._calculator.continuation.ids([("calculate", prompt.answer)])
        drawn = [True] * len(call) + [False] * len(tool) + [True] * len(last)
        return SftExample(prompt, (*call, *tool, *last), tuple(drawn))

    def lazy(self, prompt: Prompt, tokenizer: Any) -> SftExample:
        """The answer alone."""
        return sft_example(prompt, f"\\boxed{{{prompt.answer}}}", tokenizer)
