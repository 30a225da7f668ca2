"""Options that several commands share."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

Presets = Annotated[list[str] | None, typer.Argument(metavar="PRESET", help="Presets or TOML files; later ones win.")]
Model = Annotated[str | None, typer.Option(help="Local folder, hub id, short name of a paper's model, or .gguf file.")]
Rank = Annotated[int | None, typer.Option(help="Adapter rank.")]
Hours = Annotated[float | None, typer.Option(help="Time limit of the whole process, including loading and evaluation.")]
Steps = Annotated[int | None, typer.Option(help="Maximum number of training steps.")]
Adapter = Annotated[str | None, typer.Option(help="lora, dora, pissa, full, ...: `microrl presets adapters` lists all.")]
Loss = Annotated[str | None, typer.Option(help="grpo, dapo, dr_grpo or gspo.")]
Data = Annotated[str | None, typer.Option(help="Known data set, hub id, or local .jsonl, .json, .csv or .parquet file.")]
Engine = Annotated[str | None, typer.Option(help="auto, vllm or transformers.")]
Seed = Annotated[int | None, typer.Option(help="Random seed of training.")]
Price = Annotated[float | None, typer.Option(help="Price of this machine, US dollars per hour.")]
SftMinutes = Annotated[
    float | None,
    typer.Option("--sft-minutes", help="Supervised fine-tuning (SFT) first, for at most this many minutes of --hours."),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set any configuration key, e.g. optim.lr=2e-5; repeat for several."),
]


NAME_BYTES = 120
"""Maximum length of a run folder's name without its time: file systems allow 255, and there may be many presets."""


def run_name(presets: list[str] | None, model: str) -> str:
    """The name of a run folder without its time: the presets' names, or the model's.

    Only the suffixes `.toml` and `.gguf` are removed; the `.5B` of `1.5B` is part of a model's name.
    """
    if presets:
        name = "-".join(Path(preset).name.removesuffix(".toml") for preset in presets)
    else:
        path = Path(model)
        name = (path if path.name not in ("", "..") else path.resolve()).name.removesuffix(".gguf")
    return name.encode(errors="replace")[:NAME_BYTES].decode(errors="ignore") or "run"


def run_folder(name: str) -> Path:
    """`runs/NAME-TIME`: the folder of a run that starts now."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def as_flags(
    *, model: str | None, rank: int | None, adapter: str | None, loss: str | None, data: str | None, engine: str | None,
    seed: int | None, hours: float | None, steps: int | None, price: float | None, sft_minutes: float | None,
) -> dict[str, Any]:  # fmt: skip
    """The options as configuration keys; None for an option that was not given."""
    return {
        "model.name": model, "adapter.rank": rank, "adapter.kind": adapter, "loss.kind": loss, "data.name": data,
        "engine.kind": engine, "seed": seed, "budget.hours": hours, "budget.steps": steps, "budget.price": price,
        "sft.minutes": sft_minutes,
    }  # fmt: skip
