"""`microrl watch`: a run in progress, from another terminal."""

from __future__ import annotations

from typing import Any

from microrl.cli import options
from microrl.cli.output import say


def watch(target: options.Run = None) -> None:
    """Watch a run in progress until it ends. Ctrl-C stops watching; the run continues."""
    from microrl.cli.target import run_of
    from microrl.report.history import History
    from microrl.report.verdict import judge
    from microrl.run import follow, heartbeat
    from microrl.run.console import RunConsole

    folder = run_of(target)
    history = History.load(folder.path)
    steps, hours = history.setting("budget.steps"), history.setting("budget.hours")
    bound = steps if isinstance(steps, int) else None
    budget_s = float(hours) * 3600 if isinstance(hours, int | float) and hours > 0 else None
    beat = heartbeat.read(folder.path)
    title = f"{history.name}: {history.setting('model.name', 'a model')}"
    with RunConsole(title=title, total_steps=bound, budget_s=budget_s, elapsed_s=lambda: beat.elapsed_s) as console:
        for rows, events in follow.steps(folder.path):
            beat = heartbeat.read(folder.path)
            console.silence(beat.doing if beat.silent_s else "", beat.silent_s)
            if not follow.is_over(folder.path):
                console.status(beat.doing or "waiting for the first step")
            for event in events:
                kind, message = str(event.get("kind", "")), str(event.get("message", ""))
                if kind == "guard":
                    console.guard(message)
                if kind != "best":
                    console.note(f"{kind}: {message}")
            for row in map(follow.row, filter(follow.is_row, rows)):
                said = follow.completion(folder.path, row["step"])
                console.step(row, progress=_progress(row, bound, hours), completion=said)
    ended = History.load(folder.path)
    say(f"{folder.path}: {ended.status()}")
    for line in judge(ended).lines():
        say(line)


def _progress(row: dict[str, Any], steps: int | None, hours: Any) -> float:
    """The used fraction of the budget: of its time or of its steps, whichever is further."""
    by_steps = (row["step"] + 1) / steps if steps else 0.0
    by_time = row["budget/elapsed_s"] / 3600 / hours if isinstance(hours, int | float) and hours > 0 else 0.0
    return float(min(max(by_steps, by_time), 1.0))
