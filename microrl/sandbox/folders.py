"""The temporary folders of hosts. Each is locked by the process that made it; if that was killed, the next start removes it.

A program may leave anything in them: folders a thousand deep, without permissions, names that are no text. So a walk here follows
no symbolic link, holds few descriptors however deep it goes, and raises nothing but OSError.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from microrl.clock import now_s

PREFIX = "microrl-sandbox-"
NEW_S = 60.0
"""A folder that has changed since may not be locked yet."""
MAX_BYTES, MAX_ENTRIES = 64 << 20, 1000
"""What a program may have in its folder."""
LOOK_S = 0.01
"""How often that is looked at. Some 20 MB are written in between."""
_MAX_OPEN = 100
"""Folders that are looked at together. Each is a descriptor."""
_SHARED_MEMORY = b"/dev/zero (deleted)\n"
"""Of no file."""
_REMOVE_S = 60.0
_given_up: set[str] = set()
"""Folders that cannot be removed: said once, and not tried again."""


def make() -> tuple[str, int]:
    """A new folder, and a descriptor that holds its lock: close it with the folder. Removes those of processes that have died."""
    path = tempfile.mkdtemp(prefix=PREFIX)
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    with suppress(OSError):  # a file system without locks
        fcntl.flock(lock, fcntl.LOCK_SH)
    with suppress(OSError):
        _sweep(os.fstat(lock).st_mtime)
    return path, lock


def _sweep(now: float) -> None:
    """Remove the folders of this user that nobody holds. `now`: by the clock of the file system."""
    with os.scandir(tempfile.gettempdir()) as entries:
        paths = [entry.path for entry in entries if entry.name.startswith(PREFIX)]
    for path in paths:
        with suppress(OSError):
            state = os.lstat(path)
            if state.st_uid == os.getuid() and now - state.st_mtime > NEW_S:
                with _opened(path) as held:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove(path)


def remove(path: str) -> None:
    """Remove a folder and all that is below it. What cannot be removed is logged once, and left."""
    if path in _given_up:
        return
    why, until = "some of its files do not let themselves be removed", now_s() + _REMOVE_S
    try:
        with _opened(path) as top:
            while _empty(top) and now_s() < until:
                with suppress(OSError):  # not empty: what is being killed still wrote to it
                    os.rmdir(path)
                    return
    except FileNotFoundError:
        return
    except OSError as error:
        why = error.strerror or str(error)
    _given_up.add(path)
    logging.getLogger(__name__).warning("the temporary folder %s cannot be removed: %s", path, why)


def _empty(top: int) -> bool:
    """Remove what is in this folder; whether anything was, or nothing had to be.

    The folders in an inner one are moved up into this one first, so that no path is longer than two names and no more than two
    folders are open.
    """
    names, is_better = os.listdir(top), False
    for name in names:
        with suppress(OSError):
            if not _is_folder(name, top):
                os.unlink(name, dir_fd=top)
            else:
                with _opened(name, top) as inner:
                    for other in os.listdir(inner):
                        with suppress(OSError):
                            _move_up(other, inner, top) if _is_folder(other, inner) else os.unlink(other, dir_fd=inner)
                            is_better = True
                os.rmdir(name, dir_fd=top)
            is_better = True
    return is_better or not names


def _move_up(name: str, inner: int, top: int) -> None:
    with _opened(name, inner):  # a folder is moved only where it can be written to
        pass
    os.rename(name, os.urandom(16).hex(), src_dir_fd=inner, dst_dir_fd=top)


def _is_folder(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


@contextmanager
def _opened(name: str, parent: int | None = None) -> Iterator[int]:
    """A descriptor of a folder of this user's, which may have taken its permissions away from itself. No link is followed."""
    flags = os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
    place = os.open(name, os.O_PATH | flags, dir_fd=parent)
    try:
        if os.fstat(place).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{place}", 0o700)  # this very folder: its name may be another's by now
        inside = os.open(".", os.O_RDONLY | flags, dir_fd=place)
    finally:
        os.close(place)
    try:
        yield inside
    finally:
        os.close(inside)


def is_overfull(path: str, pid: int, file_bytes: int) -> bool:
    """Whether a running program, whose files have at most `file_bytes` each, has more in its folder than it may.

    So has one that cannot be looked at: no honest program makes a folder that itself cannot read. `pid`: a child of this process,
    which has not waited for it yet.
    """
    try:
        size = _unlinked_bytes(pid, file_bytes)
        return size > MAX_BYTES or _holds_more(path, MAX_BYTES - size)
    except OSError:
        return True


def _holds_more(path: str, size: int) -> bool:
    """A folder is closed before the last one in it is opened, so that a chain of them needs one descriptor, and siblings two."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    entries, waiting = 0, [(os.open(path, flags), ["."])]
    try:
        while waiting:
            folder, names = waiting[-1]
            try:
                inner = os.open(names.pop(), flags, dir_fd=folder)
            except (FileNotFoundError, NotADirectoryError):  # removed or renamed meanwhile
                inner = None
            _close_the_seen(waiting)
            if inner is None:
                continue
            waiting.append((inner, folders := []))
            for name in os.listdir(inner):
                with suppress(FileNotFoundError):
                    state = os.stat(name, dir_fd=inner, follow_symlinks=False)
                    entries, size = entries + 1, size - state.st_blocks * 512
                    folders += [name] if stat.S_ISDIR(state.st_mode) else []
                if entries > MAX_ENTRIES or size < 0:
                    return True
            _close_the_seen(waiting)
            if len(waiting) > _MAX_OPEN:
                return True
    finally:
        for descriptor, _ in waiting:
            os.close(descriptor)
    return False


def _close_the_seen(waiting: list[tuple[int, list[str]]]) -> None:
    while waiting and not waiting[-1][1]:
        os.close(waiting.pop()[0])


def _unlinked_bytes(pid: int, file_bytes: int) -> int:
    """What a process holds open of files that have no name any more; of those that are mapped, the most that they can have."""
    size = 0
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            state = os.stat(f"/proc/{pid}/fd/{number}")
            size += state.st_blocks * 512 if stat.S_ISREG(state.st_mode) and state.st_nlink == 0 else 0
    if mapped := _unlinked_and_mapped(pid):
        size += len(mapped - _unlinked_and_mapped(os.getpid())) * file_bytes
    return size


def _unlinked_and_mapped(pid: int) -> set[bytes]:
    """The files, each as its device and number. A library that was replaced while Python runs is among them, too."""
    with open(f"/proc/{pid}/maps", "rb") as maps:
        lines = [line.split(maxsplit=5) for line in maps if line.endswith(b" (deleted)\n")]
    return {device + number for _, _, _, device, number, name in lines if name != _SHARED_MEMORY}
