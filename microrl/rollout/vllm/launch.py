"""Starting vLLM in this process: what it is built for, what it must find, and what it must not leave behind."""

from __future__ import annotations

import copy
import hashlib
import os
import random
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from transformers import PreTrainedModel

from microrl.errors import UserError, first_line
from microrl.limits import BATCHED_TOKENS, buffer_rank
from microrl.models.gpu import is_out_of_memory
from microrl.models.hub import cache_folder
from microrl.rollout.vllm.dense import dense_products

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process: the weights are handed over as tensors
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer wants its cores back
    "VLLM_HOST_IP": "127.0.0.1",  # one process: nothing needs to be reached from outside
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it cannot return the processed log-probabilities, and compiles itself at the first use
}


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """What the engine is built for. `targets` are the adapted layers' names, `rank` the most they get."""

    targets: tuple[str, ...]
    rank: int
    max_model_len: int
    max_sequences: int
    kv_bytes: int
    sync: str
    """auto, swap or merge; merge builds an engine without adapter buffers."""
    sleep: str | int
    """kv, 1, 2 or off."""
    memory_fraction: float = 0.0
    """Of the card: what vLLM checks for before it starts; a CPU has none."""
    cuda_graphs: bool = True
    capture_sizes: tuple[int, ...] = ()
    """Numbers of rows that a CUDA graph of the decode step is captured for; a CPU has none."""
    fp32_head: bool = False


def can_release_cache() -> bool:
    """Whether this vLLM can free its cache alone (0.31 and later)."""
    import_vllm()
    from vllm.v1.engine.llm_engine import LLMEngine

    return hasattr(LLMEngine, "release_kv_cache_memory")


def import_vllm() -> Any:
    """vLLM, with the environment that it must find. Raises UserError where it cannot be imported."""
    os.environ.update(ENVIRONMENT)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        import vllm
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise UserError(
            f"vLLM is installed but cannot be imported: {first_line(error)}",
            "its torch version may not match: run `microrl doctor`, or use --engine transformers",
        ) from error
    return vllm


def config_folder(model: PreTrainedModel) -> Path:
    """A folder with the model's configuration alone, always the same one: vLLM's compiled graphs are found by its path."""
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    text = config.to_json_string(use_diff=True)
    folder = cache_folder() / "vllm" / hashlib.sha256(text.encode()).hexdigest()[:16]
    temporary = folder / f".config.json.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(folder / "config.json")
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}", "set XDG_CACHE_HOME to a writable folder") from None
    return folder


def start(model: PreTrainedModel, settings: VllmSettings) -> Any:
    """A running engine on dummy weights. Raises UserError where vLLM refuses; a lack of memory comes through as it is."""
    vllm, cuda = import_vllm(), model.device.type == "cuda"
    has_state = register_loaded(type(model).__name__)
    options: dict[str, Any] = {
        "model": str(config_folder(model)),
        "skip_tokenizer_init": True,
        "trust_remote_code": False,
        "load_format": "dummy",
        "dtype": str(model.dtype).removeprefix("torch."),
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_sequences,
        "max_num_batched_tokens": BATCHED_TOKENS,
        "kv_cache_memory_bytes": settings.kv_bytes,
        "enforce_eager": not (cuda and settings.cuda_graphs),
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": cuda or not has_state,  # that of a state takes prompts in pieces, which a CPU does not (below)
        "generation_config": "vllm",
        "disable_log_stats": True,
        "seed": 0,
    }
    if settings.sync != "merge":
        options |= {
            "enable_lora": True,
            "max_loras": 1,
            "max_cpu_loras": 1,
            "max_lora_rank": buffer_rank(settings.rank),
            "lora_target_modules": sorted({name.rsplit(".", 1)[-1] for name in settings.targets}),
        }
    if settings.fp32_head:
        options["hf_overrides"] = {"head_dtype": "float32"}
    if not cuda:
        # In pieces, a prompt whose request has a seed stops vLLM on a CPU ("CPU Generator does not use offset").
        options |= {"enable_chunked_prefill": False, "max_num_batched_tokens": max(BATCHED_TOKENS, settings.max_model_len)}
    if cuda and settings.cuda_graphs:
        # Prompts are few and long: without graphs they lose little, and vLLM's default would capture twice as many.
        options["compilation_config"] = {
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": list(settings.capture_sizes),
        }
    if cuda:
        options |= {"enable_sleep_mode": settings.sleep != "off", "gpu_memory_utilization": settings.memory_fraction}
    try:
        with warnings.catch_warnings(), dense_products(options), _no_progress_bars():
            warnings.simplefilter("ignore")  # of its own imports, about other libraries' changes to come
            return vllm.LLM(**options)
    except ValueError as error:  # pydantic's errors are ValueErrors too
        if is_out_of_memory(error):
            raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        hint = "try a smaller engine.max_kv_gb or sampling.max_completion_tokens, or use --engine transformers"
        if "bfloat16" in str(error).lower():
            hint = "--set model.dtype=float16"
        raise UserError(f"vLLM does not start: {' '.join(lines[:3])[:400]}", hint) from error


def register_loaded(architecture: str) -> bool:
    """Import vLLM's class of an architecture here, and tell whether it has state besides keys and values. At its first start on a
    machine vLLM would import itself once more, in a process of its own, to ask the class what it can do: that spares CUDA in this
    process, which has begun with it long ago. Raises UserError where it cannot be imported.
    """
    from vllm import ModelRegistry

    known = ModelRegistry.models.get(architecture)
    if known is None:  # vLLM says so
        return False
    try:
        own = known.load_model_cls()
    except Exception as error:
        raise UserError(
            f"vLLM cannot load its {architecture}: {first_line(error)}",
            "install what is missing, or use --engine transformers",
        ) from error
    ModelRegistry.register_model(architecture, own)
    return bool(getattr(own, "has_inner_state", False))


def _no_progress_bars() -> AbstractContextManager[Any]:
    """Of the graphs that vLLM captures: it has no switch for them, and the run shows its own progress."""
    from tqdm import tqdm

    return mock.patch.object(tqdm, "__init__", partialmethod(tqdm.__init__, disable=True))


@contextmanager
def process_state_kept() -> Iterator[None]:
    """vLLM seeds every generator of the process and, on a CPU, takes `torch.set_num_threads` away: both are put back."""
    cuda = torch.cuda.is_available()
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    card = torch.cuda.get_rng_state_all() if cuda else []
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(card)
        if torch.set_num_threads is not set_threads:
            torch.set_num_threads = set_threads
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
