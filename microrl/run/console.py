"""Progress of a run on standard error: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from microrl.clock import now_s
from microrl.terminal import printable
from microrl.types import Group as Rollouts

Item = TypeVar("Item")
QUIET_S = 2.0
"""Minimum seconds between status lines in plain output."""


class RunConsole:
    """Shows phases, progress and steps. Use it as a context manager; `note` prints a permanent line."""

    def __init__(
        self, *, title: str = "microrl", total_steps: int | None = None, log: Callable[[str], None] = lambda text: None
    ) -> None:
        """`log` gets every line of the plain output, also while a live view replaces it."""
        self._console = Console(stderr=True, highlight=False)
        self._log = log
        self._title, self._bound = title, total_steps
        self._total: int | str | None = total_steps
        self._progress = 0.0
        self._row: Mapping[str, Any] | None = None
        self._status = "starting"
        self._is_live = False
        self._said_at = 0.0
        self._live = Live(get_renderable=self._view, console=self._console, refresh_per_second=4, transient=False)

    def __enter__(self) -> Self:
        self._is_live = self._console.is_terminal  # false for a terminal that has been closed
        if self._is_live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._status = ""
        if self._is_live:
            self._live.stop()
        self._is_live = False

    def note(self, text: str) -> None:
        """Print a permanent line."""
        self._log(text)
        self._console.print(printable(text), markup=False, soft_wrap=True)

    def status(self, text: str) -> None:
        """Show what is being done now."""
        self._status = text
        if now_s() - self._said_at > QUIET_S:
            self._said_at = now_s()
            self._plain(text)

    def progress(self, items: Iterable[Item], total: int, label: str) -> Iterator[Item]:
        """Pass the items through and show how many of `total` are done."""
        self.status(f"{label}: 0/{total}")
        for number, item in enumerate(items, 1):
            self.status(f"{label}: {number}/{total}")
            yield item

    def sampling(self, groups: Iterable[tuple[int, Rollouts]], total: int, label: str) -> Iterator[tuple[int, Rollouts]]:
        """Pass finished groups through and show their number and the tokens per second."""
        began, tokens = now_s(), 0
        self.status(f"{label}: 0/{total} groups")
        for number, (position, group) in enumerate(groups, 1):
            tokens += sum(len(completion.token_ids) for completion in group.completions)
            rate = tokens / max(now_s() - began, 1e-9)
            self.status(f"{label}: {number}/{total} groups, {rate:.0f} tokens/s")
            yield position, group

    def step(self, row: Mapping[str, Any], *, progress: float = 0.0, expected: int | None = None) -> None:
        """Show a finished step: its metrics, the used fraction of the budget (0 to 1), and the expected number of steps."""
        self._row, self._progress = row, progress
        self._total = self._bound or (f"~{expected}" if expected else None)
        self._said_at = now_s()
        self._plain(plain_line(row, self._total))

    def _plain(self, text: str) -> None:
        """Print a line unless a live view shows it anyway; log it in any case."""
        self._log(text) if self._is_live else self.note(text)

    def _view(self) -> RenderableType:
        status = Text(printable(self._status), style="dim")
        if self._row is None:
            return status
        row = self._row
        table = Table.grid(padding=(0, 3))
        left = row["budget/left_s"]
        table.add_row(
            _cell("step", f"{_of(row['step'], self._total)}"),
            _cell("reward", f"{_number(row['reward/mean'], 3)}"),
            _cell("accuracy", f"{_number(row['reward/accuracy'], 3)}"),
            _cell("format", f"{_number(row['reward/format'], 3)}"),
        )
        table.add_row(
            _cell("entropy", f"{_number(row['policy/entropy'], 3)} ({_change(row)} %)"),
            _cell("length", f"{_number(row['length/mean'], 1)}"),
            _cell("useful groups", f"{_number(row['groups/useful'], 2)}"),
            _cell("grad norm", f"{_number(row['policy/grad_norm'], 3)}"),
        )
        table.add_row(
            _cell("s/step", f"{_number(row['time/step'], 2)}"),
            _cell("generate", f"{_number(row['time/generate'], 2)} s"),
            _cell("check", f"{_number(row['time/verify'], 2)} s"),
            _cell("update", f"{_number(row['time/update'], 2)} s"),
        )
        table.add_row(
            _cell("elapsed", f"{clock(row['budget/elapsed_s'])}"),
            _cell("left", f"{clock(left) if left is not None else '-'}"),
            _cell("cost", f"${row['budget/cost_usd']:.2f}"),
            _cell("tokens/s", f"{_number(row['tokens/per_second'], 0)}"),
        )
        if row["sync/probe_gap"] is not None:
            table.add_row(
                _cell("sync+sleep", f"{_number(row['time/sync'] + row['time/sleep_wake'], 2)} s"),
                _cell("probe gap", f"{row['sync/probe_gap']:.1e} nats"),
                _cell("slope", f"{'not measurable' if row['sync/slope'] is None else _number(row['sync/slope'], 2)}"),
                _cell("KL(engine, trainer)", f"{row['policy/kl_sampler']:.1e} nats"),
            )
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            Text("budget", "bold"), ProgressBar(total=1.0, completed=self._progress, width=60), Text(f"{self._progress:.0%}")
        )
        return Group(Panel(Group(table, bar), title=Text(printable(self._title)), expand=False), status)


def _cell(name: str, value: str) -> Text:
    """A bold name and its value, without markup in either."""
    return Text.assemble((name, "bold"), " ", value)


def plain_line(row: Mapping[str, Any], total: int | str | None) -> str:
    """A step as one line of text."""
    left = row["budget/left_s"]
    parts = (
        f"step {_of(row['step'], total)}",
        f"reward {_number(row['reward/mean'], 3)}",
        f"accuracy {_number(row['reward/accuracy'], 3)}",
        f"format {_number(row['reward/format'], 2)}",
        f"entropy {_number(row['policy/entropy'], 3)} ({_change(row)} %)",
        f"length {_number(row['length/mean'], 1)}",
        *([f"validation {row['validate/accuracy']:.3f}"] if row["validate/accuracy"] is not None else []),
        f"useful groups {_number(row['groups/useful'], 2)}",
        f"{_number(row['time/step'], 2)} s (generate {_number(row['time/generate'], 2)}, "
        f"check {_number(row['time/verify'], 2)}, update {_number(row['time/update'], 2)}"
        + (
            f", sync+sleep {_number(row['time/sync'] + row['time/sleep_wake'], 2)})" if row["sync/probe_gap"] is not None else ")"
        ),
        f"{clock(row['budget/elapsed_s'])} elapsed" + (f", {clock(left)} left" if left is not None else ""),
        f"${row['budget/cost_usd']:.2f}",
    )
    return "  ".join(parts)


def _change(row: Mapping[str, Any]) -> str:
    return _number(row["policy/entropy_change_pct"], 1, sign=True)


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    whole = max(round(seconds), 0)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _of(step: int, total: int | str | None) -> str:
    return f"{step + 1}/{total}" if total else str(step + 1)


def _number(value: float | None, digits: int, *, sign: bool = False) -> str:
    return "-" if value is None else f"{value:{'+' if sign else ''}.{digits}f}"
