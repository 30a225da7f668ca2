"""`microrl guide`: the user guide in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from microrl.cli.output import say

EXAMPLES = """
[bold]Examples[/]

  microrl guide                                    [dim]the pages, one line each[/]

  microrl guide budget

  microrl guide adapters > adapters.md             [dim]a pipe or a file gets the Markdown itself[/]
"""


def register(app: typer.Typer) -> None:
    app.command("guide", epilog=EXAMPLES)(guide)


def guide(
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="The page to read. Without one: the list of pages.")
    ] = None,
) -> None:
    """Read the user guide: list its pages, or show one."""
    from microrl.guide import pages, text

    if topic is None:
        found = pages()
        width = max(map(len, found))
        for name, sentence in found.items():
            print(f"{name:{width}}  {sentence}")
        say("read one: microrl guide TOPIC")
        return
    page = text(topic)
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    if console.is_terminal:
        console.print(Markdown(page))
    else:
        print(page, end="")
