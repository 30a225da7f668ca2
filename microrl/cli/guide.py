"""`microrl guide`: the user guide in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from microrl.cli.output import say

EXAMPLES = """
[bold]Examples[/]
  microrl guide                                    [dim]list the pages[/]
  microrl guide budget
  microrl guide adapters > adapters.md             [dim]into a pipe or file: plain Markdown[/]
"""


def guide(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Page to show.", show_default="list the pages")] = None,
) -> None:
    """Read the user guide: list its pages, or show one."""
    from microrl.guide import pages, text

    if topic is None:
        from microrl.tables import table_text

        print(table_text(("", ""), list(pages().items())))
        say("to read a page: microrl guide TOPIC")
        return
    page = text(topic)
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    if not console.is_terminal:
        print(page, end="")
        return
    with console.capture() as captured:
        console.print(Markdown(page))
    shown = captured.get()
    if shown.count("\n") < console.height:
        console.file.write(shown)
    else:
        import click

        click.echo_via_pager(shown, color=console.color_system is not None)  # from its top
