"""`microrl train --control shuffle`: after a run its control, the same run with shuffled rewards, in a folder beside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microrl.cli.output import OK, STOPPED, say
from microrl.errors import MachineFailure, UserError
from microrl.processes import how_it_ended
from microrl.terminal import counted, time_in_words

if TYPE_CHECKING:
    from microrl.config import RunConfig
    from microrl.run.folder import RunFolder

Start = Callable[[float | None], int]
"""Carry out a run; returns its exit status. The argument is `started` of `attempts.run_with_fallback`."""


def refuse(config: RunConfig, path: Path) -> None:
    """Raise UserError where a run cannot have a control, or something else is in its place."""
    from microrl.run.control import control_of, is_control
    from microrl.run.folder import RunFolder

    if config.reward.shuffle:
        raise UserError(f"{path} is a control itself: its rewards are shuffled", "leave out --control or reward.shuffle")
    if config.sft.only:
        raise UserError("a run of SFT alone has no rewards to shuffle", "leave out --control")
    if not config.has_rewards:
        raise UserError("the teacher alone trains this run: there are no rewards to shuffle", "leave out --control")
    if not os.path.lexists(place := control_of(path)):
        return
    if not RunFolder.is_one(path):
        raise UserError(f"{place} already exists", "remove it, or choose another folder: --out DIR")
    if not is_control(RunFolder.open(place).config(), RunFolder.open(path).config()):
        raise UserError(
            f"{place} is not the control of {path}: their settings differ in more than shuffled rewards",
            f"rename it, and repeat the command: mv {place} {place}.old",
        )


def begun_with(tree: dict[str, Any]) -> RunFolder | None:
    """The newest run under `runs/` with this configuration whose control has begun and not ended; None if there is none."""
    from microrl.run.control import run_of, shuffled
    from microrl.run.folder import RunFolder

    begun = RunFolder.begun_with(shuffled(tree), None)
    path = None if begun is None else run_of(begun.path)
    return None if path is None else RunFolder.open(path)


def say_if_unfinished(folder: RunFolder) -> None:
    """Say how to go on with the control of a run that was resumed without it."""
    from microrl.run.control import control_of, is_control
    from microrl.run.folder import RunFolder

    place = control_of(folder.path)
    if not RunFolder.is_one(place) or (control := RunFolder.open(place)).is_done():
        return
    if is_control(control.config(), folder.config()):
        say(f"its control is not finished; to continue: microrl train --resume {folder.path} --control shuffle")


def time_of_both(path: Path, hours: float | None, steps: int | None) -> str:
    """That the control takes as long again, in words."""
    from microrl.run.control import control_of

    bounds = [time_in_words(hours)] if hours is not None else []
    bounds += [counted(steps, "step")] if steps is not None else []
    each = " or ".join(bounds)
    both = f", {time_in_words(2 * hours)} in all" if hours is not None else ""
    return f"control: {control_of(path)} follows, the same run with shuffled rewards; each has {each}{both}"


def run_both(path: Path, run: Start, control: Start) -> int:
    """Carry out the run in the folder `path` and then its control; returns the run's exit status, or that of a control that
    failed. Each is a process of its own where that is possible: its time, its engine and its memory end with it."""
    from microrl import clock
    from microrl.run import child
    from microrl.run.control import control_of

    is_forked = child.can_fork()
    statuses: list[int] = []
    for start in (run, control):
        status = child.in_child() if is_forked else None
        if status is None:
            status = start(clock.now_s() if statuses else None)
            if is_forked:
                return status
        if status < 0:
            raise MachineFailure(
                f"the run in {control_of(path) if statuses else path} was {how_it_ended(status)}",
                f"microrl train --resume {path} --control shuffle",
            )
        statuses.append(status)
        if len(statuses) == 1 and status != OK:
            if path.exists():
                say(f"the control was not started; to continue: microrl train --resume {path} --control shuffle")
            return status
    if statuses[1] not in (OK, STOPPED):
        return statuses[1]
    for line in _compared(path):
        say(line)
    return statuses[0]


def _compared(path: Path) -> list[str]:
    from microrl.report.history import History
    from microrl.report.verdict import control_said
    from microrl.run.control import control_of

    said = control_said(History.load(path))
    return [*said, f"compare them: microrl compare {path} {control_of(path)}"]
