"""A plan as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from microrl.config import RunConfig
from microrl.plan.plan import Plan
from microrl.plan.workload import LENGTH_FRACTION
from microrl.terminal import printable

PIPE_WIDTH, WIDE = 120, 200
"""Characters per line without a terminal, and of a wide table."""


def page(config: RunConfig, plan: Plan) -> str:
    """The plan for one device, in detail."""
    tables = Table.grid(padding=(0, 6))
    tables.add_row(_memory(plan), _seconds(plan))
    return as_text(
        Group(_title(config, plan), "", tables, "", _update(plan), Text(_budget(config, plan), style="bold"), *_words(plan))
    )


def brief(config: RunConfig, plan: Plan) -> list[str]:
    """A few lines of plain text."""
    parts = ", ".join(f"{_PARTS.get(name, name)} {_s(seconds)}" for name, seconds in plan.step_parts_s.items())
    verdict = "fits" if plan.fits else "does not fit; it fits with " + ", ".join(text.partition(": ")[0] for text in plan.advice)
    return [
        f"{_batch(config, plan)}; {plan.total_params:,} parameters, {plan.trainable_params:,} trained",
        f"about {plan.step_s:.3g} s per step on {plan.device.label} ({parts}), at {LENGTH_FRACTION:.0%} of the completion limit",
        f"memory: {plan.memory_gb['peak']:.1f} of {plan.room_gb:.0f} GB: {verdict}",
        _budget(config, plan),
        *(f"note: {text}" for text in plan.notes),
    ]


def comparison(config: RunConfig, plans: Sequence[Plan]) -> str:
    """A comparison of devices, one row each."""
    first = plans[0]
    adapter = config.adapter.name
    title = (
        f"{printable(first.model)}, {adapter}: {first.total_params:,} parameters, {first.trainable_params:,} trained\n"
        f"{_batch(config, first)}; {_bound(config)}"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("device", "GB", "used", "s/step", "steps", "tokens", "hours", "$/h", "$", "fits"):
        table.add_column(name, justify="left" if name in ("device", "fits") else "right", no_wrap=name != "fits")
    for plan in plans:
        flags = " ".join(text.partition(": ")[0].replace("--set ", "") for text in plan.advice)
        table.add_row(
            plan.device.name, f"{plan.room_gb:.0f}", f"{plan.memory_gb['peak']:.1f}", f"{plan.step_s:.3g}", f"{plan.steps:,}",
            _short(plan.tokens), f"{plan.hours:.3g}", f"{plan.price:.2f}", f"{plan.cost_usd:.2f}",
            _verdict(plan, flags),
        )  # fmt: skip
    return as_text(Group(title, "", table, "", _caution("roofline")))


def _verdict(plan: Plan, flags: str) -> str:
    if not plan.fits:
        return f"with {flags}"
    return "yes" if plan.steps else "too slow for one step"


def _title(config: RunConfig, plan: Plan) -> Group:
    verdict = (
        f"fits: {plan.memory_gb['peak']:.1f} of {plan.room_gb:.0f} GB"
        if plan.fits
        else f"DOES NOT FIT: {plan.memory_gb['peak']:.1f} of {plan.room_gb:.0f} GB"
    )
    engine = plan.engine + (f", sleep level {plan.sleep} during the update" if plan.sleep not in (None, "off") else "")
    fraction = plan.trainable_params / plan.total_params
    return Group(
        f"{printable(plan.model)}, {config.adapter.name}, {config.loss.kind} on {plan.device.label}",
        Text(verdict, style="bold" if plan.fits else "bold red"),
        f"parameters: {plan.total_params:,}, trained: {plan.trainable_params:,} ({fraction:.2%}), learning rate "
        f"{plan.lr:.3g}{' (auto)' if config.optim.lr == 'auto' else ''}",
        f"engine: {engine}; served {plan.served}",
        f"each step: {_batch(config, plan)}; up to {plan.concurrency} completions decode at a time; "
        + (
            f"{plan.micro_batches} micro-batches of {plan.micro_batch_tokens:,} tokens, about {plan.micro_batch_rows} rows each"
            if plan.micro_batches > 1
            else "one micro-batch"
        )
        + (", activation recomputation" if plan.checkpoints_activations else ""),
    )


_UPDATE_PARTS = {
    "base products": "matmuls of the base",
    "adapter products": "matmuls of the adapter",
    "elementwise": "elementwise operations",
    "launches": "kernel launches",
}
_PARTS = {"sync": "weight sync", "sleep_wake": "sleep and wake", "verify": "answer checks"}


def _memory(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("memory, GB")
    table.add_column("sampling", justify="right")
    table.add_column("updating", justify="right")
    for name in plan.memory_gb:
        if name != "peak":
            table.add_row(name, *(_gb(phase.get(name)) for phase in (plan.sampling_gb, plan.updating_gb)))
    table.add_row("total", *(_gb(sum(phase.values())) for phase in (plan.sampling_gb, plan.updating_gb)), style="bold")
    return table


def _gb(size: float | None) -> str:
    return "" if size is None else f"{size:.2f}"


def _seconds(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("time, s")
    table.add_column("", justify="right")
    for name, seconds in plan.step_parts_s.items():
        table.add_row(_PARTS.get(name, name), _s(seconds))
    table.add_row("one step", _s(plan.step_s), style="bold")
    table.add_row("", "")
    rows = (("loading", plan.load_s), ("one evaluation", plan.evaluation_s), ("one validation", plan.validation_s))
    for name, seconds in (*rows, ("one checkpoint", plan.save_s)):
        table.add_row(name, _s(seconds))
    return table


def _update(plan: Plan) -> str:
    """Where the update's seconds go, most first."""
    parts = sorted(plan.update_parts_s.items(), key=lambda part: -part[1])
    moved = f" ({plan.update_elementwise_gb:,.0f} GB)"
    shown = (
        f"{_UPDATE_PARTS.get(name, name)} {_s(seconds)} s{moved if name == 'elementwise' and plan.update_elementwise_gb else ''}"
        for name, seconds in parts
    )
    return f"time of the update, longest part first: {', '.join(shown)}"


def _s(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds < 100 else f"{seconds:.0f}"


def _batch(config: RunConfig, plan: Plan) -> str:
    sampling = config.sampling
    return (
        f"{sampling.prompts_per_step} prompts x {sampling.group_size} = {plan.completions} completions "
        f"of up to {sampling.max_completion_tokens:,} tokens"
    )


def _bound(config: RunConfig) -> str:
    hours, steps = config.budget.hours, config.budget.steps
    parts = ([f"{hours:g} h"] if hours is not None else []) + ([f"{steps:,} steps"] if steps is not None else [])
    return " or ".join(parts) or "one step"


def _budget(config: RunConfig, plan: Plan) -> str:
    cost = f"at ${plan.price:.2f}/h = ${plan.cost_usd:.2f}" if plan.price else "for $0"
    return (
        f"{_bound(config)}: about {plan.steps:,} steps of {plan.step_s:.3g} s, {_short(plan.tokens)} tokens sampled, "
        f"{plan.hours:.3g} h {cost}"
    )


def _words(plan: Plan) -> list[Any]:
    lines: list[Any] = []
    if plan.advice:
        lines += ["", Text("it fits with" + (" all of these changes" if len(plan.advice) > 1 else ""), style="bold")]
        lines += [f"  {text}" for text in plan.advice]
    return [*lines, *(f"note: {text}" for text in plan.notes), _caution(plan.times)]


def _caution(times: str) -> Text:
    lengths = f"completions at {LENGTH_FRACTION:.0%} of their length limit"
    if times == "roofline":
        said = f"Estimated with a roofline model, assumed efficiencies and {lengths}; not measured on a GPU."
    else:
        said = f"Estimated with a roofline model, corrected by a calibration of this device ({times}), and {lengths}."
    return Text(said, style="dim")


def _short(count: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.0f}"


def as_text(content: RenderableType, pipe_width: int = PIPE_WIDTH) -> str:
    """Rendered text: in colour on a terminal, plain and this many characters wide in a file or pipe."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = pipe_width
    with console.capture() as captured:
        console.print(content, markup=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def print_lines(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str | None = None) -> None:
    """Print a table of the columns in which something stands, and a caption under it."""
    table = Table(box=None, pad_edge=False, header_style="bold", caption=caption)
    shown = [number for number in range(len(head)) if any(row[number] for row in rows)]
    for number in shown:
        table.add_column(head[number], overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(row[number])) for number in shown))
    print(as_text(table, WIDE))
