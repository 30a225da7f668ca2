"""`microrl track`: send a run to an experiment tracker."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

from microrl.cli import options
from microrl.cli.output import say
from microrl.terminal import counted

EXAMPLES = """
[bold]Examples[/]
  microrl track runs/mine --to wandb               [dim]follows the run until it ends; a finished one is sent at once[/]
  WANDB_MODE=offline microrl track --to wandb      [dim]the newest run, written to local files[/]
  microrl track --to tensorboard                   [dim]then: tensorboard --logdir runs[/]
"""


def track(
    target: options.Run = None,
    *,
    to: Annotated[Literal["wandb", "trackio", "tensorboard"], typer.Option(help="The tracker.")],
    project: Annotated[
        str, typer.Option(help="Project name in the tracker; tensorboard has none.")
    ] = "microrl",
    beside: Annotated[bool, typer.Option("--beside", hidden=True, help="Follow the run until the parent process ends.")] = False,
) -> None:  # fmt: skip
    """Send a run's metrics to an experiment tracker, while it trains or afterwards. Training never waits for it."""
    from microrl.cli.target import run_of
    from microrl.run.tracking import refuse_if_missing

    refuse_if_missing(to)
    folder = run_of(target)
    from microrl.commands.track import track as send

    steps = send(folder, to, project, say, parent=os.getppid() if beside else None)
    say(f"{folder.path}: sent {counted(steps, 'step')} to {to}")
