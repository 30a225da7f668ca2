"""`microrl presets`: list the presets, show or make one, or list the adapters, the data sets or the models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from microrl.cli import options
from microrl.cli.output import emit, say
from microrl.errors import UserError, nearest
from microrl.tables import table_text
from microrl.terminal import printable


class _ShowsByName(TyperGroup):
    """`microrl presets NAME` is `microrl presets show NAME`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        is_name = not args[0].startswith("-") and nearest(args[0], self.commands, cutoff=0.8) is None
        return super().resolve_command(ctx, ["show", *args] if is_name else args)


group = typer.Typer(invoke_without_command=True, cls=_ShowsByName, add_completion=False, rich_markup_mode="rich")


@group.callback()
def listing(context: typer.Context, as_json: options.Json = False) -> None:
    """List the presets, show one, or list the adapters, the data sets or the models."""
    if context.invoked_subcommand is not None:
        return
    from microrl.config import presets

    descriptions = {name: presets.description(path) for name, path in presets.available().items()}
    if as_json:
        emit(descriptions)
        return
    print(table_text(("", ""), list(descriptions.items())))


@group.command()
def show(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Presets; later ones win.")], as_json: options.Json = False
) -> None:
    """Print a preset file; with --json, the full configuration it resolves to."""
    from microrl.config import presets, resolve

    if as_json:
        emit(resolve(names).model_dump(mode="json"))
        return
    for name in names:
        print(printable(presets.read(presets.find(name)).rstrip()))


@group.command("from-trl")
def from_trl(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="The YAML file that `trl grpo --config` takes.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="File to write the preset to.", show_default="standard output")
    ] = None,
) -> None:
    """Turn a TRL configuration into a preset. A comment names each key that has no counterpart, and says why."""
    from microrl.config.from_trl import preset

    if out is not None and out.suffix != ".toml":
        raise UserError(f"--out {out}: the name of a preset file ends in .toml", f"--out {out}.toml")
    made = preset(config)
    if out is None:
        print(made, end="")
        return
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(made)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}", "choose another name: --out FILE.toml") from None
    say(f"{out}: look at the comments, then: microrl train {out} --dry-run")


@group.command()
def adapters(
    model: Annotated[str, typer.Option(help="Model whose parameters are counted, as for `train`.")] = "Qwen2.5-1.5B-Instruct",
    rank: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Rank to count parameters for; repeat for several.", show_default="8, 64 and 256"),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List every adapter: its formula, its source, how it is served, and its number of trained parameters."""
    from microrl.plan import adapters as table
    from microrl.plan.source import shape_of

    rows = table.rows(shape_of(model), tuple(rank or table.RANKS))
    emit({row.kind: row.to_json() for row in rows}) if as_json else print(table.page(model, rows))


@group.command()
def data(as_json: options.Json = False) -> None:
    """List the data sets that `--data` and `--bench` know by name. "benchmark": has no training part."""
    from dataclasses import asdict

    from microrl.config.catalogue import DATASETS

    if as_json:
        emit({name: {**asdict(known), "page": known.page} for name, known in DATASETS.items()})
        return
    lines = []
    for name, known in DATASETS.items():
        rows = " + ".join(f"{count:,}" for count in known.rows.values())
        splits = " + ".join(known.splits) if "train" in known.splits else "benchmark"
        gated = "yes" if known.is_gated else ""
        lines.append((name, known.kind, rows, splits, known.licence or "not stated", gated, known.hub_id))
    print(table_text(("name", "kind", "rows", "splits", "licence", "gated", "hub id"), lines))


@group.command()
def models(as_json: options.Json = False) -> None:
    """List the models that `--model` knows by a short name, with published results.

    "thinking": what the chat template's `enable_thinking` is by default; `data.thinking` sets it. "no switch": it has none.
    """
    from microrl.commands import published
    from microrl.config.known_models import MODELS
    from microrl.plan.source import CONFIGS

    listed, lines = {}, []
    for name, known in MODELS.items():
        context = known.context or CONFIGS.get(name, {}).get("max_position_embeddings")
        limit = None if known.limit is None else known.limit._asdict()
        results = published.untrained(name)
        listed[name] = {**known._asdict(), "context": context, "limit": limit, "published": results}
        facts = (known.licence or "not known", f"{context:,}" if context else "", known.thinking or "")
        lines.append((name, *facts, "yes" if known.is_gated else "", *published.cells(results), known.hub_id))
    if as_json:
        emit(listed)
        return
    print(table_text(("name", "licence", "context", "thinking", "gated", *published.SHOWN.values(), "hub id"), lines))
    print()
    print("\n".join(published.protocols([line for model in listed.values() for line in model["published"]])))
