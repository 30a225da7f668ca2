"""`microrl warmup`: supervised fine-tuning (SFT) alone, for a model that is too rarely right for reinforcement learning."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from microrl.cli import options
from microrl.cli.attempts import run_with_fallback
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


@options.takes(
    "rank", "hours", "steps", "adapter", "data", "env", "seed",
    rank=dict(default="64 (tinylora: 2; quickstart: 4)"),
    hours=dict(help="Time limit in hours for the whole run, loading and evaluation included. Needed: --hours or --steps."),
    steps=dict(key="sft.steps", help="Maximum number of SFT steps. Without --hours there is then no time limit."),
    adapter=dict(default="lora"),
    data=dict(
        help="Data with worked solutions: as for `microrl train`, plus a column `solution` with the reasoning and the final "
        "answer in \\boxed{}.",
        default="open-rs; for the model quickstart, its generated sums",
    ),
    seed=dict(default="0"),
)  # fmt: skip
def warmup(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help=options.MODEL_HELP, show_default="with --resume: the run's")
    ] = None,
    *,
    flags: options.Flags,
    out: Annotated[Path | None, typer.Option(help="Run folder.", show_default="runs/warmup-MODEL-TIME")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Resume this run folder.")] = None,
    sets: options.Sets = None,
) -> int:
    """Fine-tune on worked solutions before RL, with an evaluation before and after. Continue with `train --init RUN`."""
    from microrl.cli import machine
    from microrl.run.folder import RunFolder

    hours, steps = flags["budget.hours"], flags.pop("sft.steps")
    if resume is not None:
        refuse_with_resume([model] if model is not None else [], {**flags, "--out": out, "--set": sets})
        folder = RunFolder.open(resume)
        if not folder.settings().sft.only:
            raise UserError(f"{resume} is a run of `microrl train`, not of `microrl warmup`", f"microrl train --resume {resume}")
        return go_on(folder, hours, steps)
    config = _resolved({**flags, "model.name": model, "sft.steps": steps}, sets)
    path = out or options.run_folder(f"warmup-{options.run_name(None, config.model.name)}")
    machine.check(config, path)
    return run_with_fallback(RunFolder.create(path, config.model_dump(mode="json")), resume=False)


def _resolved(flags: dict, sets: list[str] | None) -> RunConfig:
    """The configuration of a run with SFT steps only. Raises UserError."""
    from microrl.config import known_models, resolve

    if flags["model.name"] is None:
        raise UserError("missing argument MODEL", "microrl warmup MODEL --data FILE, or microrl warmup --resume RUN")
    presets = [flags["model.name"]] if flags["model.name"] in known_models.TINY else []
    return resolve(presets, {**flags, "sft.only": True}, sets or ())
