"""The command line: parse, resolve, call, print. One file per command; heavy libraries are imported only when a command runs."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress
from typing import Annotated

import typer

from microrl import __version__
from microrl.cli import (
    audit,
    bench,
    compare,
    diff,
    doctor,
    evaluate,
    export,
    guide,
    inspect,
    plan,
    presets,
    push,
    regrade,
    report,
    sample,
    sweep,
    teach,
    track,
    train,
    warmup,
    watch,
)
from microrl.cli.output import FAILED, guarded
from microrl.cli.welcome import ABOUT, first_screen
from microrl.limits import SPINS_BEFORE_SLEEP
from microrl.terminal import printable

app = typer.Typer(
    name="microrl",
    help=f"{ABOUT[0].upper()}{ABOUT[1:]}.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(printable(first_screen()))


COMMANDS = {
    "Start here": {
        "train": (train, "Train a model by reinforcement learning with verifiable rewards."),
        "plan": (plan, "Estimate memory, time and cost of a run. Needs no GPU."),
        "eval": (evaluate, "Measure accuracy and pass@k, with confidence intervals."),
    },
    "Train": {
        "warmup": (warmup, "Supervised fine-tuning (SFT) on worked solutions, before RL."),
        "teach": (teach, "Store a teacher's answers and scores, to distil from later."),
        "sweep": (sweep, "Train every combination of settings and seeds."),
        "presets": (presets, "List presets, adapters and data sets."),
    },
    "Measure": {
        "compare": (compare, "Compare runs by their evaluations, over seeds and problems."),
        "audit": (audit, "Try hundreds of cheats on a reward, without a model."),
        "regrade": (regrade, "Score a run's completions again, with other rewards."),
    },
    "Look": {
        "watch": (watch, "Watch a run in progress."),
        "report": (report, "Write a page: did training help, what went wrong, figures."),
        "diff": (diff, "Show answers before and after training, side by side."),
        "sample": (sample, "Ask the base model and the trained one a question."),
        "inspect": (inspect, "Measure what training has done to the weights."),
    },
    "Share": {
        "export": (export, "Export the adapter, or the whole model, with a model card."),
        "push": (push, "Upload an adapter or model to the Hugging Face Hub."),
        "track": (track, "Send a run's metrics to wandb, Trackio or TensorBoard."),
    },
    "Machine": {
        "doctor": (doctor, "Check GPU, libraries, vLLM, disk and Hugging Face Hub."),
        "guide": (guide, "Read the user guide."),
        "bench": (bench, "Measure the speed of steps, sampling and weight syncs."),
    },
}
"""Every command, by its panel in `microrl --help`, with its line there."""

for panel, commands in COMMANDS.items():
    for name, (module, line) in commands.items():
        epilog = getattr(module, "EXAMPLES", "").replace("\n", "\n\n") or None  # each example a paragraph
        if isinstance(group := getattr(module, "group", None), typer.Typer):
            app.add_typer(group, name=name, short_help=line, rich_help_panel=panel, epilog=epilog)
        else:  # the function with the file's name
            function = getattr(module, module.__name__.rpartition(".")[2])
            app.command(name, short_help=line, rich_help_panel=panel, epilog=epilog)(function)
app.command("merge", hidden=True)(export.export)  # what it was called before


def main() -> None:
    """Entry point of the `microrl` command; see `guarded` for what the exit status means."""
    # Threads that wait spin for some microseconds, which bridges the gaps between two operations, and then sleep: where another
    # process wants a core, spinning ones make a step several times slower. It is read when torch is first imported.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS_BEFORE_SLEEP)
    status = FAILED

    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # whoever read it has left
                stream.flush()
        os._exit(status)

    # Registered first, it runs last, after the exit handlers of every library. It skips the interpreter's own clean-up: freeing
    # torch's modules one by one takes another second or two of the budget.
    atexit.register(leave)
    status = guarded(lambda: app(standalone_mode=False))
    for number in (signal.SIGINT, signal.SIGTERM):  # all is saved: another one ends the exit handlers, and not the status
        signal.signal(number, lambda *_: leave())
    if "vllm" in sys.modules and sys.modules["torch"].cuda.is_initialized():
        leave()  # vLLM's exit handlers take its engine down: on a GPU that can abort, and the status would be lost
    sys.exit(status)
