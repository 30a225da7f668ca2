"""Time training steps on a fixed amount of work, the same as in the comparison with TRL."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from microrl import clock
from microrl.commands.bench.trl_step import peak_rss_gb
from microrl.config import RunConfig
from microrl.data.prompts import render
from microrl.data.sampler import PromptSampler
from microrl.policy.architecture import load_checked
from microrl.policy.policy import Policy
from microrl.rewards.scorer import make_scorer
from microrl.rollout.factory import make_engine
from microrl.rollout.preflight import select_engine
from microrl.run.stopwatch import Stopwatch
from microrl.train.setup import Components
from microrl.train.step import sample_groups, with_advantages
from microrl.types import Group, Prompt, Sampling

RATE = 1e-5
"""Learning rate. The time does not depend on it."""


def time_steps(config: RunConfig, on_step: Callable[[int, float], None] = lambda step, seconds: None) -> dict[str, Any]:
    """Median seconds of `budget.steps - 1` steps (the first is not timed), seconds by phase, and peak resident memory in GB.

    `on_step` is called with the number and the seconds of every step. Raises as `load_checked` and `make_engine`.
    """
    select_engine(config)  # fails before anything is loaded
    model, tokenizer = load_checked(config.model)
    prompts = bench_prompts(tokenizer)
    scorer = make_scorer(config)
    parts = Components(
        config,
        engine=make_engine(config, model, tokenizer),
        policy=Policy(model, config),
        scorer=scorer,
        prompts=PromptSampler(prompts, config.seed),
        sampling=Sampling(
            config.sampling.group_size,
            config.sampling.max_completion_tokens,
            config.sampling.temperature,
            min_tokens=config.sampling.max_completion_tokens,
        ),
        watch=Stopwatch(),
    )
    seconds: list[float] = []
    phase_seconds: list[dict[str, float]] = []
    try:
        for step in range(config.budget.steps or 1):
            began = clock.now_s()
            groups, _ = sample_groups(parts, step, _unseen)
            with parts.watch.phase("update"):
                batch = with_advantages(config, [every_useful(group) for group in groups], step)
                update = parts.policy.update(batch, RATE)
            assert update.skipped == 0, update.reason
            seconds.append(clock.now_s() - began)
            phase_seconds.append(parts.watch.restart())
            on_step(step, seconds[-1])
    finally:
        scorer.close()
        parts.engine.close()
    timed, timed_phases = (seconds[1:], phase_seconds[1:]) if len(seconds) > 1 else (seconds, phase_seconds)
    return {
        "step_s_median": statistics.median(timed),
        "steps_s": seconds,
        "seconds_by_phase": {name: statistics.median(one.get(name, 0.0) for one in timed_phases) for name in timed_phases[0]},
        "tokens_per_step": len(groups) * parts.sampling.group_size * parts.sampling.max_tokens,
        "peak_rss_gb": peak_rss_gb(),
        "device": model.device.type,
        "threads": parts.policy.update_threads,
    }


def bench_prompts(tokenizer: Any) -> list[Prompt]:
    """The questions of the benchmark: 512 sums of two-digit numbers, without system message."""
    draw = random.Random(0)
    pairs = [(draw.randint(10, 99), draw.randint(10, 99)) for _ in range(512)]
    return [render(f"What is {x} + {y}? Put the final answer in \\boxed{{}}.", str(x + y), tokenizer, None) for x, y in pairs]


def every_useful(group: Group) -> Group:
    """Make the group's rewards differ, so that every completion has a gradient."""
    scores = tuple(
        replace(score, total=score.total + 0.01 * len(completion.text) + 0.001 * number)
        for number, (score, completion) in enumerate(zip(group.scores, group.completions, strict=True))
    )
    return replace(group, scores=scores)


def _unseen(groups: Iterable[tuple[int, Group]], total: int) -> Iterator[tuple[int, Group]]:
    return iter(groups)
