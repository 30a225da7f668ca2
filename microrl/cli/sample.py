"""`microrl sample`: answers of the base model and the trained model side by side."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from microrl.cli import options
from microrl.cli.output import emit, say
from microrl.errors import UserError
from microrl.terminal import printable

if TYPE_CHECKING:
    from rich.text import Text

    from microrl.config import RunConfig
    from microrl.environments.transcript import Turn
    from microrl.run.folder import RunFolder
    from microrl.types import Completion


EXAMPLES = """
[bold]Examples[/]
  microrl sample 'What is 47 + 38?'                [dim]the newest run[/]
  microrl sample runs/mine 'What is 47 + 38?'
"""


@options.takes("temperature", "env", env=dict(default="the run's, else none"))
def sample(
    words: Annotated[
        list[str], typer.Argument(metavar="[RUN] QUESTION", help="A run folder (default: the newest run), and the question.")
    ],
    *,
    count: Annotated[int, typer.Option("--samples", min=1, help="Answers per model.")] = 1,
    flags: options.Flags,
    seed: Annotated[int, typer.Option(help="Sampling seed, the same for both models.")] = 0,
    as_json: options.Json = False,
) -> None:
    """Ask a run's base model and trained model the same question, with the same random numbers."""
    from microrl.cli import early
    from microrl.cli.target import prepare_hub
    from microrl.config.resolve import override
    from microrl.terminal import is_torn

    run, question = _asked(words)
    if is_torn(question):
        raise UserError("the question is not valid Unicode (half a surrogate pair)", "write it in UTF-8")
    # transformers answers one question before vLLM would have started.
    config = override(run.settings().model_dump(), flags | {"engine.kind": "transformers"}, ())
    early.refuse_environment(config.env)
    prepare_hub(config)
    from microrl.commands.sample import answers
    from microrl.environments.transcript import turns

    sides, said = answers(config, run, question, count=count, seed=seed)
    conversations = {
        side: [turns(one.text if one.transcript is None else one.transcript) for one in completions]
        for side, completions in sides.items()
    }
    if config.env.target is None and _agree(config, sides):
        from microrl.report.transcripts import evaluations

        differences = f". To find differences: microrl diff {run.path}" if evaluations(run.path) else ""
        say(f"note: both models give the same answers here{differences}")
    if as_json:
        texts = {side: [one.text for one in completions] for side, completions in sides.items()}
        told = {
            "said": said,
            "turns": {side: [[turn._asdict() for turn in one] for one in some] for side, some in conversations.items()},
        }
        emit({"question": question, **texts, **(told if config.env.target is not None else {})})
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*sides, title=Text(printable(question + said)), show_lines=True, expand=True)
    if config.env.target is None:
        for pair in zip(*sides.values(), strict=True):
            table.add_row(*(Text(printable(one.text)) for one in pair))
    else:
        for both in zip(*conversations.values(), strict=True):
            table.add_row(*(Text("\n").join(_said(turn) for turn in one) for one in both))
    Console().print(table)


def _agree(config: RunConfig, sides: Mapping[str, Sequence[Completion]]) -> bool:
    """Whether both models have given the same answers, or the same texts where no answer can be read."""
    from microrl.rewards.judges.judge import read

    def answer(text: str) -> str:
        return read(text, config.data.answer_kind, opened="<think>" not in text and "</think>" in text) or text

    base, trained = ([answer(one.text) for one in side] for side in sides.values())
    return base == trained


def _said(turn: Turn) -> Text:
    from rich.text import Text

    style = {"model": "bold", "call": "bold cyan", "tool": "bold green"}[turn.who]
    return Text.assemble((f"{turn.who:<6}", style), printable(turn.text))


def _asked(words: list[str]) -> tuple[RunFolder, str]:
    """(run, question). One argument alone is a question, unless it can only be a run. Raises UserError."""
    from microrl.cli.target import is_path, run_of
    from microrl.run.folder import RunFolder

    hint = "microrl sample [RUN] 'your question'; without RUN, the newest run answers"
    if len(words) > 2:
        raise UserError(f"expected one run and one question, got {len(words)} arguments", f"put the question in quotes: {hint}")
    name, question = words[0], words[-1]
    looks_like_a_run = RunFolder.is_one(Path(name)) or (is_path(name) and len(name.split()) == 1)
    if len(words) == 1 and not looks_like_a_run:
        return run_of(None), question
    if is_path(name) and not os.path.exists(os.path.expanduser(name)):
        raise UserError(f"there is no run at {name}", "list your runs with `ls runs`, or omit the name to use the newest run")
    if len(words) == 1:
        raise UserError("the question is missing", hint)
    return run_of(name), question
