"""`microrl compare`: one table over runs and seeds, beside the papers' numbers."""

from __future__ import annotations

import csv
import io
import math
from typing import TYPE_CHECKING, Annotated

import typer

from microrl.cli import options
from microrl.cli.output import emit, say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from microrl.commands.compare import Row
    from microrl.evaluation.intervals import Estimate

EXAMPLES = """
[bold]Examples[/]

  microrl compare runs/seed-0 runs/seed-1          [dim]one method, two seeds[/]

  microrl compare runs/mine runs/warm --as markdown

  microrl compare runs/mine/best runs/warm/best --as latex --no-published
"""
HEAD = ("method", "seeds", "benchmark", "metric", "value", "base", "gain", "p", "against first", "$ a point", "note")
PIPE_WIDTH = 200
"""Characters per line without a terminal."""


def register(app: typer.Typer) -> None:
    app.command("compare", epilog=EXAMPLES)(compare)


def compare(
    targets: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Runs, or parts of them (RUN/best), that were evaluated.")
    ],
    form: Annotated[str, typer.Option("--as", metavar="table|markdown|csv|latex", help="Form of the table.")] = "table",
    published: Annotated[
        bool, typer.Option("--published/--no-published", help="Add the papers' numbers for the same model and benchmark.")
    ] = True,
    as_json: options.Json = False,
) -> None:
    """Compare runs by their stored evaluations. Intervals cover both seeds and problems; gains are paired by problem."""
    from microrl.cli.weights import find_adapter
    from microrl.errors import UserError, did_you_mean

    forms: dict[str, Callable[[Sequence[Sequence[str]]], str]] = {
        "table": _table, "markdown": _markdown, "csv": _csv, "latex": _latex,
    }  # fmt: skip
    if form not in forms:
        raise UserError(f"invalid value '{form}' for --as", did_you_mean(form, forms))
    from microrl.commands.compare import Entry
    from microrl.commands.compare import compare as rows_of

    entries: list[Entry] = []
    for target in targets:
        found = find_adapter(target)
        if found.run is None:
            raise UserError(f"{target} is not a run", "pass run folders that `microrl eval` has evaluated")
        entry = Entry.of(found.run, found.part)
        if any((entry.run.path.resolve(), entry.part) == (other.run.path.resolve(), other.part) for other in entries):
            raise UserError(f"{target} is given twice", "name each run once: it would count as two seeds")
        entries.append(entry)
    rows = rows_of(entries, published=published)
    if as_json:
        emit({"rows": [row.to_json() for row in rows]})
        return
    print(forms[form]([_cells(row) for row in rows]))
    if any(row.is_selected for row in rows):
        say("selected: several checkpoints of the run were evaluated on this benchmark; the best of them may be best by chance")


def _cells(row: Row) -> list[str]:
    value = f"{100 * row.value.mean:.2f}" + (f" ± {100 * row.spread:.2f}" if row.spread else "")
    if row.source is None:
        value = _interval(row.value)
    per_point = ""
    if row.usd_per_point is not None:
        low, high = row.usd_per_point.ci95
        per_point = f"{row.usd_per_point.mean:.2f} [{low:.2f}, {'∞' if math.isinf(high) else f'{high:.2f}'}]"
    note = [*(["selected"] if row.is_selected else []), *([row.source] if row.source else [])]
    return [
        row.method,
        ", ".join(map(str, row.seeds)),
        row.benchmark + (f" ({row.questions})" if row.questions else ""),
        row.metric,
        value,
        "" if row.base is None else f"{100 * row.base:.2f}",
        "" if row.gain is None else _interval(row.gain, "+"),
        "" if row.p is None else f"{row.p:.3g}",
        "" if row.against_first is None else _interval(row.against_first, "+"),
        per_point,
        "; ".join(note),
    ]


def _interval(estimate: Estimate, sign: str = "") -> str:
    low, high = estimate.ci95
    return f"{100 * estimate.mean:{sign}.2f} [{100 * low:{sign}.2f}, {100 * high:{sign}.2f}]"


def _columns(rows: Sequence[Sequence[str]]) -> list[int]:
    """The columns in which something stands."""
    return [number for number in range(len(HEAD)) if any(row[number] for row in rows)]


def _table(rows: Sequence[Sequence[str]]) -> str:
    from rich.table import Table
    from rich.text import Text

    from microrl.plan.show import as_text
    from microrl.terminal import printable

    shown = _columns(rows)
    table = Table(
        box=None, pad_edge=False, header_style="bold", caption="in percent, with 95 % intervals over seeds and problems"
    )
    for number in shown:
        table.add_column(HEAD[number], overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(row[number])) for number in shown))
    return as_text(table, PIPE_WIDTH)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    shown = _columns(rows)
    lines = [[HEAD[number] for number in shown], ["---"] * len(shown), *([row[number] for number in shown] for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _csv(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([HEAD, *rows])
    return text.getvalue().rstrip("\n")


def _latex(rows: Sequence[Sequence[str]]) -> str:
    shown = _columns(rows)
    special = {"\\": r"\textbackslash{}", "∞": r"$\infty$", "±": r"$\pm$"} | {sign: f"\\{sign}" for sign in "&%$#_{}"}

    def line(cells: Sequence[str]) -> str:
        return " & ".join("".join(special.get(sign, sign) for sign in cell) for cell in cells) + r" \\"

    body = [line([row[number] for number in shown]) for row in rows]
    head = line([HEAD[number] for number in shown])
    return "\n".join(
        [rf"\begin{{tabular}}{{{'l' * len(shown)}}}", r"\hline", head, r"\hline", *body, r"\hline", r"\end{tabular}"]
    )
