"""A file system in memory over a folder, which only this process and its children see: the kernel bounds what they write there,
and all of it is gone with the mount.

It needs the right to mount, or to make user namespaces, which most containers refuse: `folders.is_overfull` bounds it there. See
mount_namespaces(7) and user_namespaces(7).
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from contextlib import suppress

from microrl.processes import libc

_NEW_MOUNTS, _NEW_USERS = 0x00020000, 0x10000000
_NO_SETUID, _NO_DEVICES, _NO_EXECUTION = 2, 4, 8
_RECURSIVE, _SLAVE = 1 << 14, 1 << 19
_DETACH = 2


def enter(folder: str) -> bool:
    """Give this process mounts of its own; whether it can now mount below `folder`.

    Tried out in a fork first: half of it, such as a new user namespace without a user, would leave the process worse off.
    """
    for flags in (_NEW_MOUNTS, _NEW_MOUNTS | _NEW_USERS):
        if (pid := os.fork()) == 0:
            status = 1
            try:
                _enter(flags)
                inner = tempfile.mkdtemp(dir=folder)
                mount(inner, 1 << 20, 10)
                unmount(inner)
                os.rmdir(inner)
                status = 0
            finally:
                os._exit(status)
        if os.waitpid(pid, 0)[1] == 0:
            try:
                _enter(flags)
            except OSError:  # a process with several threads gets no new user namespace, and is left as it is
                return False
            return True
    return False


def mount(folder: str, size: int, entries: int) -> None:
    """An empty file system of `size` bytes and at most `entries` files and folders. Raises OSError."""
    flags = _NO_SETUID | _NO_DEVICES | _NO_EXECUTION
    _call(
        "mount",
        b"tmpfs",
        os.fsencode(folder),
        b"tmpfs",
        ctypes.c_ulong(flags),
        b"mode=0700,size=%d,nr_inodes=%d" % (size, entries),
    )


def unmount(folder: str) -> None:
    """Take it away, with all that is in it, from under whoever still uses it."""
    with suppress(OSError):
        _call("umount2", os.fsencode(folder), _DETACH)


def _enter(flags: int) -> None:
    user, group = os.geteuid(), os.getegid()
    _call("unshare", flags)
    if flags & _NEW_USERS:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    _call("mount", None, b"/", None, ctypes.c_ulong(_RECURSIVE | _SLAVE), None)  # what is mounted here is not seen elsewhere


def _call(name: str, *arguments: object) -> None:
    if getattr(libc(), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)
