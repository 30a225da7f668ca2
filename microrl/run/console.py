"""Progress of a run on standard error: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from types import TracebackType
from typing import Any, Self, TypeVar

from rich.console import Console
from rich.live import Live

from microrl.clock import now_s
from microrl.run.heartbeat import kind_of
from microrl.run.view import Seen, clock, plain_line
from microrl.terminal import alike, printable
from microrl.types import Group

Item = TypeVar("Item")
QUIET_S, LONG_S = 2.0, 30.0
"""Minimum seconds between status lines in plain output: at first, and after many of the same kind."""
PACED, PACED_S = 20, 10.0
"""The pace of what is counted is known when a twentieth of it is done, or after so many seconds."""
FAIR = 0.25
"""Fraction of what may all be worked on at once that tells its pace: the first ones end long before most of the others."""
STEP_LINES = 20
"""A step's line is printed when so large a part of the budget has been spent since the last one, a twentieth,"""
STEP_S = 300.0
"""or so many seconds have passed. Every line is in `run.log`."""


class RunConsole:
    """Shows phases, progress and steps. Use it as a context manager; `note` prints a permanent line."""

    def __init__(
        self,
        *,
        title: str = "microrl",
        total_steps: int | None = None,
        budget_s: float | None = None,
        elapsed_s: Callable[[], float] | None = None,
        log: Callable[[str], None] = lambda text: None,
        on_status: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`log` gets every line of the plain output, also while a live view replaces it. `elapsed_s`: seconds of the run so far,
        of at most `budget_s`; None: what is shown is no run. `on_status` gets every status."""
        self._console = Console(stderr=True, highlight=False)
        self._log, self._on_status = log, on_status
        self._bound = total_steps
        self._seen = Seen(title, total=total_steps, budget_s=budget_s, elapsed_s=elapsed_s)
        self._is_live = False
        self._said_at = 0.0
        self._intervals: dict[str, float] = {}
        """Minimum seconds before the next line of a status of each kind."""
        self._took_s: dict[str, float] = {}
        """How long the last `doing` of each text took."""
        self._counting = ("", 0, 0.0)
        """Label, count and time at which `count` began to count."""
        self._told: set[str] = set()
        self._step_line: tuple[float, float] | None = None
        """Progress and time at the last printed line of a step."""
        self._live = Live(self._seen, console=self._console, refresh_per_second=4, transient=False)

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
        self._begin(text)
        kind = kind_of(text)
        interval_s = self._intervals.get(kind)
        if interval_s is None or now_s() - self._said_at > interval_s:
            self._said_at = now_s()
            self._intervals[kind] = QUIET_S if interval_s is None else min(2 * interval_s, LONG_S)
            self._plain(f"{self._seen.hangs or text}{self._seen.times()}")

    @contextmanager
    def doing(self, text: str) -> Iterator[None]:
        """Inside, show what is being done; afterwards again what was being done before. What was quick the last time gets no line
        of its own: the next line may come much later."""
        before, began = self._seen.status, now_s()
        (self.status if self._took_s.get(text, QUIET_S) >= QUIET_S else self._begin)(text)
        yield
        self._took_s[text] = now_s() - began
        self._begin(before)

    def _begin(self, text: str) -> None:
        self._on_status(text)
        self._seen.status = text

    def count(self, done: int, total: int, label: str, more: str = "", *, at_once: float = 1) -> None:
        """Show how many of `total` are done, and how long the rest will take at the pace so far. `at_once`: so many are worked on
        side by side, and tell no pace before so many are done."""
        if self._counting[0] != label or done < self._counting[1]:
            self._counting = (label, done, now_s())
        _, first, began = self._counting
        made = done - first
        is_known = made >= max(at_once, 1) and done < total and (PACED * made >= total or now_s() - began >= PACED_S)
        left = f", {clock((now_s() - began) / made * (total - done))} to go" if is_known else ""
        self.status(f"{label}: {done}/{total}{more}{left}")

    def progress(self, items: Iterable[Item], total: int, label: str) -> Iterator[Item]:
        """Pass the items through and show how many of `total` are done."""
        self.count(0, total, label)
        for number, item in enumerate(items, 1):
            self.count(number, total, label)
            yield item

    def expect(self, left_s: float) -> None:
        """Show that the run is expected to end in so many seconds; its steps say it better later on."""
        if self._seen.elapsed_s is not None:
            self._seen.expected_s = self._seen.elapsed_s() + left_s

    def silence(self, doing: str, seconds: float) -> None:
        """Show that nothing has been finished for so many seconds; without `doing`: that work goes on. From any thread."""
        hung, self._seen.hangs = self._seen.hangs, f"no progress for {clock(seconds)} at `{doing}`" if doing else ""
        if bool(hung) != bool(doing):
            said = f"warning: {self._seen.hangs}" if doing else f"work goes on ({hung})"
            saying = Thread(target=self.note, args=(said,), daemon=True)  # a terminal that nobody reads may block it for ever
            saying.start()
            saying.join(1.0)

    def sampling(self, groups: Iterable[tuple[int, Group]], total: int, label: str) -> Iterator[tuple[int, Group]]:
        """Pass finished groups through and show their number and the tokens per second."""
        began, tokens = now_s(), 0
        self.status(f"{label}: 0/{total} groups")
        for number, (position, group) in enumerate(groups, 1):
            tokens += sum(completion.length for completion in group.completions)
            rate = tokens / max(now_s() - began, 1e-9)
            self.status(f"{label}: {number}/{total} groups, {rate:.0f} tokens/s")
            yield position, group

    def step(
        self,
        row: Mapping[str, Any],
        *,
        progress: float = 0.0,
        expected: int | None = None,
        completion: str = "",
        rest_s: float = 0.0,
    ) -> None:
        """Show a finished step: its metrics, the used fraction of the budget (0 to 1), the expected number of steps, a completion
        of it, and the seconds that will be needed after the last step."""
        seen, now = self._seen, now_s()
        seen.rest_s = rest_s
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

    def guard(self, message: str) -> None:
        """Show the guard's last word."""
        self._seen.guard = message

    def _plain(self, text: str) -> None:
        """Print a line unless a live view shows it anyway; log it in any case."""
        self._log(text) if self._is_live else self.note(text)
