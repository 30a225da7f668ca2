"""A function in a new process, which reports as it goes: what it holds of a GPU goes with it, and its crash is only an error."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

from microrl.errors import Explained, MachineFailure
from microrl.processes import die_with, how_it_ended

_WAIT_S = 0.2
Report = Callable[[Any], None]


class Crashed(MachineFailure):
    """A process has ended before its work had. `signal_name`: of the signal; None: it has left by itself."""

    def __init__(self, message: str, signal_name: str | None) -> None:
        super().__init__(message, "see the lines above for the cause, and run the same command again")
        self.signal_name = signal_name


class Elsewhere(Exception):
    """An error of another process: its kind and first line, or its whole traceback."""


def call(work: Callable[..., None], *arguments: Any, on_report: Report, runs: str) -> None:
    """Call `work(*arguments, report)` in a new process. `on_report` gets what it passes to `report`, as it comes. `runs`: what
    the process runs, for the message of its death.

    `work` is a module's function, and everything that is passed can be pickled. An `Explained` error of its own is raised here
    too; any other one as `Elsewhere`, and its death as `Crashed`. The process ends with this call, and with this process. It is
    spared Ctrl-C, which interrupts the call.
    """
    context = multiprocessing.get_context("spawn")  # a fork would have torch's threads and GPU, but half of their state
    reports, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(theirs, os.getpid(), work, arguments))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        process.start()
        theirs.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _read(reports, process, on_report, runs)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if process.pid is not None:
            process.kill()
            process.join()
        reports.close()


def _read(reports: Connection, process: BaseProcess, on_report: Report, runs: str) -> None:
    """Pass reports on until the work is done."""
    while True:
        # A process that it has left behind may hold the pipe open.
        while not reports.poll(_WAIT_S) and process.exitcode is None:
            pass
        try:
            kind, value, trace = reports.recv() if reports.poll() else _ended(process, runs)
        except EOFError:
            kind, value, trace = _ended(process, runs)
        if kind == "report":
            on_report(value)
        elif kind == "error":
            raise value from (Elsewhere(trace) if trace else None)
        else:
            return


def _ended(process: BaseProcess, runs: str) -> NoReturn:
    process.join()
    assert process.exitcode is not None
    if process.exitcode >= 0:
        raise Crashed(f"the child process that ran {runs} ended with status {process.exitcode} before its work was done", None)
    name = signal.Signals(-process.exitcode).name
    raise Crashed(f"the child process that ran {runs} was {how_it_ended(process.exitcode)}", name)


def _work(reports: Connection, parent: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> NoReturn:
    """The new process's side. It leaves without exit handlers, of which vLLM's can abort or hang on a GPU."""
    die_with(parent)
    status = 1
    try:
        work(*arguments, lambda value: reports.send(("report", value, "")))
        reports.send(("done", None, ""))
        status = 0
    except Explained as error:
        reports.send(("error", error, _trace(error) if error.__cause__ is not None else ""))
    except Exception as error:  # it may not be possible to pickle it
        reports.send(("error", Elsewhere("".join(traceback.format_exception_only(error)).strip()), _trace(error)))
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
