"""The machine that this is: its GPU, as reported by the driver without torch, and its CPU."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil

from microrl.limits import available_cores
from microrl.models import driver
from microrl.plan import calibration, devices
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
    on the papers' card, since nobody trains it on a CPU by choice, unless CUDA_VISIBLE_DEVICES hides the GPUs."""
    return gpu() or instead_of_gpu(shape)


def instead_of_gpu(shape: Shape) -> Here:
    """See `likely`, without a GPU in this machine."""
    on_cpu = driver.is_hidden() or shape.parameters <= CPU_PARAMETERS
    device = processor() if on_cpu else devices.DEVICES["a40"]
    return Here(device, device.memory_gb)


def gpu() -> Here | None:
    """The first GPU; None where there is none, no driver, or none that torch sees: a run would not use it."""
    if driver.is_hidden() or driver.problem() is not None:
        return None
    try:
        answer = driver.asked("name,memory.total,memory.free,compute_cap", DRIVER_S)
        name, total, free, capability = answer.splitlines()[0].rsplit(",", 3)
        major, minor = map(int, capability.split("."))
        mebibyte = 2**20 / 1e9
        device = devices.of_device(name.strip(), float(total) * mebibyte, (major, minor))
        return Here(calibrated(device), float(free) * mebibyte)
    except (ValueError, IndexError):
        return None


def processor() -> Device:
    """This machine's cores and memory, as a card."""
    return calibrated(devices.cpu(available_cores(), psutil.virtual_memory().total / 1e9))


def calibrated(device: Device) -> Device:
    """This machine's device with its calibration, if `microrl doctor --measure` has made one."""
    found = calibration.find(calibration_name(device), device.memory_gb)
    return replace(device, calibration=found.calibration, calibration_warning=found.warning)


def calibration_name(device: Device) -> str:
    """What a calibration calls this machine's device: a processor by its own name and cores, which `cpu` does not say."""
    if not device.is_cpu:
        return device.name
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model}, {available_cores()} cores"
