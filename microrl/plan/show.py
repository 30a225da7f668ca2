"""A plan as a page to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from microrl.config import RunConfig
from microrl.plan.plan import Plan
from microrl.plan.work import LENGTH_SHARE

WIDTH = 110


def page(config: RunConfig, plan: Plan) -> str:
    """One card in detail."""
    tables = Table.grid(padding=(0, 6))
    tables.add_row(_memory(plan), _seconds(plan))
    return _text(Group(_title(config, plan), "", tables, "", *_budget(config, plan), *_words(plan)))


def comparison(config: RunConfig, plans: Sequence[Plan]) -> str:
    """All cards, a row each."""
    first = plans[0]
    adapter = f"{config.adapter.kind} rank {config.adapter.rank}"
    title = (
        f"{first.model}, {adapter}: {first.total_params:,} parameters, {first.trainable_params:,} trained\n"
        f"{_batch(config, first)}; {_bound(config)}"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("card", "GB", "needs", "s a step", "steps", "tokens", "hours", "$/h", "$", ""):
        table.add_column(name, justify="left" if name in ("card", "") else "right", no_wrap=True)
    for plan in plans:
        flags = "" if plan.fits else "  ".join(text.partition(": ")[0] for text in plan.advice)
        table.add_row(
            plan.card.name, f"{plan.room_gb:.0f}", f"{plan.memory_gb['peak']:.1f}", f"{plan.step_s:.3g}", f"{plan.steps:,}",
            _short(plan.tokens), f"{plan.hours:.3g}", f"{plan.price:.2f}", f"{plan.cost_usd:.2f}",
            "fits" if plan.fits else f"with {flags}",
        )  # fmt: skip
    return _text(Group(title, "", table, "", _caution()))


def _title(config: RunConfig, plan: Plan) -> Group:
    verdict = (
        f"fits: {plan.memory_gb['peak']:.1f} of {plan.room_gb:.0f} GB"
        if plan.fits
        else f"DOES NOT FIT AS IT IS: {plan.memory_gb['peak']:.1f} of {plan.room_gb:.0f} GB"
    )
    engine = plan.engine + (f", asleep at level {plan.sleep} in the update" if plan.sleep not in (None, "off") else "")
    share = plan.trainable_params / plan.total_params
    return Group(
        f"{plan.model}, {config.adapter.kind} rank {config.adapter.rank}, {config.loss.kind} on {plan.card.label}",
        Text(verdict, style="bold" if plan.fits else "bold red"),
        f"parameters: {plan.total_params:,}, of which trained {plan.trainable_params:,} ({share:.2%}). Engine: {engine}",
        f"a step: {_batch(config, plan)}; {plan.concurrency} decode at a time; "
        f"{plan.micro_batches} micro-batches of {plan.micro_batch_tokens:,} tokens, about {plan.micro_batch_rows} rows each",
    )


def _memory(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("memory, GB")
    table.add_column("sampling", justify="right")
    table.add_column("updating", justify="right")
    for name in plan.memory_gb:
        if name != "peak":
            table.add_row(name, *(_gb(phase.get(name)) for phase in (plan.sampling_gb, plan.updating_gb)))
    table.add_row("together", *(_gb(sum(phase.values())) for phase in (plan.sampling_gb, plan.updating_gb)), style="bold")
    return table


def _gb(size: float | None) -> str:
    return "" if size is None else f"{size:.2f}"


def _seconds(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("a step, s")
    table.add_column("", justify="right")
    for name, seconds in plan.step_parts_s.items():
        table.add_row(name.replace("_", " and "), _s(seconds))
    table.add_row("together", _s(plan.step_s), style="bold")
    table.add_row("", "")
    rows = (("loading", plan.load_s), ("evaluation, one side", plan.evaluation_s), ("a validation", plan.validation_s))
    for name, seconds in (*rows, ("a save", plan.save_s)):
        table.add_row(name, _s(seconds))
    return table


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


def _budget(config: RunConfig, plan: Plan) -> list[Any]:
    return [
        Text(f"{_bound(config)}: about {plan.steps:,} steps of {plan.step_s:.3g} s, {_short(plan.tokens)} tokens sampled, "
             f"{plan.hours:.3g} h at {plan.price:g} $/h = ${plan.cost_usd:.2f}", style="bold")
    ]  # fmt: skip


def _words(plan: Plan) -> list[Any]:
    lines: list[Any] = []
    if plan.advice:
        lines += ["", Text("it fits with" + (" all of these" if len(plan.advice) > 1 else ""), style="bold")]
        lines += [f"  {text}" for text in plan.advice]
    return [*lines, *(f"note: {text}" for text in plan.notes), _caution()]


def _caution() -> Text:
    return Text(
        f"A roofline with stated efficiencies, completions at {LENGTH_SHARE:.0%} of their limit on average; not measured on a GPU. "
        "A run measures its own.",
        style="dim",
    )


def _short(count: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.0f}"


def _text(content: Group) -> str:
    """As the terminal can show it: in colour where somebody looks, as plain text in a file or pipe."""
    console = Console(highlight=False, soft_wrap=True)
    with console.capture() as captured:
        console.print(content, markup=False)
    return captured.get().rstrip()
