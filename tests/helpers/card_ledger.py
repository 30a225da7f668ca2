"""A pretend GPU: a ledger of its memory, and what vLLM's CUDA build does on it when memory runs out.

vLLM's own `cumem.py` keeps the pools that sleep. Below it lies a stand-in for its extension that fails as the wheel's does
(vLLM 0.32, csrc/cumem_allocator.cpp): `my_malloc` registers an allocation before it is mapped and never takes that back, and
only `python_create_and_map` and `python_unmap_and_release` clear the error that is kept from the last failure. `CardDriver`
takes and frees memory in the order of vllm/v1/worker/gpu_worker.py, its assertion on a second engine included.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections import deque
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import torch

from microrl.models.forward import adapted, sequence_logprobs

CONTEXT_BYTES = 0.5e9
"""Of the CUDA context and the libraries' workspaces."""


class Card:
    """Bytes. `others` are held by other processes; the rest by this one: by torch's allocator, or mapped by the pools."""

    def __init__(self, total: float) -> None:
        self.total, self.others, self.held, self.mapped = int(total), 0, 0, 0
        self.visit = lambda place: None
        """Called wherever memory is taken; may change `others`, or raise."""
        self.new_process()

    @property
    def free(self) -> int:
        return self.total - self.others - self.held - self.mapped

    def new_process(self) -> None:
        """Everything that this process held is free again."""
        self.held = self.mapped = 0
        self.cumem = _cumem(Extension(self))

    def take(self, size: float) -> None:
        """As torch's allocator does. Raises torch.OutOfMemoryError."""
        if size > self.free:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size / 2**20:.0f} MiB.")
        self.held += int(size)

    @contextmanager
    def taken(self, size: float):
        self.take(size)
        try:
            yield
        finally:
            self.held -= int(size)


class Extension(types.ModuleType):
    """`vllm.cumem_allocator`."""

    def __init__(self, card: Card) -> None:
        super().__init__("vllm.cumem_allocator")
        self.card, self.error, self.pointer = card, 0, 0x7F0000000000
        self.malloc = self.free = None

    def init_module(self, malloc, free) -> None:
        self.malloc, self.free = malloc, free

    def my_malloc(self, size: int) -> int:
        """What torch calls for a tensor in a pool. torch names a null pointer a lack of memory."""
        self.pointer += size
        self.malloc((0, size, self.pointer, self.pointer))
        self._map(size)
        if self.error:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size / 2**20:.0f} MiB.")
        return self.pointer

    def python_create_and_map(self, device, size, pointer, handle) -> None:
        self.error = 0
        self._map(size)
        if self.error:
            raise RuntimeError("CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62")

    def python_unmap_and_release(self, device, size, pointer, handle) -> None:
        self.error = 0
        self.card.mapped -= size

    def _map(self, size: int) -> None:
        if size > self.card.free:
            self.error = 2  # CUDA_ERROR_OUT_OF_MEMORY
        else:
            self.card.mapped += size


def _cumem(extension: Extension):
    """vLLM's `cumem.py`, as a process imports it."""
    from vllm.distributed.device_communicators import cuda_wrapper
    from vllm.utils import system_utils

    path = importlib.util.find_spec("vllm.device_allocator").submodule_search_locations[0] + "/cumem.py"
    spec = importlib.util.spec_from_file_location("pretended_cumem", path)
    module = importlib.util.module_from_spec(spec)
    kept = cuda_wrapper.CudaRTLibrary, system_utils.find_loaded_library
    sys.modules["vllm.cumem_allocator"] = extension
    cuda_wrapper.CudaRTLibrary = lambda: SimpleNamespace(cudaMemcpy=lambda *_: None, cudaMemset=lambda *_: None)
    system_utils.find_loaded_library = lambda name: name
    try:
        spec.loader.exec_module(module)
    finally:
        cuda_wrapper.CudaRTLibrary, system_utils.find_loaded_library = kept
        del sys.modules["vllm.cumem_allocator"]
    module.atexit = SimpleNamespace(register=lambda function: None)
    module.extension = extension
    return module


def driver_class(card: Card, needs):
    """A `VllmDriver` on this card. `needs(settings)` gives the bytes of `weights`, `graphs`, `buffers` (all that stays), and of
    what comes and goes: `handing_over`, `sampling`."""

    class CardDriver:
        seeded, lora_products = True, "dense"

        def __init__(self, base, settings) -> None:
            self._base, self._settings, self._needs = base, settings, SimpleNamespace(**needs(settings))
            self._pairs, self._waiting = None, deque()
            self._allocator = card.cumem.CuMemAllocator.get_instance()
            card.visit("start")
            card.take(CONTEXT_BYTES)
            assert settings.sleep == "off" or self._allocator.get_current_usage() == 0, (
                "CuMem allocator can only be used for one instance per process."
            )
            self._pool("weights", self._needs.weights)
            with card.taken(self._needs.sampling):  # the profile run
                card.visit("profile")
            card.take(self._needs.buffers)
            self._pool("kv_cache", settings.kv_bytes)
            if settings.cuda_graphs:
                card.take(self._needs.graphs)
            self._asleep: set[str] = set()

        def _pool(self, tag: str, size: float) -> None:
            """In pieces, as a model's layers come."""
            if self._settings.sleep == "off":
                return card.take(size)
            with self._allocator.use_memory_pool(tag):
                for _ in range(16):
                    card.cumem.extension.my_malloc(int(size) // 16)

        def sleep(self) -> int:
            free, level = card.free, self._settings.sleep
            if level == "kv":
                self._allocator.discard("kv_cache")
            elif level != "off":
                self._allocator.sleep(("weights",) if level == 1 else ())
            self._asleep = {"off": set(), "kv": {"kv_cache"}}.get(level, {"weights", "kv_cache"})
            return card.free - free

        def wake(self, what: str) -> int:
            if what not in self._asleep:
                return 0
            free = card.free
            card.visit(f"waking {what}")
            self._allocator.wake_up([what])
            self._asleep.discard(what)
            return free - card.free

        def load(self, snapshot) -> None:
            card.visit("loading")
            self._pairs = snapshot.pairs or None

        def swap(self, pairs) -> None:
            with card.taken(self._needs.handing_over):
                card.visit("swapping")
            self._pairs = pairs

        def drop_adapters(self) -> None:
            self._pairs = None

        def reset_cache(self) -> None: ...
        def settle(self) -> None: ...
        def weights_difference(self, snapshot) -> None: ...
        def adapter_difference(self, pairs) -> None: ...

        def score(self, sequences):
            from microrl.types import AdapterSnapshot

            with card.taken(self._needs.sampling), adapted(self._base, AdapterSnapshot(1, self._pairs or {})) as model:
                card.visit("scoring")
                return sequence_logprobs(model, sequences, fp32_head=False)

        def sample(self, ids, sampling, stops, seed) -> str:
            self._waiting.append(sampling)
            return str(len(self._waiting))

        def step(self):
            with card.taken(self._needs.sampling):
                card.visit("sampling")
            one = SimpleNamespace(token_ids=(1, 2), logprobs=SimpleNamespace(logprobs=(-1.0, -1.0)), finish_reason="stop")
            done = [SimpleNamespace(request_id=str(n + 1), outputs=[one] * s.group_size) for n, s in enumerate(self._waiting)]
            self._waiting.clear()
            return done

    return CardDriver


def install(patch, card: Card) -> None:
    """Have torch see this card, as far as its memory goes."""

    class Allocator:
        _allocator = None

        def __init__(self, *names) -> None: ...

    patch.setattr(torch.cuda, "mem_get_info", lambda device=None: (card.free, card.total))
    for name in ("empty_cache", "synchronize"):
        patch.setattr(torch.cuda, name, lambda *_: None)
        patch.setattr(torch.accelerator, name, lambda *_: None)
    patch.setattr(torch.cuda.memory, "CUDAPluggableAllocator", Allocator)
    patch.setattr(torch.cuda.memory, "MemPool", lambda allocator: SimpleNamespace(snapshot=list))
    patch.setattr(torch.cuda.memory, "use_mem_pool", lambda pool: nullcontext())
