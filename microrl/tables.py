"""Tables as text, for a terminal, a file or a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.measure import measure_renderables
from rich.table import Table
from rich.text import Text

from microrl.terminal import printable

PIPE_WIDTH, WIDE, WIDEST = 120, 200, 10_000
"""Characters per line without a terminal, of a wide table, and where nothing is broken."""


def as_text(content: RenderableType, pipe_width: int = PIPE_WIDTH, *, stderr: bool = False) -> str:
    """Rendered text for standard output or standard error: in colour on a terminal, plain and this many characters wide in a file
    or pipe."""
    console = Console(highlight=False, stderr=stderr)
    if not console.is_terminal:
        console.width = pipe_width
    if isinstance(content, Table) and _least_width(content, console) > console.width:
        for column in content.columns:  # cells that are not broken would be cut off
            column.no_wrap = False
    with console.capture() as captured:
        console.print(content, markup=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _least_width(table: Table, console: Console) -> int:
    """Characters per line below which a cell is cut off or a word is broken."""
    wide = console.options.update(max_width=WIDEST)
    widths = [measure_renderables(console, wide, [column.header, *column.cells]) for column in table.columns]
    cells = (width.maximum if column.no_wrap else width.minimum for width, column in zip(widths, table.columns, strict=True))
    return sum(cells) + 2 * (len(widths) - 1)


def table(head: Sequence[str], rows: Iterable[Iterable[str]], caption: str | None = None) -> Table:
    """A table with a caption under it, without a head if all names are empty; the columns whose names start with ">" are flush
    right, and those with "<" are not broken into lines either."""
    plain_table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(head), caption=caption)
    for name in head:
        is_right = name.startswith(">")
        is_whole = name.startswith((">", "<"))
        plain_table.add_column(name.lstrip("<>"), justify="right" if is_right else "left", no_wrap=is_whole, overflow="fold")
    for row in rows:
        plain_table.add_row(*(Text(printable(cell)) for cell in row))
    return plain_table


def filled(head: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """The head and the cells of the columns in which something stands."""
    shown = [number for number in range(len(head)) if any(row[number] for row in rows)]
    return [head[number] for number in shown], [[row[number] for number in shown] for row in rows]


def table_text(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str | None = None, *, stderr: bool = False) -> str:
    """A wide table of the columns in which something stands, and a caption under it."""
    return as_text(table(*filled(head, rows), caption), WIDE, stderr=stderr)
