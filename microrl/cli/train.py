"""`microrl train`: start, resume or extend a run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from microrl.cli import control as controls
from microrl.cli import options
from microrl.cli.attempts import run_with_fallback
from microrl.cli.output import OK, say
from microrl.errors import UserError
from microrl.run import names
from microrl.terminal import counted, printable, time_in_words

if TYPE_CHECKING:
    from microrl.run.folder import RunFolder

AUTO = "auto"

EXAMPLES = """
[bold]Examples[/]
  microrl train quickstart                         [dim]no GPU, no network: a minute on two CPU cores[/]
  microrl train --model Qwen2.5-1.5B-Instruct --rank 256 --hours 24
  microrl train micro-r64 --data problems.jsonl --hours 6 --price 0.30
  microrl train micro-r64 --data problems.jsonl --reward my_rewards:brevity=0.5 --hours 6
  microrl train --model Qwen/Qwen2.5-0.5B --sft-minutes 20 --hours 6   [dim]SFT first[/]
  microrl train micro-r64 --data problems.jsonl --hours 6 --control shuffle   [dim]with a control run: 12 hours[/]
  microrl train quickstart-tools                   [dim]learns to call a calculator[/]
  microrl train --teacher Qwen2.5-7B-Instruct --hours 6   [dim]distillation[/]
  microrl train micro-r8 --set optim.lr=2e-5 --set loss.kind=dapo --dry-run
"""


@options.takes(*options.SETTINGS)
def train(
    presets: options.Presets = None,
    *,
    flags: options.Flags,
    out: Annotated[
        Path | None, typer.Option(help="Run folder.", show_default="runs/NAME-TIME, NAME from the presets or the model")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="RUN|auto", help="Resume this run folder; auto: resume the run that this same command started, or start it."
        ),
    ] = None,
    control: Annotated[
        Literal["shuffle"] | None,
        typer.Option(
            help="shuffle: afterwards, repeat the run in RUN-shuffled with shuffled rewards, and a guard that only warns. "
            "Whatever that run gains does not come from the rewards. It gets the same hours or steps again, so both together "
            "take twice as long.",
            show_default="none",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the configuration, three prompts and a forecast; do not train.")
    ] = False,
    sets: options.Sets = None,
) -> int:
    """Train a model by reinforcement learning with verifiable rewards."""
    from microrl.cli import machine
    from microrl.config import resolve
    from microrl.config.paths import expanded
    from microrl.run.folder import RunFolder

    if out is not None:
        expanded(str(out), "--out")
    if resume is not None and resume != AUTO:
        refuse_with_resume(presets, {**flags, "--out": out, "--set": sets, "--dry-run": dry_run or None})
        bounds = flags["budget.hours"], flags["budget.steps"]
        folder = RunFolder.open(Path(resume))
        if control:
            return _go_on_with_control(folder, *bounds, flags["engine.kind"])
        status = go_on(folder, *bounds, flags["engine.kind"])
        controls.say_if_unfinished(folder)
        return status
    refuse_studies(presets or ())
    config = resolve(presets or (), flags, sets or ())
    if not config.is_bounded:
        first = "" if presets else "; to try microrl first, without a GPU and in a minute: microrl train quickstart"
        raise UserError("no budget given", f"pass --hours H or --steps N{first}")
    if flags["sft.data"] is not None and not config.sft.is_on:
        raise UserError("--sft-data has no effect without SFT", "add --sft-minutes M, or --set sft.steps=N")
    if config.track is not None:
        from microrl.run import tracking

        tracking.refuse_if_missing(config.track)
    path = out or options.run_folder(options.run_name(presets, config.model.name))
    if control:
        controls.refuse(config, path)
    if dry_run:
        from microrl.cli import early

        machine.check(config, path)
        early.refuse(config)
        from microrl.commands.dry_run import preview

        print(printable(preview(config)))
        if control:
            print(printable(controls.time_of_both(path, config.budget.hours, config.budget.steps)))
        return OK
    tree = config.model_dump(mode="json")
    if resume == AUTO and (begun := RunFolder.begun_with(tree, out) or (controls.begun_with(tree) if control else None)):
        return _go_on_with_control(begun, None, None) if control else go_on(begun, None, None)
    machine.check(config, path)
    folder = RunFolder.create(path, tree)
    if control:
        say(controls.time_of_both(path, config.budget.hours, config.budget.steps))
        return controls.run_both(
            path,
            lambda started: run_with_fallback(folder, resume=False, started=started),
            partial(_control, folder, None),
        )
    return run_with_fallback(folder, resume=False)


def _go_on_with_control(folder: RunFolder, hours: float | None, steps: int | None, engine: str | None = None) -> int:
    """As `go_on`, and then the same with the run's control, which is started if there is none."""
    config = folder.settings()
    controls.refuse(config, folder.path)
    bounds = (config.budget.hours, config.budget.steps) if hours is None and steps is None else (hours, steps)
    say(controls.time_of_both(folder.path, *bounds))
    return controls.run_both(folder.path, partial(go_on, folder, hours, steps, engine), partial(_control, folder, engine))


def _control(folder: RunFolder, engine: str | None, started: float | None) -> int:
    """Start the control of a run that has ended, or go on with it, as long as the run; returns the exit status."""
    from microrl.run.control import budget, control_of, shuffled
    from microrl.run.folder import RunFolder

    tree = folder.config()
    if not (path := control_of(folder.path)).exists():
        return run_with_fallback(RunFolder.create(path, shuffled(tree)), resume=False, started=started)
    control = RunFolder.open(path)
    ours, theirs = budget(tree), budget(control.config())
    is_longer = any(limit is not None and made is not None and made > limit for limit, made in zip(ours, theirs, strict=True))
    return go_on(control, *((None, None) if ours == theirs or is_longer else ours), engine, started)


def refuse_studies(names: Sequence[str]) -> None:
    """Raise UserError for the preset of a sweep."""
    from microrl.config import presets

    for name in names:
        if presets.sweep(name):
            raise UserError(f"{name} is the preset of a sweep, not of a single run", f"microrl sweep {name}")


def refuse_with_resume(presets: list[str] | None, flags: dict[str, Any]) -> None:
    """Raise UserError if anything other than --hours, --steps or --engine is given together with --resume."""
    free = ("budget.hours", "budget.steps", "engine.kind", "reward.path", "env.path")  # these come with others
    given = [name for name, value in flags.items() if value is not None and name not in free]
    if presets or given:
        shown = [*(presets or []), *(options.FLAGS.get(name, name) for name in given)]
        raise UserError(
            f"--resume uses the settings of the run; it cannot be combined with {', '.join(shown)}",
            "with --resume, only --hours and --steps can be changed; repeating the run's --engine undoes what vLLM's failures "
            "have changed; for anything else start a new run (microrl train --init RUN starts from its adapter)",
        )


def go_on(
    folder: RunFolder, hours: float | None, steps: int | None, engine: str | None = None, started: float | None = None
) -> int:
    """Resume a run, with new bounds if given; returns the exit status. `engine`: the run's own, to be tried again after its
    failures. `started` as for `run_with_fallback`. Raises UserError."""
    from microrl.cli import machine
    from microrl.run import heartbeat, summary
    from microrl.train import fallback

    config = folder.settings()
    if engine is not None and engine != config.engine.kind:
        raise UserError(
            f"{folder.path} runs with --engine {config.engine.kind}, which cannot be changed",
            f"--engine {config.engine.kind} undoes what vLLM's failures have changed; for another engine start a new run "
            "(microrl train --init RUN starts from its adapter)",
        )
    folder.lock()
    fallback.forget(folder, at_once=engine is not None)
    bounds = {name: value for name, value in (("hours", hours), ("steps", steps)) if value is not None}
    if not bounds and folder.is_done():
        say(f"{folder.path} is already finished")
        say(f"to extend it: microrl train --resume {folder.path} --hours H, or --steps N")
        return OK
    if not folder.is_in_sweep:  # which has checked it for all its trials
        machine.check(fallback.applied(config, folder), folder.path)
    if bounds:
        tree = folder.config()
        tree["budget"] |= {"hours": None, "steps": None, **bounds}
        if config.sft.only:  # its steps are the SFT steps
            tree["sft"] |= {"minutes": None, "steps": steps}
            tree["budget"]["steps"] = None
        folder.settings(tree)
        spent = heartbeat.last_s(folder.path) / 3600
        if hours is not None and hours <= spent:
            raise UserError(
                f"{folder.path} has already used {time_in_words(spent)}",
                "--hours is the limit of the whole run, past time included; pass a larger one: "
                f"microrl train --resume {folder.path} --hours H",
            )
        ended = summary.read(folder.path) if folder.is_done() else None
        made = 0 if ended is None else ended.sft.steps if config.sft.only and ended.sft is not None else ended.steps
        if steps is not None and steps < made:
            raise UserError(
                f"{folder.path} has already made {counted(made, 'step')}",
                "--steps is the limit of the whole run, past steps included; pass a larger one: "
                f"microrl train --resume {folder.path} --steps N",
            )
        folder.write_config(tree)
        folder.drop_partial_line(names.EVENTS)
        folder.event("budget changed", ", ".join(f"{name} {value:g}" for name, value in bounds.items()))
    return run_with_fallback(folder, resume=True, is_extended=bool(bounds), started=started)
