"""`microrl sample`: the base model's and the trained model's answers side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from microrl.cli.output import emit


def register(app: typer.Typer) -> None:
    app.command("sample", epilog="[bold]Example[/]\n\n  microrl sample runs/quickstart-1 'What is 47 + 38?'")(sample)


def sample(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")],
    question: Annotated[str, typer.Argument(help="What to ask.")],
    count: Annotated[int, typer.Option("--samples", min=1, help="Answers of each side.")] = 1,
    temperature: Annotated[float | None, typer.Option(min=0.01, help="Sampling temperature; the run's evaluation's.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampling, the same for both sides.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answers as JSON.")] = False,
) -> None:
    """Ask a run's base model and its trained model the same question, with the same random numbers."""
    from microrl.cli.target import find, prepare_hub
    from microrl.data.load import is_torn
    from microrl.errors import UserError

    if is_torn(question):
        raise UserError("the question is not valid text (half a surrogate pair)", "write it in UTF-8")
    found = find(run)
    if found.run is None:
        raise UserError(f"{run} is not a run folder", "see `ls runs`, or start one with `microrl train`")
    # One question is answered before another engine has started.
    flags = {"evaluation.temperature": temperature, "engine.kind": "transformers", "sync.mode": "auto"}
    config = found.with_settings(flags, ())
    prepare_hub(config)
    from microrl.train.measure import answers

    sides = answers(config, found.run, question, count=count, seed=seed)
    if as_json:
        emit({"question": question, **sides})
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from microrl.terminal import printable

    table = Table(*sides, title=Text(printable(question)), show_lines=True, expand=True)
    for pair in zip(*sides.values(), strict=True):
        table.add_row(*(Text(printable(text)) for text in pair))
    Console().print(table)
