"""A plan as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from microrl.config import RunConfig
from microrl.plan.efficiency import CPU_SPREAD, SAMPLING_SPREAD, UPDATE_SPREAD
from microrl.plan.plan import Plan
from microrl.plan.workload import LENGTH_FRACTION
from microrl.tables import WIDE, as_text, table
from microrl.terminal import counted, printable

NAMES = (
    "useful/h: groups (the completions of one prompt) whose rewards differ, per hour of training steps; their share is assumed. "
    "merge, swap: s/step with each way of weight sync; a run that may take both measures them in its first steps."
)
NOT_FITTING = "Where `fits` says `with`, the numbers are those without the change."
UNITS = "GB are 10^9 bytes; the GB in a card's name are GiB."


def page(config: RunConfig, plan: Plan) -> str:
    """The plan for one device, in detail; of settings that do not fit the memory alone."""
    if not plan.fits:
        return as_text(Group(_title(config, plan), "", _memory(plan), *_words(plan)))
    tables = Table.grid(padding=(0, 6))
    tables.add_row(_memory(plan), _seconds(plan))
    return as_text(
        Group(
            _title(config, plan),
            "",
            tables,
            "",
            _update(plan),
            Text(_budget(config, plan), style="bold"),
            *_groups(config, plan),
            *_words(plan),
        )
    )


def brief(config: RunConfig, plan: Plan) -> list[str]:
    """A few lines of plain text; of settings that do not fit the memory alone."""
    parts = ", ".join(f"{_PARTS.get(name, name)} {_s(seconds)}" for name, seconds in plan.step_parts_s.items())
    batch = f"{_batch(config, plan)}; {plan.total_params:,} parameters, {plan.trainable_params:,} trained"
    memory, notes = f"memory: {_of_room(plan)}", [f"note: {text}" for text in plan.notes]
    if not plan.fits:
        changes = ", ".join(text.partition(": ")[0] for text in plan.advice)
        return [batch, f"{memory}: does not fit; it fits with {changes}", *_step_with_advice(plan), *notes]
    return [
        batch,
        f"{_three(plan.step_s)} s per step on {plan.device.label}: {parts}, at {LENGTH_FRACTION:.0%} of the completion limit",
        *([f"weight sync: {plan.sync_why}"] if plan.engine == "vllm" else []),
        f"{memory}: fits",
        _budget(config, plan),
        *_groups(config, plan),
        *notes,
    ]


def comparison(config: RunConfig, plans: Sequence[Plan]) -> str:
    """A comparison of devices, one row each."""
    first = plans[0]
    adapter = config.adapter.name
    title = (
        f"{printable(first.model)}, {adapter}: {first.total_params:,} parameters, {first.trainable_params:,} trained\n"
        f"{_batch(config, first)}; {_bound(config)}"
    )
    names = ("GB", "used", "s/step", "range", "steps", "range", "useful/h", "hours", "$/h", "$", "merge", "swap")
    head = ["<device", *(f">{name}" for name in names), "fits"]
    rows = [_row(config, plan) for plan in plans]
    words = NAMES if all(plan.fits for plan in plans) else f"{NAMES} {NOT_FITTING}"
    return as_text(Group(title, "", table(head, rows), "", words, caution(plans[-1])), WIDE)


def _row(config: RunConfig, plan: Plan) -> tuple[str, ...]:
    ways = (_three(plan.sync_step_s[mode]) if mode in plan.sync_step_s else "" for mode in ("merge", "swap"))
    return (
        plan.device.name, f"{plan.room_gb:.1f}", f"{plan.memory_gb['peak']:.1f}",
        _three(plan.step_s), _between(_three(plan.step_low_s), _three(plan.step_high_s), "-"),
        sft_alone(config, plan) or f"{plan.steps:,}", _between(f"{plan.steps_low:,}", f"{plan.steps_high:,}", "-"),
        f"{plan.useful_groups_hour:,.0f}", _three(plan.hours), f"{plan.price:.2f}", f"{plan.cost_usd:.2f}",
        *ways, _verdict(config, plan),
    )  # fmt: skip


def _verdict(config: RunConfig, plan: Plan) -> str:
    if not plan.fits:
        return "with " + " ".join(text.partition(": ")[0].replace("--set ", "") for text in plan.advice)
    return "yes" if plan.steps or (config.sft.only and plan.sft_s) else "too slow for one step"


def _title(config: RunConfig, plan: Plan) -> Group:
    verdict = f"fits: {_of_room(plan)}" if plan.fits else f"DOES NOT FIT: {_of_room(plan)}"
    engine = plan.engine + (f", sleep level {plan.sleep} during the update" if plan.sleep not in (None, "off") else "")
    fraction, step_kl = plan.trainable_params / plan.total_params, config.optim.step_kl
    rate = plan.lr if not config.sft.only or config.sft.lr is None else config.sft.lr
    how = f", then steered to {step_kl:g} nats a step" if step_kl is not None else " (auto)" if config.optim.lr == "auto" else ""
    return Group(
        f"{printable(plan.model)}, {config.adapter.name}, {config.loss.kind} on {plan.device.label}",
        Text(verdict, style="bold" if plan.fits else "bold red"),
        f"parameters: {plan.total_params:,}, trained: {plan.trainable_params:,} ({fraction:.2%}), learning rate "
        f"{rate:.3g}{', falling to 0' if config.sft.only else how}",
        f"engine: {engine}" + (f"; served {plan.served}" if plan.engine != "vllm" else ""),
        *([f"weight sync: {plan.sync_why}"] if plan.engine == "vllm" and plan.fits else []),
        f"each step: {_batch(config, plan)}" + (_pieces(plan) if plan.fits else ""),
    )


def _pieces(plan: Plan) -> str:
    """What the card holds of a step at a time."""
    batches = "one micro-batch"
    if plan.micro_batches > 1:
        batches = (
            f"{plan.micro_batches} micro-batches of {plan.micro_batch_tokens:,} tokens, about {plan.micro_batch_rows} sequences "
            "each"
        )
    again = ", with activation recomputation" if plan.checkpoints_activations else ""
    return f"; up to {plan.concurrency} completions decode at a time; {batches}{again}"


def _of_room(plan: Plan) -> str:
    return f"{plan.memory_gb['peak']:.1f} of {plan.room_gb:.1f} GB"


_UPDATE_PARTS = {
    "base products": "matmuls of the base",
    "adapter products": "matmuls of the adapter",
    "elementwise": "elementwise operations",
    "launches": "kernel launches",
}
_PARTS = {"sync": "weight sync", "sleep_wake": "sleep and wake", "verify": "answer checks"}


def _memory(plan: Plan) -> Table:
    phases = (plan.sampling_gb, plan.updating_gb)
    rows = [(name, *(_gb(phase.get(name)) for phase in phases)) for name in plan.memory_gb if name != "peak"]
    memory_table = table(("memory, GB", ">sampling", ">updating"), rows)
    memory_table.add_row("total", *(_gb(sum(phase.values())) for phase in phases), style="bold")
    return memory_table


def _gb(size: float | None) -> str:
    return "" if size is None else f"{size:.2f}"


def _seconds(plan: Plan) -> Table:
    seconds_table = table(
        ("time, s", ">"), [(_PARTS.get(name, name), _s(seconds)) for name, seconds in plan.step_parts_s.items()]
    )
    seconds_table.add_row("one step", _s(plan.step_s), style="bold")
    seconds_table.add_row("", "")
    rows = (("loading", plan.load_s), ("one evaluation", plan.evaluation_s), ("one validation", plan.validation_s))
    for name, seconds in (*rows, ("one checkpoint", plan.save_s)):
        seconds_table.add_row(name, _s(seconds))
    return seconds_table


def _update(plan: Plan) -> str:
    """Where the update's seconds go, most first."""
    parts = sorted(plan.update_parts_s.items(), key=lambda part: -part[1])
    moved = f" ({plan.update_elementwise_gb:,.0f} GB of memory traffic)"
    shown = (
        f"{_UPDATE_PARTS.get(name, name)} {_s(seconds)} s{moved if name == 'elementwise' and plan.update_elementwise_gb else ''}"
        for name, seconds in parts
    )
    return f"time of the update, longest part first: {', '.join(shown)}"


def _s(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds < 100 else f"{seconds:,.0f}"


def _batch(config: RunConfig, plan: Plan) -> str:
    sampling = config.sampling
    return (
        f"{sampling.prompts_per_step} prompts x {sampling.group_size} = {plan.completions} completions "
        f"of up to {sampling.max_completion_tokens:,} tokens"
    )


def _bound(config: RunConfig) -> str:
    hours, steps = config.budget.hours, config.budget.steps
    parts = ([f"{hours:g} h"] if hours is not None else []) + ([counted(steps, "step")] if steps is not None else [])
    return " or ".join(parts) or "one step"


def sft_alone(config: RunConfig, plan: Plan) -> str | None:
    """What a run of SFT alone has instead of steps with rewards: the steps that it asks for, or else the time, which may be too
    short for them. None: another run."""
    if not config.sft.only:
        return None
    steps = config.sft.steps
    if steps is not None and plan.sft_s >= steps * plan.sft_step_s:
        return counted(steps, "SFT step")
    return f"{_three(plan.sft_s / 60)} min of SFT"


def _budget(config: RunConfig, plan: Plan) -> str:
    step = _with_range(f"{_three(plan.step_s)} s", _three(plan.step_low_s), _three(plan.step_high_s))
    steps = _with_range(f"about {plan.steps:,} steps", f"{plan.steps_low:,}", f"{plan.steps_high:,}")
    made = f"{_bound(config)} of about {step}" if config.budget.hours is None else f"{_bound(config)}: {steps} of {step}"
    hours = _with_range(f"{_three(plan.hours)} h", _three(plan.hours_low), _three(plan.hours_high))
    cost = _with_range(f"{plan.cost_usd:,.2f}", f"{plan.cost_low_usd:,.2f}", f"{plan.cost_high_usd:,.2f}")
    paid = f"at ${plan.price:.2f}/h = ${cost}" if plan.price else "for $0"
    return f"{sft_alone(config, plan) or f'{made}, {_short(plan.tokens)} tokens sampled'}, {hours} {paid}"


def _groups(config: RunConfig, plan: Plan) -> list[str]:
    """What the steps are worth."""
    if config.sft.only:
        return []
    groups = f"about {plan.groups_hour:,.0f} groups (the completions of one prompt) per hour of training steps"
    if plan.useful_share == 1:
        return [f"{groups}; all of them give a gradient"]
    return [
        f"{groups}; {plan.useful_groups_hour:,.0f} of them give a gradient, assuming that {plan.useful_share:.0%} of the groups "
        "have unequal rewards"
    ]


def _three(seconds: float) -> str:
    """With three digits, or whole."""
    return f"{seconds:.3g}" if seconds < 1000 else f"{seconds:,.0f}"


def _with_range(point: str, low: str, high: str) -> str:
    """A point, and in brackets its range where it has one."""
    between = _between(low, high, " to ")
    return f"{point} ({between})" if between else point


def _between(low: str, high: str, sep: str) -> str:
    """Nothing where both are one."""
    return f"{low}{sep}{high}" if low != high else ""


def _words(plan: Plan) -> list[Any]:
    lines: list[Any] = []
    if plan.advice:
        lines += ["", Text("it fits with" + (" all of these changes" if len(plan.advice) > 1 else ""), style="bold")]
        lines += [f"  {text}" for text in plan.advice] + _step_with_advice(plan)
    return [*lines, *(f"note: {text}" for text in plan.notes), caution(plan)]


def _step_with_advice(plan: Plan) -> list[str]:
    """How long a step takes with what is advised."""
    with_it = "this change" if len(plan.advice) == 1 else "these changes"
    return [] if plan.advice_step_s is None else [f"with {with_it} a step takes about {_three(plan.advice_step_s)} s by the plan"]


def caution(plan: Plan) -> Text:
    """What the seconds of a plan rest on."""
    said = f"Estimated with a roofline model and completions at {LENGTH_FRACTION:.0%} of their length limit"
    if plan.times != "roofline":
        said += f", corrected by a calibration of this device ({plan.times})."
    elif plan.device.is_cpu:
        low, high = CPU_SPREAD
        said += f"; not measured on this CPU. Ranges: {low:g} to {high:g} times the estimate, the spread measured on three CPUs."
    else:
        (low, high), (least, most) = SAMPLING_SPREAD, UPDATE_SPREAD
        said += (
            f"; not measured on this GPU. Ranges: sampling takes {low:g} to {high:g} times the estimate, an update {least:g} to "
            f"{most:g} times: the spread of published measurements, rounded outward and made symmetric."
        )
    if not plan.device.is_cpu:
        said += f" {UNITS}"
    return Text(said, style="dim")


def _short(count: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.0f}"
