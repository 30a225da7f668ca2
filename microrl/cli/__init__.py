"""The command line: parse, resolve, call, print. One file per command; heavy libraries are imported only when a command runs."""

from __future__ import annotations

import atexit
import gc
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from microrl import __version__
from microrl.cli.output import FAILED, guarded
from microrl.cli.welcome import ABOUT, first_screen
from microrl.limits import SPINS_BEFORE_SLEEP
from microrl.terminal import printable

PANELS = {
    "Start here": {
        "train": "Train a model by reinforcement learning with verifiable rewards.",
        "plan": "Estimate memory, time and cost of a run. Needs no GPU.",
        "eval": "Measure accuracy and pass@k, with confidence intervals.",
    },
    "Train": {
        "warmup": "Supervised fine-tuning (SFT) on worked solutions, before RL.",
        "teach": "Store a teacher's answers and their log-probabilities.",
        "sweep": "Train every combination of settings and seeds.",
        "presets": "List presets, adapters, models and data sets.",
    },
    "Measure": {
        "compare": "Compare runs by their evaluations, over seeds and problems.",
        "audit": "Try hundreds of cheats on a reward, without a model.",
        "regrade": "Score a run's completions again, with other rewards.",
    },
    "Look": {
        "watch": "Watch a run in progress.",
        "report": "Write a page: did training help, what went wrong, figures.",
        "diff": "Show answers before and after training, side by side.",
        "sample": "Ask the base model and the trained one a question.",
        "inspect": "Measure what training has done to the weights.",
    },
    "Share": {
        "export": "Export the adapter, or the whole model, with a model card.",
        "push": "Upload an adapter or model to the Hugging Face Hub.",
        "track": "Send a run's metrics to wandb, Trackio or TensorBoard.",
    },
    "Machine": {
        "doctor": "Check GPU, libraries, vLLM, disk and Hugging Face Hub.",
        "guide": "Read the user guide.",
        "bench": "Measure the speed of steps, sampling and weight syncs.",
    },
}
"""Every command by its panel in `microrl --help`, with its line there; its file is `microrl/cli/NAME.py`, or as in `_FILES`."""

FULL_COLLECTIONS = 100
"""After so many collections of younger objects comes a full one; Python's own number is 10."""
_FILES = {"eval": "evaluate", "merge": "export"}  # `merge`: what `export` was called before
_NAMES = (*(name for panel in PANELS.values() for name in panel), "merge")


_HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


@cache
def _command(name: str) -> Any:
    """The parsed command: the group that its file defines, or the function with the file's name."""
    file = _FILES.get(name, name)
    module = import_module(f"microrl.cli.{file}")
    group = getattr(module, "group", None)
    if group is None:
        group = typer.Typer(add_completion=False, rich_markup_mode="rich")
        group.command(hidden=name == "merge")(getattr(module, file))
    command = typer.main.get_command(group)
    command.name = name
    for one in (command, *getattr(command, "commands", {}).values()):
        one.help = re.sub(r"(?<!\n)\n(?!\n)", " ", one.help or "")  # a paragraph, which typer would break where the file does
        for option in one.get_params(typer.Context(one, **_HELP)):  # --help, too
            if getattr(option, "is_flag", False):
                option.metavar = ""  # it takes no value
    command.epilog = getattr(module, "EXAMPLES", "").replace("\n", "\n\n") or None  # each example a paragraph
    return command


class _Commands(Mapping[str, Any]):
    """Every command by its name. Its file is imported only when it is asked for: the list of all loads none."""

    def __getitem__(self, name: str) -> Any:
        if name not in _NAMES:
            raise KeyError(name)
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


class _Microrl(TyperGroup):
    """The list of all commands. Its help is plain text: importing rich's panels takes longer than all the rest."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, options, and the commands by panel."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        options = [line for option in self.get_params(ctx) if (line := option.get_help_record(ctx))]
        for panel, lines in {"Options": options, **{panel: list(commands.items()) for panel, commands in PANELS.items()}}.items():
            with formatter.section(panel):
                formatter.write_dl(lines)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


_app = typer.Typer(
    name="microrl",
    help=f"{ABOUT[0].upper()}{ABOUT[1:]}.",
    cls=_Microrl,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
)


@_app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(printable(first_screen()))


app: Any = typer.main.get_command(_app)
app.commands = _Commands()


def main() -> None:
    """Entry point of the `microrl` command; see `guarded` for what the exit status means."""
    # Threads that wait spin for some microseconds, which bridges the gaps between two operations, and then sleep: where another
    # process wants a core, spinning ones make a step several times slower. It is read when torch is first imported.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS_BEFORE_SLEEP)
    # While torch and transformers are imported, eight full collections would look through half a million objects and free none.
    gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTIONS)
    status = FAILED

    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # whoever read it has left; None where there never was one
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
