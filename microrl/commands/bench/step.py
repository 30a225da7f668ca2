"""Time training steps on a given amount of work, the same as in the comparison with TRL."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from microrl import clock
from microrl.commands.bench.trl_step import peak_rss_gb, questions
from microrl.config import RunConfig
from microrl.data.prompts import Tools, no_tools, render
from microrl.data.sampler import PromptSampler
from microrl.environments.conversation import Environment
from microrl.models.forward import stop_tokens
from microrl.policy.architecture import load_checked
from microrl.policy.policy import Policy
from microrl.quickstart import model as quickstart
from microrl.rewards.scorer import make_scorer
from microrl.rollout.factory import make_engine
from microrl.rollout.preflight import select_engine
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.run.stopwatch import Stopwatch
from microrl.train.setup import Components
from microrl.train.step import sample_groups, with_advantages
from microrl.train.teacher import load_teacher
from microrl.types import Completion, Group, Prompt, Sampling

RATE = 1e-5
"""Learning rate. The time does not depend on it."""


def time_steps(config: RunConfig, on_step: Callable[[int, float], None] = lambda step, seconds: None) -> dict[str, Any]:
    """Median seconds of `budget.steps - 1` steps (the first is not timed), seconds by phase, and peak resident memory in GB.

    Every completion has `sampling.max_completion_tokens`; with an environment, it ends where the model ends it. The result has
    the tokens of a step, and with an environment the tool calls of a completion (`calls`, a mean).

    `on_step` is called with the number and the seconds of every step. Raises as `ensure_model`, `load_checked`, `load_teacher`,
    `make_engine` and `Environment`.
    """
    select_engine(config)  # fails before anything is loaded
    with ExitStack() as closing:
        environment = None if config.env.target is None else Environment(config.env)
        if environment is not None:
            closing.callback(environment.close)
            environment.start()
        with RunConsole() as console, tempfile.TemporaryDirectory(prefix="microrl-") as temporary:
            model, tokenizer = load_checked(quickstart.located(config.model, console))
            folder = RunFolder.create(Path(temporary) / "run", config.model_dump(mode="json"))
            teacher = load_teacher(config, model, tokenizer, (), no_tools, folder, console)
        if environment is not None:
            environment.use_template(tokenizer, config.data, stop_tokens(model, tokenizer))
        prompts = bench_prompts(tokenizer, () if environment is None else environment.only.interface.tools)
        scorer = make_scorer(config)
        closing.callback(scorer.close)
        if environment is not None:
            scorer.expect(environment.paying)
        limit = config.sampling.max_completion_tokens
        sampling = Sampling(
            config.sampling.group_size, limit, config.sampling.temperature, min_tokens=limit if environment is None else 0
        )
        engine = make_engine(config, model, tokenizer)
        closing.callback(engine.close)
        policy = Policy(model, config, teacher=teacher)
        drawn = PromptSampler(prompts, config.seed)
        parts = Components(config, engine, policy, scorer, drawn, sampling, Stopwatch(), environment=environment)
        return {**_timed(parts, on_step), "device": model.device.type, "threads": policy.update_threads}


def _timed(parts: Components, on_step: Callable[[int, float], None]) -> dict[str, Any]:
    seconds: list[float] = []
    phase_seconds: list[dict[str, float]] = []
    sampled: list[list[Completion]] = []
    for step in range(parts.config.budget.steps or 1):
        began = clock.now_s()
        groups, _ = sample_groups(parts, step, lambda groups, total: iter(groups))
        with parts.watch.phase("update"):
            batch = with_advantages(parts.config, [every_useful(group) for group in groups], step)
            update = parts.policy.update(batch, RATE)
        assert update.skipped == 0, update.reason
        seconds.append(clock.now_s() - began)
        phase_seconds.append(parts.watch.restart())
        sampled.append([completion for group in groups for completion in group.completions])
        on_step(step, seconds[-1])
    timed = slice(1 if len(seconds) > 1 else 0, None)
    result = {
        "step_s_median": statistics.median(seconds[timed]),
        "steps_s": seconds,
        "seconds_by_phase": {
            name: statistics.median(one.get(name, 0.0) for one in phase_seconds[timed]) for name in phase_seconds[timed][0]
        },
        "tokens_per_step": round(statistics.mean(sum(len(one.token_ids) for one in step) for step in sampled[timed])),
        "peak_rss_gb": peak_rss_gb(),
    }
    if parts.environment is not None:
        calls = [0 if one.episode is None else one.episode.calls for step in sampled[timed] for one in step]
        result["calls"] = statistics.mean(calls)
    return result


def bench_prompts(tokenizer: Any, tools: Tools = ()) -> list[Prompt]:
    """The questions that TRL gets, too: 512 sums of two-digit numbers, without system message."""
    prompts = [render(one["prompt"][0]["content"], one["gold"], tokenizer, None, tools=tools) for one in questions()]
    return [replace(prompt, raw=json.dumps({"question": prompt.question, "answer": prompt.answer})) for prompt in prompts]


def every_useful(group: Group) -> Group:
    """Make the group's rewards differ, so that every completion has a gradient."""
    scores = tuple(
        replace(score, total=score.total + 0.01 * len(completion.text) + 0.001 * number)
        for number, (score, completion) in enumerate(zip(group.scores, group.completions, strict=True))
    )
    return replace(group, scores=scores)
