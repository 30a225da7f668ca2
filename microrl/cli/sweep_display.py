"""What `microrl sweep` shows while its trials train."""

from __future__ import annotations

from typing import TYPE_CHECKING

from microrl.cli.output import say

if TYPE_CHECKING:
    from rich.live import Live

    from microrl.run import follow
    from microrl.sweep.folder import PlannedTrial, SweepFolder
    from microrl.sweep.schedule import Next

SHOW_S = 0.5
"""Seconds between two looks at the trial in progress."""


def duration(hours: float) -> str:
    """Hours in words: `1.50 h`, `12.0 min`."""
    return f"{hours:.2f} h" if hours >= 1 else f"{hours * 60:.1f} min"


class Display:
    """Lines on standard error; on a terminal, how far the trial in progress is."""

    def __init__(self, folder: SweepFolder) -> None:
        from rich.console import Console

        self._folder, self._count = folder, len(folder.plan.trials)
        self._console, self._shown_s = Console(stderr=True), 0.0
        self._live: Live | None = None
        self._head, self._total = "", ""
        self._lines: follow.Lines | None = None

    def started(self, following: Next, status: str) -> None:
        from microrl.run import follow

        name = following.trial.name
        self._head = f"{[trial.name for trial in self._folder.plan.trials].index(name) + 1}/{self._count} {name}"
        steps = following.trial.config["budget"]["steps"]
        self._total = f"/{steps}" if steps and following.hours is None else ""
        limit = "" if following.hours is None else f", limit {duration(following.hours)}"
        say(f"{self._head}: {'resumed' if status != 'waiting' else 'started'}{limit}")
        self._lines = follow.Lines(self._folder.trial(name) / "metrics.jsonl")

    def waiting(self) -> None:
        """Only here, in the process that waits: one that is forked must not have a display."""
        from microrl import clock

        if not self._console.is_terminal or clock.now_s() - self._shown_s < SHOW_S or self._lines is None:
            return
        self._shown_s = clock.now_s()
        from rich.live import Live
        from rich.text import Text

        rows = self._lines.new()
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
            self._live.update(Text(f"{self._head}: loading"), refresh=True)
        if rows:
            row = rows[-1]
            accuracy = row.get("reward/accuracy")
            said = f"step {row.get('step', 0) + 1}{self._total}, accuracy {'-' if accuracy is None else f'{accuracy:.3f}'}"
            self._live.update(Text(f"{self._head}: {said}"), refresh=True)

    def ended(self, trial: PlannedTrial, status: int, why: str) -> None:
        from microrl.sweep.table import lines

        self.close()
        (line,) = [line for line in lines(self._folder) if line.trial.name == trial.name]
        if why:
            again = "" if line.status == "failed" else "; it will be tried once more"
            say(f"{trial.name} failed: {why}{again}; see {self._folder.log(trial.name)}")
            return
        gain, summary = line.gain, line.summary
        said = f"{summary.steps} steps in {duration(summary.hours_spent)}" if summary else "ended"
        if gain is not None and summary and summary.eval.after:
            said += (
                f", accuracy {summary.eval.after.accuracy:.3f}, gain {gain.mean:+.3f} [{gain.ci95[0]:+.3f}, {gain.ci95[1]:+.3f}]"
            )
        say(f"{trial.name}: {said}" + (", stopped by the guard" if line.status == "stopped" else ""))

    def note(self, text: str) -> None:
        self.close()
        say(text)

    def close(self) -> None:
        """Take the display away."""
        if self._live is not None:
            self._live.stop()
            self._live = None
