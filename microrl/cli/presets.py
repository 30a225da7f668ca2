"""`microrl presets`: list the presets, show one, or list the adapters."""

from __future__ import annotations

from typing import Annotated

import typer

from microrl.cli.output import emit
from microrl.terminal import printable


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="List the presets, show one, or list the adapters.", invoke_without_command=True)
    group.callback()(listing)
    group.command("show")(show)
    group.command("adapters")(adapters)
    app.add_typer(group, name="presets")


def listing(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print names and descriptions as JSON.")] = False,
) -> None:
    """List the presets, show one, or list the adapters."""
    if context.invoked_subcommand is not None:
        return
    from microrl.config import presets

    found = {name: presets.description(path) for name, path in presets.available().items()}
    if as_json:
        emit(found)
        return
    width = max(map(len, found))
    for name, text in found.items():
        print(f"{name:{width}}  {text}")


def show(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Presets; later ones win.")],
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print the full configuration as JSON.")] = False,
) -> None:
    """Print a preset file; with --json, the full configuration it resolves to."""
    from microrl.config import presets, resolve

    if as_json:
        emit(resolve(names).model_dump(mode="json"))
        return
    for name in names:
        print(printable(presets.read(presets.find(name)).rstrip()))


def adapters(
    model: Annotated[str, typer.Option(help="Model whose parameters are counted, as for `train`.")] = "Qwen2.5-1.5B-Instruct",
    rank: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Rank to count parameters for; repeat for several.", show_default="8, 64 and 256"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print JSON.")] = False,
) -> None:
    """List every adapter: its formula, its source, how it is served, and its number of trained parameters."""
    from microrl.plan import adapters as table
    from microrl.plan.source import shape_of

    rows = table.rows(shape_of(model), tuple(rank or table.RANKS))
    emit({row.kind: row.to_json() for row in rows}) if as_json else print(table.page(model, rows))
