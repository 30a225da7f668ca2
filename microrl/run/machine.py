"""Whether this machine can carry out a run: what shows within a second, before torch is imported and before anything is paid for.

`microrl doctor` and the commands that run a model share these checks. Of a machine without an NVIDIA driver, and with a HOME that
can be written, nothing is asked.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from microrl.config import RunConfig
from microrl.config.engine_rules import outlasts_vllm
from microrl.limits import GB
from microrl.models import cards, driver
from microrl.models.cards import Card, Choice
from microrl.rollout import preflight
from microrl.run import caches, room
from microrl.types import Finding

FREE_FRACTION = 0.9
"""With less than this much of a card free, somebody else is on it: a driver keeps a few per cent for itself."""


def examine(config: RunConfig, folder: Path | None, *, runs: int = 1) -> Iterator[Finding]:
    """Warnings and problems for a run of this configuration; nothing where all is well. Where the caches' usual places cannot be
    written, the environment names others from now on.

    `folder` is the run folder, which need not exist; None for an evaluation, which writes little. `runs`: so many of about this
    size will be beside each other.
    """
    has_driver = driver.is_here() and not driver.is_hidden()
    if (moved := caches.move(with_compilers=has_driver)) is not None:
        yield moved
    card, gpu_findings = of_gpu() if has_driver else (None, [])
    yield from gpu_findings
    if any(one.status == "problem" for one in gpu_findings):
        return
    if has_driver and preflight.starts_vllm(config):
        yield from _of_compiler(goes_on=outlasts_vllm(config, has_steps=False))
    yield from room.examine(config, card, folder, runs)


# ---- the card


def of_gpu() -> tuple[Card | None, list[Finding]]:
    """(the card that a run will use, if nvidia-smi tells; warnings and problems). Ask where there is a driver, and not hidden."""
    try:
        all_cards = cards.all_here()
        choice = cards.chosen(all_cards)
    except driver.Hangs:
        says = f"{driver.TOOL} does not answer within {driver.ANSWER_S:g} s: the driver hangs"
        return None, [Finding("GPU", "problem", says, f"restart the machine, or rent another one; {driver.ON_CPU}")]
    if (problem := driver.problem_before_torch()) is not None:
        return None, [Finding("GPU", "problem", problem.message, problem.hint)]
    return choice.card, list(_of_choice(choice, all_cards))


def _of_choice(choice: Choice, all_cards: Sequence[Card]) -> Iterator[Finding]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if choice.card is None:
        if choice.seen:
            says = "MIG mode is on, but no MIG instance exists, so CUDA sees no GPU"
            number = choice.seen[0].number
            do = (
                f"create one: `nvidia-smi mig -i {number} -cgi PROFILE -C` (`nvidia-smi mig -lgip` lists the profiles), or turn "
                f"MIG off: `nvidia-smi -i {number} -mig 0`"
            )
            yield Finding("GPU", "problem", says, f"{do}; {driver.ON_CPU}")
        elif all_cards:
            says = f"CUDA_VISIBLE_DEVICES={visible} names none of this machine's GPUs"
            do = f"unset CUDA_VISIBLE_DEVICES, or set it to one of: {_values(all_cards)}; {driver.ON_CPU}"
            yield Finding("GPU", "problem", says, do)
        return  # nvidia-smi fails: torch will tell why
    card = choice.card
    for one in (card,) if choice.is_sure else choice.seen:
        if (problem := lacks_code(one, all_cards)) is not None:
            yield problem
            return
    if not choice.is_sure:
        says = (
            f"this machine has different GPUs, and the run will probably use the {card.name}: CUDA numbers the fastest first, "
            f"{driver.TOOL} numbers by PCI slot"
        )
        yield Finding("GPU", "warning", says, "set CUDA_DEVICE_ORDER=PCI_BUS_ID so that both number by slot")
    if (idle := len(choice.seen) - 1) > 0:
        others = "another GPU stays" if idle == 1 else f"{idle} other GPUs stay"
        do = "give another run its own with CUDA_VISIBLE_DEVICES=N, or use them all with `microrl sweep --on ray`"
        yield Finding("GPU", "warning", f"{others} idle: a run uses one, the {card.name} (GPU {card.number})", do)
    if card.total_bytes is None:
        says = f"{driver.TOOL} does not report the memory of the {card.name}"
        says += ", so it cannot be checked in advance whether the run fits"
        yield Finding("GPU memory", "warning", says, "compare the card's memory with the total of `microrl plan`")
    elif card.free_bytes is not None and card.free_bytes < FREE_FRACTION * card.total_bytes:
        yield Finding("GPU memory", "warning", _who_is_on(card), "stop the other processes on this GPU")


def _values(all_cards: Sequence[Card]) -> str:
    """What CUDA_VISIBLE_DEVICES may be. Different GPUs go by their UUIDs, since CUDA numbers them in another order."""
    by_number = len({card.name for card in all_cards}) == 1
    return ", ".join(f"{card.number if by_number else card.uuid} ({card.name})" for card in all_cards)


def lacks_code(card: Card, others: Sequence[Card] = ()) -> Finding | None:
    """The finding for a card that is older than the CUDA version that torch is built for: no kernel would run on it."""
    torch = driver.installed_torch()
    least = driver.lowest_capability(torch.cuda) if torch is not None else None
    if torch is None or least is None or card.capability is None or card.capability >= least:
        return None
    newer = next((other for other in others if other.capability is not None and other.capability >= least), None)
    do = f"export CUDA_VISIBLE_DEVICES={newer.uuid} takes the {newer.name}" if newer else "use a T4 or a newer GPU"
    says = (
        f"the {card.name} has compute capability {_dotted(card.capability)}, but torch {torch.version} (CUDA {torch.cuda}) has "
        f"no code for less than {_dotted(least)}"
    )
    return Finding("GPU", "problem", says, f"{do}; {driver.ON_CPU}")


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def _who_is_on(card: Card) -> str:
    """What is taken of a card, and by whom, as far as the driver tells."""
    with suppress(driver.Hangs):
        held = ", ".join(
            f"{one.name or 'process'} {one.pid} uses {one.bytes / GB:.1f} GB" for one in cards.processes_on(card.uuid)
        )
        who = f" ({held})" if held else ""
        return f"other processes use {card.used_bytes / GB:.1f} of the {card.name}'s {(card.total_bytes or 0) / GB:.1f} GB{who}"
    return f"other processes use {card.used_bytes / GB:.1f} GB of the {card.name}"


# ---- what vLLM's kernels are compiled with


def _of_compiler(*, goes_on: bool) -> Iterator[Finding]:
    for one in (compiler(is_needed=True), python_header(is_needed=True)):
        if one.status == "problem":
            do = f"{one.do}; or use --engine transformers"
            yield Finding(one.about, "warning" if goes_on else "problem", one.says, do)


def compiler(*, is_needed: bool) -> Finding:
    """Triton compiles a launcher for each of vLLM's kernels at run time, with $CC, gcc or clang."""
    command = os.environ.get("CC") or next((name for name in ("gcc", "clang") if shutil.which(name)), None)
    if command is not None:
        return Finding("C compiler", "ok", command)
    return _missing("C compiler", "no gcc and no clang: Triton, and with it vLLM, cannot compile its kernels",
                    "export CC=cc" if shutil.which("cc") else "apt install gcc (or dnf install gcc)", is_needed)  # fmt: skip


def python_header(*, is_needed: bool) -> Finding:
    """What these launchers include."""
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")  # as Triton asks, on Debian too
    header = Path(sysconfig.get_path("include", scheme)) / "Python.h"
    if header.is_file():
        return Finding("Python.h", "ok", str(header))
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
    return _missing("Python.h", f"{header} is missing: Triton, and with it vLLM, cannot compile its kernels",
                    f"apt install {package} (or dnf install {package}el)", is_needed)  # fmt: skip


def _missing(about: str, says: str, do: str, is_needed: bool) -> Finding:
    return Finding(about, "problem", says, do) if is_needed else Finding(about, "ok", f"{says} (only needed on a GPU)")
