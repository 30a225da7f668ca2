"""What a configuration says of its engine on a GPU: rules that the plan and the runtime share."""

from __future__ import annotations

from typing import Literal

from microrl.config.schema import AutoEngineConfig, RunConfig
from microrl.errors import Explained, MachineFailure
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


def outlasts_vllm(config: RunConfig, *, has_steps: bool) -> bool:
    """Whether a run goes on with other settings where vLLM fails. `has_steps`: it has finished one, and nobody may be watching
    any more."""
    return isinstance(config.engine, AutoEngineConfig) and (has_steps or config.engine.unattended)


def ended_at_start(error: Explained) -> MachineFailure:
    """The error of a run that ends because vLLM has failed before its first step; see `outlasts_vllm`."""
    ways_on = (
        "pass --engine auto explicitly to go on with other vLLM settings and in the end without vLLM; --engine transformers "
        "needs no vLLM, but is slower"
    )
    hint = "; ".join(filter(None, [error.hint, ways_on]))
    ended = MachineFailure(f"vLLM has failed before the first step: {error.message}", hint)
    ended.fault, ended.__cause__ = error.fault, error.__cause__
    return ended
