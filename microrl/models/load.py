"""`--model` to a frozen network and its tokenizer: a local folder, a hub id, a paper's short name, or a .gguf file."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast
from unittest import mock

import numpy as np
import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers.utils import find_adapter_config_file
from transformers.utils import logging as transformers_logging

from microrl.config import known_models
from microrl.config.paths import local_model
from microrl.config.schema import ModelConfig
from microrl.errors import INSTALL_GPU, UserError, first_line
from microrl.files import read_json
from microrl.limits import CPU_SMALL_PARAMETERS, auto_dtype
from microrl.models import gpu, hub
from microrl.models.attention import use_lower_right
from microrl.models.download import download
from microrl.models.gated_mlp import use_lean_mlps
from microrl.models.norms import use_fused_rmsnorm
from microrl.models.tensors import not_finite, parameter_count
from microrl.models.threads import use_sensible_threads

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD = 2**25
"""mallopt(3): the options' numbers, and the largest size below which memory is kept and not mapped anew."""
NO_CODE: dict[str, Any] = {"trust_remote_code": False}
"""For every reader of transformers: left out, it asks on standard input, and after "y" runs what lies in the folder."""
TEXT_PART = {r"^(model\.)?language_model\.lm_head\.": "lm_head.", r"^(model\.)?language_model\.(model\.)?": "model."}
"""What checkpoints with several parts call the tensors of their language model, and what these are called in it alone."""

SMALLER = "use a smaller model, or load it in 4 bits: --set model.quant=nf4"

Progress = Callable[..., Iterator[Any]]
"""Passes items on and shows how many of so many there were, with a label; see `RunConsole.progress`."""


def unseen(items: Any, total: int, label: str) -> Iterator[Any]:
    """Shows nothing."""
    return iter(items)


class LoadedModel(NamedTuple):
    model: PreTrainedModel
    tokenizer: Any


def load(config: ModelConfig, progress: Progress = unseen) -> LoadedModel:
    """The model on its device, frozen and in eval mode (dropout is off everywhere), and its tokenizer; sets torch's threads.

    With `quant` its linear layers but the head are in 4 bits. Raises UserError for a path or name that leads nowhere, a gated
    model, or a hub out of reach. What is to be trained or sampled from is loaded by `policy.architecture.load_checked`.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = dtype_of(config.dtype, device)
    path = Path(config.name).expanduser()
    if config.quant is None and path.is_dir():
        gpu.require_room(sum(file.stat().st_size for file in hub.weight_files(path) if file.is_file()), config.name, SMALLER)
    if config.name.endswith(".gguf"):
        model, tokenizer = _load_gguf(path, dtype, progress)
    else:
        if hub.is_to_be_downloaded(config.name) and hub.reachable():
            download(config.name, progress)
        model, tokenizer = _load_pretrained(config.name, dtype)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if config.quant is None:
        gpu.require_room(gpu.weight_bytes(model), config.name, SMALLER)
    else:
        _to_4_bits(model, device, config.name)
    model.to(device).eval().requires_grad_(False)
    if (broken := not_finite(dict(model.named_parameters()))) is not None:
        raise UserError(
            f"{config.name} contains weights that are not finite: `{broken}`",
            "large weights overflow in float16: try --set model.dtype=bfloat16; if that does not help, download the model again",
        )
    use_own_parts(model)
    use_sensible_threads(model)
    keep_freed_memory(model)
    return LoadedModel(model, tokenizer)


def use_own_parts(model: PreTrainedModel) -> None:
    """Have attention, norms and MLPs computed as this package does, where it has a way of its own for the model."""
    use_lower_right(model)
    use_fused_rmsnorm(model)
    use_lean_mlps(model)


def _to_4_bits(model: PreTrainedModel, device: torch.device, name: str) -> None:
    try:
        from microrl.models import nf4
    except ImportError as error:
        raise UserError("model.quant=nf4: bitsandbytes is not installed", INSTALL_GPU) from error
    gpu.require_room(nf4.bytes_in_4_bits(model), name)
    nf4.quantize(model, device)


def keep_freed_memory(model: PreTrainedModel) -> None:
    """Have malloc keep what a step of a large model on a CPU frees for the next one. Given back, each step asks the kernel for it
    anew, page by page: 350,000 page faults in an update of SmolLM2-135M, an eighth of its time. glibc only."""
    if model.device.type != "cpu" or parameter_count(model) < CPU_SMALL_PARAMETERS:
        return
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def dtype_of(name: str, device: torch.device) -> torch.dtype:
    """`model.dtype` as torch's type; `auto` is what the plan takes for this device."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    return getattr(torch, auto_dtype(capability) if name == "auto" else name)


def load_tokenizer(config: ModelConfig) -> Any:
    """The tokenizer alone, without the weights. Raises UserError as `load` does."""
    path = Path(config.name).expanduser()
    if config.name.endswith(".gguf"):
        return _read(path, lambda: AutoTokenizer.from_pretrained(_gguf_folder(path), gguf_file=path.name, **NO_CODE))
    return _read(config.name, lambda: AutoTokenizer.from_pretrained(_source(config.name), **NO_CODE))


def _load_pretrained(name: str, dtype: torch.dtype) -> LoadedModel:
    source = _source(name)
    if _read(name, lambda: find_adapter_config_file(source)) is not None:  # which transformers would load, by PEFT's own rules
        raise UserError(
            f"{name} contains an adapter next to the model (adapter_config.json)",
            f"merge it first: microrl export {name} --model BASE",
        )
    tokenizer = _read(name, lambda: AutoTokenizer.from_pretrained(source, **NO_CODE))
    # Of safetensors alone: other files are pickles.
    config = _read(name, lambda: AutoConfig.from_pretrained(source, **NO_CODE))
    reading: dict[str, Any] = {"dtype": dtype, "use_safetensors": True, **NO_CODE}
    if config.get_text_config() is config:
        return LoadedModel(_read(name, lambda: AutoModelForCausalLM.from_pretrained(source, **reading)), tokenizer)
    return LoadedModel(_read(name, lambda: _text_part(source, config, reading)), tokenizer)


def _text_part(source: str, config: PreTrainedConfig, reading: dict[str, Any]) -> PreTrainedModel:
    """The language model of a checkpoint that has parts for images or sound, too. Raises ValueError where it is not whole."""
    text = config.get_text_config()
    text.tie_word_embeddings |= getattr(config, "tie_word_embeddings", False)
    model, info = AutoModelForCausalLM.from_pretrained(
        source, config=text, key_mapping=TEXT_PART, output_loading_info=True, **reading
    )
    if info["missing_keys"]:
        raise ValueError(f"its language model lacks {min(info['missing_keys'])}")
    model._weight_conversions = None  # it is saved under its own names
    return cast("PreTrainedModel", model)


def _source(name: str) -> str:
    """What transformers is asked for: a folder's path or a hub id."""
    path = local_model(name)
    if path is not None:
        read_json(path / "config.json", dict[str, Any], follow=True)
        return str(path)
    known = known_models.find(name)
    return name if known is None else known.hub_id


def _read(name: str | Path, reader: Callable[[], Any]) -> Any:
    """Run one of transformers' readers, with its many exceptions as one UserError."""
    try:
        return reader()
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        if "trust_remote_code" in str(error):
            raise UserError(
                f"{name} requires custom code, which microrl does not execute",
                "use a model whose architecture is built into transformers",
            ) from error
        if Path(name).exists():
            raise UserError(
                f"{name} cannot be loaded: {first_line(error)}", "the download may be incomplete: download it again"
            ) from error
        known = known_models.find(str(name))
        hub_id = known.hub_id if known else str(name)
        raise hub.missing("model", hub_id, error, known.licence_page if known else None) from error


def _load_gguf(path: Path, dtype: torch.dtype, progress: Progress) -> LoadedModel:
    """De-quantise a GGUF file. The weights move to a fresh model, since the one that reads them refuses to be saved."""
    folder = _gguf_folder(path)
    with _header_read_once(), _tensors_shown(progress, f"loading {path.name}, tensors"):
        tokenizer = _read(path, lambda: AutoTokenizer.from_pretrained(folder, gguf_file=path.name, **NO_CODE))
        read = _read(path, lambda: AutoModelForCausalLM.from_pretrained(folder, gguf_file=path.name, dtype=dtype, **NO_CODE))
    config = copy.deepcopy(read.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, **NO_CODE)
    stored = read.state_dict()
    model.load_state_dict(stored, assign=True)
    for name, buffer in read.named_buffers():
        if name not in stored:  # rotary tables
            module, _, leaf = name.rpartition(".")
            model.get_submodule(module).register_buffer(leaf, buffer, persistent=False)
    model.tie_weights()
    model.generation_config = read.generation_config
    return LoadedModel(model, tokenizer)


def _header_read_once() -> contextlib.AbstractContextManager[Any]:
    """transformers 5 parses a GGUF file's header three times, and maps its tensors' names anew for every module: half of the
    seconds that loading takes. Half of the others go into slices of a `memmap`, which those of a plain view of it do not cost."""
    try:
        import gguf
    except ImportError:  # transformers says so
        return contextlib.nullcontext()

    class Reader(gguf.GGUFReader):
        @property
        def data(self) -> Any:
            return self._plain

        @data.setter
        def data(self, mapped: Any) -> None:
            self._plain = np.asarray(mapped)

    cached = {"GGUFReader": functools.cache(Reader), "get_tensor_name_map": functools.cache(gguf.get_tensor_name_map)}
    return mock.patch.multiple(gguf, **cast(dict[str, Any], cached))


def _tensors_shown(progress: Progress, label: str) -> contextlib.AbstractContextManager[Any]:
    """transformers prints a bar of its own for the tensors of a GGUF file, in the middle of what else is shown."""
    from transformers import modeling_gguf_pytorch_utils as reader

    return mock.patch.object(reader, "tqdm", lambda tensors, **_: progress(tensors, len(tensors), label))


def _gguf_folder(path: Path) -> Path:
    local_model(str(path))
    if (path.parent / "adapter_config.json").exists():  # transformers would load it
        raise UserError(f"there is an adapter next to {path} (adapter_config.json)", "move the .gguf file into a separate folder")
    return path.parent
