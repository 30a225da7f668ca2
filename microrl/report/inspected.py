"""The figures of `microrl inspect`, drawn from its JSON: what training has done to the weights."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microrl.report import hover
from microrl.report.completions import shown_text
from microrl.report.figures import COLOURS, INK, STYLES, framed, logarithmic, save
from microrl.report.history import History, finite

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MANY = 12
"""Lines of a figure that get a legend, at most."""
Curves = Sequence[tuple[str, Sequence[Any], Sequence[float]]]
"""Name, places (numbers, or names of categories) and values of each line."""


def drawn(inspection: Mapping[str, Any], **size: float) -> Iterator[tuple[str, Figure]]:
    """(key, figure) of all that an inspection holds; what is missing or damaged is left out. To be drawn inside `style`."""
    for key, title, across, unit, log, lines in _figures(inspection):
        if any(values for _, _, values in lines):
            yield key, _figure(title, across, unit, lines, log=log, **size)


def save_all(inspection: Mapping[str, Any], folder: Path) -> list[Path]:
    """Every figure as PNG and SVG in a folder. Raises OSError."""
    return save(lambda: drawn(inspection, width=3.3, height=2.2), folder)


def starts(history: History) -> list[tuple[str, str]]:
    """What the adapter's start was and took, as names and values (ortho, tables 4 and 7)."""
    start = history.inspection.get("start")
    if not isinstance(start, Mapping):
        return []
    forms = {"norm": ("mean ||B0 A0||_F", ".4g"), "seconds": ("seconds", ".3g"), "peak_gb": ("peak memory, GB", ".3g")}
    return [
        (label, format(value, form)) for name, (label, form) in forms.items() if (value := finite(start.get(name))) is not None
    ]


def kl_bound(inspection: Mapping[str, Any], **size: float) -> Figure:
    """Empirical divergence and bound against rank, from the JSON of `microrl inspect kl-bound` (kl, figure 1)."""
    ranks = [row["rank"] for row in inspection["ranks"]]
    figure, axes = framed(f"Theorem 1 on the digits, {inspection['seeds']} seeds", "rank", "nats", **size)
    for colour, (name, label) in zip(COLOURS, (("kl", "empirical KL"), ("bound", "bound"))):
        means = [row[name]["mean"] for row in inspection["ranks"]]
        spread = [row[name]["sd"] or 0.0 for row in inspection["ranks"]]
        low = [max(mean - sd, mean / 10) for mean, sd in zip(means, spread)]
        hover.show(axes, label, ranks, means)
        axes.plot(ranks, means, color=colour, marker="o", markersize=3, label=label)
        axes.fill_between(ranks, low, [mean + sd for mean, sd in zip(means, spread)], color=colour, alpha=0.2, linewidth=0)
    logarithmic(axes, "x", base=2)
    logarithmic(axes)
    axes.legend(frameon=False, fontsize=7, labelcolor=INK)
    return figure


def _figures(inspection: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str, bool, Curves]]:
    """(key, title, name of the horizontal axis, of the vertical one, whether that is logarithmic, lines)."""
    spectra, index = _rows(inspection, "spectra"), "singular value index"
    yield "spectrum", "Strength of the update in the weight's basis", index, "c = |u' dW v|", True, _curves(spectra, "c")
    yield "energy", "Cumulative energy of the update", index, "fraction", False, _curves(spectra, "energy")
    yield (
        "singular",
        "Singular values of the base's MLP",
        index,
        "singular value",
        True,
        _curves(_rows(inspection, "mlp"), "singular"),
    )
    yield "norms", "Norm of the update by layer", "layer", "per cent of ||W||", False, _by_kind(_rows(inspection, "norms"))
    near = _rows(inspection, "similarity")
    names = [_short(row) if len(near) <= MANY // 2 else number for number, row in enumerate(near)]
    yield (
        "similarity", "Overlap of A with singular subspaces", "layer and projection", "fraction", False,
        [(name, names, _column(near, key)) for name, key in _NEAR if len(_column(near, key)) == len(near)],
    )  # fmt: skip
    through = _rows(inspection, "through")
    steps = _column(through, "step")
    if len(through) > 1 and len(steps) == len(through):
        norms, parts = _column(through, "norm"), [(name, _column(through, key)) for name, key in _NEAR[:2]]
        growth = [("", steps, norms)] if len(norms) == len(steps) else []
        yield "growth", "Mean norm of the update", "training steps", "||dW||", False, growth
        yield (
            "turning", "Overlap of A with singular subspaces", "training steps", "fraction", False,
            [(name, steps, values) for name, values in parts if len(values) == len(steps)],
        )  # fmt: skip


_NEAR = (("top r", "top"), ("bottom r", "bottom"), ("by chance", "by_chance"))


def _figure(title: str, across: str, unit: str, lines: Curves, *, log: bool, **size: float) -> Figure:
    from matplotlib.ticker import MaxNLocator

    figure, axes = framed(title, across, unit, **size)
    looks = itertools.cycle((colour, style) for style in STYLES for colour in COLOURS)
    for (name, places, values), (colour, style) in zip(lines, looks):
        is_named = isinstance(places[0], str)
        hover.show(axes, shown_text(name), places, values)
        axes.plot(
            places, values, linestyle="none" if is_named else style, color=colour, linewidth=1.1, label=shown_text(name),
            markersize=4, marker="o" if is_named or len(values) < 3 else "",
        )  # fmt: skip
    if log and all(value > 0 for _, _, values in lines for value in values):
        logarithmic(axes)
    if across == "layer":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if 1 < len(lines) <= MANY:
        axes.legend(frameon=False, fontsize=6, labelcolor=INK, ncols=2 if len(lines) > 4 else 1)
    return figure


def _curves(rows: Sequence[Mapping[str, Any]], key: str) -> Curves:
    """A line for each weight: `key` against the number of its singular value, from 1."""
    curves = []
    for row in rows:
        places, values = _numbers(row.get("index")), _numbers(row.get(key))
        if places and len(places) == len(values):
            curves.append((_short(row), [place + 1 for place in places], values))
    return curves


def _by_kind(rows: Sequence[Mapping[str, Any]]) -> Curves:
    """A line for each kind of projection: the relative norm against the layer."""
    kinds: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        layer, value = finite(row.get("layer")), finite(row.get("relative"))
        if layer is not None and value is not None:
            kinds.setdefault(str(row.get("kind")), []).append((layer, 100 * value))
    return [(kind, *map(list, zip(*sorted(points)))) for kind, points in kinds.items()]  # type: ignore[misc]


def _short(row: Mapping[str, Any]) -> str:
    """`model.layers.3.self_attn.q_proj` as `3 q_proj`."""
    parts = str(row.get("module")).split(".")
    return " ".join([*[part for part in parts if part.isdigit()][:1], parts[-1]])


def _rows(inspection: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    rows = inspection.get(key)
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _column(rows: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [value for row in rows if (value := finite(row.get(key))) is not None]


def _numbers(values: Any) -> list[float]:
    numbers = [finite(value) for value in values] if isinstance(values, list) else []
    return [value for value in numbers if value is not None]
