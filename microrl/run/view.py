"""What a console shows of a run: a panel that fits any width, and a step as one line of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from microrl.run import metrics
from microrl.run.metrics import MetricsRow
from microrl.terminal import printable

CELL = 24
"""Characters of a cell with its name."""
TREND = 48
"""Values of a sparkline at most."""
BARS, PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.-=+*#@"
PHASES = (("generate", "blue"), ("verify", "yellow"), ("update", "green"), ("sync", "magenta"), ("sleep_wake", "red"))
TRENDS = (("reward", "reward/mean"), ("validation", "validate/accuracy"), ("entropy", "policy/entropy"))
NAME = 11
"""Characters of the name of a trend."""


@dataclass(slots=True)
class Seen:
    """What is known of a run at a moment, drawn as a panel as wide as the console. `progress`: the used fraction of the budget,
    from 0 to 1."""

    title: str
    status: str = "starting"
    rows: list[MetricsRow] = field(default_factory=list)
    """The last steps, oldest first."""
    progress: float = 0.0
    total: int | str | None = None
    """Number of steps, as far as it is known: `~120` where it is a forecast."""
    guard: str = ""
    """The guard's last word; empty: all is well."""
    completion: str = ""
    """A completion of the last step."""
    elapsed_s: Callable[[], float] | None = None
    """Seconds of the run at the moment of drawing; None: those of the last step, if there is one."""
    budget_s: float | None = None
    expected_s: float | None = None
    """Seconds of the whole run as expected before its first step."""
    rest_s: float = 0.0
    """Seconds needed after the last step."""
    hangs: str = ""
    """What hangs, in words; empty: nothing does."""

    trends: dict[str, list[float]] = field(default_factory=dict)
    """The last values of the metrics in TRENDS."""

    def add(self, row: MetricsRow) -> None:
        """Take up a finished step."""
        self.rows = [*self.rows[-TREND + 1 :], row]
        for _, metric in TRENDS:
            if row[metric] is not None:
                self.trends[metric] = [*self.trends.get(metric, [])[-TREND + 1 :], row[metric]]

    def left_s(self) -> float | None:
        """Seconds until the end, by the last steps' times, by what is expected and by the budget; None if none of them says."""
        now_s, left = self.now_s(), []
        if self.hangs or now_s is None:
            return None
        if self.budget_s is not None:
            left.append(self.budget_s - now_s)
        if self.rows:
            since_s = now_s - self.rows[-1]["budget/elapsed_s"]
            if self.rows[-1]["budget/left_s"] is not None:
                left.append(self.rows[-1]["budget/left_s"] - since_s)
            if (total := _count(self.total)) is not None:
                recent = [row["time/step"] for row in self.rows[-10:]]
                steps_s = max(total - self.rows[-1]["step"] - 1, 0) * sum(recent) / len(recent)
                left.append(steps_s + self.rest_s - since_s)
        elif self.expected_s is not None:
            left.append(self.expected_s - now_s)
        # What has taken longer than was expected will take nobody knows how long.
        return min((seconds for seconds in left if seconds > 0), default=None)

    def now_s(self) -> float | None:
        """Seconds of the run so far; None if they are not known."""
        known = [] if self.elapsed_s is None else [self.elapsed_s()]
        return max([*known, *(float(row["budget/elapsed_s"]) for row in self.rows[-1:])], default=None)

    def fraction(self) -> float:
        """How much of the budget is used, 0 to 1; before the first step, of the time that is expected."""
        now_s, whole_s = self.now_s(), self.budget_s or self.expected_s
        return self.progress if self.rows or now_s is None or not whole_s else min(now_s / whole_s, 1.0)

    def times(self) -> str:
        """Elapsed time and time to go as the end of a line; empty if what is shown is no run."""
        now_s, left = self.now_s(), self.left_s()
        if self.elapsed_s is None or now_s is None:
            return ""
        return f"  ({clock(now_s)} elapsed" + (f", about {clock(left)} to go)" if left is not None else ")")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield panel(self, options.max_width, fancy=(console.encoding or "").lower().startswith("utf"))


def panel(seen: Seen, width: int, *, fancy: bool = True) -> RenderableType:
    """The panel, `width` characters wide; `fancy`: with characters beyond ASCII."""
    status = Text(printable(seen.hangs), style="bold red") if seen.hangs else Text(printable(seen.status), style="dim")
    if seen.now_s() is None:
        return status
    inner = max(width - 4, 20)
    cells = [_cell(name, value) for name, value in (*(numbers(seen.rows[-1], seen) if seen.rows else ()), *_times(seen))]
    columns = max(min(inner // CELL, 4), 1)
    table = Table.grid(padding=(0, 2))
    for start in range(0, len(cells), columns):
        table.add_row(*cells[start : start + columns])
    parts: list[RenderableType] = [table]
    if seen.rows:
        for name, metric in TRENDS:
            bars = sparkline(seen.trends.get(metric, []), inner - NAME, fancy=fancy)
            parts.append(Text.assemble((f"{name:<{NAME}}", "bold"), bars))
        parts.append(_phases(seen.rows[-1], inner, fancy=fancy))
    parts.append(_budget(seen, inner))
    if seen.guard:
        parts.append(Text.assemble(("guard ", "bold red"), printable(seen.guard)))
    if seen.completion:
        line = " ".join(printable(seen.completion).split())
        parts.append(Text.assemble(("says ", "bold"), (line[: 2 * inner] + ("..." if len(line) > 2 * inner else ""), "italic")))
    return Group(Panel(Group(*parts), title=Text(printable(seen.title)), expand=False, width=min(width, 110)), status)


def numbers(row: MetricsRow, seen: Seen) -> list[tuple[str, str]]:
    """The panel's names and values of a step."""
    shown = [
        *_results(row, seen.total),
        ("useful groups", _number(row["groups/useful"], 2)),
        ("grad norm", _number(row["policy/grad_norm"], 3)),
        ("s/step", _number(row["time/step"], 2)),
        ("tokens/s", _number(row["tokens/per_second"], 0)),
        ("memory", f"{_number(row['memory/peak_gb'], 1)} GB"),
        *([("cost", f"${row['budget/cost_usd']:.2f}")] if row["budget/cost_usd"] else []),
    ]
    if row["sync/probe_gap"] is not None:
        shown += [("probe gap", f"{row['sync/probe_gap']:.1e} nats"), ("slope", _number(row["sync/slope"], 2))]
    return shown


def _results(row: MetricsRow, total: int | str | None) -> list[tuple[str, str]]:
    """What panel and line have in common."""
    change = _number(row["policy/entropy_change_pct"], 1, sign=True)
    return [
        ("step", _of(row["step"], total)),
        ("reward", _number(row["reward/mean"], 3)),
        ("accuracy", _number(row["reward/accuracy"], 3)),
        ("format", _number(row["reward/format"], 2)),
        *((printable(name), _number(value, 3)) for name, value in metrics.custom_parts(row).items()),
        ("entropy", f"{_number(row['policy/entropy'], 3)} ({change} %)"),
        *_teacher(row),
        ("length", _number(row["length/mean"], 1)),
        ("truncated", _number(row["length/truncated"], 2)),
        *_tools(row),
    ]


def _times(seen: Seen) -> list[tuple[str, str]]:
    now_s, left_s = seen.now_s(), seen.left_s()
    return [("elapsed", "-" if now_s is None else clock(now_s)), ("to go", "-" if left_s is None else clock(left_s))]


def sparkline(values: Sequence[float | None], width: int, *, fancy: bool = True) -> str:
    """The last values as bars of text, from the smallest to the largest of them."""
    known = [value for value in values[-max(width, 1) :] if value is not None]
    if not known:
        return "-"
    low, high = min(known), max(known)
    bars = BARS if fancy else PLAIN_BARS
    scale = (len(bars) - 1) / (high - low) if high > low else 0.0
    return "".join(bars[round((value - low) * scale)] for value in known)


def _phases(row: MetricsRow, width: int, *, fancy: bool) -> Text:
    """A bar of the seconds of the step's phases, and what its colours mean."""
    seconds = [(name.replace("_", "/"), colour, row[f"time/{name}"] or 0.0) for name, colour in PHASES]
    seconds.append(("other", "white", max((row["time/step"] or 0.0) - sum(part for _, _, part in seconds), 0.0)))
    total = sum(part for _, _, part in seconds) or 1.0
    length = max(min(width - 9, 48), 8)
    bar = Text("phases   ", style="bold")
    for _, colour, part in seconds:
        bar.append(("█" if fancy else "#") * round(part / total * length), style=colour)
    shown = [(name, colour, part) for name, colour, part in seconds if part / total >= 0.02]
    bar.append("\n")
    for name, colour, part in shown:
        bar.append(f"{name} {part:.2f} s  ", style=colour)
    return bar


def _budget(seen: Seen, width: int) -> RenderableType:
    bar, used = Table.grid(padding=(0, 1)), seen.fraction()
    bar.add_row(
        Text("budget", "bold"), ProgressBar(total=1.0, completed=used, width=max(min(width - 14, 60), 8)), Text(f"{used:.0%}")
    )
    return bar


def _cell(name: str, value: str) -> Text:
    """A bold name and its value, without markup in either."""
    return Text.assemble((name, "bold"), " ", value)


def _tools(row: MetricsRow) -> list[tuple[str, str]]:
    """Of a run with an environment."""
    if row.get("turns/mean") is None:
        return []
    failures = row["tools/failures"]
    failed = "" if failures is None else f" ({failures:.0%} failed)"
    return [("turns", _number(row["turns/mean"], 2)), ("tool calls", f"{_number(row['tools/calls'], 2)}{failed}")]


def _teacher(row: MetricsRow) -> list[tuple[str, str]]:
    """Of a row without a teacher, or of an older version: nothing."""
    shown = {"KL to teacher": row.get("distill/kl"), "agreement": row.get("distill/agreement")}
    return [(name, _number(value, 3)) for name, value in shown.items() if value is not None]


def plain_line(row: MetricsRow, total: int | str | None) -> str:
    """A step as one line of text."""
    left = row["budget/left_s"]
    parts = (
        *(f"{name} {value}" for name, value in _results(row, total)),
        *([f"validation {row['validate/accuracy']:.3f}"] if row["validate/accuracy"] is not None else []),
        f"useful groups {_number(row['groups/useful'], 2)}",
        f"{_number(row['time/step'], 2)} s (generate {_number(row['time/generate'], 2)}, "
        f"check {_number(row['time/verify'], 2)}, update {_number(row['time/update'], 2)}"
        + (
            f", sync+sleep {_number(row['time/sync'] + row['time/sleep_wake'], 2)})" if row["sync/probe_gap"] is not None else ")"
        ),
        f"{clock(row['budget/elapsed_s'])} elapsed" + (f", limit in {clock(left)}" if left is not None else ""),
        *([f"${row['budget/cost_usd']:.2f}"] if row["budget/cost_usd"] else []),
    )
    return "  ".join(parts)


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    whole = max(round(seconds), 0)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _count(total: int | str | None) -> int | None:
    return int(total.lstrip("~")) if isinstance(total, str) else total


def _of(step: int, total: int | str | None) -> str:
    count = _count(total)
    return f"{step + 1}/{total}" if count and step < count else str(step + 1)  # a forecast may have been too low


def _number(value: float | None, digits: int, *, sign: bool = False) -> str:
    return "-" if value is None else f"{value:{'+' if sign else ''}.{digits}f}"
