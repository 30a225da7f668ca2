"""Every adapter side by side: what it is, how it is served, and what it trains of a model."""

from __future__ import annotations

from typing import Any, NamedTuple

from rich.console import Group

from microrl.config.adapters import KINDS, documentation
from microrl.errors import UserError
from microrl.plan.shapes import Shape
from microrl.tables import as_text, table
from microrl.terminal import printable

RANKS = (8, 64, 256)
"""The micro paper's."""


class Row(NamedTuple):
    """One adapter. `trained` has the parameters by rank, None where the network is too narrow; without a rank the key is 0."""

    kind: str
    form: str
    source: str
    served: str
    trained: dict[int, int | None]
    total: int

    def to_json(self) -> dict[str, Any]:
        """Counts as they are; `shares` are of all the model's parameters."""
        shares = {rank: None if count is None else count / self.total for rank, count in self.trained.items()}
        return {"form": self.form, "source": self.source, "served": self.served, "trained": self.trained, "shares": shares}


def rows(shape: Shape, ranks: tuple[int, ...]) -> list[Row]:
    """All adapters with their defaults, at these ranks, for a network of this shape."""
    table_rows = []
    for kind, cls in KINDS.items():
        counts: dict[int, int | None] = {}
        for rank in ranks if "rank" in cls.model_fields else (0,):
            try:
                counts[rank] = shape.trainable(cls.model_validate({"rank": rank} if rank else {}))
            except UserError:
                counts[rank] = None
        table_rows.append(Row(kind, *documentation(cls), counts, shape.parameters))
    return table_rows


def page(model: str, table_rows: list[Row]) -> str:
    """The table as text."""
    ranks = max((row.trained for row in table_rows), key=len)
    lines = []
    for row in table_rows:
        counts = [row.trained.get(rank, row.trained.get(0)) for rank in ranks]
        percentages = ["-" if count is None else f"{count / row.total:.3%}" for count in counts]
        lines.append((row.kind, f"{row.form}; {row.source}", row.served, *percentages))
    columns = table(("adapter", "form; source", "served as", *(f">r = {rank}" for rank in ranks)), lines)
    said = f"Percentages of the {table_rows[0].total:,} parameters of {printable(model)}. Choose one with --adapter NAME."
    return as_text(Group(columns, "", said))
