"""`microrl export`: export a trained adapter, or the model with the adapter merged, for transformers, PEFT and vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from microrl.cli import options
from microrl.cli.output import emit, say
from microrl.errors import UserError
from microrl.terminal import counted

EXAMPLES = """
[bold]Examples[/]
  microrl export --out my-adapter                   [dim]the newest run; a LoRA if the update is low-rank[/]
  microrl export --as full --out my-model && vllm serve my-model
  microrl export runs/mine/best --out best --json
  microrl export some-peft-adapter --model Qwen2.5-1.5B-Instruct --as full --out my-model
"""


Trained = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="A run folder, its best/, or an adapter folder.", show_default="the newest run"),
]
Form = Annotated[
    Literal["lora", "full"] | None,
    typer.Option("--as", help="Write an adapter or the whole model.", show_default="lora if the update is low-rank"),
]
Dtype = Annotated[
    Literal["float32", "bfloat16", "float16"] | None,
    typer.Option(help="Weight type of a whole model; float32 is lossless.", show_default="the base model's type"),
]
Base = Annotated[
    str | None, typer.Option(help="Base model of the adapter.", show_default="the one that the run or adapter names")
]


def export(
    run: Trained = None,
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Output folder; must be new or empty.")],
    form: Form = None,
    dtype: Dtype = None,
    model: Base = None,
    as_json: options.Json = False,
) -> None:
    """Export a trained adapter, with a model card, to a folder that transformers and vLLM can load."""
    from microrl.cli.target import find_adapter, prepare_hub
    from microrl.config.paths import expanded

    refuse_type(form, dtype)
    expanded(str(out), "--out")
    config, folder, adapter = find_adapter(run, model)
    prepare_hub(config)
    from microrl.commands.export import merge

    summary = merge(config, folder, adapter, out, form=form, dtype=dtype)
    if as_json:
        emit(summary)
        return
    say(f"{out}: {export_summary(summary)}; see its README.md for how to load it")
    if summary["serve"] is not None:
        say(f"to serve it: {summary['serve']}")


def refuse_type(form: str | None, dtype: str | None) -> None:
    """Raise UserError for a weight type that an adapter cannot have."""
    if dtype is not None and form == "lora":
        raise UserError("--dtype needs --as full: an adapter is always written in float32", "remove --dtype")


def export_summary(summary: dict[str, Any]) -> str:
    """What was written, in words."""
    is_lora = summary["as"] == "lora"
    what = f"a LoRA of rank {summary['rank']} for {summary['base']}" if is_lora else f"a whole model in {summary['dtype']}"
    return f"{what}, {summary['bytes'] / 1e6:,.1f} MB in {counted(len(summary['files']), 'file')}"
