"""Progress of a run on standard error: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from rich.console import Console
from rich.live import Live

from microrl.clock import now_s
from microrl.run.view import RunView, Seen, plain_line
from microrl.terminal import alike, printable
from microrl.types import Group

Item = TypeVar("Item")
QUIET_S = 2.0
"""Minimum seconds between status lines in plain output."""
STEP_LINES = 20
"""A step's line is printed when so large a part of the budget has been spent since the last one, a twentieth,"""
STEP_S = 300.0
"""or so many seconds have passed. Every line is in `run.log`."""


class RunConsole:
    """Shows phases, progress and steps. Use it as a context manager; `note` prints a permanent line."""

    def __init__(
        self, *, title: str = "microrl", total_steps: int | None = None, log: Callable[[str], None] = lambda text: None
    ) -> None:
        """`log` gets every line of the plain output, also while a live view replaces it."""
        self._console = Console(stderr=True, highlight=False)
        self._log = log
        self._bound = total_steps
        self._seen = Seen(title, total=total_steps)
        self._is_live = False
        self._said_at = 0.0
        self._told: set[str] = set()
        self._step_line: tuple[float, float] | None = None
        """Progress and time at the last printed line of a step."""
        self._live = Live(RunView(self._seen), console=self._console, refresh_per_second=4, transient=False)

    def __enter__(self) -> Self:
        self._is_live = self._console.is_terminal  # false for a terminal that has been closed
        if self._is_live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._seen.status = ""
        if self._is_live:
            self._live.stop()
        self._is_live = False

    def note(self, text: str) -> None:
        """Print a permanent line."""
        self._log(text)
        self._console.print(printable(text), markup=False, soft_wrap=True)

    def note_once(self, text: str) -> None:
        """Print a permanent line, unless one was printed that differs from it in its numbers alone: then only log it."""
        if (key := alike(text)) in self._told:
            self._log(text)
            return
        self._told.add(key)
        self.note(text)

    def status(self, text: str) -> None:
        """Show what is being done now."""
        self._seen.status = text
        if now_s() - self._said_at > QUIET_S:
            self._said_at = now_s()
            self._plain(text)

    def progress(self, items: Iterable[Item], total: int, label: str) -> Iterator[Item]:
        """Pass the items through and show how many of `total` are done."""
        self.status(f"{label}: 0/{total}")
        for number, item in enumerate(items, 1):
            self.status(f"{label}: {number}/{total}")
            yield item

    def sampling(self, groups: Iterable[tuple[int, Group]], total: int, label: str) -> Iterator[tuple[int, Group]]:
        """Pass finished groups through and show their number and the tokens per second."""
        began, tokens = now_s(), 0
        self.status(f"{label}: 0/{total} groups")
        for number, (position, group) in enumerate(groups, 1):
            tokens += sum(len(completion.token_ids) for completion in group.completions)
            rate = tokens / max(now_s() - began, 1e-9)
            self.status(f"{label}: {number}/{total} groups, {rate:.0f} tokens/s")
            yield position, group

    def step(self, row: Mapping[str, Any], *, progress: float = 0.0, expected: int | None = None, completion: str = "") -> None:
        """Show a finished step: its metrics, the used fraction of the budget (0 to 1), the expected number of steps, and a
        completion of it."""
        seen, now = self._seen, now_s()
        seen.total = self._bound or (f"~{expected}" if expected else None)
        seen.progress, seen.completion = progress, completion
        seen.add(row)
        line, last = plain_line(row, seen.total), self._step_line
        self._said_at = now
        is_last = self._bound is not None and row["step"] + 1 == self._bound
        if last is None or is_last or progress - last[0] >= 1 / STEP_LINES or now - last[1] >= STEP_S:
            self._step_line = progress, now
            self._plain(line)
        else:
            self._log(line)

    def guard(self, said: str) -> None:
        """Show the guard's last word."""
        self._seen.guard = said

    def _plain(self, text: str) -> None:
        """Print a line unless a live view shows it anyway; log it in any case."""
        self._log(text) if self._is_live else self.note(text)
