"""The metrics of a step: their names, on which scripts depend, and their meanings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from microrl.rollout.engine import SyncReport
from microrl.types import Episode, Group

MetricsRow = Mapping[str, Any]
"""A line of `metrics.jsonl`: values by name."""
METRICS = {
    "step": "number of the step, from 0",
    "reward/mean": "mean total reward of all completions, before any filter",
    "reward/accuracy": "fraction of completions with the right answer",
    "reward/format": "fraction of completions with the <think>...</think> structure",
    "reward/overlong": "mean overlong penalty; null if it is off",
    "reward/std": "standard deviation of the total reward within a group, mean over groups",
    "reward/killed": "completions whose check was killed at its deadline, or skipped after others in the step were killed",
    "reward/left_out": "completions left out of the update because a reward function gave no value for them",
    "groups/useful": "fraction of groups whose rewards differ",
    "groups/missing": "groups missing from the batch after dynamic sampling; null if that is off",
    "length/mean": "mean completion length, tokens",
    "length/max": "longest completion, tokens",
    "length/truncated": "fraction of completions that reached the limit",
    "turns/mean": "mean number of turns of a completion; null without an environment",
    "tools/calls": "mean number of tool calls of a completion; null without an environment",
    "tools/failures": "fraction of the tool calls that failed; null where there was none",
    "tools/deaths": "fraction of completions cut short by a death of the environment's process; null without an environment",
    "policy/entropy": "exact entropy over the vocabulary, nats, mean over a completion's tokens, then over completions",
    "policy/entropy_change_pct": "change of the entropy since step 0, per cent",
    "policy/kl_sampler": "KL(engine, trainer) by k3, nats per token; a token counts for at most exp(10)",
    "policy/outside_share": "fraction of tokens whose trainer/engine ratio lies outside [0.8, 1.25]",
    "policy/impossible_tokens": "sampled tokens whose log-probability is not finite in the engine or the trainer",
    "policy/kl_ref": "KL to the untouched model by k3, nats per token; null without loss.beta and diagnostics.kl_ref_every",
    "policy/clip_fraction": "fraction of tokens at which a clip or a mask was active",
    "policy/grad_norm": "global gradient norm before clipping",
    "policy/step_kl": "KL of the policy before the step's update to that after it, nats per token; null where it is not measured",
    "distill/kl": "mean of log p(student) - log p(teacher) of the drawn tokens, nats: estimates the KL; null without a teacher",
    "distill/teacher_entropy": "entropy of the teacher over the vocabulary, nats per token",
    "distill/agreement": "fraction of the drawn tokens' positions at which student and teacher have the same likeliest token",
    "distill/impossible_tokens": "drawn tokens whose log-probability under the teacher is not finite; as -100 nats in distill/kl",
    "optim/lr": "learning rate of this step",
    "update/skipped": "skipped optimizer steps",
    "loss": "value of the loss",
    "time/step": "seconds, whole step",
    "time/generate": "seconds of sampling",
    "time/verify": "seconds of waiting for answer checks after sampling ended",
    "time/update": "seconds of the update",
    "time/step_kl": "seconds spent on policy/step_kl, part of time/update",
    "time/sync": "seconds of sending the weights to the engine",
    "time/sleep_wake": "seconds of the engine's waking up and falling asleep",
    "time/proof": "seconds of verifying the weight sync, part of time/sync",
    "tokens/generated": "completion tokens sampled in this step",
    "tokens/per_second": "completion tokens per second of sampling",
    "budget/elapsed_s": "seconds since the process was created, earlier processes of this run included",
    "budget/left_s": "seconds left; null without a time limit",
    "budget/cost_usd": "US dollars spent",
    "memory/peak_gb": "peak memory, GB: of the GPU if there is one, else of the process",
    "sync/probe_gap": "gap between engine and trainer on the probe; null if the engine shares the trainer's weights",
    "sync/slope": "slope of the engine's change on the trainer's, 1 is right; null if the change is below the noise",
    "memory/freed_gb": "GB freed by the engine's sleep; null if the engine does not sleep",
    "memory/retaken_gb": "GB taken back by its waking up; null if the engine does not sleep",
    "validate/accuracy": "accuracy on the validation split; null in steps without validation",
}
PHASES = ("generate", "verify", "update", "sync", "sleep_wake")


def part(name: str) -> str:
    """The metric of a reward function's part: its mean over the completions for which it gave a value, without its weight."""
    return f"reward/part/{name}"


def custom_parts(row: MetricsRow) -> dict[str, float | None]:
    """The metrics of a row's reward functions, by their names."""
    prefix = part("")
    return {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}


def row(values: Mapping[str, Any], parts: Sequence[str] = ()) -> dict[str, Any]:
    """One line of metrics.jsonl: all names in order; None for a value that is missing or not finite.

    `parts` are the names of the run's custom reward functions: their metrics come last.
    """
    names = [*METRICS, *map(part, parts)]
    generate_s = values.get("time/generate")
    if generate_s:
        values = {**values, "tokens/per_second": values["tokens/generated"] / generate_s}
    unknown = values.keys() - set(names)
    assert not unknown, f"metrics without a description: {sorted(unknown)}"
    given = {name: values.get(name) for name in names}
    return {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in given.items()}


def of_groups(groups: Sequence[Group], weights: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Reward and length metrics of everything that was sampled in a step.

    Completions without a reward are in those of accuracy, format and length only. `weights`: those of the parts of the reward
    where they are normalised apart: a group is then useful if one of them differs.
    """
    scores = [score for group in groups for score in group.scores]
    rewarded = [score for score in scores if score.is_valid]
    lengths = [completion.length for group in groups for completion in group.completions]
    count = len(scores)
    penalties = [score.overlong for score in scores if score.overlong is not None]
    columns: dict[str, list[float]] = {part(name): [] for score in scores for name in score.parts}
    for score in scores:
        for name, value in score.parts.items():
            columns[part(name)] += [] if value is None else [value]
    return {
        "reward/mean": _mean([score.total for score in rewarded]),
        "reward/accuracy": sum(score.accuracy for score in scores) / count,
        "reward/format": sum(score.format for score in scores) / count,
        "reward/overlong": _mean(penalties),
        "reward/std": sum(_std([score.total for score in group.scores if score.is_valid]) for group in groups) / len(groups),
        "reward/killed": sum(score.killed for score in scores),
        "reward/left_out": count - len(rewarded),
        "groups/useful": sum(is_useful(group, weights) for group in groups) / len(groups),
        "length/mean": sum(lengths) / count,
        "length/max": max(lengths),
        "length/truncated": sum(c.finish == "length" for group in groups for c in group.completions) / count,
        "tokens/generated": sum(lengths),
        **_of_episodes([c.episode for group in groups for c in group.completions if c.episode is not None]),
        **{name: _mean(values) for name, values in columns.items()},
    }


def _of_episodes(episodes: Sequence[Episode]) -> dict[str, Any]:
    calls = sum(episode.calls for episode in episodes)
    return {
        "turns/mean": _mean([episode.turns for episode in episodes]),
        "tools/calls": _mean([episode.calls for episode in episodes]),
        "tools/failures": sum(episode.failures for episode in episodes) / calls if calls else None,
        "tools/deaths": _mean([episode.died is not None for episode in episodes]),
    }


def deaths(groups: Sequence[Group]) -> Counter[str]:
    """Why environments' processes were killed or exited before their episodes were over, and how often."""
    episodes = (completion.episode for group in groups for completion in group.completions)
    return Counter(episode.died for episode in episodes if episode is not None and episode.died is not None)


def is_useful(group: Group, weights: Mapping[str, float] | None = None) -> bool:
    """Whether a group has a gradient: the rewards of its completions differ, or with `weights` one of their parts does."""
    if weights is None:
        return group.has_mixed_rewards
    rewarded = [score for score in group.scores if score.is_valid]
    return any(len({score.part(name) for score in rewarded}) > 1 for name, weight in weights.items() if weight)


def of_times(phase_seconds: Mapping[str, float], step_s: float) -> dict[str, Any]:
    """Where the seconds of a step went."""
    return {"time/step": step_s, **{f"time/{phase}": phase_seconds.get(phase, 0.0) for phase in PHASES}}


def of_sync(report: SyncReport) -> dict[str, Any]:
    """What the engine found when it took the adapter over, and what its sleep gave back."""
    return {
        "time/proof": report.proof_s,
        "sync/probe_gap": report.gap,
        "sync/slope": report.slope,
        "memory/freed_gb": report.freed_bytes / 1e9 if report.freed_bytes else None,
        "memory/retaken_gb": report.retaken_bytes / 1e9 if report.retaken_bytes else None,
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _std(values: Sequence[float]) -> float:
    if not values:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1))
