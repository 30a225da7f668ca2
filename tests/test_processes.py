"""A child ends with its parent, and answers over a pipe with little room."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

from microrl.processes import die_with, how_it_ended, write_line


def test_a_child_ends_with_its_parent_even_by_sigkill():
    reads, writes = os.pipe()
    if (parent := os.fork()) == 0:
        owner = os.getpid()
        if os.fork() == 0:
            die_with(owner)
            os.write(writes, b".")
        signal.alarm(20)
        signal.pause()
    os.close(writes)
    assert os.read(reads, 1) == b"."
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert select.select([reads], [], [], 10)[0] and os.read(reads, 1) == b"", "nobody has its end any more"
    os.close(reads)


@pytest.mark.parametrize(("code", "says"), [
    ("sys.exit(3)", "exit status 3"),
    ("os.kill(os.getpid(), 6)", "killed by SIGABRT"),
    ("os.kill(os.getpid(), 9)", "killed by SIGKILL, often for lack of memory"),
    ("os.kill(os.getpid(), signal.SIGRTMIN + 3)", f"killed by signal {signal.SIGRTMIN + 3}"),
])  # fmt: skip
def test_how_a_process_ended(code, says):
    assert how_it_ended(subprocess.run([sys.executable, "-c", f"import os, signal, sys; {code}"]).returncode) == says


def test_a_child_whose_parent_has_ended_before_leaves():
    if (pid := os.fork()) == 0:
        die_with(os.getpid())  # as where another one has adopted it
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_line_longer_than_the_pipe_arrives_whole_and_one_that_is_too_long_not_at_all():
    """Also where a signal interrupts the writing."""
    reads, writes = os.pipe()
    text, lines = "é" * 2**17, []

    def read():
        time.sleep(0.05)
        with open(reads, "rb") as pipe:
            lines.extend(pipe)

    reading = threading.Thread(target=read)
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        reading.start()
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        write_line(writes, text, longest=2**20)
        write_line(writes, text, longest=2**19)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        os.close(writes)
    reading.join()
    assert [json.loads(line) for line in lines] == [text]
