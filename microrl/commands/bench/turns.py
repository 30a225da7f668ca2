"""Time episodes of several turns against single turns of as many sampled tokens, and what a slow tool adds to them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from microrl import clock
from microrl.commands.bench import scripted_tool, synthetic
from microrl.config.data import DataConfig
from microrl.config.environment import EnvironmentConfig
from microrl.environments.calls import Call
from microrl.environments.conversation import Environment
from microrl.models.threads import use_sensible_threads
from microrl.models.tiny import CHAT_TEMPLATE, build_tokenizer
from microrl.rollout.episodes import EpisodeEnvironment
from microrl.rollout.transformers import TransformersEngine
from microrl.types import BASE, Completion, Episode, Prompt, Sampling

TOKENS = 128
"""Of a turn."""
TELLS = "{% for tool in tools or [] %}{{ tool.function.name }}\n{% endfor %}"


def episodes(
    *,
    turns: int,
    tool_seconds: float | None = None,
    shape: str = "tiny",
    architecture: str = "qwen2",
    prompts: int = 16,
    group: int = 8,
    tokens: int | None = None,
    pairs: int = 3,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Sample `pairs` times with the transformers engine: episodes of `turns` turns, and single turns, in changing order.

    A completion has `tokens` sampled tokens (None: 128 for each turn), rounded down to whole turns, less the last one. The model
    has random weights, but always ends a turn as soon as it may, and every turn but the last is answered at once, in this
    process. The result holds, among what was asked for:

    - `pairs`: of each `single_s`, `episodes_s` and `ratio`, episodes to single turns;
    - `ratio` and `ratio_range`: the median over the pairs, and their range;
    - with `tool_seconds`, `tool_s` of each pair: the same episodes with a real environment, of one process an episode, whose tool
      takes as many seconds; and `added_s` to `episodes_s`, with `added_s_range`.
    """
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TELLS + CHAT_TEMPLATE
    model = synthetic.build(tokenizer, shape=shape, architecture=architecture)
    use_sensible_threads(model)
    engine = TransformersEngine(_that_ends_turns(model, tokenizer.eos_token_id), tokenizer, max_kv_gb=None)
    asked = [replace(prompt, raw="{}") for prompt in synthetic.prompts(tokenizer, prompts)]
    length = TOKENS if tokens is None else tokens // turns
    sampled = turns * length - 1
    measured: list[dict[str, float]] = []
    with _environment(tokenizer, tool_seconds or 0.0) as environment:
        answer = environment.only.continuation.ids([("wait", "done")])
        single = (Sampling(group, sampled, min_tokens=sampled), None)
        several = Sampling(group, sampled + (turns - 1) * len(answer), min_tokens=length - 1)
        sides: dict[str, tuple[Sampling, EpisodeEnvironment | None]] = {
            "single_s": single,
            "episodes_s": (several, _Instant(answer)),
        }
        if tool_seconds is not None:
            sides["tool_s"] = (several, environment)

        def seconds(side: str, number: int) -> float:
            sampling, environment = sides[side]
            began = clock.now_s()
            with engine.awake(BASE) as sampler:
                groups = [group for _, group in sampler.groups(asked, sampling, stream=(number,), environment=environment)]
            took = clock.now_s() - began
            lengths = {completion.length for group in groups for completion in group.completions}
            assert lengths == {sampled}, lengths
            return took

        for number in range(pairs + 1):
            pair = {side: seconds(side, number) for side in (sides if number % 2 else reversed(sides))}
            pair["ratio"] = pair["episodes_s"] / pair["single_s"]
            if tool_seconds is not None:
                pair["added_s"] = pair["tool_s"] - pair["episodes_s"]
            if number > 0:  # the first ones warm up
                measured.append(pair)
                slow = f", with the slow tool {pair['tool_s']:.2f} s" if "tool_s" in pair else ""
                say(
                    f"{architecture}: pair {number} of {pairs}: single turns {pair['single_s']:.2f} s, episodes "
                    f"{pair['episodes_s']:.2f} s{slow}"
                )
    result: dict[str, Any] = {
        "arch": architecture, "shape": shape, "device": model.device.type, "threads": torch.get_num_threads(), "prompts": prompts,
        "group": group, "turns": turns, "sampled_tokens": sampled, "answer_tokens": len(answer), "tool_seconds": tool_seconds,
        "pairs": measured,
    }  # fmt: skip
    for name in ("ratio", "added_s")[: 1 if tool_seconds is None else 2]:
        values = [pair[name] for pair in measured]
        result |= {name: statistics.median(values), f"{name}_range": [min(values), max(values)]}
    return result


class _Instant:
    """Answers every turn with the same tokens. It is the environment of all episodes, and the environment's side of each."""

    def __init__(self, answer: Sequence[int], prompt: Prompt | None = None) -> None:
        self._answer = answer
        if prompt is not None:
            self.prompt = prompt

    def begin(self, prompt: Prompt) -> _Instant:
        return _Instant(self._answer, prompt)

    def reply(self, turn: Completion, room: int) -> Sequence[int]:
        return self._answer

    def ended(self) -> Episode:
        return Episode(0, 0, 0, None)

    def text(self, token_ids: Sequence[int]) -> str:
        return ""

    def give_up(self) -> None: ...

    def end(self) -> None: ...


def _that_ends_turns(model: Any, end: int) -> Any:
    """The model, with an output head that prefers this token to all others."""
    head = model.get_output_embeddings()
    bias_V = torch.zeros(head.out_features, device=head.weight.device, dtype=head.weight.dtype)
    bias_V[end] = 1e4
    head.bias = torch.nn.Parameter(bias_V, requires_grad=False)
    return model


@contextmanager
def _environment(tokenizer: Any, tool_seconds: float) -> Iterator[Environment]:
    """A real environment, but for what it reads in a turn: always a call of the tool that takes these seconds."""
    environment = Environment(EnvironmentConfig(target=f"{scripted_tool.__name__}:{scripted_tool.Tool.__name__}"))
    try:
        environment.use_template(tokenizer, DataConfig())
        environment.only.parse = lambda turn: [Call("wait", {"seconds": tool_seconds})]
        yield environment
    finally:
        environment.close()
