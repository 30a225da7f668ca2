"""Options that several commands share."""

from __future__ import annotations

import time
from pathlib import Path
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
    typer.Option("--sft-minutes", help="Minutes of these hours that go to supervised learning first."),
]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of the configuration.")]


NAME_BYTES = 120
"""Of a run's folder, but for its time: a file system takes 255, and there may be many presets."""


def run_name(presets: list[str] | None, model: str) -> str:
    """What a run's folder is called, but for its time: by its presets, or by the model.

    Only a preset's own file and a `.gguf` file have a suffix that goes; `1.5B` is a part of a model's name.
    """
    if presets:
        name = "-".join(Path(preset).name.removesuffix(".toml") for preset in presets)
    else:
        path = Path(model)
        name = (path if path.name not in ("", "..") else path.resolve()).name.removesuffix(".gguf")
    return name.encode(errors="replace")[:NAME_BYTES].decode(errors="ignore") or "run"


def run_folder(name: str) -> Path:
    """Where the run of this name goes that begins now."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def as_flags(
    *, model: str | None, rank: int | None, adapter: str | None, loss: str | None, data: str | None, engine: str | None,
    seed: int | None, hours: float | None, steps: int | None, price: float | None, warmup_minutes: float | None,
) -> dict[str, Any]:  # fmt: skip
    """The options as keys of the configuration; None for one that was not given."""
    return {
        "model.name": model, "adapter.rank": rank, "adapter.kind": adapter, "loss.kind": loss, "data.name": data,
        "engine.kind": engine, "seed": seed, "budget.hours": hours, "budget.steps": steps, "budget.price": price,
        "sft.minutes": warmup_minutes,
    }  # fmt: skip
