"""Whether a run's sizes fit this machine: the weights its card, and model, checkpoints and rollouts its disks."""

from __future__ import annotations

import math
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from microrl import files
from microrl.config.data import DataConfig
from microrl.errors import UserError
from microrl.limits import GB
from microrl.models import hub
from microrl.models.cards import Card
from microrl.rollout import preflight
from microrl.types import Finding

if TYPE_CHECKING:
    from microrl.config import RunConfig
    from microrl.plan.workload import Workload

LOW_DISK_GB, NO_DISK_GB = 20.0, 2.0
FULL_CHECKPOINTS = 4
"""Checkpoints that are on the disk at a time: the last two, the best one, and the one that is being written."""
ROLLOUT_BYTES = 2.0
"""Of a token in a step's compressed rollouts, at most. Estimated: four characters a token, of which gzip leaves a third."""


def examine(config: RunConfig, card: Card | None, folder: Path | None, runs: int = 1) -> Iterator[Finding]:
    """Whether model and engine fit the card, and model, checkpoints and rollouts the disk. On a CPU only a disk that is nearly
    full is worth the tenth of a second that sizes take."""
    if card is None and min(free_bytes(folder or Path.cwd()), free_bytes(hub.hub_folder())) > LOW_DISK_GB * GB:
        return
    if (work := _workload(config, card)) is None:
        return
    if card is not None:
        yield from _of_memory(work, card)
    yield from _of_disk(work, folder, runs)


def _workload(config: RunConfig, card: Card | None) -> Workload | None:
    """The run in numbers; None where the model's size is not at hand without a network."""
    from microrl.plan import here
    from microrl.plan.source import is_at_hand, shape_of
    from microrl.plan.workload import Workload
    from microrl.run.teacher import size

    name = config.model.name
    if not is_at_hand(name):
        return None
    place = None if card is None else here.of_card(card)
    try:
        device = here.processor() if place is None else place.device
        return Workload.from_config(config, shape_of(name), device, teacher=size(config, is_at_hand=True))
    except UserError:  # which loading raises too
        return None


def _of_memory(work: Workload, card: Card) -> Iterator[Finding]:
    """A problem where not even the weights fit."""
    if card.total_bytes is None:
        return
    copy = work.weight_bytes if preflight.starts_vllm(work.config) else 0
    teacher = work.teacher.bytes(work.dtype_bytes) if work.teacher is not None else 0.0
    needed, free = work.base_bytes + copy + teacher, card.free_bytes if card.free_bytes is not None else card.total_bytes
    if needed <= free:
        return
    takes = f"{work.base_bytes / GB:.1f} GB of weights" + (f" and {copy / GB:.1f} GB for vLLM's copy" if copy else "")
    takes += f" and {teacher / GB:.1f} GB for the teacher" if teacher else ""
    if needed <= card.total_bytes:
        free_of = f"{free / GB:.1f} of the {card.name}'s {card.total_bytes / GB:.1f} GB"
        do = "stop the other processes on this GPU (`nvidia-smi` lists them)"
        if copy and needed - copy <= free:
            do += ", or use --engine transformers, which needs no copy"
        yield Finding("GPU memory", "problem", f"{work.config.model.name} takes {takes}, but only {free_of} are free", do)
        return
    fits_without_copy = copy and needed - copy <= card.total_bytes
    second = work.teacher if work.teacher is not None and not work.teacher.is_shared else None
    do = "use a smaller model" + (" or --teacher" if second is not None else "")
    do += ", or --engine transformers, which needs no copy" if fits_without_copy else ""
    do += ", or --set distill.quant=nf4 (the teacher in 4 bits)" if second is not None and second.quant is None else ""
    yield Finding("GPU memory", "problem", f"{work.config.model.name} takes {takes}, but the {card.name} has "
                  f"{card.total_bytes / GB:.1f} GB", do)  # fmt: skip


def _of_disk(work: Workload, folder: Path | None, runs: int) -> Iterator[Finding]:
    """What is short on the disk of so many runs and on that of the models, which may be the same one."""
    models, place = hub.hub_folder(), folder or hub.hub_folder()
    sizes_by_name = {work.config.model.name: work.weight_bytes}
    if work.teacher is not None and (teacher := work.config.asked_teacher) is not None:
        sizes_by_name[teacher] = work.teacher.shape.parameters * work.dtype_bytes
    missing = {name: float(size) for name, size in sizes_by_name.items() if hub.is_to_be_downloaded(name)}
    download = sum(missing.values())
    if missing and work.config.budget.hours is not None:
        data = work.config.data.name
        options = f"--model {work.config.model.name}" + (f" --data {shlex.quote(data)}" if data != DataConfig().name else "")
        options += "".join(f" --teacher {name}" for name in missing if name != work.config.model.name)
        are = "is not downloaded yet" if len(missing) == 1 else "are not downloaded yet"
        listed = " and ".join(f"{name} ({size / GB:.1f} GB)" for name, size in missing.items())
        says = f"{listed} {are}, and the download would count against --hours"
        do = f"download {'it' if len(missing) == 1 else 'them'} first: `microrl plan {options} --fetch`"
        yield Finding("download", "warning", says, do)
    least, most = run_bytes(work) if folder is not None else (0.0, 0.0)
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder is not None else 0  # to be resumed
    of_runs = f" of {runs} runs" if runs > 1 else ""
    parts = [
        (download, "the model's download" if len(missing) < 2 else "the models' download"),
        (max(runs * most - held, 0.0), f"checkpoints, adapters and rollouts{of_runs}"),
    ]
    who = "the evaluation needs" if folder is None else "the runs need" if runs > 1 else "the run needs"
    if _existing(models).stat().st_dev == _existing(place).stat().st_dev:
        yield from _short(place, least - held + download, parts, who)
    else:
        yield from _short(models, download, parts[:1], who)
        yield from _short(place, least - held, parts[1:], who)


def run_bytes(work: Workload) -> tuple[float, float]:
    """(least, most) bytes of a run folder: two checkpoints, the older of which goes once the newer is there, and the final
    adapter; all that there can be at a time, and the rollouts."""
    from microrl.plan import plan

    adapter = 4.0 * work.trained
    checkpoint = adapter + work.moment_bytes
    steps = plan.make(work.config, work.shape, work.device, teacher=work.teacher).steps
    every = work.config.checkpoints.keep_every
    kept = FULL_CHECKPOINTS + (steps // every if every else 0)
    tokens = steps * work.rows * work.limit / 2
    return 2 * checkpoint + adapter, kept * checkpoint + 2 * adapter + ROLLOUT_BYTES * tokens


def _short(place: Path, least: float, parts: list[tuple[float, str]], who: str) -> Iterator[Finding]:
    free, most = free_bytes(place), sum(size for size, _ in parts)
    if free >= most:
        return
    listed = " and ".join(f"{_said(size)} for {what}" for size, what in parts if size)
    says = f"the disk of {place} has {_said(free)} free; {who} up to {listed}"
    do = "free some space, or use another disk: --out DIR for the run, HF_HOME for models"
    yield Finding("disk", "problem" if free < least else "warning", says, do)


def _said(size: float) -> str:
    return f"{size / GB:.1f} GB" if size >= 0.1 * GB else f"{size / 1e6:.1f} MB"


def free_bytes(place: Path) -> float:
    """Bytes that are free on the disk of this folder, which need not exist yet. What is no disk, such as /proc, is not full."""
    usage = shutil.disk_usage(_existing(place))
    return float(usage.free) if usage.total else math.inf


def _existing(place: Path) -> Path:
    return next(path for path in (place, *place.absolute().parents) if path.exists())


def disks() -> Iterator[Finding]:
    """Room for runs in the current folder and for models in the hub's cache, without a run in mind."""
    for about, folder in (("disk for runs", Path.cwd()), ("disk for models", hub.hub_folder())):
        free = free_bytes(folder) / GB
        if not files.is_writable(folder):
            do = "change the folder, or use --out DIR" if about == "disk for runs" else "set HF_HOME to a writable folder"
            yield Finding(about, "problem", f"{folder} is not writable", do)
        elif free < LOW_DISK_GB:
            yield Finding(about, "problem" if free < NO_DISK_GB else "warning", f"{free:.0f} GB free for {folder}",
                          "free some space: a 1.5B model takes 3 GB, a run at rank 256 about 15 GB")  # fmt: skip
        else:
            yield Finding(about, "ok", f"{free:.0f} GB free for {folder}")
