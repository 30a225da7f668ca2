"""The GPUs of this machine as nvidia-smi lists them: which one a process will use, and who else is on it. No torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from microrl.models import driver

FIELDS = "index,uuid,name,compute_cap,memory.total,memory.free,mig.mode.current"
MEBIBYTE = 2**20


class Card(NamedTuple):
    """A GPU, or the slice (MIG instance) of one that a process uses. What nvidia-smi does not tell is None."""

    number: int
    """nvidia-smi's, which counts by PCI slot."""
    uuid: str
    name: str
    capability: tuple[int, int] | None
    total_bytes: int | None
    free_bytes: int | None
    is_sliced: bool
    """Whether MIG mode is on: CUDA then sees its slices only."""

    @property
    def used_bytes(self) -> int:
        return self.total_bytes - self.free_bytes if self.total_bytes and self.free_bytes is not None else 0


class Other(NamedTuple):
    """Another process on a card; its name is None where it may not be asked."""

    pid: int
    bytes: int
    name: str | None


def all_here() -> list[Card]:
    """Every GPU, in nvidia-smi's order; none where it is missing or fails. Raises `driver.Hangs`."""
    lines = driver.ask(f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits").splitlines()
    return [card for line in lines if (card := _card(line)) is not None]


def _card(line: str) -> Card | None:
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != FIELDS.count(",") + 1 or not parts[0].isdigit():
        return None
    number, uuid, name, capability, total, free, mig = parts
    match = re.fullmatch(r"(\d+)\.(\d+)", capability)
    return Card(int(number), uuid, name, (int(match[1]), int(match[2])) if match else None, _bytes(total), _bytes(free),
                mig == "Enabled")  # fmt: skip


def _bytes(mebibytes: str) -> int | None:
    """None for what nvidia-smi puts in brackets, such as [N/A]."""
    return int(mebibytes) * MEBIBYTE if mebibytes.isdigit() else None


class Choice(NamedTuple):
    """The card that a process will use (None: CUDA will see none), and all that it sees."""

    card: Card | None
    seen: tuple[Card, ...]
    is_sure: bool = True
    """Whether CUDA's order of the cards is known: by default it puts the fastest first, and nvidia-smi goes by PCI slot."""


def chosen(cards: Sequence[Card], environment: Mapping[str, str] = os.environ) -> Choice:
    """What CUDA makes of CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER: the first card named, by number or by (the beginning of) its
    UUID, or else the first of all.

    Source: NVIDIA's CUDA C++ Programming Guide, "CUDA Environment Variables": one that does not exist ends the list. With MIG a
    process sees one slice: the one named, or the first. Raises `driver.Hangs`.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    by_slot = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({card.name for card in cards}) < 2
    order = list(cards) if by_slot else sorted(cards, key=_fastest_first)
    names = list(map(str, range(len(order)))) if visible is None else [part.strip() for part in visible.split(",")]
    if names and names[0].startswith("MIG-"):
        part = _slice(cards, names[0])
        return Choice(part, () if part is None else (part,))
    seen: list[Card] = []
    for name in names:
        if (card := _named(order, name)) is None:
            break
        seen.append(card)
    if not seen:
        return Choice(None, ())
    usable = ((_slice([card], None) if card.is_sliced else card) for card in seen)  # no slice: CUDA sees nothing of that card
    is_sure = by_slot or not names[0].isdigit()
    return Choice(next((card for card in usable if card is not None), None), tuple(seen), is_sure)


def _fastest_first(card: Card) -> tuple[tuple[int, int], int]:
    """A guess at what CUDA takes for faster: the newer generation, then the more memory."""
    major, minor = card.capability or (0, 0)
    return (-major, -minor), -(card.total_bytes or 0)


def _named(order: Sequence[Card], name: str) -> Card | None:
    if name.isdigit():
        return order[int(name)] if int(name) < len(order) else None
    return next((card for card in order if name and card.uuid.startswith(name)), None)


def _slice(cards: Sequence[Card], name: str | None) -> Card | None:
    """The slice of this UUID, or for None the first one of these cards. Its memory is that in the name of its profile, such as
    3g.40gb: nvidia-smi does not tell it, and what CUDA reports is within 5 % of it. Raises `driver.Hangs`."""
    parent: Card | None = None
    by_uuid = {card.uuid: card for card in cards}
    for line in driver.ask("-L").splitlines():
        if (gpu := re.match(r"GPU \d+: .*\(UUID: (GPU-[^)]+)\)", line)) is not None:
            parent = by_uuid.get(gpu[1])
        mig = re.match(r"\s+MIG (\S*?(\d+)gb\S*)\s.*\(UUID: (MIG-[^)]+)\)", line)
        if mig is not None and parent is not None and (name is None or mig[3].startswith(name)):
            size = int(mig[2]) * 10**9
            return parent._replace(uuid=mig[3], name=f"{parent.name} MIG {mig[1]}", total_bytes=size, free_bytes=None)
    return None


def processes_on(uuid: str) -> list[Other]:
    """The processes that hold memory of a card, as far as the driver tells: in a container usually none. Raises
    `driver.Hangs`."""
    listing = driver.ask("--query-compute-apps=gpu_uuid,pid,used_memory,process_name", "--format=csv,noheader,nounits")
    processes = []
    for line in listing.splitlines():
        parts = [part.strip() for part in line.split(",", 3)]
        if len(parts) == 4 and parts[0] == uuid and parts[1].isdigit():
            name = None if parts[3].startswith("[") else os.path.basename(parts[3])
            processes.append(Other(int(parts[1]), _bytes(parts[2]) or 0, name))
    return processes
