"""A function in a new process: its reports, its errors, its death, and that neither process outlives the other."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from called_apart import FAULT, count, fail, wait
from places import HELPERS

from microrl.errors import MachineFailure, UserError
from microrl.run import apart


def test_reports_come_in_order_from_another_process():
    found = []
    apart.call(count, 3, on_report=found.append, runs="it")
    assert [number for _, number in found] == [0, 1, 2] and {pid for pid, _ in found}.isdisjoint({os.getpid()})


def failed(kind):
    reports = []
    with pytest.raises(Exception) as caught:
        apart.call(fail, kind, on_report=reports.append, runs="vLLM")
    assert reports == ["begun"]
    return caught.value


def test_an_error_that_is_explained_is_the_same_here():
    error = failed("user")
    assert type(error) is UserError and (error.message, error.hint, error.fault) == ("no such file", "look for it", None)
    assert error.__cause__ is None
    error = failed("engine")
    assert type(error) is MachineFailure and error.fault == FAULT
    assert "RuntimeError: cudaErrorMemoryAllocation" in str(error.__cause__) and "called_apart.py" in str(error.__cause__)


def test_any_other_error_is_named_with_its_traceback():
    error = failed("other")
    assert str(error) == "called_apart.Unpicklable: 1 of 2\nand a page more" and "raise Unpicklable" in str(error.__cause__)


@pytest.mark.parametrize(
    ("kind", "says", "name"),
    [
        ("abort", "the child process that ran vLLM was killed by SIGABRT", "SIGABRT"),
        ("exit", "the child process that ran vLLM ended with status 7 before its work was done", None),
    ],
)
def test_a_death_is_an_error_that_names_it(kind, says, name):
    error = failed(kind)
    assert isinstance(error, MachineFailure) and says in error.message and error.signal_name == name


def test_an_error_of_the_listener_ends_it():
    pids = []

    def refuse(report):
        pids.append(report[0])
        raise KeyError("unexpected")

    with pytest.raises(KeyError, match="unexpected"):
        apart.call(wait, on_report=refuse, runs="it")
    assert not is_alive(pids[0])


def is_alive(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


WAITING = """
import sys
sys.path.insert(0, {helpers!r})
import called_apart
from microrl.run import apart
try:
    apart.call(called_apart.wait, on_report=lambda report: print(report[0], flush=True), runs="it")
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize(("number", "to_group", "says"), [
    (signal.SIGINT, True, "interrupted\n"),  # Ctrl-C
    (signal.SIGTERM, False, ""),
    (signal.SIGKILL, False, ""),
])  # fmt: skip
def test_it_ends_with_the_process_that_called_it(number, to_group, says):
    code = WAITING.format(helpers=str(HELPERS))
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    pid = int(process.stdout.readline())
    (os.killpg if to_group else os.kill)(process.pid, number)
    out, err = process.communicate(timeout=60)
    until = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_alive(pid) and out == says and err == ""
