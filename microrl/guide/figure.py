"""Learning curves of runs as an SVG image: `python -m microrl.guide.figure RUN [RUN ...] > curves.svg`.

Left: validation accuracy during training, and held-out accuracy before and after it with 95 % intervals. Right: the mean reward.
The background is transparent; every colour is readable on white and on black.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from pydantic import BaseModel, Field, ValidationError

from microrl import files
from microrl.errors import UserError
from microrl.run.folder import RunFolder

WINDOW = 9
"""Steps in the moving average of the reward."""
COLOURS = ("#3b82f6", "#e8720c", "#12a150", "#c84bd6", "#d6453d", "#8a8f2a")
INK = "#768390"
TOP, PANEL_W, PANEL_H = 62, 330, 210


class Row(BaseModel):
    """What is drawn of a row of `metrics.jsonl`."""

    step: int
    reward: float = Field(alias="reward/mean")
    validation: float | None = Field(alias="validate/accuracy")


class Evaluation(BaseModel):
    """Accuracy on the held-out problems."""

    accuracy: float
    ci95: tuple[float, float]


class _Sides(BaseModel):
    before: Evaluation | None = None
    after: Evaluation | None = None


class _Summary(BaseModel):
    eval: _Sides


@dataclass(frozen=True, slots=True)
class Run:
    name: str
    about: str
    rows: list[Row]
    before: Evaluation | None = None
    after: Evaluation | None = None

    @classmethod
    def load(cls, path: Path) -> Run:
        """Raises UserError for a folder that holds no run, or none with a step."""
        folder = RunFolder.open(path)
        config, file, summary = folder.settings(), folder.path / "metrics.jsonl", folder.path / "summary.json"
        finished = files.read_bytes(file).rpartition(b"\n")[0]  # the last line may still be growing
        try:
            rows = [Row.model_validate_json(line) for line in finished.splitlines()]
        except ValidationError:
            raise UserError(f"{file} is damaged", "choose another run") from None
        if not rows:
            raise UserError(f"{path} has no training step yet", "wait until the first step is finished")
        sides = files.read_json(summary, _Summary).eval if summary.exists() else _Sides()
        return cls(
            path.name,
            f"{Path(config.model.name).name}: {config.loss.kind}, {config.adapter.name}",
            rows,
            sides.before,
            sides.after,
        )


class Panel:
    """One set of axes: steps to the right; upwards from `low` to `high`, both multiples of 0.2."""

    def __init__(self, left: float, steps: int, low: float, high: float, title: str) -> None:
        self._left, self._steps, self._low, self._high = left, steps, low, high
        self.parts = [f'<text x="{left}" y="{TOP - 10}" font-weight="600">{title}</text>']
        for fifth in range(round(low * 5), round(high * 5) + 1):
            _, y = self.at(0, fifth / 5)
            self.parts.append(f'<path d="M{left} {y:.1f}h{PANEL_W}" stroke="{INK}" stroke-opacity="0.25"/>')
            self.parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{fifth / 5:.1f}</text>')
        for step in sorted({round(steps * quarter / 4) for quarter in range(5)}):
            x, y = self.at(step, low)
            self.parts.append(f'<path d="M{x:.1f} {y}v4" stroke="{INK}"/>')
            self.parts.append(f'<text x="{x:.1f}" y="{y + 18}" text-anchor="middle">{step}</text>')
        self.parts.append(f'<text x="{left + PANEL_W / 2}" y="{TOP + PANEL_H + 36}" text-anchor="middle">training steps</text>')

    def at(self, step: float, value: float) -> tuple[float, float]:
        share = (value - self._low) / (self._high - self._low)
        return self._left + PANEL_W * step / self._steps, TOP + PANEL_H * (1 - share)

    def line(self, points: list[tuple[float, float]], colour: str, width: float = 2, opacity: float = 1) -> None:
        path = " ".join("{:.1f},{:.1f}".format(*self.at(*point)) for point in points)
        style = f'fill="none" stroke="{colour}" stroke-width="{width}" stroke-opacity="{opacity}" stroke-linejoin="round"'
        self.parts.append(f'<polyline points="{path}" {style}/>')

    def dot(self, step: float, value: float, colour: str, radius: float = 2.6) -> None:
        x, y = self.at(step, value)
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"/>')


def smoothed(values: list[float]) -> list[float]:
    """Each value's mean with its neighbours, over at most WINDOW of them; fewer at the ends."""
    half = WINDOW // 2
    near = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in near]


def draw(runs: list[Run]) -> str:
    """The figure of these runs."""
    steps = max(len(run.rows) for run in runs)
    top = max(1.0, *(row.reward for run in runs for row in run.rows))
    accuracy = Panel(52, steps, 0, 1, "accuracy (fraction of right answers)")
    reward = Panel(52 + PANEL_W + 62, steps, 0, math.ceil(top * 5 - 1e-9) / 5, "mean reward per training step")
    legend = []
    for index, run in enumerate(runs):
        colour = COLOURS[index % len(COLOURS)]
        points: list[tuple[float, float]] = [(row.step, row.validation) for row in run.rows if row.validation is not None]
        accuracy.line(points, colour)
        for point in points:
            accuracy.dot(*point, colour)
        for step, side in ((0, run.before), (len(run.rows), run.after)):
            if side is None:
                continue
            shifted = step + (index - (len(runs) - 1) / 2) * steps / 60
            accuracy.line([(shifted, side.ci95[0]), (shifted, side.ci95[1])], colour, 1.5)
            accuracy.dot(shifted, side.accuracy, colour, 4.5)
        values = [row.reward for row in run.rows]
        reward.line(list(enumerate(values, 1)), colour, 1, 0.3)
        reward.line(list(enumerate(smoothed(values), 1)), colour)
        x = 52 + 96 * index
        legend.append(f'<path d="M{x} {TOP + PANEL_H + 56}h18" stroke="{colour}" stroke-width="3"/>')
        legend.append(f'<text x="{x + 24}" y="{TOP + PANEL_H + 60}">{escape(run.name)}</text>')
    width, height = 52 + 2 * PANEL_W + 62 + 24, TOP + PANEL_H + 98
    caption = f"Left: validation (small dots); held-out problems with 95 % intervals (large). Right: mean of {WINDOW} steps."
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{INK}" role="img">',
        f'<title>Learning curves: {escape(runs[0].about)}</title>',
        f'<text x="52" y="24" font-size="16" font-weight="600">{escape(runs[0].about)}</text>',
        *accuracy.parts, *reward.parts, *legend,
        f'<text x="52" y="{TOP + PANEL_H + 84}">{caption}</text>',
        "</svg>",
    ])  # fmt: skip


def main(paths: list[str]) -> None:
    """Print the figure of the runs in these folders. Raises UserError."""
    if not paths:
        raise UserError("missing argument RUN", "python -m microrl.guide.figure RUN [RUN ...] > curves.svg")
    print(draw([Run.load(Path(path)) for path in paths]))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        sys.exit(2)
