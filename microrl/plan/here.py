"""The machine that this is: its GPU, as reported by the driver without torch, and its CPU."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil

from microrl.errors import UserError
from microrl.limits import available_cores
from microrl.models import cards, driver
from microrl.models.cards import Card
from microrl.plan import calibration, devices
from microrl.plan.devices import Device
from microrl.plan.shapes import Shape
from microrl.terminal import counted

CPU_PARAMETERS = 500_000_000


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
    """The GPU that a run would use; None where there is none, no driver, or none that torch sees."""
    if driver.is_hidden() or driver.problem() is not None:
        return None
    try:
        card = cards.chosen(cards.all_here()).card
    except driver.Hangs:
        return None
    return None if card is None else of_card(card)


def of_card(card: Card) -> Here | None:
    """A card as the driver lists it. Where it does not tell the memory, that of the table; None for one that is not in it."""
    total_gb = None if card.total_bytes is None else card.total_bytes / 1e9
    if total_gb is None:
        try:
            total_gb = devices.find(card.name).memory_gb
        except UserError:
            return None
    device = calibrated(devices.of_device(card.name, total_gb, card.capability))
    return Here(device, total_gb if card.free_bytes is None else card.free_bytes / 1e9)


def processor() -> Device:
    """This machine's cores and memory, as a card."""
    return calibrated(devices.cpu(available_cores(), psutil.virtual_memory().total / 1e9))


def calibrated(device: Device) -> Device:
    """This machine's device with its calibration, if `microrl doctor --measure` has made one."""
    lookup = calibration.find(calibration_name(device), device.memory_gb)
    return replace(device, calibration=lookup.calibration, calibration_warning=lookup.warning)


def calibration_name(device: Device) -> str:
    """What a calibration calls this machine's device: a processor by its own name and cores, which `cpu` does not say."""
    if not device.is_cpu:
        return device.name
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model}, {counted(available_cores(), 'core')}"
