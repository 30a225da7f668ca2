"""Start `microrl track` beside a run."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from contextlib import suppress
from typing import IO

from microrl.errors import UserError
from microrl.run.folder import RunFolder


def log_name(tracker: str) -> str:
    """The file of a run folder into which the process writes what it has to say."""
    return f"track-{tracker}.log"


def refuse_if_missing(tracker: str) -> None:
    """Raise UserError if the tracker's package is not installed."""
    if importlib.util.find_spec(tracker) is None:
        raise UserError(f"{tracker} is not installed", f"pip install {tracker}, or in your clone: pip install -e '.[{tracker}]'")


def start(folder: RunFolder, tracker: str) -> subprocess.Popen[bytes] | None:
    """Send the run's metrics to a tracker from a process of its own, which goes on after this one ends; None if it cannot be
    started, which the run survives."""
    command = [sys.executable, "-m", "microrl", "track", str(folder.path.absolute()), "--to", tracker, "--beside"]
    log: IO[bytes] | int = subprocess.DEVNULL
    with suppress(OSError):
        log = (folder.path / log_name(tracker)).open("ab")
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    except OSError:
        return None
    finally:
        if not isinstance(log, int):
            log.close()
