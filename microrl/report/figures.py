"""The figures of a report: drawn by matplotlib from histories, one function for all that are a metric against time."""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from microrl.evaluation.gain_parts import PARTS
from microrl.report import hover
from microrl.report.completions import shown_text
from microrl.report.history import History, finite
from microrl.report.places import COLUMNS, mark_of, marks, place_of, positions, unit_of_time, validations
from microrl.run.metrics import PHASES, custom_parts, part

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#3b82f6", "#e8720c", "#12a150", "#c84bd6", "#d6453d", "#8a8f2a")
"""Readable on white and on black."""
STYLES = ("-", "--", ":", "-.")
INK = "#010203"
"""Stands for the page's own text colour, and becomes it in the page."""
_GEOMETRY = re.compile(r'(?<= )(?:d|x|y|points|transform)="[^"]*"')
_LONG = re.compile(r"-?\d+\.\d{3,}")
_FRAME = re.compile(
    r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>|(?<=>)\s+(?=<)|(?<= )id=\"[a-z]+_\d+\""
    r"|<path d=\"[^\"]*\" style=\"fill: none\"/>|font-family: [^;\"]*; ",
    re.DOTALL,
)
"""What the page has once for all of its figures, or does without."""
MAX_NAMES = 12
"""Of runs in a legend: more would hide the figure."""
MAX_POINTS = 300
"""Of a line; of more, each point is the mean of its neighbours."""
WINDOWS = 40
"""A line is smoothed over a moving window of this fraction of its points."""
AXES = {"step": "training steps", "time": "time", "dollars": "US dollars"}
"""What a figure can be drawn against."""
OWN_AXIS = "own"
"""Of the figures that are drawn against one thing only."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A figure: what it shows, and how. `lines` are metrics, drawn one beside the other where there is one run."""

    key: str
    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    """Metric and its name in the legend, which a single line does not need."""
    low: float | None = None
    high: float | None = None
    log: bool = False
    draw: Callable[[Axes, Sequence[History], str], None] | None = None
    """Draws it in place of lines."""
    has_own_axis: bool = False
    wanted: str | None = None
    """The setting that the lines should come to, drawn dashed."""

    def has(self, history: History) -> bool:
        """Whether there is anything to draw."""
        if self.key == "gain-parts":
            return history.gain_parts is not None
        if self.key == "held-out" and (history.evaluated.before or history.evaluated.after):
            return True
        return any(row.get(metric) is not None for metric, _ in self.lines for row in history.rows)


def _held_out(axes: Axes, histories: Sequence[History], by: str) -> None:
    """Validation accuracy during training; held-out accuracy before and after it, with its 95 % intervals."""
    for number, (history, colour, style) in enumerate(styled(histories)):
        name = shown_text(history.name) if len(histories) > 1 else ""
        validated = validations(history, by, histories)
        hover.show(axes, f"{name} validation".strip(), *validated)
        axes.plot(*validated, style, color=colour, marker="o", markersize=2.5, linewidth=1.2)
        places, _ = positions(history, "step", by, histories)
        for side, place in (("before", 0.0), ("after", places[-1] if places else 1.0)):
            if (stored := getattr(history.evaluated, side)) is not None:
                accuracy, interval = stored.accuracy, stored.ci95
                width = (places[-1] if places else 1.0) / 60
                hover.show(axes, f"{name} held-out, {side} training".strip(", "), [place], [accuracy])
                shifted = place + (number - (len(histories) - 1) / 2) * width
                axes.errorbar(
                    [shifted], [accuracy], yerr=[[max(accuracy - interval[0], 0)], [max(interval[1] - accuracy, 0)]],
                    fmt="o", color=colour, markersize=5, capsize=3, linewidth=1.4,
                )  # fmt: skip


def _gain_parts(axes: Axes, histories: Sequence[History], by: str) -> None:
    """The gain in accuracy and the parts that add up to it, in points with 95 % intervals: a bar a run."""
    shown = [one for one in styled(histories) if one[0].gain_parts is not None]
    names = ("gain", *PARTS)
    for number, (history, colour, _) in enumerate(shown):
        width = 0.8 / len(shown)
        known = [(at, part) for at, name in enumerate(names) if (part := getattr(history.gain_parts, name)) is not None]
        places = [at + (number - (len(shown) - 1) / 2) * width for at, _ in known]
        values = [100 * part.mean for _, part in known]
        ends = [[100 * abs(part.mean - part.ci95[end]) for _, part in known] for end in (0, 1)]
        hover.show(axes, shown_text(history.name) if len(histories) > 1 else "points", places, values)
        axes.bar(places, values, 0.9 * width, color=colour, yerr=ends, error_kw={"ecolor": INK, "elinewidth": 0.8, "capsize": 2})
    axes.axhline(0, color=INK, linewidth=0.6)
    axes.set_xticks(range(len(names)), ["gain", "fewer right but\nnot in the form", "fewer\ncut off", "fewer\nwrong"])
    axes.set_xlabel("")


def _phases(axes: Axes, histories: Sequence[History], by: str) -> None:
    """Seconds of a step by phase, stacked; of the first run."""
    history = next((history for history in histories if history.series("time/step", COLUMNS[by])[0]), None)
    if history is None:
        return  # no step has ended
    places, _ = positions(history, "time/step", by, histories)
    rows = [row for row in history.rows if row.get(COLUMNS[by]) is not None and row.get("time/step") is not None]
    names = [*PHASES, "other"]
    parts = [[row.get(f"time/{name}") or 0.0 for row in rows] for name in PHASES]
    parts.append([max((row["time/step"] or 0.0) - sum(given), 0.0) for row, given in zip(rows, zip(*parts))])
    layers = [reduced(places, part) for part in parts]
    for name, layer in zip(names, layers):
        hover.show(axes, name.replace("_", "/"), *layer)
    axes.stackplot(
        layers[0][0], *(values for _, values in layers), labels=[name.replace("_", "/") for name in names],
        colors=[*COLOURS[:5], "#9aa5b1"], linewidth=0,
    )  # fmt: skip
    axes.set_ylim(top=1.3 * max(map(sum, zip(*(values for _, values in layers))), default=1.0))  # room for the legend
    axes.legend(loc="upper left", ncols=3, fontsize=7, frameon=False, labelcolor=INK)


def _forecast(axes: Axes, histories: Sequence[History], by: str) -> None:
    """Time against steps: as it came, and as it was forecast after the first steps."""
    label, unit_s = unit_of_time(histories)
    for history, colour, style in styled(histories):
        steps, seconds = positions(history, "budget/elapsed_s", "step", histories)
        actual = reduced(steps, [s / unit_s for s in seconds])
        hover.show(axes, shown_text(history.name) if len(histories) > 1 else label, *actual)
        axes.plot(*actual, style, color=colour, label="actual")
        forecast = None if history.summary is None else history.summary.forecast
        made, count = (None, None) if forecast is None else (forecast.made_after_steps, forecast.steps)
        known = [(step, s) for step, s in zip(steps, seconds) if made is not None and step <= made]
        if len(known) > 1 and made is not None and count is not None:
            (first, first_s), (last, last_s) = known[0], known[-1]
            end_s = last_s + (count - last) * (last_s - first_s) / (last - first)
            axes.plot([last, count], [last_s / unit_s, end_s / unit_s], ":", color=colour, label="forecast")
    if len(histories) == 1:
        axes.legend(frameon=False, fontsize=7, labelcolor=INK)
    axes.set_ylabel(label)
    axes.set_xlabel(AXES["step"])


def _by_rank(axes: Axes, histories: Sequence[History], by: str) -> None:
    """The mean divergence from the base against the rank (kl, figure 2): a point a run, a line for each weight of the KL term."""
    points: dict[float, dict[int, list[float]]] = {}
    for history in histories:
        kl, beta = history.kl_to_base(), finite(history.setting("loss.beta")) or 0.0
        if (rank := history.rank) is not None and kl is not None:
            points.setdefault(beta, {}).setdefault(rank, []).append(kl)
    for (beta, kls_by_rank), colour in zip(sorted(points.items()), itertools.cycle(COLOURS)):
        ranks = sorted(kls_by_rank)
        for rank in ranks:
            axes.plot([rank] * len(kls_by_rank[rank]), kls_by_rank[rank], "o", color=colour, markersize=3)
        hover.show(axes, f"beta {beta:g}", ranks, [_mean(kls_by_rank[rank]) for rank in ranks])
        axes.plot(ranks, [_mean(kls_by_rank[rank]) for rank in ranks], color=colour, linewidth=1.4, label=f"beta {beta:g}")
    if len(points) > 1:
        axes.legend(frameon=False, fontsize=6, labelcolor=INK)
    axes.set_xlabel("rank")
    logarithmic(axes, "x", base=2)


FIGURES = (
    Spec("accuracy", "Accuracy on the training questions", "accuracy", (("reward/accuracy", ""),), 0, 1),
    Spec("held-out", "Validation and held-out accuracy", "accuracy", (("validate/accuracy", ""),), 0, 1, draw=_held_out),
    Spec("gain-parts", "Where the gain comes from", "points of accuracy", (), draw=_gain_parts, has_own_axis=True),
    Spec("format", "Format compliance", "fraction in the format", (("reward/format", ""),), 0, 1),
    Spec("reward", "Mean reward", "reward", (("reward/mean", ""),)),
    Spec("length", "Completion length", "tokens", (("length/mean", "mean"), ("length/max", "longest")), 0),
    Spec("truncated", "Truncated completions", "fraction", (("length/truncated", ""),), 0, 1),
    Spec("turns", "Turns and tool calls", "for each completion", (("turns/mean", "turns"), ("tools/calls", "tool calls")), 0),
    Spec("entropy", "Entropy", "nats per token", (("policy/entropy", ""),), 0),
    Spec("entropy-change", "Change in entropy since step 1", "per cent", (("policy/entropy_change_pct", ""),)),
    Spec("kl", "KL divergence", "nats per token", (("policy/kl_sampler", "trainer, engine"), ("policy/kl_ref", "policy, base")),
         log=True),
    Spec("kl-rank", "Mean KL divergence to the base", "nats per token", (("policy/kl_ref", ""),), 0, draw=_by_rank,
         has_own_axis=True),
    Spec("distill", "Distillation: student and teacher", "nats per token",
         (("distill/kl", "KL(student, teacher)"), ("distill/teacher_entropy", "entropy of the teacher"))),
    Spec("agreement", "Distillation: likeliest tokens that agree", "fraction of positions", (("distill/agreement", ""),), 0, 1),
    Spec("gradient", "Gradient norm", "norm before clipping", (("policy/grad_norm", ""),), 0),
    Spec("rate", "Learning rate", "rate", (("optim/lr", ""),), log=True),
    Spec("step-kl", "Size of the steps (dashed: target before schedule)", "nats per token", (("policy/step_kl", ""),), log=True,
         wanted="optim.step_kl"),
    Spec("useful", "Useful groups", "fraction", (("groups/useful", ""),), 0, 1),
    Spec("phases", "Step time by phase", "seconds", (("time/step", ""),), 0, draw=_phases),
    Spec("memory", "Peak memory", "GB", (("memory/peak_gb", ""),), 0),
    Spec("probe", "Sync check: gap after each swap", "nats", (("sync/probe_gap", ""),), log=True),
    Spec("slope", "Sync check: slope (1 is right)", "slope", (("sync/slope", ""),)),
    Spec("forecast", "Elapsed time and forecast", "hours", (("budget/elapsed_s", ""),), 0, draw=_forecast, has_own_axis=True),
)  # fmt: skip


def styled(histories: Sequence[History]) -> list[tuple[History, str, str]]:
    """Each run with a colour and a line style: one colour a rank, where ranks differ, and else one a run."""
    ranks = [history.rank for history in histories]
    distinct = sorted({rank for rank in ranks if rank is not None})
    by_rank = len(distinct) > 1 and None not in ranks
    seen: dict[Any, itertools.count[int]] = {}
    looks = []
    for number, (history, rank) in enumerate(zip(histories, ranks)):
        colour = distinct.index(rank) if by_rank and rank is not None else number
        style = next(seen.setdefault(colour, itertools.count())) if by_rank else 0
        looks.append((history, COLOURS[colour % len(COLOURS)], STYLES[(style + colour // len(COLOURS)) % len(STYLES)]))
    return looks


def reduced(places: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most MAX_POINTS points: means of neighbours."""
    size = math.ceil(len(values) / MAX_POINTS) or 1
    starts = range(0, len(values), size)
    return [_mean(places[at : at + size]) for at in starts], [_mean(values[at : at + size]) for at in starts]


def smoothed(values: Sequence[float]) -> list[float]:
    """The mean of each value and its neighbours, over a moving window; fewer at the ends."""
    half = max(len(values) // WINDOWS, 1)
    sums = list(itertools.accumulate(values, initial=0.0))
    ends = [(max(0, at - half), min(len(values), at + half + 1)) for at in range(len(values))]
    return [(sums[end] - sums[start]) / (end - start) for start, end in ends]


def _mean(values: Sequence[float]) -> float:
    """Infinite where the sum is, as of damaged rows; fmean refuses these."""
    return sum(values) / len(values)


@contextmanager
def style() -> Iterator[None]:
    """Inside, figures are drawn and saved as the report's. Text stays text: small, selectable, in the page's font."""
    import matplotlib

    settings: Any = {
        "svg.fonttype": "none", "svg.hashsalt": "microrl", "font.size": 8, "axes.titlesize": 9, "font.family": "sans-serif",
        "text.parse_math": False,  # nothing in the name of a run is mathematics
        "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
        "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6,
        "grid.linewidth": 0.4, "grid.alpha": 0.25, "grid.color": INK,
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        yield


def framed(title: str, across: str, up: str, *, width: float = 4.6, height: float = 2.6) -> tuple[Figure, Axes]:
    """An empty figure with its title and the names of its axes; sizes in inches. To be drawn and saved inside `style`."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(width, height))
    drawn.subplots_adjust(left=0.7 / width, right=1 - 0.1 / width, bottom=0.42 / height, top=1 - 0.26 / height)
    axes = drawn.add_subplot()
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(axis="y")
    return drawn, axes


def logarithmic(axes: Axes, which: str = "y", base: int = 10) -> None:
    """Make an axis, x or y, logarithmic, its numbers plain text: mathematics is not parsed."""
    axis, set_scale = (axes.xaxis, axes.set_xscale) if which == "x" else (axes.yaxis, axes.set_yscale)
    set_scale("log", base=base)
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(lambda value, _: "")


def figure(spec: Spec, histories: Sequence[History], by: str = "step", *, with_names: bool = False, **size: float) -> Figure:
    """A figure of these runs against `by`; `with_names`: with a legend of the runs, unless there are too many."""
    drawn, axes = framed(spec.title, unit_of_time(histories)[0] if by == "time" else AXES[by], spec.unit, **size)
    shown = [history for history in histories if spec.has(history)]
    if spec.draw is not None:
        spec.draw(axes, histories, by)
    else:
        _lines(axes, spec, histories, by)
    if spec.log and any(np.asarray(line.get_ydata(), dtype=float).max(initial=0.0) > 0 for line in axes.lines):
        logarithmic(axes)
    elif spec.low is not None:
        axes.set_ylim(bottom=spec.low, top=None if spec.high is None else 1.03 * spec.high)
    if not spec.has_own_axis and len(shown) == 1:
        _mark(axes, shown[0], by)
    if with_names and spec.draw is not _by_rank and 1 < len(histories) <= MAX_NAMES:
        for history, colour, dashes in styled(histories):
            axes.plot([], [], dashes, color=colour, label=shown_text(history.name))
        handles = axes.lines[-len(histories) :]
        axes.legend(handles=handles, frameon=False, fontsize=6, labelcolor=INK)
    return drawn


def _lines(axes: Axes, spec: Spec, histories: Sequence[History], by: str) -> None:
    one = len(histories) == 1
    for history, colour, style in styled(histories):
        for number, (metric, name) in enumerate(spec.lines):
            places, values = reduced(*positions(history, metric, by, histories))
            if not values:
                continue
            hover.show(axes, " ".join(filter(None, ("" if one else shown_text(history.name), name))), places, values)
            shade = COLOURS[number % len(COLOURS)] if one else colour
            dashes = style if one else STYLES[number % len(STYLES)] if len(spec.lines) > 1 else style
            if len(values) > WINDOWS and not spec.log:
                axes.plot(places, values, color=shade, linewidth=0.6, alpha=0.35)
                values = smoothed(values)
            axes.plot(
                places, values, dashes, color=shade, linewidth=1.4, label=name or None, marker="o" if len(values) == 1 else ""
            )
        if spec.wanted is not None and (wanted := finite(history.setting(spec.wanted))) is not None:
            axes.axhline(wanted, color=colour, linewidth=0.8, dashes=(4, 3), gid=f"wanted-{spec.key}")
    if one and len(spec.lines) > 1 and axes.lines:
        axes.legend(frameon=False, fontsize=7, labelcolor=INK)


def _mark(axes: Axes, history: History, by: str) -> None:
    for event in marks(history):
        colour, name, step = mark_of(event)
        if (place := place_of(history, step, by)) is not None:
            axes.axvline(place, color=colour, linewidth=0.8, dashes=(2, 2), alpha=0.8, gid=f"mark-{name.replace(' ', '-')}")


def svg(drawn: Figure, *, in_page: bool = False) -> str:
    """A figure as SVG; `in_page`: without a prologue, in the page's own text colour."""
    text = io.StringIO()
    drawn.savefig(text, format="svg", transparent=in_page, metadata={"Date": None, "Creator": None})
    rounded = _GEOMETRY.sub(lambda value: _LONG.sub(lambda number: f"{float(number[0]):.2f}", value[0]), text.getvalue())
    whole, end = rounded[: rounded.rindex("</svg>")], f"{hover.bands(drawn)}</svg>\n"
    if not in_page:
        return whole.replace(INK, "#000000") + end
    return _FRAME.sub("", whole[whole.index("<svg") :]).replace(INK, "currentColor") + end


def save_all(histories: Sequence[History], folder: Path) -> list[Path]:
    """Every figure as PNG and SVG in a folder, as wide as a paper's column (3.3 inches). Raises OSError."""
    specs = drawable(histories)
    return save(
        lambda: ((key, figure(spec, histories, with_names=True, width=3.3, height=2.2)) for key, spec in specs.items()), folder
    )


def save(figures: Callable[[], Iterable[tuple[str, Figure]]], folder: Path) -> list[Path]:
    """Write figures by their keys, as PNG and SVG. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with style():
        for key, drawn in figures():
            (folder / f"{key}.svg").write_text(svg(drawn), encoding="utf-8")
            drawn.savefig(folder / f"{key}.png", dpi=300)
            written += [folder / f"{key}.svg", folder / f"{key}.png"]
    return written


def _custom_rewards(histories: Sequence[History]) -> Spec:
    """The parts of the reward that the user's own functions give."""
    names = dict.fromkeys(name for history in histories for row in history.rows for name in custom_parts(row))
    lines = tuple((part(name), shown_text(name)) for name in names)
    return Spec("custom-rewards", "Parts of the reward from custom functions", "mean value", lines)


def drawable(histories: Sequence[History]) -> Mapping[str, Spec]:
    """The figures for which at least one of the runs has something. That against the rank needs several ranks."""
    ranks = {history.rank for history in histories}
    candidates = [spec for spec in (*FIGURES, _custom_rewards(histories)) if spec.key != "kl-rank" or len(ranks) > 1]
    return {spec.key: spec for spec in candidates if any(map(spec.has, histories))}
