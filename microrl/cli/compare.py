"""`microrl compare`: one table over runs and seeds, beside the papers' numbers."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from microrl.cli import options
from microrl.cli.output import emit, say
from microrl.errors import UserError
from microrl.tables import filled, table_text

if TYPE_CHECKING:
    from microrl.commands.compare import Row
    from microrl.evaluation.intervals import Estimate
    from microrl.evaluation.seeds import OverSeeds
    from microrl.sweep.contrast import Contrast
    from microrl.sweep.table import Setting

EXAMPLES = """
[bold]Examples[/]
  microrl compare runs/seed-0 runs/seed-1          [dim]one method, two seeds[/]
  microrl compare runs/mine runs/warm --as markdown
  microrl compare runs/mine/best runs/warm/best --as latex --no-published
  microrl compare runs/study                       [dim]a sweep, by setting[/]
"""
HEAD = (
    "method", "seeds", "benchmark", "settings", "metric", "<value", "<base", "<gain", "p", "<against first", "p first",
    "<$ a point", "note",
)  # fmt: skip
HEAD_OF_PARTS = ("<gain by form", "<by length", "<by answer", "base read leniently")
CAPTION = (
    "in percent, with 95 % intervals over problems and, of several seeds, over seeds; p in brackets: adjusted for the number of "
    "comparisons (Holm)"
)
CAPTION_OF_PARTS = "the parts of the gain, in percentage points: see `microrl guide report`"
ESTIMATES = ("value", "gain", "against_first", "usd_per_point")
NUMBERS = ("value", "spread", "base", "gain", "p", "p_adjusted", "against_first", "p_first", "p_first_adjusted", "usd_per_point")
"""Columns of --as csv, of which estimates have three."""


def compare(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|SWEEP",
            help="Evaluated runs, checkpoints (RUN/best) or sweeps; sweeps are listed first. Runs that differ only in their "
            "seeds are one method; differences are relative to the first method.",
        ),
    ],
    form: Annotated[Literal["table", "markdown", "csv", "latex"], typer.Option("--as", help="Output format.")] = "table",
    published: Annotated[
        bool, typer.Option("--published/--no-published", help="Add the papers' numbers for the same model and benchmark.")
    ] = True,
    as_json: options.Json = False,
) -> None:
    """Compare runs by their stored evaluations. Intervals cover both seeds and problems; gains are paired by problem."""
    from rich.console import Console

    from microrl.cli.target import find_adapter

    forms: dict[str, Callable[[Sequence[Row]], str]] = {"table": _table, "markdown": _markdown, "csv": _csv, "latex": _latex}
    from microrl.commands.compare import Entry, answer_to, varied
    from microrl.commands.compare import compare as rows_of
    from microrl.run.folder import RunFolder
    from microrl.sweep.contrast import answer_of, contrasts
    from microrl.sweep.folder import SweepFolder
    from microrl.sweep.table import ended, left_out, settings

    entries: list[Entry] = []
    sweeps = [SweepFolder.open(Path(target)) for target in targets if SweepFolder.is_one(Path(target))]
    for sweep in sweeps:
        entries += [Entry.of(RunFolder.open(path), None, method) for method, path in ended(sweep)]
        if not any(entry.run.path.parent == sweep.path for entry in entries):
            raise UserError(*left_out(sweep))
    for target in targets:
        if SweepFolder.is_one(Path(target)):
            continue
        resolved_target = find_adapter(target)
        if resolved_target.run is None:
            raise UserError(
                f"{target} is not a run",
                "pass run folders, which training evaluates at its end (or: microrl eval RUN), or folders of sweeps",
            )
        entry = Entry.of(resolved_target.run, resolved_target.part)
        if any((entry.run.path.resolve(), entry.part) == (other.run.path.resolve(), other.part) for other in entries):
            raise UserError(f"{target} is given twice", "name each run once: it would count as two seeds")
        entries.append(entry)
    for sweep in sweeps:
        if any(missing := left_out(sweep)):
            say("; ".join(missing))
    with Console(stderr=True).status("reading the evaluations"):  # on a terminal only
        rows = rows_of(entries, published=published)
    answer = answer_of(sweeps[0]) if len(sweeps) == len(targets) == 1 else answer_to(entries)
    if as_json:
        by_setting = {
            "settings": [asdict(one) for sweep in sweeps for one in settings(sweep)],
            "contrasts": [asdict(one) for sweep in sweeps for one in contrasts(sweep)],
        }
        told = {"answer": None if answer is None else answer.to_json()}
        emit({"rows": [row.to_json() for row in rows], **told, **(by_setting if sweeps else {})})
        return
    print(forms[form](rows))
    for line in varied(rows):
        say(line)
    for sweep in sweeps if form == "table" else ():
        print()
        print(table_text(*_settings(settings(sweep))))
        _print_contrasts(contrasts(sweep))
    if answer is not None:
        say(answer.text)
    if any(row.is_selected for row in rows):
        say("selected: several checkpoints of the run were evaluated on this benchmark; the best of them may be best by chance")


def _settings(settings: Sequence[Setting]) -> tuple[list[str], list[list[str]]]:
    """What the settings of a sweep took and did, beside their accuracy: means and standard deviations over seeds."""
    from microrl.evaluation.seeds import OverSeeds

    def shown(value: OverSeeds | None, form: str, factor: float = 1.0) -> str:
        if value is None:
            return ""
        spread = "" if value.deviation is None else f" ± {factor * value.deviation:{form}}"
        return f"{factor * value.mean:{form}}{spread}"

    head = ["method", "seeds", "scale", "trained %", "minutes", "steps", "$", "entropy change %", "KL to base"]
    rows = []
    for setting in settings:
        scale, trained = (None if value is None else OverSeeds(value, None) for value in (setting.scale, setting.trained))
        costs = setting.usd if setting.usd and setting.usd.mean else None
        rows.append([
            setting.method, str(setting.seeds), shown(scale, "g"), shown(trained, ".3g", 100), shown(setting.hours, ".2f", 60),
            shown(setting.steps, ".0f"), shown(costs, ".2f"), shown(setting.entropy_change, ".1f", 100),
            shown(setting.kl_to_base, ".2g"),
        ])  # fmt: skip
    return head, rows


def _print_contrasts(contrasts: Sequence[Contrast]) -> None:
    """A table for each axis of two values: accuracy and time with either of them, side by side."""
    for axis in dict.fromkeys(contrast.axis for contrast in contrasts):
        of_axis = [contrast for contrast in contrasts if contrast.axis == axis]
        first, second = (f"{axis} {value}" for value in of_axis[0].values)
        print()
        print(table_text(
            ["setting", "seeds", first, second, "second - first", "p", f"minutes, {first}", f"minutes, {second}"],
            [
                [
                    contrast.setting, str(len(contrast.seeds)), *map(_interval, contrast.accuracy),
                    _interval(contrast.difference, "+"), _p(contrast.p, contrast.p_adjusted),
                    *(f"{minutes:.2f}" for minutes in contrast.minutes),
                ]
                for contrast in of_axis
            ],
            caption=f"accuracy {CAPTION}",
        ))  # fmt: skip


def _cells(row: Row) -> list[str]:
    from microrl.evaluation.result import in_clusters

    value = f"{100 * row.value.mean:.1f}" + (f" ± {100 * row.spread:.1f}" if row.spread else "")
    if row.source is None:
        value = _interval(row.value)
    per_point = ""
    if row.usd_per_point is not None:
        low, high = row.usd_per_point.ci95
        per_point = f"{row.usd_per_point.mean:.2f} [{low:.2f}, {'∞' if math.isinf(high) else f'{high:.2f}'}]"
    return [
        row.method,
        ", ".join(map(str, row.seeds)),
        row.benchmark + (f" ({row.questions}{in_clusters(row.questions, row.clusters)})" if row.questions else ""),
        row.settings,
        row.metric,
        value,
        "" if row.base is None else f"{100 * row.base:.1f}",
        "" if row.gain is None else _interval(row.gain, "+"),
        _p(row.p, row.p_adjusted),
        "" if row.against_first is None else _interval(row.against_first, "+"),
        _p(row.p_first, row.p_first_adjusted),
        per_point,
        _note(row),
    ]


def _cells_of_parts(row: Row) -> list[str]:
    """The parts of the gain, and the base read leniently; empty where a row does not have them."""
    lenient = "" if row.base_lenient is None else f"{100 * row.base_lenient:.1f}"
    return [*("" if part is None else _interval(part, "+") for part in _estimates(row).values()), lenient]


def _estimates(row: Row) -> dict[str, Estimate | None]:
    """Each part of the gain with its interval; None for one that the row does not have."""
    from microrl.evaluation.gain_parts import PARTS

    return {name: (row.gain_parts or {}).get(name) for name in PARTS}


def _p(p: float | None, adjusted: float | None) -> str:
    """A p-value, and the one that is adjusted for the number of comparisons where there are several."""
    return "" if p is None else f"{p:.2g}" + (f" ({adjusted:.2g})" if adjusted is not None and adjusted != p else "")


def _note(row: Row) -> str:
    partly = [f"difference over {row.paired} problems"] if 0 < row.paired < row.questions else []
    return "; ".join([*(["selected"] if row.is_selected else []), *partly, *([row.source] if row.source else [])])


def _interval(estimate: Estimate, sign: str = "") -> str:
    return estimate.text(f"{sign}z.1f", 100)  # z: no -0.0


def _shown(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The head and the cells of the columns in which something stands, for a document."""
    head, lines = filled(HEAD + HEAD_OF_PARTS, [_cells(row) + _cells_of_parts(row) for row in rows])
    return [name.lstrip("<") for name in head], lines


def _table(rows: Sequence[Row]) -> str:
    """A table of the accuracies, and one of where their gains come from."""
    tables = [table_text(HEAD, [_cells(row) for row in rows], CAPTION)]
    if parts := [[row.method, row.benchmark, row.settings, *cells] for row in rows if any(cells := _cells_of_parts(row))]:
        tables.append(table_text(("method", "benchmark", "settings", *HEAD_OF_PARTS), parts, CAPTION_OF_PARTS))
    return "\n\n".join(tables)


def _markdown(rows: Sequence[Row]) -> str:
    head, lines = _shown(rows)
    lines = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _csv(rows: Sequence[Row]) -> str:
    """A number a cell: each estimate in three columns, and in percent, as in the table."""
    lines = [_fields(row) for row in rows]
    if not any(row.settings for row in rows):
        for line in lines:
            del line["settings"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([list(lines[0]), *(line.values() for line in lines)])
    return text.getvalue().rstrip("\n")


def _fields(row: Row) -> dict[str, str]:
    texts = {"method": row.method, "seeds": ", ".join(map(str, row.seeds)), "benchmark": row.benchmark,
             "questions": str(row.questions or ""), "clusters": str(row.clusters or ""), "settings": row.settings,
             "metric": row.metric}  # fmt: skip
    numbers = {name: _numbers(name, getattr(row, name)) for name in NUMBERS}
    parts = [_numbers(f"gain_{name}", part) for name, part in _estimates(row).items()]
    published = {} if row.source is None else {"low": "", "high": ""}
    columns = [texts, *numbers.values(), {"note": _note(row)}, *parts, _numbers("base_lenient", row.base_lenient)]
    return {name: cell for column in columns for name, cell in column.items()} | published


def _numbers(name: str, value: Estimate | float | None) -> dict[str, str]:
    """The columns of a number, or of an estimate; those of the value itself are called value, low and high."""
    factor = 1 if name.startswith(("p", "usd")) else 100
    prefix = "" if name == "value" else f"{name}_"
    names = (name, f"{prefix}low", f"{prefix}high") if name in ESTIMATES or name.startswith("gain_") else (name,)
    known = [None] * len(names) if value is None else [value] if isinstance(value, int | float) else [value.mean, *value.ci95]
    return {one: "" if number is None else f"{factor * number:.6g}" for one, number in zip(names, known, strict=True)}


def _latex(rows: Sequence[Row]) -> str:
    head, lines = _shown(rows)
    special = {"\\": r"\textbackslash{}", "∞": r"$\infty$", "±": r"$\pm$"} | {sign: f"\\{sign}" for sign in "&%$#_{}"}

    def line(cells: Sequence[str]) -> str:
        return " & ".join("".join(special.get(sign, sign) for sign in cell) for cell in cells) + r" \\"

    begin = rf"\begin{{tabular}}{{{'l' * len(head)}}}"
    return "\n".join([begin, r"\hline", line(head), r"\hline", *map(line, lines), r"\hline", r"\end{tabular}"])
