"""What a configuration says of its engine on a GPU: rules that the plan and the runtime share."""

from __future__ import annotations

from typing import Literal

from microrl.config.schema import RunConfig
from microrl.limits import MAX_SWAP_RANK, MIN_SWAP

Mode = Literal["swap", "merge"]
"""How a new adapter reaches vLLM."""


def auto_is_vllm(config: RunConfig) -> bool:
    """Whether `engine.kind=auto` means vLLM on a GPU, where it is installed: not for a float32 base whose adapter may be swapped,
    since vLLM computes adapters in 16 bits there. `engine.sync` says swap or merge only to vLLM."""
    return config.model.dtype != "float32" or sync_mode(config) != "auto"


def sync_mode(config: RunConfig, capability: tuple[int, int] | None = None) -> Literal["auto", "swap", "merge"]:
    """`engine.sync`, or merge where the adapter cannot be handed over as a LoRA pair, or one that vLLM would take; and instead
    of auto on a GPU of a compute capability that is too low to serve pairs well."""
    rank = config.adapter.pair_rank
    if rank is None or rank > MAX_SWAP_RANK:
        return "merge"
    if config.engine.sync == "auto" and capability is not None and capability < MIN_SWAP:
        return "merge"
    return config.engine.sync
