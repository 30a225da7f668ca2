"""Seconds of sampling, and of each way in which the engine can get the trained weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from microrl.plan import efficiency
from microrl.plan.efficiency import Rates
from microrl.plan.memory import Memory
from microrl.plan.workload import LENGTH_FRACTION, LONGEST_FRACTION, Workload


class Rollout(NamedTuple):
    """Completions that are sampled together; lengths in tokens."""

    rows: float
    mean: float
    longest: float
    prompts: float
    """Different ones: each is read once."""
    prompt: float


@dataclass(frozen=True, slots=True)
class Way:
    """How the engine gets the trained weights, and what that takes."""

    mode: Literal["swap", "merge", "shared"]
    sync_s: float
    """Seconds a step: the push and the proof."""
    step_bytes: float = 0.0
    """Read by each decode step beside the weights."""
    step_s: float = 0.0
    """Seconds of each decode step: launches."""
    token_bytes: float = 0.0
    """Moved for each token beside its keys and values."""
    token_flops: float = 0.0


def ways(work: Workload, rates: Rates) -> list[Way]:
    """Those that the run may take: where there are several, it measures them in its first steps and keeps the fastest."""
    if not work.has_vllm:
        return [_shared(work, rates)]
    swaps = [] if work.sync == "merge" else [swap(work)]
    return swaps if work.sync == "swap" else [*swaps, merge(work, rates)]


def swap(work: Workload) -> Way:
    """The pair beside the weights: for each targeted layer one product with A and one with B, in two kernels.

    A and B are read once for all rows. A row's inputs are read again, the product of the rank is written and read, and the
    outputs are read and written.
    """
    rank, targets = work.config.adapter.pair_rank or 0, work.shape.targets(work.config.adapter)
    moved = sum(linear.count * (2 * rank + linear.n_in + 2 * linear.n_out) for linear in targets)
    return Way(
        "swap",
        sync_s=efficiency.PROBE_S,
        step_bytes=float(rank * work.adapter_sides * work.dtype_bytes),
        step_s=2 * sum(linear.count for linear in targets) * efficiency.GRAPH_KERNEL_S,
        token_bytes=float(moved * work.dtype_bytes),
        token_flops=2.0 * rank * work.adapter_sides,
    )


def merge(work: Workload, rates: Rates) -> Way:
    """The sum of base and update in the engine's own weights: a push of all of them each step, and nothing beside it."""
    rank = work.config.adapter.pair_rank or work.config.adapter.extra_rank
    pushing_s = 2 * work.shape.body * rank / rates.fp32 + efficiency.MERGE_TOUCHES * work.weight_bytes / rates.stream
    return Way("merge", efficiency.PROBE_S + pushing_s)


def _shared(work: Workload, rates: Rates) -> Way:
    """The transformers engine: in float32 the update is folded into copies; beside narrower weights it runs as it is."""
    rank = work.config.adapter.pair_rank or work.config.adapter.extra_rank
    return Way("shared", 2 * work.shape.body * rank / rates.update if work.dtype_bytes == 4 else 0.0)


def rollout(work: Workload, rows: float, limit: int) -> Rollout:
    """Completions of the assumed lengths."""
    return Rollout(rows, LENGTH_FRACTION * limit, LONGEST_FRACTION * limit, rows / work.config.sampling.group_size, work.prompt)


def decode_s(work: Workload, rates: Rates, sizes: Memory, way: Way, asked: Rollout) -> float:
    """Seconds of sampling. Each decode step reads the weights once, and every row's keys and values; states it also writes."""
    shape, tokens = work.shape, asked.rows * asked.mean
    crowd = max(asked.rows / sizes.concurrency, 1.0)
    # vLLM fills a place as soon as it is free; the other engine decodes wave after wave, each to its longest.
    steps = asked.longest + asked.mean * (crowd - 1) if work.has_vllm else asked.longest * crowd
    computing = shape.body + shape.head
    reading = steps * (computing * work.dtype_bytes + way.step_bytes) / rates.decode_bytes
    arithmetic = (2 * computing + way.token_flops) * tokens / rates.decode
    if not work.has_vllm and work.dtype_bytes < 4:
        arithmetic += 2 * shape.products(work.config.adapter) * tokens / rates.fp32
    kept = shape.row_bytes(asked.prompt + asked.mean / 2, work.dtype_bytes) + shape.state_bytes(work.dtype_bytes)
    prefill = 2 * shape.body * asked.prompts * asked.prompt / rates.decode
    rows = tokens * efficiency.ROW_S if work.has_vllm else 0.0
    overhead = steps * (_step_s(work) + way.step_s) + rows
    return max(reading, arithmetic) + tokens * (kept + way.token_bytes) / rates.decode_bytes + prefill + overhead


def _step_s(work: Workload) -> float:
    """Seconds of overhead for each decode step."""
    layers = work.shape.layers
    if work.device.is_cpu:
        return layers * efficiency.CPU_DECODE_LAYER_S
    if not work.has_vllm:
        return layers * efficiency.HF_DECODE_LAYER_S
    has_graphs = getattr(work.config.engine, "cuda_graphs", True)
    return efficiency.DECODE_STEP_S + layers * (efficiency.DECODE_LAYER_S if has_graphs else efficiency.EAGER_LAYER_S)
