"""A command in a child process: its status, its signals, and that neither outlives the other."""

import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest

COUNTING = """
import os, signal, sys, time
from microrl.run import child
assert child.can_fork()
status = child.in_child()
if status is not None:
    print("status", status, flush=True)
    sys.exit()
arrived = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: arrived.append(signal.Signals(number).name))
print("child", os.getpid(), flush=True)
until = time.monotonic() + 60
while not arrived and time.monotonic() < until:
    time.sleep(0.01)
time.sleep(0.7)  # for a second one
print(*arrived, flush=True)
os._exit(9)
"""


TELLING = """
import os
kill = os.kill
def tell(pid, number):
    print("passed on", int(number), flush=True)
    kill(pid, number)
os.kill = tell
"""


def begun(script=COUNTING, **options) -> tuple[subprocess.Popen, int]:
    """The script, and its child's process id."""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, **options)
    return process, int(process.stdout.readline().split()[1])


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_to_the_parent_reaches_the_child_and_its_status_comes_back(name):
    process, _ = begun(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))  # the tests may run under nohup
    process.send_signal(signal.Signals[name])
    out, _ = process.communicate(timeout=100)
    assert out.split("\n")[:2] == [name, "status 9"]


@pytest.mark.slow
def test_an_interrupt_comes_through_where_the_shell_ignores_it():
    """As for a background job of a script."""
    process, _ = begun(preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=100)
    assert out.split("\n")[:2] == ["SIGINT", "status 9"]


@pytest.mark.slow
def test_a_hangup_that_was_ignored_still_is():
    """As under nohup."""
    process, _ = begun(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=100)
    assert out.split("\n")[:2] == ["SIGTERM", "status 9"]


@pytest.mark.slow
@pytest.mark.one_of_each
def test_the_parent_may_be_stopped_and_continued():
    """As by Ctrl-Z and `fg`: nothing is passed on but what is sent afterwards."""
    process, _ = begun(script=TELLING + COUNTING)
    for _ in range(3):
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.4)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=100)
    assert out.split("\n")[:3] == [f"passed on {int(signal.SIGTERM)}", "SIGTERM", "status 9"]


def test_ctrl_c_reaches_the_child_once():
    """The terminal sends it to both; a second one would interrupt the saving that the first has begun."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", COUNTING])
    seen = b""
    while b"\n" not in seen:
        seen += os.read(terminal, 100)
    os.write(terminal, b"\x03")
    while b"\n" not in seen.partition(b"status")[2]:
        seen += os.read(terminal, 100)
    os.waitpid(pid, 0)
    os.close(terminal)
    assert seen.count(b"SIGINT") == 1 and b"status 9" in seen, seen


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGKILL])
def test_a_child_that_dies_of_a_signal_is_known_by_it(number):
    process, child = begun()
    os.kill(child, number)
    out, _ = process.communicate(timeout=100)
    assert out == f"status {-number}\n"


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_kernel_without_pidfds_will_do():
    refusing = "import errno, os\ndef refuse(pid):\n    raise OSError(errno.ENOSYS, 'no')\nos.pidfd_open = refuse\n"
    process, _ = begun(script=refusing + COUNTING)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=100)
    assert out.split("\n")[:2] == ["SIGTERM", "status 9"]


def test_the_child_dies_with_its_parent():
    process, child = begun()
    handle = os.pidfd_open(child)
    process.kill()
    process.wait()
    assert select.select([handle], [], [], 60)[0], "the child lives on"
    os.close(handle)


@pytest.mark.slow
@pytest.mark.one_of_each
def test_nothing_is_forked_once_torch_is_imported():
    code = "from microrl.run import child\nassert child.can_fork()\nimport torch\nassert not child.can_fork()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
