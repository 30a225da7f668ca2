"""Lock the calling process in, for good: what it runs from here on may compute, and nothing else."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import struct
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from microrl.processes import die_with, libc, offer_to_oom_killer
from microrl.sandbox import landlock, seccomp

_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522
CANARY = "/etc/passwd"
"""Readable by everyone, and never needed here."""
MIN_LANDLOCK = 3
"""Linux 6.2. Older versions let a process empty files that it may not write; seccomp alone would stand against that."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a confined process may use. Sizes are in bytes; 0 for `file_bytes` means no files at all."""

    memory_bytes: int
    file_bytes: int = 0
    files: int = 64
    """Open file descriptors."""


@dataclass(frozen=True, slots=True)
class Levels:
    """What holds a confined process: tried out in one, and not only asked of the kernel."""

    files: bool
    """Files outside of its own folder cannot be read, written or emptied (Landlock)."""
    system_calls: bool
    """No sockets, no processes, no signals to others (seccomp)."""
    landlock: int = 0
    """The kernel's version of it (ABI); 0: none."""

    @property
    def is_enforced(self) -> bool:
        """Whether code that a model wrote may run in it."""
        return not self.lacking

    @property
    def lacking(self) -> str:
        """What is missing before code that a model wrote may run in it; empty: nothing."""
        lacks = [] if self.files else ["Landlock"]
        if self.files and self.landlock < MIN_LANDLOCK:
            lacks.append(f"Landlock ABI {MIN_LANDLOCK} (it has version {self.landlock}, which does not hold back truncation)")
        return " and ".join(lacks + ([] if self.system_calls else ["seccomp"]))

    def __str__(self) -> str:
        names = {f"Landlock ABI {self.landlock}": self.files, "seccomp": self.system_calls}
        return ", ".join([*(name for name, holds in names.items() if holds), "resource limits"])


def rules() -> int | None:
    """Landlock's rules for processes without a folder, to be made before they are forked; None: this kernel makes none."""
    try:
        return landlock.ruleset(read=(*libraries(), *DEVICES)) if landlock.version() else None
    except OSError:
        return None


def confine(
    owner: int,
    limits: Limits,
    *,
    folder: str | None = None,
    keep: tuple[int, ...] = (),
    packages: bool = True,
    made: int | None = None,
) -> None:
    """Lock this process in. It was just forked from `owner`, dies with it, and keeps only the descriptors of `keep` and 0 to 2.

    `folder`: the only one that it may write to, and its working directory. `packages`: whether it may read installed packages,
    rather than only the standard library; some of them hold the tests of benchmarks. `made`: what `rules` returned, in place of
    `folder` and `packages`. What this kernel cannot give is left out: see `levels_in_force`.
    """
    die_with(owner)
    signal.set_wakeup_fd(-1)
    _close_all_but({0, 1, 2, *keep, *([] if made is None else [made])})
    offer_to_oom_killer()
    os.environ.clear()
    os.chdir(folder or "/")
    os.umask(0o077)
    for name, value in (
        ("AS", limits.memory_bytes), ("FSIZE", limits.file_bytes), ("NOFILE", limits.files), ("NPROC", 0), ("CORE", 0),
        ("MEMLOCK", 0), ("MSGQUEUE", 0),
    ):  # fmt: skip
        with contextlib.suppress(AttributeError, ValueError, OSError):  # not on every system
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    _drop_capabilities()
    if landlock.version():
        with contextlib.suppress(OSError):
            if made is None:
                made = landlock.ruleset(read=(*libraries(packages), *DEVICES), write=(folder,) if folder else ())
            landlock.enter(made)
    if seccomp.is_available():
        with contextlib.suppress(OSError):
            seccomp.install()


def levels_in_force(outside: str | None = None) -> Levels:
    """What holds this process, by trying: call it in a confined one. `outside`: a file that it tries to empty."""
    try:
        Path(CANARY).read_bytes()
        files = False
    except PermissionError:
        files = True
    except OSError:
        files = landlock.version() > 0
    if outside is not None:
        for attempt in (lambda: os.truncate(outside, 0), lambda: os.close(os.open(outside, os.O_RDONLY | os.O_TRUNC))):
            with contextlib.suppress(OSError):
                attempt()
                files = False
    try:
        socket.socket(socket.AF_UNIX).close()
        system_calls = False
    except PermissionError:
        system_calls = True
    except OSError:
        system_calls = False
    return Levels(files, system_calls, landlock.version())


@cache
def libraries(packages: bool = True) -> tuple[str, ...]:
    """The paths below which Python finds its libraries, and these theirs; without `packages` the standard library alone.

    Looking for them takes as long as all the rest of `confine`: call it before the fork.
    """
    common = ("/lib64", "/usr/lib64", "/usr/share/zoneinfo", "/etc/localtime")
    if packages:
        folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
        # Of `pip install --user`, or of another environment that a .pth file names.
        folders |= {path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")}
        python = str(Path(sys.executable).resolve().parent.parent / "lib")
        return (*common, *folders, python, str(Path(__file__).parents[1]), "/usr/lib", "/usr/local/lib", "/lib")
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    paths = [f"/lib/{multiarch}", f"/usr/lib/{multiarch}"] if multiarch else []
    for name in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}:
        with contextlib.suppress(OSError):
            # Landlock's rules hold for all that is below, so packages that are installed there are left out by name.
            paths += (entry.path for entry in os.scandir(name) if entry.name not in ("site-packages", "dist-packages"))
    return (*common, *paths)


def _close_all_but(kept: set[int]) -> None:
    """Close every descriptor but these."""
    last = -1
    for descriptor in sorted(kept):
        if last + 1 < descriptor:  # an empty range closes everything: its end, -1, is a very large number to the kernel
            os.closerange(last + 1, descriptor)
        last = descriptor
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        highest = max(map(int, os.listdir("/proc/self/fd")))
    except OSError:
        highest = soft if soft != resource.RLIM_INFINITY else 1 << 16
    if last < highest:
        os.closerange(last + 1, highest + 1)


def _drop_capabilities() -> None:
    """All of them, where the process runs as root: an administrator's rights pass by file permissions, not by Landlock."""
    number = _CAPSET.get(os.uname().machine)
    if number is not None:
        header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
        libc().syscall(ctypes.c_long(number), header, bytes(24))
