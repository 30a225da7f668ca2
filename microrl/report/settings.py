"""The figure of a sweep: the accuracy of each setting, with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from microrl.evaluation.intervals import Estimate
from microrl.report import hover
from microrl.report.completions import shown_text
from microrl.report.figures import COLOURS, framed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEY = "settings"
INCHES = 0.14
"""Height of a setting's line."""
LETTER = 0.05
"""About the width of a letter of its name, in inches."""


def figure(by_setting: Sequence[tuple[str, Estimate]], *, width: float = 4.6) -> Figure:
    """(setting, accuracy) as one line each, in the order given, from above. To be drawn and saved inside `figures.style`."""
    names = [shown_text(name) for name, _ in by_setting]
    height = 0.7 + INCHES * len(by_setting)
    drawn, axes = framed("", "accuracy, 95 % intervals", "", width=width, height=height)
    left = min(0.2 + LETTER * max(map(len, names)), 0.6 * width)
    drawn.subplots_adjust(left=left / width, top=1 - 0.3 / height)
    drawn.text(0.1 / width, 1 - 0.2 / height, "Held-out accuracy by setting", fontsize=9, fontweight="bold")
    for place, (_, one) in enumerate(by_setting):
        hover.show(axes, names[place], [one.mean], [one.mean])
        ends = [[max(one.mean - one.ci95[0], 0.0)], [max(one.ci95[1] - one.mean, 0.0)]]
        axes.errorbar([one.mean], [-place], xerr=ends, fmt="o", color=COLOURS[0], markersize=3, capsize=2, linewidth=1.2)
    axes.set_yticks([-place for place in range(len(by_setting))], names, fontsize=7)
    axes.set_xlim(0, 1)
    axes.set_ylim(0.6 - len(by_setting), 0.6)
    axes.grid(axis="x")
    return drawn
