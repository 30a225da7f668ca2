"""Send a run's metrics to an experiment tracker, from a process of its own that follows `metrics.jsonl`.

Whatever happens to it, training neither waits for it nor ends with it.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import re
import secrets
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any, Protocol

from microrl import clock, files
from microrl.config.resolve import leaves
from microrl.errors import MachineFailure, UserError, first_line
from microrl.report.history import History, finite
from microrl.run import follow, names
from microrl.run.folder import RunFolder
from microrl.run.tracking import log_name
from microrl.terminal import counted

LOOKS_S = 2.0
"""Seconds between two looks into the run folder."""
HANGS_S = 600.0
"""A tracker that has not taken a step's metrics, or has not finished, for so many seconds ends this process."""
NICENESS = 10


class Tracker(Protocol):
    """Where metrics go. Any exception ends the tracking."""

    def log(self, step: int, seconds: float, metrics: Mapping[str, float]) -> None:
        """Take a step's metrics; `seconds`: since 1970, when it was finished."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Take the run's summary, and wait until everything has been sent."""


class _Wandb:
    """Weights & Biases. A run that is sent again goes to the same page: what it has already is ignored there."""

    def __init__(self, history: History, project: str) -> None:
        import wandb

        self._run = wandb.init(
            project=project, name=history.name, id=_identity(history), resume="allow", config=dict(history.config),
            settings=wandb.Settings(console="off"),
        )  # fmt: skip

    def log(self, step: int, seconds: float, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._run.summary.update(_flat(summary))
        self._run.finish()


class _Trackio:
    """Trackio. A run that is sent again becomes another one of the same name."""

    def __init__(self, history: History, project: str) -> None:
        import trackio

        self._module = trackio
        trackio.init(project=project, name=history.name, config=_flat(history.config), embed=False, auto_log_gpu=False,
                     auto_log_cpu=False)  # fmt: skip

    def log(self, step: int, seconds: float, metrics: Mapping[str, float]) -> None:
        self._module.log(dict(metrics), step=step)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._module.finish()


class _TensorBoard:
    """Event files in the run's folder `tensorboard/`, for `tensorboard --logdir runs`. Sent again, they replace the old ones."""

    def __init__(self, history: History, project: str) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        place = history.path / "tensorboard"
        for old in place.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = EventFileWriter(str(place), flush_secs=5)

    def log(self, step: int, seconds: float, metrics: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_event(self._event(wall_time=seconds, step=step, summary=self._summary(value=values)))

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._writer.close()


TRACKERS: Mapping[str, Callable[[History, str], Tracker]] = {"wandb": _Wandb, "trackio": _Trackio, "tensorboard": _TensorBoard}


def track(folder: RunFolder, to: str, project: str, say: Callable[[str], None], *, parent: int | None = None) -> int:
    """Send what the run has, and what comes, until it has ended; returns the number of steps sent.

    `parent`: the process that trains and has started this one. The run goes on as long as it lives, whatever its folder holds
    of an earlier end. Raises UserError and MachineFailure.
    """
    is_going = None if parent is None else lambda: os.getppid() == parent
    lock = _locked(folder, to, waits=is_going is not None)
    with suppress(OSError):
        os.nice(NICENESS)  # the processors are for training
    tracker: Tracker | None = None
    sent = 0
    last = -1
    began_s = clock.wall_s()
    with suppress(OSError):
        began_s = (folder.path / names.CONFIG).stat().st_mtime
    try:
        for rows, _ in follow.steps(folder.path, looks_s=LOOKS_S, is_going=is_going):
            _watchdog()
            for row in rows:
                step = row.get("step")
                if not isinstance(step, int) or step <= last:
                    continue  # damaged; or a resumed run has repeated it
                if tracker is None:
                    tracker = TRACKERS[to](History.load(folder.path), project)
                    say(f"sending {folder.path} to {to}, project {project}")
                tracker.log(step, began_s + (row.get("budget/elapsed_s") or 0.0), _numbers(row))
                _watchdog()
                last, sent = step, sent + 1
        if tracker is not None:
            ended = History.load(folder.path).summary
            tracker.finish({} if ended is None else ended.to_json())
    except (UserError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise MachineFailure(
            f"{to} failed after {counted(sent, 'step')}: {first_line(error)}",
            f"training was not affected; send it again: microrl track {folder.path} --to {to}",
        ) from error
    finally:
        faulthandler.cancel_dump_traceback_later()
        if lock is not None:
            lock.close()
    return sent


def _watchdog() -> None:
    """From now on, HANGS_S seconds without another call end this process."""
    with suppress(AttributeError, ValueError, OSError):  # standard error has been closed
        faulthandler.dump_traceback_later(HANGS_S, exit=True, file=sys.__stderr__ or 2)


def _locked(folder: RunFolder, to: str, *, waits: bool) -> IO[bytes] | None:
    """The lock against a second process that sends this run to the same tracker; None where nothing can be written.

    `waits`: for that process to end, which has been given the end of the run before it was resumed. Else raises UserError.
    """
    try:
        file = files.open_regular(folder.path / log_name(to), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except OSError:
        return None
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except (BlockingIOError, PermissionError):
        file.close()
        raise UserError(f"another process is sending {folder.path} to {to}", "wait until it finishes, or stop it") from None
    except OSError:
        pass  # a file system without locks
    return file


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: known for name, value in row.items() if name != "step" and (known := finite(value)) is not None}


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of a tree by dotted names; lists as text."""
    kept = [(name, value) for name, value in leaves(tree) if value != {}]
    return {name: value if isinstance(value, str | int | float | None) else str(value) for name, value in kept}


def _identity(history: History) -> str:
    """A name of this run that no other run has: made at random the first time, and kept in its folder."""
    path, made = history.path / "track-wandb.id", secrets.token_hex(8)
    try:
        with path.open("x") as file:
            file.write(made)
    except FileExistsError:
        with suppress(OSError, UnicodeError):
            stored = path.read_text()[:64].strip()
            return stored if re.fullmatch(r"[0-9a-f]{16}", stored) else made
    except OSError:
        pass
    return made
