"""What others have published of models: the lines of `published.csv`, as dictionaries by its columns."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources

Line = dict[str, str]
SHOWN = {"aime24": "AIME24, %", "math500": "MATH500, %"}
"""Benchmarks by which models are compared, and their columns in a table."""
ARXIV = {"micro": "arXiv 2601.06677", "peft": "arXiv 2512.23165"}
"""Papers of whose sources `published.csv` names the table alone."""


def published(models: Iterable[str]) -> list[Line]:
    """The published numbers of these models."""
    names = {_short(model) for model in models}
    return [line for line in _lines() if _short(line["model"]) in names]


def untrained(model: str) -> list[Line]:
    """The published numbers of a model as its makers released it."""
    return [line for line in published([model]) if line["method"] == "Base"]


def accuracies(lines: Iterable[Line], benchmark: str) -> list[Line]:
    """Those that are mean accuracies on this benchmark; pass@1 is one, too."""
    own = (line for line in lines if line["benchmark"] == benchmark)
    return [line for line in own if line["metric"].startswith("avg@") or line["metric"] == "pass@1"]


def cells(lines: Sequence[Line]) -> list[str]:
    """What a table shows of a model, a cell for each benchmark in `SHOWN`, such as "58.75 justrl"."""
    return [", ".join(f"{line['percent']} {line['paper']}" for line in accuracies(lines, name)) for name in SHOWN]


def protocols(lines: Sequence[Line]) -> list[str]:
    """How the numbers in such cells were measured, and where they stand; each protocol once."""
    descriptions = [
        f"{name}, {line['paper']}: {line['metric']}, {', '.join(filter(None, (ARXIV.get(line['paper']), line['source'])))}"
        for name in SHOWN
        for line in accuracies(lines, name)
    ]
    return list(dict.fromkeys(descriptions))


def best(model: str, benchmark: str) -> float | None:
    """The highest published accuracy of the untrained model in per cent; None: nothing is published."""
    return max((float(line["percent"]) for line in accuracies(untrained(model), benchmark)), default=None)


def best_cell(model: str, benchmark: str) -> str:
    """The same with what it is and whose, such as "58.75 % (avg@32, justrl)"; there must be one."""
    line = max(accuracies(untrained(model), benchmark), key=lambda line: float(line["percent"]))
    return f"{line['percent']} % ({line['metric']}, {line['paper']})"


@cache
def _lines() -> list[Line]:
    text = (resources.files("microrl.commands") / "published.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _short(model: str) -> str:
    return model.rpartition("/")[2].lower()
