"""What `microrl sweep` shows while its trials train."""

from __future__ import annotations

from statistics import fmean

from rich.console import Console
from rich.live import Live
from rich.text import Text

from microrl.clock import now_s
from microrl.run import follow, heartbeat, names
from microrl.run.view import clock
from microrl.sweep.folder import OVER, PlannedTrial, SweepFolder
from microrl.sweep.forecast import plan_of
from microrl.sweep.schedule import NextTrial
from microrl.sweep.table import lines
from microrl.terminal import counted, say, time_in_words

SHOW_S = 0.5
"""Seconds between two looks at the trial in progress."""


class Display:
    """Lines on standard error; on a terminal, how far the trial in progress is. Both say how long the whole sweep will take."""

    def __init__(self, folder: SweepFolder) -> None:
        self._folder, self._count = folder, len(folder.plan.trials)
        self._console, self._shown_s = Console(stderr=True), 0.0
        self._live: Live | None = None
        self._head, self._said, self._total = "", "", ""
        self._lines: follow.JsonlReader | None = None
        self._planned_s: dict[str, float | None] = {}

    def times(self) -> str:
        """Elapsed time and time to go of the whole sweep, trials one after the other."""
        left_s = self._left_s()
        to_go = "" if left_s is None else f", about {clock(left_s)} to go"
        return f"whole sweep: {clock(self._folder.elapsed_s())} elapsed{to_go}"

    def _left_s(self) -> float | None:
        """By the sweep's hours, or else by what the trials that have ended took, or by the plan; None if none of them says."""
        folder = self._folder
        if folder.plan.hours is not None:
            return max(folder.plan.hours * 3600 - folder.elapsed_s(), 0.0)
        spent_s = {trial.name: heartbeat.last_s(folder.trial(trial.name)) for trial in folder.plan.trials}
        over = [trial.name for trial in folder.plan.trials if folder.status(trial.name) in OVER]
        typical_s = fmean(spent_s[name] for name in over) if over else None
        left_s = 0.0
        for trial in folder.plan.trials:
            if trial.name not in over:
                whole_s = self._whole_s(trial) if typical_s is None else typical_s
                if whole_s is None:
                    return None
                left_s += max(whole_s - spent_s[trial.name], 0.0)
        return left_s

    def _whole_s(self, trial: PlannedTrial) -> float | None:
        if trial.name not in self._planned_s:
            plan = plan_of(self._folder.config(trial))
            self._planned_s[trial.name] = None if plan is None else plan.hours * 3600
        return self._planned_s[trial.name]

    def started(self, upcoming: NextTrial, status: str) -> None:
        name = upcoming.trial.name
        self._head = f"{[trial.name for trial in self._folder.plan.trials].index(name) + 1}/{self._count} {name}"
        steps = upcoming.trial.config["budget"]["steps"]
        self._total = f"/{steps}" if steps and upcoming.hours is None else ""
        limit = "" if upcoming.hours is None else f", limit {time_in_words(upcoming.hours)}"
        say(f"{self._head}: {'resumed' if status != 'waiting' else 'started'}{limit}; {self.times()}")
        self._lines, self._said = follow.JsonlReader(self._folder.trial(name) / names.METRICS), ": loading"

    def waiting(self) -> None:
        """Only here, in the process that waits: one that is forked must not have a display."""
        if not self._console.is_terminal or now_s() - self._shown_s < SHOW_S:
            return
        self._shown_s = now_s()
        rows = [] if self._lines is None else self._lines.new()
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        if rows:
            row = rows[-1]
            accuracy = row.get("reward/accuracy")
            self._said = (
                f": step {row.get('step', 0) + 1}{self._total}, accuracy {'-' if accuracy is None else f'{accuracy:.3f}'}"
            )
        self._live.update(Text(f"{self._head}{self._said}; {self.times()}"), refresh=True)

    def ended(self, trial: PlannedTrial, why: str) -> None:
        self.close()
        (line,) = [line for line in lines(self._folder) if line.trial.name == trial.name]
        if why:
            if line.status == "refused":
                say(f"{trial.name} was refused: {why}; see {self._folder.log(trial.name)}")
                return
            again = "" if line.status == "failed" else "; it will be tried once more"
            say(f"{trial.name} failed: {why}{again}; see {self._folder.log(trial.name)}")
            return
        gain, summary = line.gain, line.summary
        said = f"{counted(summary.steps, 'step')} in {time_in_words(summary.hours_spent)}" if summary else "ended"
        if gain is not None and summary and summary.eval.after:
            said += f", accuracy {summary.eval.after.accuracy:.3f}, gain {gain.text('+.3f')}"
        say(f"{trial.name}: {said}" + (", stopped by the guard" if line.status == "stopped" else ""))

    def note(self, text: str) -> None:
        self.close()
        self._head, self._said, self._lines = text, "", None
        say(text)

    def close(self) -> None:
        """Take the display away."""
        if self._live is not None:
            self._live.stop()
            self._live = None
