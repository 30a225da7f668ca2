"""Options that several commands share. Every default in a help text is that of `RunConfig`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

MODEL_HELP = "Local folder, Hugging Face id (owner/name), .gguf file, quickstart, or a short name such as Qwen2.5-1.5B-Instruct."
Presets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PRESET", help="Presets (listed by `microrl presets`) or TOML files; later ones override earlier ones."
    ),
]
Model = Annotated[str | None, typer.Option(help=MODEL_HELP, show_default="the preset's, else Qwen2.5-1.5B-Instruct")]
Rank = Annotated[
    int | None,
    typer.Option(
        help="Adapter rank. The update is scaled by adapter.alpha / rank; alpha is set separately.",
        show_default="the preset's, else 64 (tinylora: 2)",
    ),
]
Hours = Annotated[
    float | None,
    typer.Option(
        help="Time limit in hours for the whole run, loading and evaluation included. A run needs --hours or --steps, from here "
        "or from a preset; giving either replaces both limits of the preset."
    ),
]
Steps = Annotated[int | None, typer.Option(help="Maximum number of training steps. Without --hours there is then no time limit.")]
Adapter = Annotated[
    str | None,
    typer.Option(
        help="lora, dora, pissa, full, ...: `microrl presets adapters` lists all.", show_default="the preset's, else lora"
    ),
]
Loss = Annotated[
    str | None,
    typer.Option(
        help="grpo, dapo, ...: `microrl guide losses` lists all; or a custom algorithm as MODULE:CLASS.",
        show_default="the preset's, else grpo",
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="open-rs, gsm8k, mbpp, ... (`microrl presets data` lists all), arithmetic, reasoning-gym:TASK[,TASK], a Hugging "
        "Face id, or a local .jsonl, .json, .csv or .parquet file, or a folder of such files.",
        show_default="the preset's, else open-rs",
    ),
]
Rewards = Annotated[
    list[str] | None,
    typer.Option(
        "--reward",
        metavar="MODULE:FUNCTION[=WEIGHT]",
        help="Add a custom reward function, or an entry point of the group microrl.rewards; repeat for several.",
        show_default="the preset's, else none",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        help="auto (vLLM on a GPU where it is installed, else transformers), vllm or transformers.",
        show_default="the preset's, else auto",
    ),
]
Seed = Annotated[int | None, typer.Option(help="Random seed of training.", show_default="the preset's, else 0")]
Price = Annotated[
    float | None,
    typer.Option(
        help="Price of this machine, US dollars per hour.",
        show_default="the preset's, else the GPU's typical price, 0 on a CPU",
    ),
]
Run = Annotated[str | None, typer.Argument(metavar="RUN", help="A run folder.", show_default="the newest run")]
Json = Annotated[bool, typer.Option("--json", metavar="", help="Print the result as JSON.")]
SftMinutes = Annotated[
    float | None,
    typer.Option(
        "--sft-minutes",
        help="Start with supervised fine-tuning (SFT), for at most this many minutes of --hours; needs worked solutions.",
        show_default="the preset's, else none",
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set any configuration key, e.g. optim.lr=2e-5; repeat for several."),
]


KEYS = {
    "model": "model.name", "rank": "adapter.rank", "adapter": "adapter.kind", "loss": "loss.kind", "data": "data.name",
    "engine": "engine.kind", "seed": "seed", "hours": "budget.hours", "steps": "budget.steps", "price": "budget.price",
    "sft_minutes": "sft.minutes", "init": "init", "track": "track",
}  # fmt: skip
"""The configuration keys of commands' parameters."""
FLAGS = {key: f"--{name.replace('_', '-')}" for name, key in KEYS.items()} | {"reward.functions": "--reward"}
"""The flags of configuration keys."""
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


def as_flags(context: typer.Context) -> dict[str, Any]:
    """What was given for a command's parameters in `KEYS`, as configuration keys; None for what was not given."""
    return {key: context.params.get(name) for name, key in KEYS.items()}


def reward_flags(reward: list[str] | None) -> dict[str, Any]:
    """`--reward` as configuration keys. A function that is named here is looked for in the current folder, whatever the preset or
    run says of its own."""
    return {"reward.functions": tuple(reward) if reward else None, "reward.path": "." if reward else None}
