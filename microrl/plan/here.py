"""The machine that this is: its GPU, as reported by the driver without torch, and its CPU."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import NamedTuple

import psutil

from microrl.plan import devices
from microrl.plan.devices import Device
from microrl.plan.shapes import Shape

CPU_PARAMETERS = 500_000_000
DRIVER_S = 3.0
"""Maximum seconds for nvidia-smi to answer."""


class Here(NamedTuple):
    """This machine's card, and what is free of it in GB."""

    device: Device
    free_gb: float


def likely(shape: Shape) -> Here:
    """Where a run of this model will be made: on this machine's GPU; without one a small model on its processor, and any other
    on the papers' card, since nobody trains it on a CPU by choice."""
    return gpu() or instead_of_gpu(shape)


def instead_of_gpu(shape: Shape) -> Here:
    """See `likely`, without a GPU in this machine."""
    device = processor() if shape.parameters <= CPU_PARAMETERS else devices.DEVICES["a40"]
    return Here(device, device.memory_gb)


def gpu() -> Here | None:
    """The first GPU; None where there is none, or no driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    query = [tool, "--query-gpu=name,memory.total,memory.free,compute_cap", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=DRIVER_S, check=True).stdout
        name, total, free, capability = answer.splitlines()[0].rsplit(",", 3)
        major, minor = map(int, capability.split("."))
        mebibyte = 2**20 / 1e9
        return Here(devices.of_device(name.strip(), float(total) * mebibyte, (major, minor)), float(free) * mebibyte)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def processor() -> Device:
    """This machine's cores and memory, as a card."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return devices.cpu(cores, psutil.virtual_memory().total / 1e9)
