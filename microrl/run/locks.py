"""Locks on a run's folder: held by the process that trains, and gone with it, however it ends."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from microrl import files
from microrl.files import BadFile

_FLOCK = "hhqqi"
"""`struct flock` of 64-bit Linux: kind, whence, start, length, process."""
_held: dict[BinaryIO, Path] = {}
"""The locks of this process. It may not open their files again: to close one would release the lock."""


class Held(Exception):
    """Another process holds the lock. `owner`: its process id; empty if it is not known."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner


def take(path: Path) -> BinaryIO | None:
    """Lock a file, which is created if need be; None on a file system without locks. Raises Held, BadFile, and OSError where it
    cannot be written."""
    file = files.open_regular(path, os.O_RDWR | os.O_CREAT)
    try:
        # A POSIX lock, which forked children do not inherit: it must not outlive this process. filelock's would.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = file.read(32).decode(errors="replace").strip()
        file.close()
        if isinstance(error, BlockingIOError | PermissionError):
            raise Held(owner) from None
        return None
    with suppress(OSError):  # a full disk: the lock works without the process id
        file.write(f"{os.getpid()}\n".encode().ljust(12))
    _held[file] = path.resolve()
    return file


def release(file: BinaryIO) -> None:
    """Release a lock that `take` has returned."""
    _held.pop(file, None)
    file.close()


def is_held(path: Path) -> bool | None:
    """Whether any process holds the lock; None where that cannot be found out, as where there is no such file."""
    if path.resolve() in _held.values():
        return True
    if sys.platform != "linux":
        return None
    try:
        with files.open_regular(path) as file:
            answer = fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except (OSError, BadFile):
        return None
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)
