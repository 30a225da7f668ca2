"""What a card has room for, who else is on it, and why memory does not come back."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from microrl import clock, resident
from microrl.errors import UserError
from microrl.limits import GB, KV_SLEEP_FRACTION
from microrl.models import cards, driver
from microrl.models.cards import Other

_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "No available memory for the cache blocks",
    "Free memory on device",
)


class NoRoom(UserError):
    """The card's free memory does not suffice for vLLM."""


def weight_bytes(model: torch.nn.Module) -> int:
    """Bytes of a model's parameters as numbers, tied ones once: of an engine's copy, also where the model's own is in 4 bits."""
    as_numbers = (getattr(parameter, "quant_state", parameter) for parameter in model.parameters())
    return sum(numbers.shape.numel() * numbers.dtype.itemsize for numbers in as_numbers)


def sleep_level(wanted: str | int, *, engine_bytes: int, total_bytes: int, can_release_cache: bool) -> str | int:
    """`engine.sleep` with auto decided, for an engine whose weights take so much of a card.

    Dropped weights (2) come back from the trainer's own copy, which is on the card already: cheaper than by way of the host (1).
    """
    if wanted == "kv" and not can_release_cache:
        raise UserError("engine.sleep=kv needs vLLM 0.31 or later", "--set engine.sleep=1, or install vLLM 0.31 or later")
    if wanted != "auto":
        return wanted
    if can_release_cache and engine_bytes <= KV_SLEEP_FRACTION * total_bytes:
        return "kv"
    # Before it could release the cache alone, vLLM lost its adapter buffers in level 2.
    return 2 if can_release_cache else 1


def cache_bytes(
    *,
    free: int,
    total: int,
    engine: int,
    adapter: int,
    reserved: Mapping[str, float],
    wanted: int,
    least: int,
    others: tuple[Other, ...] = (),
) -> int:
    """Bytes for keys and values: what the batch can use, as far as the card has it once the trainer's base is loaded.

    `engine` are the engine's own weights and adapter buffers, `adapter` what the trainer will keep for its adapter, `reserved`
    what else vLLM takes, by part, `least` the cache of a single completion. Raises NoRoom, which says how much is missing and
    what would help.
    """
    room = free - engine - adapter - int(sum(reserved.values()))
    if room >= least:
        return min(wanted, room)
    short = f"{(least - room) / GB:.1f} GB"
    held = sum(other.bytes for other in others)
    if room + held >= least:
        names = ", ".join(f"{other.name or 'process'} {other.pid} ({other.bytes / GB:.1f} GB)" for other in others)
        raise NoRoom(f"GPU memory is {short} short: other processes use {held / GB:.1f} GB: {names}", "stop them, or wait")
    raise NoRoom(
        f"GPU memory is {short} short: {free / GB:.1f} of {total / GB:.1f} GB are free once the model is loaded, vLLM's copy "
        f"takes {engine / GB:.1f}, the trained adapter {adapter / GB:.1f}, "
        + "".join(f"{part} {size / GB:.1f}, " for part, size in reserved.items())
        + f"and one completion's KV cache {least / GB:.2f}",
        "use a lower --rank, a lower --set sampling.max_completion_tokens=N, a smaller model, or --engine transformers (needs no "
        "copy)",
    )


def require_room(needed: int, what: str, smaller: str = "use a smaller model") -> None:
    """Raises UserError where the card has not this many bytes free for something, naming who else is on it.

    The hint is `smaller` where it would not fit beside what this process holds if no other were there.
    """
    if not torch.cuda.is_available():
        return
    free, total = torch.cuda.mem_get_info()
    if free >= needed:
        return
    others = others_on_card()
    who = "; ".join(f"{other.name or 'process'} {other.pid} uses {other.bytes / GB:.1f} GB" for other in others)
    raise UserError(
        f"{what} takes {needed / GB:.1f} GB, but only {free / GB:.1f} of the GPU's {total / GB:.1f} GB are free"
        + (f" ({who})" if who else ""),
        "stop the other processes on this GPU" if needed + torch.cuda.memory_reserved() <= 0.95 * total else smaller,
    )


def others_on_card() -> tuple[Other, ...]:
    """The other processes that hold memory of torch's card, as the driver names them; nothing where it cannot be asked.

    This process is recognised by its memory size: in a container its process id differs from the driver's.
    """
    if not torch.cuda.is_available():
        return ()
    try:
        running = cards.processes_on(f"GPU-{torch.cuda.get_device_properties().uuid}")
    except driver.Hangs:
        return ()
    others = [one for one in running if one.pid != os.getpid()]
    if len(others) == len(running) > 0:
        own = torch.cuda.memory_reserved() - asleep_bytes()
        others.remove(min(others, key=lambda other: abs(other.bytes - own)))
    return tuple(others)


PATIENCE_S = 120.0
"""How long a run that has run out of memory waits for other processes to give theirs back."""
OWN_BYTES = 1.0e9
"""What this process may hold of a card beside what torch's allocator knows: the CUDA context, and libraries."""


def wait_for_others(say: Callable[[str], None]) -> None:
    """Wait while other processes hold memory of the card, at most PATIENCE_S: a moment's lack must not decide the rest of a run.

    What is neither free nor this process's own counts as theirs: in a container they cannot be named.
    """
    began = clock.now_s()
    while torch.cuda.is_available() and clock.now_s() - began < PATIENCE_S:
        free, total = torch.cuda.mem_get_info()
        theirs = total - free - torch.cuda.memory_reserved() - OWN_BYTES
        if theirs <= 0:
            return
        if clock.now_s() - began < 1:
            say(f"waiting for other processes to free {theirs / GB:.1f} GB of GPU memory, at most {PATIENCE_S:.0f} s")
        time.sleep(2)


def is_on_card(model: torch.nn.Module) -> bool:
    """Whether the model lies on a GPU."""
    return model.device.type == "cuda"


def done_s() -> float:
    """`clock.now_s` once the card, if there is one, has done the work that it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock.now_s()


def name() -> str | None:
    """The card's name; None without one."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def asleep_bytes() -> int:
    """Bytes that vLLM has given back to the card in its sleep. torch still counts them as allocated (vllm#33625): the addresses
    are kept, and only what was behind them is gone."""
    module = sys.modules.get("vllm.device_allocator.cumem")
    pool = getattr(getattr(module, "CuMemAllocator", None), "instance", None)
    known = getattr(pool, "pointer_to_data", {}).values()
    return sum(data.handle[1] for data in known if getattr(data, "is_asleep", False))


_highest = 0
"""Peak of the phases that are over, in bytes; see `new_phase`."""


def _phase_peak() -> int:
    return int(torch.cuda.max_memory_allocated()) - asleep_bytes()


@contextmanager
def new_phase() -> Iterator[None]:
    """Inside, memory falls asleep or wakes: the peak before was one beside what slept then, and another one begins afterwards."""
    global _highest
    if torch.cuda.is_available():
        _highest = max(_highest, _phase_peak())
    try:
        yield
    finally:
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()


def peak_gb() -> float:
    """Peak memory in GB (1e9 bytes): the GPU's where there is one, without what was asleep, else this process's resident set."""
    if torch.cuda.is_available():
        return max(_highest, _phase_peak()) / 1e9
    return resident.peak_gb()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is a lack of memory, on a card or off it, in torch's words or vLLM's."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, (RuntimeError, ValueError)) and any(words in str(error) for words in _OUT_OF_MEMORY)


def empty_cache() -> None:
    """Give back to the card what torch keeps of it."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def expandable_segments(environment: Mapping[str, str] = os.environ) -> str | None:
    """The environment variable that enables torch's expandable segments, if one does. They help the trainer against
    fragmentation."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if "expandable_segments:true" in environment.get(name, "").lower().replace(" ", ""):
            return name
    return None


def segments_that_stay(environment: Mapping[str, str] = os.environ) -> str | None:
    """The environment variable whose expandable segments keep vLLM's sleep from freeing memory; None: nothing does.

    vLLM switches them off around its own memory (vllm#40812), but before 0.32 it read the older name only (vllm#54351).
    """
    name = expandable_segments(environment)
    return None if name == "PYTORCH_CUDA_ALLOC_CONF" or _vllm_reads_both_names() else name


def _vllm_reads_both_names() -> bool:
    """Whether the installed vLLM has the file that does, without importing it; also where there is no vLLM."""
    spec = importlib.util.find_spec("vllm")
    folders = spec.submodule_search_locations if spec is not None else None
    return not folders or any((Path(folder) / "device_allocator" / "alloc_conf.py").is_file() for folder in folders)


def why_memory_stays() -> str:
    """The likely cause of a sleep that freed less than it should."""
    if variable := segments_that_stay():
        return f"{variable} enables expandable_segments, which this vLLM does not notice: use PYTORCH_CUDA_ALLOC_CONF instead"
    if others := others_on_card():
        return f"process {others[0].pid} uses this GPU at the same time"
    return "the cause is unknown; run `microrl doctor`"
