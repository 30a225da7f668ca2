"""`microrl warmup`: supervised fine-tuning (SFT) alone, for a model that is too rarely right for reinforcement learning."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from microrl.cli import options
from microrl.cli.attempts import carry_out
from microrl.cli.train import go_on, refuse_with_resume
from microrl.errors import UserError

if TYPE_CHECKING:
    from microrl.config import RunConfig

EXAMPLES = """
[bold]Examples[/]

  microrl warmup Qwen/Qwen2.5-0.5B --data traces.jsonl --hours 0.5 --rank 64 --out runs/warm
  microrl train --model Qwen/Qwen2.5-0.5B --data problems.jsonl --rank 64 --hours 6 --init runs/warm

  microrl warmup quickstart --steps 20             [dim]no GPU, no network[/]

  microrl warmup --resume runs/warm --hours 1
"""


def warmup(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help=options.MODEL_HELP, show_default="with --resume: the run's")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Data with worked solutions: as for `microrl train`, plus a column `solution` with the reasoning and the final "
            "answer in \\boxed{}.",
            show_default="open-rs; for the model quickstart, its generated sums",
        ),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(
            help="Adapter rank. The update is scaled by adapter.alpha / rank; alpha is set separately.",
            show_default="64 (tinylora: 2; quickstart: 4)",
        ),
    ] = None,
    adapter: Annotated[
        str | None,
        typer.Option(help="lora, dora, pissa, full, ...: `microrl presets adapters` lists all.", show_default="lora"),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(help="Time limit in hours for the whole run, loading and evaluation included. Needed: --hours or --steps."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Maximum number of SFT steps. Without --hours there is then no time limit.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed of training.", show_default="0")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder.", show_default="runs/warmup-MODEL-TIME")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Resume this run folder.")] = None,
    sets: options.Sets = None,
) -> int:
    """Fine-tune on worked solutions before RL, with an evaluation before and after. Continue with `train --init RUN`."""
    from microrl.cli import machine
    from microrl.run.folder import RunFolder

    flags = options.as_flags(context)
    flags["sft.steps"] = flags.pop("budget.steps")
    if resume is not None:
        bounds = ("budget.hours", "sft.steps")
        given = {name: flags[name] for name in flags if name not in ("model.name", *bounds)}
        refuse_with_resume([model] if model is not None else [], {**given, "--out": out, "--set": sets})
        folder = RunFolder.open(resume)
        if not folder.settings().sft.only:
            raise UserError(f"{resume} is a run of `microrl train`, not of `microrl warmup`", f"microrl train --resume {resume}")
        return go_on(folder, hours, steps)
    config = _resolved(flags, sets)
    path = out or options.run_folder(f"warmup-{options.run_name(None, config.model.name)}")
    machine.check(config, path)
    tree = config.model_dump(mode="json")
    return carry_out(RunFolder.create(path, tree), tree, resume=False)


def _resolved(flags: dict, sets: list[str] | None) -> RunConfig:
    """The configuration of a run with SFT steps only. Raises UserError."""
    from microrl.config import known_models, resolve

    if flags["model.name"] is None:
        raise UserError("missing argument MODEL", "microrl warmup MODEL --data FILE, or microrl warmup --resume RUN")
    presets = [known_models.QUICKSTART] if flags["model.name"] == known_models.QUICKSTART else []
    config = resolve(presets, {**flags, "sft.only": True}, sets or ())
    # A preset's steps are training steps; this run has none.
    return config.model_copy(update={"budget": config.budget.model_copy(update={"steps": None})})
