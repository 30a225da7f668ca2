"""The command line: parsed, run in this process, and run in one that must load nothing heavy."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path


def in_process(
    *arguments: object, stderr: io.TextIOBase | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process. `stderr` is where its words go instead of into the result."""
    from microrl.cli import app
    from microrl.cli.output import guarded

    words = [str(argument) for argument in arguments]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(stderr or err), contextlib.chdir(cwd or "."):
        status = guarded(lambda: app(words, standalone_mode=False))
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


PROGRAM = """
import sys, time
from microrl.cli import app
from microrl.cli.output import guarded
status = guarded(lambda: app(standalone_mode=False))
heavy = {"torch", "transformers", "peft", "datasets", "vllm", "math_verify", "numpy"}
print(heavy & set(sys.modules), time.process_time())
sys.exit(status)
"""


def without_heavy_libraries(arguments, cwd=None):
    """Run a command that loads no heavy library and takes little of a processor; returns the finished process."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, cwd=cwd)
    loaded, _, seconds = done.stdout.splitlines()[-1].rpartition(" ")
    assert loaded == "set()" and float(seconds) < 2, "half a second, where importing torch takes two"
    return done
