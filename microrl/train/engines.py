"""From a configuration to a generation engine."""

from __future__ import annotations

from typing import Any, cast

import torch
from transformers import PreTrainedModel

from microrl.adapters import lora
from microrl.config import RunConfig
from microrl.config.schema import AutoEngineConfig, VllmEngineConfig
from microrl.errors import UserError
from microrl.rollout import gpu
from microrl.rollout.base_model import kv_bytes_per_token
from microrl.rollout.engine import Engine
from microrl.rollout.preflight import choose
from microrl.rollout.proof import MOST_TOKENS
from microrl.rollout.sync import Mode, SyncChoice
from microrl.rollout.transformers import TransformersEngine
from microrl.tracking.console import RunConsole
from microrl.tracking.run_folder import RunFolder

MOST_SEQUENCES = 512
"""Completions that vLLM decodes at a time; the rest wait."""
CPU_CACHE_BYTES = 4e9
SYNC_FILE = "sync.json"
BYTES_A_TRAINED_PARAMETER = 16
"""Weight, gradient and AdamW's two moments, in fp32."""


def make_engine(
    config: RunConfig,
    model: PreTrainedModel,
    tokenizer: Any,
    *,
    folder: RunFolder | None = None,
    console: RunConsole | None = None,
) -> Engine:
    """The generation engine. Build it before the policy wraps the model's layers.

    Its warnings and its measured choice between swap and merge go into the run folder, if there is one.
    """
    fp32_head = config.model.head_dtype == "float32"
    if choose(config) == "transformers":
        return TransformersEngine(model, tokenizer, max_kv_gb=config.engine.max_kv_gb, fp32_head=fp32_head)
    from microrl.rollout.vllm import VllmEngine
    from microrl.rollout.vllm_start import VllmSettings, buffer_rank, can_release_cache

    def on_event(kind: str, message: str, **details: Any) -> None:
        if folder is not None:
            folder.event(kind, message, **details)
        if console is not None and (folder is not None or kind == "warning"):
            console.note(f"{kind}: {message}")

    def on_choice(mode: Mode, why: str, table: list[dict[str, Any]]) -> None:
        on_event("sync chosen", why, table=table)
        if folder is not None:
            folder.write_json(SYNC_FILE, {"mode": mode, "why": why, "table": table})

    if console is not None:
        console.status("starting vLLM")
    engine_config = cast("AutoEngineConfig | VllmEngineConfig", config.engine)
    stored = folder.read_json(SYNC_FILE)["mode"] if folder is not None and (folder.path / SYNC_FILE).is_file() else None
    length = _max_model_len(config, model)
    rows = max(config.sampling.prompts_per_step * config.sampling.group_size, config.evaluation.samples)
    targets = lora.targets(model, config.adapter)
    sequences = min(rows, MOST_SEQUENCES)
    limit_gb = config.engine.max_kv_gb
    wanted = int(limit_gb * 1e9) if limit_gb is not None else sequences * _cache_a_sequence(model, length)
    buffers_of = 0 if config.sync.mode == "merge" else buffer_rank(config.adapter.rank)
    if model.device.type == "cuda":
        kv_bytes, share, sleep = _on_card(config, engine_config, model, targets, wanted, length, buffers_of, can_release_cache())
    else:
        kv_bytes, share, sleep = (wanted if limit_gb is not None else min(wanted, int(CPU_CACHE_BYTES))), 0.0, "off"
    settings = VllmSettings(
        targets=tuple(targets),
        rank=config.adapter.rank,
        max_model_len=length,
        max_sequences=sequences,
        kv_bytes=kv_bytes,
        sync=config.sync.mode,
        sleep=sleep,
        memory_share=share,
        cuda_graphs=engine_config.cuda_graphs,
        fp32_head=fp32_head,
    )
    return VllmEngine(model, tokenizer, settings, SyncChoice(config.sync.mode, stored, on_choice), on_event)


def _on_card(
    config: RunConfig,
    engine_config: AutoEngineConfig | VllmEngineConfig,
    model: PreTrainedModel,
    targets: dict[str, torch.nn.Linear],
    wanted: int,
    length: int,
    buffer_rank: int,
    can_release_cache: bool,
) -> tuple[int, float, str | int]:
    """(bytes for keys and values, vLLM's share of the card, sleep level). Raises UserError where it does not fit."""
    torch.cuda.empty_cache()  # of an engine before this one
    free, total = torch.cuda.mem_get_info(model.device)
    sides = sum(layer.in_features + layer.out_features for layer in targets.values())
    trained = config.adapter.rank * sides
    buffers = buffer_rank * sides * model.dtype.itemsize
    weights = gpu.weight_bytes(model)
    kv_bytes = gpu.cache_bytes(
        free=free,
        total=total,
        engine=weights + buffers,
        adapter=trained * BYTES_A_TRAINED_PARAMETER,
        wanted=wanted,
        least=_cache_a_sequence(model, length),
        others=gpu.others_on_card(),
    )
    sleep = gpu.sleep_level(
        engine_config.sleep, engine_bytes=weights + buffers, total_bytes=total, can_release_cache=can_release_cache
    )
    return kv_bytes, min(weights + buffers + kv_bytes, int(0.9 * free)) / total, sleep


def _cache_a_sequence(model: PreTrainedModel, length: int) -> int:
    """Bytes of one completion's keys and values at its longest, in whole blocks and one to spare."""
    return (length + 32) * kv_bytes_per_token(model)


def _max_model_len(config: RunConfig, model: PreTrainedModel) -> int:
    longest = max(config.sampling.max_completion_tokens, config.evaluation.max_completion_tokens or 0)
    length = config.data.max_prompt_tokens + longest
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is not None and length > limit:
        raise UserError(
            f"prompts of up to {config.data.max_prompt_tokens} tokens and completions of up to {longest} do not fit into the "
            f"model's {limit} positions",
            f"lower data.max_prompt_tokens or sampling.max_completion_tokens: together at most {limit}",
        )
    return max(length, MOST_TOKENS + 1)  # the probe has to fit, and the token that vLLM always adds
