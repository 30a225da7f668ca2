"""`microrl diff`: the base model's and the trained model's answers to the same questions, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from microrl.cli import options
from microrl.cli.output import emit, say
from microrl.errors import UserError, did_you_mean
from microrl.terminal import counted, printable

if TYPE_CHECKING:
    from microrl.report.transcripts import Pair

EXAMPLES = """
[bold]Examples[/]
  microrl diff                                     [dim]the newest run: answers that became right or wrong[/]
  microrl diff runs/mine --only wrong --count 20
  microrl diff runs/mine --json > answers.json
"""
NARROW = 70
"""Below so many columns, the two answers stand one below the other."""
SHOWN_BEFORE = 60
"""Characters of what both answers begin with that are shown."""


def diff(
    target: options.Run = None,
    evaluation: Annotated[
        str | None,
        typer.Option(
            help="Name of a stored evaluation that has both models' answers.",
            show_default="the run's own, before and after training",
        ),
    ] = None,
    only: Annotated[
        Literal["turned", "right", "wrong", "changed", "all"],
        typer.Option(help="turned: became right or wrong; right: became right; wrong: became wrong; changed: the text differs; "
                     "all: every answer."),
    ] = "turned",
    count: Annotated[int, typer.Option(min=1, help="Show at most this many of each kind; --json has all.")] = 5,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Show the base model's and the trained model's answers to the same questions, from the first word that differs."""
    from microrl.cli.target import run_of
    from microrl.report import transcripts
    from microrl.run.remedies import to_evaluate

    kinds = {
        "turned": (transcripts.RIGHT, transcripts.WRONG), "right": (transcripts.RIGHT,), "wrong": (transcripts.WRONG,),
        "changed": (transcripts.RIGHT, transcripts.WRONG, transcripts.OTHER), "all": transcripts.KINDS,
    }  # fmt: skip
    folder = run_of(target)
    stored = transcripts.evaluations(folder.path)
    if not stored:
        raise UserError(
            f"no evaluation in {folder.path} has the answers of both models",
            f"make one: {to_evaluate(folder.path, folder.settings(), with_base=True)}",
        )
    name = next(iter(stored)) if evaluation is None else evaluation
    if name not in stored:
        raise UserError(f"{folder.path} has no evaluation `{name}` with both models' answers", did_you_mean(name, stored))
    notes: list[str] = []
    pairs = list(transcripts.pairs(*stored[name], notes))
    for note in dict.fromkeys(notes):
        say(f"warning: {note}")
    counts = transcripts.counts(pairs)
    chosen = [pair for kind in kinds[only] for pair in pairs if pair.kind == kind]
    if as_json:
        emit({"evaluation": name, "answers": len(pairs), "counts": counts, "pairs": [pair.to_json() for pair in chosen]})
        return
    print(
        f"{printable(name)}: {counted(len(pairs), 'answer')} of each model; "
        + ", ".join(f"{number} {kind}" for kind, number in counts.items())
    )
    for kind in kinds[only]:
        of_kind = [pair for pair in chosen if pair.kind == kind]
        if of_kind:
            shown = transcripts.different_first(of_kind)[:count]
            print(
                f"\n{kind}" + (f": {len(shown)} of {len(of_kind)} (raise --count for more)" if len(shown) < len(of_kind) else "")
            )
            _show(shown)


def _show(pairs: Sequence[Pair]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    is_wide = console.width >= NARROW
    for one in pairs:
        pair = one.shown()
        begin = ("... " if len(one.same) > SHOWN_BEFORE else "") + printable(one.same[-SHOWN_BEFORE:])
        heading = Text.assemble((pair.question, "bold"), f"  right answer: {pair.gold}")
        sides = [("base", pair.base, pair.base_right), ("trained", pair.trained, pair.trained_right)]
        texts = [
            Text.assemble((f"{name}, {'right' if right else 'wrong'}\n", "green" if right else "red"), (begin, "dim"), rest)
            for name, rest, right in sides
        ]
        table = Table(show_header=False, show_lines=not is_wide, expand=True, title=heading, title_justify="left")
        if is_wide:
            table.add_row(*texts)
        else:
            for text in texts:
                table.add_row(text)
        console.print(table)
