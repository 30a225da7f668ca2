"""`microrl warmup`: the supervised phase alone, for a model that is right too seldom to be reinforced."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from microrl.cli import options
from microrl.cli.train import carry_out, go_on, refuse_with_resume
from microrl.errors import UserError

if TYPE_CHECKING:
    from microrl.config import RunConfig

EXAMPLES = """
[bold]Examples[/]

  microrl warmup Qwen2.5-0.5B --data traces.jsonl --hours 0.5 --rank 64 --out runs/warm
  microrl train --model Qwen2.5-0.5B --data problems.jsonl --rank 64 --hours 6 --init runs/warm

  microrl warmup quickstart --steps 20             [dim]no GPU, no network[/]

  microrl warmup --resume runs/warm --hours 1
"""


def register(app: typer.Typer) -> None:
    app.command("warmup", epilog=EXAMPLES)(warmup)


def warmup(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Local folder, hub id, a paper's short name, or a .gguf file.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="As for train, with a solution a row: the reasoning and its answer in \\boxed{}.")
    ] = None,
    rank: options.Rank = None,
    adapter: options.Adapter = None,
    hours: options.Hours = None,
    steps: Annotated[int | None, typer.Option(help="Most supervised steps.")] = None,
    seed: options.Seed = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; runs/warmup-MODEL-TIME if not given.")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Go on with this run folder.")] = None,
    sets: options.Sets = None,
) -> int:
    """Teach a model to reason from solutions: supervised, evaluated before and after. `train --init RUN` goes on from there."""
    from microrl.run.folder import RunFolder

    flags = options.as_flags(
        model=model, rank=rank, adapter=adapter, loss=None, data=data, engine=None, seed=seed, hours=hours, steps=None,
        price=None, warmup_minutes=None,
    )  # fmt: skip
    flags["sft.steps"] = steps
    if resume is not None:
        bounds = ("budget.hours", "sft.steps")
        refuse_with_resume([], {**{name: flags[name] for name in flags if name not in bounds}, "--out": out, "--set": sets})
        folder = RunFolder.open(resume)
        if not folder.settings().sft.only:
            raise UserError(f"{resume} is a training run", f"microrl train --resume {resume}")
        return go_on(folder, hours, steps)
    config = _resolved(flags, sets)
    path = out or options.run_folder(f"warmup-{options.run_name(None, config.model.name)}")
    tree = config.model_dump(mode="json")
    return carry_out(RunFolder.create(path, tree), tree, resume=False)


def _resolved(flags: dict, sets: list[str] | None) -> RunConfig:
    """The configuration of a run without a training step. Raises UserError."""
    from microrl.config import models, resolve

    if flags["model.name"] is None:
        raise UserError("which model?", "microrl warmup MODEL --data FILE, or --resume RUN")
    presets = [models.QUICKSTART] if flags["model.name"] == models.QUICKSTART else []
    config = resolve(presets, {**flags, "sft.only": True}, sets or ())
    # A preset's steps are training steps, of which there are none here.
    return config.model_copy(update={"budget": config.budget.model_copy(update={"steps": None})})
