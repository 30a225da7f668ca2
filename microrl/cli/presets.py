"""`microrl presets`: what ships, and what is in it."""

from __future__ import annotations

from typing import Annotated

import typer

from microrl.cli.output import emit


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="List the presets, or show one.", invoke_without_command=True)
    group.callback()(listing)
    group.command("show")(show)
    app.add_typer(group, name="presets")


def listing(
    context: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="Print JSON: names and descriptions.")] = False
) -> None:
    """List the presets, or show one."""
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
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Presets, layered in this order.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole resolved configuration as JSON.")] = False,
) -> None:
    """Print a preset as it is written; with --json, the configuration it resolves to."""
    from microrl.config import presets, resolve

    if as_json:
        emit(resolve(names).model_dump(mode="json"))
        return
    for name in names:
        print(presets.find(name).read_text(encoding="utf-8").rstrip())
