"""What was measured as text, in one way for all of it: on the terminal, and as the page of `microrl doctor --measure`.

The labels say in words what each value is, with its unit. {} is the value, with its range if it has one. A label without {}
names the values of a table, or is the line above it; values with an empty one are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from microrl.config.resolve import leaves
from microrl.tables import WIDE, as_text, table
from microrl.terminal import printable

_SIDES = {"microrl": "microrl", "peer": "TRL"}
_PASSES = {"ours": "microrl", "naive": "the naive pass"}
_LIBRARIES = ("torch", "transformers", "peft", "datasets")
_WHERE = {"device": "device: {}", "threads": "threads: {}"}
_MODEL = {"arch": "architecture: {}", "shape": "shape: {}", **_WHERE}

STEP = {
    "step_s_median": "time of a step, median: {} s",
    "steps_s": "time of each step, the untimed warm-up step first: {} s",
    "seconds_by_phase.generate": "time of sampling, median: {} s",
    "seconds_by_phase.verify": "time of answer checks, median: {} s",
    "seconds_by_phase.sleep_wake": "time of sleep and wake, median: {} s",
    "seconds_by_phase.sync": "time of weight sync, median: {} s",
    "seconds_by_phase.update": "time of the update, median: {} s",
    "tokens_per_step": "tokens per step: {}",
    "peak_rss_gb": "peak memory of the process (RSS): {} GB",
    "calls": "tool calls per completion, mean: {}",
    **_WHERE,
}
"""Of `microrl bench step`."""
LOGPROB = {
    "memory_ratio": "microrl's peak memory divided by the naive pass's: {}",
    "time_ratio": "microrl's time divided by the naive pass's, median: {}",
    "processor_ratio": "microrl's CPU time divided by the naive pass's, median: {}",
    "gradient_error": "largest difference of the gradients: {} of the largest element",
    "logprob_error": "largest difference of the log-probabilities: {} nats",
    "entropy_error": "largest difference of the entropies: {} nats",
    **{f"{side}.peak_gb": f"peak memory of {name} beyond the inputs: {{}} GB" for side, name in _PASSES.items()},
    **{f"{side}.seconds": f"time of {name}, by pair: {{}} s" for side, name in _PASSES.items()},
    **{f"{side}.processor_s": f"CPU time of {name}, by pair: {{}} s" for side, name in _PASSES.items()},
    "time_ratios": "ratio of the times, by pair: {}",
    "processor_ratios": "ratio of the CPU times, by pair: {}",
    "tokens": "completion tokens: {}",
    "vocab": "vocabulary: {} tokens",
    "hidden": "width of the hidden states: {}",
    "dtype": "type of states and head: {}",
    "pairs": "timed pairs: {}",
    **_WHERE,
}
"""Of `microrl bench logprob`."""
PEER = {
    "pairs": "Each pair of processes",
    **{f"pairs.{side}.step_s": f"{name}, median time of a step, s" for side, name in _SIDES.items()},
    **{f"pairs.{side}.steps_s": "" for side in _SIDES},
    **{f"pairs.{side}.tokens_per_step": f"{name}, tokens per step" for side, name in _SIDES.items()},
    **{f"pairs.{side}.calls": f"{name}, tool calls per completion" for side, name in _SIDES.items()},
    **{f"pairs.{side}.peak_rss_gb": f"{name}, peak memory (RSS), GB" for side, name in _SIDES.items()},
    "pairs.step_ratio": "microrl's time divided by TRL's",
    "pairs.memory_ratio": "microrl's memory divided by TRL's",
    "step_ratio": "microrl's time divided by TRL's, median and range: {}",
    "memory_ratio": "microrl's peak memory divided by TRL's, median and range: {}",
    "versions.microrl.microrl": "microrl: {}",
    "versions.peer.trl": "TRL: {}",
    **{f"versions.{side}.{one}": f"{one} on {name}'s side: {{}}" for side, name in _SIDES.items() for one in _LIBRARIES},
    "settings.model": "model: {}",
    "settings.prompts": "prompts per step: {}",
    "settings.group": "completions per prompt: {}",
    "settings.tokens": "tokens per completion (with tools, the limit): {}",
    "settings.rank": "adapter rank: {}",
    "settings.steps": "timed steps per process: {}",
    "settings.env": "tools: {}",
    "settings.teacher": "teacher: {}",
    "settings.dtype": "weight type: {}",
    "settings.device": "device: {}",
    "settings.threads": "threads: {}",
}
"""Of `microrl bench peer`."""
ROLLOUT = {
    **_MODEL,
    "rank": "adapter rank: {}",
    "sync": "weight sync: {}",
    "sleep": "sleep level: {}",
    "kv_gb": "KV cache: {} GB",
    "started_s": "start of vLLM: {} s",
    "trainable": "trained parameters: {}",
    "head": "type in which vLLM computes the output head: {}",
    "wrapped": "layers with an adapter in vLLM: {}",
    "cycles": "Each rollout, with a new adapter",
    "cycles.seconds": "time in all, s",
    "cycles.tokens": "sampled tokens",
    "cycles.push_s": "push, s",
    "cycles.proof_s": "sync check, s",
    "cycles.wake_s": "waking, s",
    "cycles.sleep_s": "sleeping, s",
    "cycles.freed_gb": "freed by sleeping, GB",
    "cycles.retaken_gb": "retaken by waking, GB",
    "cycles.gap": "gap of the sync check, nats per token",
    "cycles.slope": "slope of the sync check",
    "sync_fraction": "push, check, waking and sleeping: {} of the rollouts' time",
    "tokens_per_s": "microrl's tokens per second, median: {}",
    "plain_tokens_per_s": "vLLM's own tokens per second, median: {}",
    "ratio": "microrl's tokens per second divided by vLLM's own, median: {}",
    "pairs": "Tokens per second of each pair",
    "pairs.ours": "microrl",
    "pairs.plain": "vLLM's own",
}
"""Of `microrl bench rollout`."""
EPISODES = {
    **_MODEL,
    "prompts": "prompts per rollout: {}",
    "group": "completions per prompt: {}",
    "turns": "turns per episode: {}",
    "sampled_tokens": "sampled tokens per completion: {}",
    "answer_tokens": "tokens of a tool result: {}",
    "tool_seconds": "time of a call of the slow tool: {} s",
    "pairs": "Time of a rollout, by pair",
    "pairs.single_s": "single turns, s",
    "pairs.episodes_s": "episodes, s",
    "pairs.tool_s": "episodes with the slow tool, s",
    "pairs.ratio": "episodes divided by single turns",
    "pairs.added_s": "added by the slow tool, s",
    "ratio": "time of episodes divided by that of single turns, median and range: {}",
    "added_s": "time that the slow tool adds to a rollout, median and range: {} s",
}
"""Of `microrl bench rollout --turns`."""
SYNC = {
    "syncs": "Time of a push, by adapter and kind of sync",
    "syncs.kind": "adapter",
    "syncs.mode": "sync",
    "syncs.trained": "trained parameters",
    "syncs.push_s": "median, s",
    "syncs.all_s": "each push, s",
}
"""Of `microrl bench sync`."""


def text(result: Mapping[str, Any], labels: Mapping[str, str] | None = None) -> str:
    """A line for each value, and a table for each list of rows. What has no label goes by its key."""
    labels = labels or {}
    values, lines = dict(leaves(result)), []
    for name, value in values.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            own = {key.removeprefix(f"{name}."): label for key, label in labels.items() if key.startswith(f"{name}.")}
            lines += [*([labels[name]] if name in labels else []), _table(value, own)]
        elif not name.endswith("_range") and value is not None:
            ends = values.get(f"{name}_range")
            shown = _brief(value) + (f" ({_brief(ends[0])} to {_brief(ends[1])})" if ends else "")
            lines.append(labels.get(name, f"{name} {{}}").format(shown))
    return printable("\n".join(lines))


def _table(values: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> str:
    """A row for each; a column where there are more values than rows, so that its width fits a terminal."""
    rows = [dict(leaves(row)) for row in values]
    heads = {key: labels.get(key, key) for row in rows for key in row}
    shown = [key for key, head in heads.items() if head]
    if len(shown) > len(rows):
        lines = [[heads[key], *(_brief(row.get(key)) for row in rows)] for key in shown]
        return as_text(table(["", *(f">{number + 1}" for number in range(len(rows)))], lines), WIDE)
    return as_text(table([f">{heads[key]}" for key in shown], [[_brief(row.get(key)) for key in shown] for row in rows]), WIDE)


def page(report: dict[str, Any]) -> str:
    """The report of `measure.report` as markdown that fits into an issue."""
    versions = ", ".join(f"{name} {version}" for name, version in report["environment"]["packages"].items() if version)
    parts = [f"# microrl on {report['device']}", f"{versions}; driver {report['driver'] or 'none'}."]
    for stage in report["stages"]:
        ended = "passed" if stage["error"] is None else f"failed: {stage['error']}"
        parts.append(f"## {stage['title']}: {ended}, {stage['seconds']:.0f} s")
        labels = ROLLOUT if stage["kind"] == "cycles" else None
        parts += [] if stage["found"] is None else [f"```\n{text(stage['found'], labels)}\n```"]
    for name, labels in (("peer", PEER), ("calibration", None)):
        parts += [f"## {name}\n\n```\n{text(report[name], labels)}\n```"] if report[name] else []
    return "\n\n".join(parts) + "\n"


def _brief(value: Any) -> str:
    """Numbers with four digits, or all digits before the point."""
    if isinstance(value, list):
        return ", ".join(map(_brief, value))
    if isinstance(value, float):
        return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
    return "" if value is None else str(value)
