"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

Presets = Annotated[list[str] | None, typer.Argument(metavar="[PRESET]...", help="Presets or TOML files; later ones win.")]
Model = Annotated[str | None, typer.Option(help="Local folder, hub id, a paper's short name, or a .gguf file.")]
Rank = Annotated[int | None, typer.Option(help="Rank of the adapter.")]
Hours = Annotated[float | None, typer.Option(help="Wall clock of the whole process, loading and evaluation included.")]
Steps = Annotated[int | None, typer.Option(help="Most training steps.")]
Adapter = Annotated[str | None, typer.Option(help="lora, dora, pissa, full, ...: `microrl presets adapters` lists all.")]
Loss = Annotated[str | None, typer.Option(help="grpo, dapo, dr_grpo or gspo.")]
Data = Annotated[str | None, typer.Option(help="Known data set, hub id, or a local .jsonl, .json, .csv, .parquet file.")]
Engine = Annotated[str | None, typer.Option(help="auto, vllm or transformers.")]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random in training.")]
Price = Annotated[float | None, typer.Option(help="US dollars an hour of this machine.")]
WarmupMinutes = Annotated[
    float | None,
    typer.Option("--warmup-minutes", help="Minutes of these hours that go to supervised learning first."),
]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of the configuration.")]


def as_flags(
    *, model: str | None, rank: int | None, adapter: str | None, loss: str | None, data: str | None, engine: str | None,
    seed: int | None, hours: float | None, steps: int | None, price: float | None, warmup_minutes: float | None,
) -> dict[str, Any]:  # fmt: skip
    """The options as keys of the configuration; None for one that was not given."""
    return {
        "model.name": model, "adapter.rank": rank, "adapter.kind": adapter, "loss.kind": loss, "data.name": data,
        "engine.kind": engine, "seed": seed, "budget.hours": hours, "budget.steps": steps, "budget.price": price,
        "warmup.minutes": warmup_minutes,
    }  # fmt: skip
