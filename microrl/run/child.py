"""Do a command's work in a forked child, so that the parent survives a crash, such as an abort of vLLM."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from microrl.processes import die_with

_BY_THE_KERNEL = 128
"""`si_code` of signals that the kernel itself has sent, as for Ctrl-C: to the whole group, and so to the child as well."""
_WAIT_S = 0.2
DEADLY = ("SIGKILL", "SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
"""Signals that are sent from outside. An engine dies of SIGABRT or SIGSEGV."""


def can_fork() -> bool:
    """Whether forking is safe here: torch must not be imported yet, because its threads and devices do not survive a fork."""
    return "torch" not in sys.modules and hasattr(os, "pidfd_open")


def in_child(on_wait: Callable[[], None] = lambda: None) -> int | None:
    """Fork. Returns None in the child; in the parent it waits, and returns the child's exit status: -N if signal N has killed it.

    Until then the parent passes on the signals that end a run, and calls `on_wait` a few times a second. The child dies with its
    parent.
    """
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]  # as under `nohup`
    waiting = [signal.SIGINT, signal.SIGTERM, *hangup]
    parent, before = os.getpid(), signal.pthread_sigmask(signal.SIG_BLOCK, waiting)
    try:
        for stream in (sys.stdout, sys.stderr):  # what is buffered must not be written twice
            with suppress(OSError, ValueError):
                stream.flush()
        pid = os.fork()
        if pid == 0:
            die_with(parent)
            return None
        handles = _handles(pid)
        try:
            return _wait(pid, handles, waiting, on_wait)
        finally:
            for handle in handles:
                os.close(handle)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _handles(pid: int) -> list[int]:
    """The child's pidfd, readable once it has ended; nothing where the kernel or a container forbids it."""
    with suppress(OSError):
        return [os.pidfd_open(pid)]
    return []


def _wait(pid: int, handles: list[int], waiting: list[signal.Signals], on_wait: Callable[[], None]) -> int:
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        select.select(handles, [], [], _WAIT_S)
        # Without a time to wait: stopped and continued in it (Ctrl-Z, `fg`), CPython returns what no signal has filled.
        while (arrived := signal.sigtimedwait(waiting, 0)) is not None:
            if arrived.si_code < _BY_THE_KERNEL:
                with suppress(ProcessLookupError):
                    os.kill(pid, arrived.si_signo)
        on_wait()
