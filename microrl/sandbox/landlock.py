"""Landlock: a process gives up the file system, and where the kernel can, TCP, signals and abstract sockets, for good.

No privilege is needed. See landlock(7) and the kernel's Documentation/userspace-api/landlock.rst. File access that is not listed
there stays possible: stat, chdir, chmod, chown, utime, flock (`microrl.sandbox.seccomp` forbids those that change something).
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable

from microrl.processes import libc

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on all architectures
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
"""Rights over files that each version of Landlock added: all of version 1, REFER, TRUNCATE, IOCTL_DEV."""
_ONLY_FOR_FOLDERS = ((1 << 14) - 1) & ~(EXECUTE | WRITE_FILE | READ_FILE)
NETWORK_VERSION, SCOPE_VERSION = 4, 6
_BIND_AND_CONNECT_TCP = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """The kernel's version of Landlock; 0 where there is none, or it is disabled."""
    if sys.platform != "linux":
        return 0
    try:
        abi_version = _syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    except (OSError, AttributeError):
        return 0
    return max(0, abi_version)


def ruleset(*, read: Iterable[str], write: Iterable[str] = ()) -> int:
    """Rules as a descriptor: a process under them may only read below the paths of `read`, and use those of `write` freely; no
    TCP, no signals to processes outside. Making them takes longer than all the rest of a sandbox.

    Paths that do not exist are passed over. Raises OSError where the kernel refuses.
    """
    have = version()
    files = 0
    for since, rights in _FILE_RIGHTS.items():
        files |= rights if have >= since else 0
    ruleset = _Ruleset(
        files,
        _BIND_AND_CONNECT_TCP if have >= NETWORK_VERSION else 0,
        _ABSTRACT_SOCKETS_AND_SIGNALS if have >= SCOPE_VERSION else 0,
    )
    # Older kernels refuse a larger structure than theirs, even with zeros in it.
    size = 24 if have >= SCOPE_VERSION else 16 if have >= NETWORK_VERSION else 8
    rules = _syscall(_CREATE_RULESET, ctypes.byref(ruleset), size, 0)
    try:
        for paths, rights in ((read, READ_FILE | READ_DIR), (write, files & ~EXECUTE)):
            for path in paths:
                _allow(rules, path, rights)
    except OSError:
        os.close(rules)
        raise
    return rules


def enter(rules: int) -> None:
    """Put this process under a `ruleset`, for good, with its children. Open descriptors stay usable. Raises OSError where the
    kernel refuses."""
    try:
        no_new_privileges()
        _syscall(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def no_new_privileges() -> None:
    """Give up the means to gain privileges by `execve`, which Landlock and seccomp ask for. Raises OSError."""
    if libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            rights &= ~_ONLY_FOR_FOLDERS
        rule = _Beneath(rights, parent)
        _syscall(_ADD_RULE, rules, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(parent)


def _syscall(number: int, *arguments: object) -> int:
    result = int(libc().syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}")
    return result
