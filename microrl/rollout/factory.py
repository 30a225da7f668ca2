"""From a configuration to a generation engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from microrl.adapters.attach import targets
from microrl.config import RunConfig
from microrl.config.engine_rules import Mode, sync_mode
from microrl.config.schema import AutoEngineConfig, VllmEngineConfig
from microrl.errors import Doing, EngineFault, Explained, UserError
from microrl.limits import CANARY_RANK, CPU_CACHE_BYTES, TWO_BLOCKS_TOKENS, buffer_rank
from microrl.models import gpu
from microrl.models.forward import kv_bytes_per_token
from microrl.models.tensors import linears
from microrl.plan.advice import sets, shorter
from microrl.plan.memory import hand_over_bytes, trained_bytes
from microrl.plan.reserve import Served, max_rows, reserve, served
from microrl.plan.shapes import Shape
from microrl.rollout.engine import Engine
from microrl.rollout.preflight import capability, select_engine
from microrl.rollout.sync import SyncChoice
from microrl.rollout.sync_check import MAX_TOKENS
from microrl.rollout.transformers import TransformersEngine
from microrl.rollout.vllm.launch import VllmSettings, can_release_cache, import_vllm

OnEvent = Callable[..., None]
OnChoice = Callable[[Mode, str, list[dict[str, Any]]], None]


def make_engine(
    config: RunConfig,
    model: PreTrainedModel,
    tokenizer: Any,
    *,
    say: Callable[[str], None] = lambda text: None,
    on_event: OnEvent | None = None,
    measured: Mode | None = None,
    on_choice: OnChoice = lambda mode, why, table: None,
) -> Engine:
    """The generation engine. Build it before the policy wraps the model's layers.

    `on_event` hears what happens to it; without one `say` gets its warnings. `measured` is the choice between swap and merge
    that an earlier process of the run has measured; a new one goes to `on_choice`. Raises UserError where the model has not
    the positions for the run's longest sequence.
    """
    longest = longest_sequence(config, model)
    if select_engine(config) == "transformers":
        fp32_head = config.model.head_dtype == "float32"
        return TransformersEngine(model, tokenizer, max_kv_gb=config.engine.max_kv_gb, fp32_head=fp32_head)
    from microrl.rollout.vllm.engine import VllmEngine

    def warn(kind: str, message: str, **details: Any) -> None:
        if kind == "warning":
            say(f"{kind}: {message}")

    say("starting vLLM; the first start also compiles its kernels")
    with _fault_named("importing", config):
        import_vllm()
    with _fault_named("starting", config):  # there may be too little memory for it
        settings = _vllm_settings(config, model, longest)
    return VllmEngine(model, tokenizer, settings, SyncChoice(settings.sync, measured, on_choice), on_event or warn)


@contextmanager
def _fault_named(doing: Doing, config: RunConfig) -> Iterator[None]:
    """Have an error raised inside say that vLLM is what failed, before it exists: `auto` can do without it."""
    try:
        yield
    except Explained as error:
        engine = cast("AutoEngineConfig | VllmEngineConfig", config.engine)
        error.fault = EngineFault(doing, engine.cuda_graphs, out_of_memory=isinstance(error, gpu.NoRoom))
        raise


def _vllm_settings(config: RunConfig, model: PreTrainedModel, longest: int) -> VllmSettings:
    """What vLLM is built for: the run's lengths, batch and adapter, and as much cache as these need and there is room for."""
    engine = cast("AutoEngineConfig | VllmEngineConfig", config.engine)
    length = max(longest, MAX_TOKENS + 1)  # the probe has to fit, and the token that vLLM always adds
    layers = targets(model, config.adapter) or linears(model)
    sequences = max_rows(config)
    if engine.max_kv_gb is not None:
        wanted = int(engine.max_kv_gb * 1e9)
    else:
        wanted = sequences * _cache_a_sequence(model, length)
        if not gpu.is_on_card(model):
            wanted = min(wanted, int(CPU_CACHE_BYTES))
    settings = VllmSettings(
        targets=tuple(layers),
        rank=config.adapter.pair_rank or CANARY_RANK,
        max_model_len=length,
        max_sequences=sequences,
        kv_bytes=wanted,
        sync=sync_mode(config, capability()),
        sleep="off",
        cuda_graphs=engine.cuda_graphs,
        fp32_head=config.model.head_dtype == "float32",
    )
    if not gpu.is_on_card(model):
        return settings
    sides = sum(layer.in_features + layer.out_features for layer in layers.values())
    shape, merges = Shape.from_config(model.config.to_dict()), settings.sync == "merge"
    handed_over = hand_over_bytes(settings.rank, sides, model.dtype.itemsize, merges=merges)
    # Gradients do not exist while the engine samples: the hand-over needs only what it takes beyond their room.
    kept = trained_bytes(shape, config) + max(handed_over - 4 * shape.trainable(config.adapter), 0)
    built = served(config, shape, model.dtype.itemsize, length, torch.cuda.get_device_capability(model.device))
    return _fit_to_card(settings, model, built, sides, kept, engine.sleep)


def _fit_to_card(
    settings: VllmSettings, model: PreTrainedModel, built: Served, sides: int, kept: int, sleep: str | int
) -> VllmSettings:
    """The settings with the cache, the graphs, the share of the card and the sleep level that go with what is free.

    `sides` is the sum of the targeted layers' widths and heights, `kept` what the trainer will hold for its adapter and the
    hand-over needs beside it, in bytes. Raises UserError where it does not fit.
    """
    torch.cuda.empty_cache()  # of an engine before this one
    free, total = torch.cuda.mem_get_info(model.device)
    buffers = 0 if settings.sync == "merge" else buffer_rank(settings.rank) * sides * model.dtype.itemsize
    engine_bytes = gpu.weight_bytes(model) + buffers
    held = reserve(built, free - engine_bytes - kept, settings.kv_bytes)
    kv_bytes = gpu.cache_bytes(
        free=free,
        total=total,
        engine=engine_bytes,
        adapter=kept,
        reserved=held.parts,
        wanted=settings.kv_bytes,
        least=_cache_a_sequence(model, settings.max_model_len),
        others=gpu.others_on_card(),
    )
    level = gpu.sleep_level(sleep, engine_bytes=engine_bytes, total_bytes=total, can_release_cache=can_release_cache())
    fraction = min(engine_bytes + kv_bytes, int(0.9 * free)) / total
    return replace(settings, kv_bytes=kv_bytes, capture_sizes=held.capture_sizes, memory_fraction=fraction, sleep=level)


def _cache_a_sequence(model: PreTrainedModel, length: int) -> int:
    """Bytes of one completion's keys and values at its longest, in whole blocks and one to spare."""
    return (length + TWO_BLOCKS_TOKENS) * kv_bytes_per_token(model)


def longest_sequence(config: RunConfig, model: PreTrainedModel) -> int:
    """Tokens of the longest prompt and completion together. Raises UserError where the model has not so many positions."""
    completion = max(config.sampling.max_completion_tokens, config.evaluation.max_completion_tokens or 0)
    length = config.data.max_prompt_tokens + completion
    positions = getattr(model.config, "max_position_embeddings", None) or length
    bound = min(_rotary_bound(model.config) or positions, positions)
    if length <= bound:
        return length
    wanted = f"prompts of up to {config.data.max_prompt_tokens} tokens and completions of up to {completion}"
    raise UserError(
        f"{wanted} do not fit in the model's {positions} positions"
        if bound == positions
        else f"{wanted} are too long together: beyond {bound} tokens, this model's rotary embeddings (longrope) change for the "
        "whole batch, and the probabilities of a row would depend on the others",
        f"{sets(shorter(config, bound))} (together at most {bound} tokens)",
    )


def _rotary_bound(config: Any) -> int | None:
    """The longest sequence up to which longrope takes its short factors. The dynamic kind is the same up to
    `max_position_embeddings`."""
    settings = getattr(config, "rope_parameters", None) or {}
    kinds = [settings, *(part for part in settings.values() if isinstance(part, dict))]  # one in all, or one a layer type
    return min((kind["original_max_position_embeddings"] for kind in kinds if kind.get("rope_type") == "longrope"), default=None)
