"""Functions that are called in another process: one that reports, some that fail, and one that waits."""

import os
import subprocess
import time

from microrl.errors import EngineFault, MachineFailure, UserError

FAULT = EngineFault("sampling", cuda_graphs=True, out_of_memory=True, kv_gb=2.0, fits=8.0, batch=16)


def count(until, report):
    for number in range(until):
        report((os.getpid(), number))


def fail(kind, report):
    report("begun")
    if kind == "user":
        raise UserError("no such file", "look for it")
    if kind == "engine":
        error = MachineFailure("vLLM ran out of memory")
        error.fault = FAULT
        raise error from RuntimeError("cudaErrorMemoryAllocation")
    if kind == "other":
        raise Unpicklable(1, 2)
    subprocess.Popen(["sleep", "60"], close_fds=False, stderr=subprocess.DEVNULL)  # it has the pipe, too
    os.abort() if kind == "abort" else os._exit(7)


class Unpicklable(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} of {second}\nand a page more")


def wait(report):
    report((os.getpid(), "waiting"))
    time.sleep(60)
