"""Memory by part, in the two phases of a step: while the engine samples, and while the trainer updates. Bytes.

What one token keeps for the backward pass was counted with torch's hooks on saved tensors, for every adapter on a float32 and
a bfloat16 base: the formula of `saved_bytes` agrees with that count to 2 per cent. Peaks on a GPU are not measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from microrl.config import RunConfig
from microrl.config.adapter import BaseAdapterConfig
from microrl.limits import (
    CANARY_RANK,
    CPU_CACHE_BYTES,
    CPU_PACKED_MAX,
    CPU_PACKED_MIN,
    GB,
    KV_SLEEP_FRACTION,
    TWO_BLOCKS_TOKENS,
    buffer_rank,
    chunk_elements,
)
from microrl.plan.reserve import CONTEXT_BYTES, FRAGMENTS, LIBRARIES, LIBRARY_BYTES, Reserve, max_rows, reserve, served
from microrl.plan.shapes import Shape
from microrl.plan.workload import LENGTH_FRACTION, MOMENT_BYTES, Workload

BYTES_A_TRAINED_PARAMETER = 16
"""Weight, gradient and AdamW's two moments, in fp32."""
CPU_ROOM_BYTES = 1.1e9
"""Activations of a micro-batch on a CPU: beyond it nothing gets faster."""
MIN_TOKENS, MAX_TOKENS = 256, 32768
"""Tokens of a micro-batch. Above the most a GPU gets no faster; a CPU takes none of it, as its rule is older."""
CHUNK_BUFFERS = 5
"""fp32 tensors of the log-probability chunk at their most: logits, their copy, probabilities, products, narrow ones."""
DIVERGENCE_BUFFERS = {"cpu": 4, "gpu": 2}
"""More of them with `distill.top_k`: the teacher's logits, the slopes, and what a block of both is compared with."""
SLACK = 0.05
"""Of the card: what a derived micro-batch leaves free."""


def saved_bytes(adapter: BaseAdapterConfig, shape: Shape, *, dtype_bytes: int, length: int) -> int:
    """Bytes that one token keeps in one decoder layer for the backward pass.

    With the base frozen its linear layers keep nothing. What is kept: each norm its input in fp32; attention the queries, the
    keys and values repeated for every query head, its output, and a row of the mask; the gated MLP three tensors of its
    inner width; and what the adapter keeps. Where layers differ it is their mean.
    """
    norms = shape.norms_a_layer // shape.hidden * 4 * shape.hidden
    mixed = dtype_bytes * (4 * shape.queries + shape.saved + shape.attending * length) + 4 * shape.attending * shape.heads
    if shape.delta is not None:
        mixed += shape.delta_layers * shape.delta.saved_bytes(dtype_bytes)
    mlp = dtype_bytes * 3 * shape.intermediate + 4 * 2
    return norms + mixed // shape.layers + mlp + adapter.saved_bytes(shape, shape.targets(adapter), dtype_bytes)


def micro_batch_tokens(
    shape: Shape, *, dtype_bytes: int, room_bytes: float | None, checkpointing: bool, adapter: BaseAdapterConfig, length: int
) -> int:
    """Tokens (prompts and padding included) of one forward and backward pass that fit into `room_bytes`, within bounds.

    `length` is the longest row, in tokens. None for the room: on a CPU, where the rule is a plain one, by shapes alone, since a
    micro-batch of another size changes the last bit of the gradients.
    """
    if room_bytes is None:
        is_lean = dtype_bytes == 4 and adapter.is_one_product  # see `microrl.models.gated_mlp`
        widths = 8 * shape.hidden + 2 * shape.intermediate if is_lean else 10 * shape.hidden + 5 * shape.intermediate
        return max(MIN_TOKENS, int(CPU_ROOM_BYTES / (shape.layers * widths * dtype_bytes)))
    per_token = token_bytes(shape, adapter, dtype_bytes, length, checkpointing=checkpointing)
    return min(max(MIN_TOKENS, int(room_bytes / (per_token * (1 + FRAGMENTS)))), MAX_TOKENS)


def activation_room(free_bytes: float, total_bytes: float, trained: int, vocab: int) -> float:
    """What a micro-batch may take of a GPU that holds base, adapter and its moments, and whose engine sleeps.

    Gradients are yet to come, and so is the log-probability chunk; a share of the card stays free.
    """
    coming = 4 * trained + 4 * CHUNK_BUFFERS * chunk_elements(vocab, on_cpu=False)
    return max(free_bytes - coming - SLACK * total_bytes, 0.0)


def trained_bytes(shape: Shape, config: RunConfig) -> int:
    """What a trainer holds for its adapter: trained and frozen factors, gradients, AdamW's moments."""
    trained = shape.trainable(config.adapter)
    return int((8.0 + MOMENT_BYTES[config.optim.name]) * trained + 4.0 * shape.frozen(config.adapter))


def hand_over_bytes(rank: int, sides: int, dtype_bytes: int, *, merges: bool) -> int:
    """What handing an adapter over needs at its most: the test adapter (canary) of the first proof, float32 and of the run's
    own shape, and, unless it is merged, its copy in the base's type on the way into the engine's buffers.

    `sides` is the sum of the targeted layers' widths and heights. Both are on the card while the engine is awake.
    """
    return rank * sides * (4 + (0 if merges else dtype_bytes))


def narrow_copy(adapter: BaseAdapterConfig, trained: int, dtype_bytes: int) -> float:
    """Bytes of the rounded copy of every weight that a forward pass over float32 ones keeps until its backward pass."""
    return float(dtype_bytes * trained) if adapter.trains_weights and dtype_bytes < 4 else 0.0


def fits_a_row(shape: Shape, *, dtype_bytes: int, room_bytes: float, adapter: BaseAdapterConfig, length: int) -> bool:
    """Whether one row of this many tokens can be updated in `room_bytes` with all its activations kept."""
    each = token_bytes(shape, adapter, dtype_bytes, length, checkpointing=False)
    return length * each * (1 + FRAGMENTS) <= room_bytes


def token_bytes(shape: Shape, adapter: BaseAdapterConfig, dtype_bytes: int, length: int, *, checkpointing: bool) -> int:
    """Bytes of activations a token of a micro-batch costs at its peak on a GPU.

    One layer more than there are, for the gradients on their way through one. With checkpointing each layer keeps its
    input only, and one layer at a time is computed again. The head keeps a state and its slope.
    """
    layer = saved_bytes(adapter, shape, dtype_bytes=dtype_bytes, length=length)
    head = 3 * shape.hidden * dtype_bytes
    if checkpointing:
        return shape.layers * shape.hidden * dtype_bytes + 2 * layer + head
    return (shape.layers + 1) * layer + head


@dataclass(frozen=True, slots=True)
class Memory:
    """Parts in bytes while sampling and while updating, and what follows from them."""

    sampling: dict[str, float]
    updating: dict[str, float]
    micro_batch_tokens: int
    concurrency: float
    """Completions that decode together at their mean length, as the cache allows."""
    sleep: str | int | None
    """The engine's sleep level with `auto` decided; None where nothing sleeps."""

    @property
    def peak(self) -> float:
        return max(sum(self.sampling.values()), sum(self.updating.values()))

    def fits(self, room: float) -> bool:
        """Whether both phases fit into `room` bytes; a cache that fills it is no byte too large."""
        return self.peak <= room + 1.0


def estimate_memory(work: Workload, room: float) -> Memory:
    """Memory of a run on a card (or machine) with `room` bytes free."""
    sleep, copy = _sleep_level(work), _engine_bytes(work)
    trained = {
        "trainer weights": work.base_bytes,
        "adapter": 4.0 * (work.trained + work.shape.frozen(work.config.adapter)),
        "optimizer": work.moment_bytes,
        "teacher": work.teacher.bytes(work.dtype_bytes) if work.teacher else 0.0,
    }
    handed_over = _handed_over(work)
    sampling = {**trained, "engine weights": copy, "export": _exported(work), "hand-over": handed_over}
    gradients = max(4.0 * work.trained - handed_over, 0.0)  # their room is kept, and serves the hand-over until they are there
    held = _reserve(work, room - sum(sampling.values()) - gradients)
    sampling |= held.parts
    sampling["KV cache"] = _cache(work, room - sum(sampling.values()) - gradients)

    updating = {**trained, "gradients": 4.0 * work.trained}  # they exist only here
    updating |= {"engine weights": copy if sleep in ("kv", "off") else 0.0, **held.stays}
    updating["KV cache"] = sampling["KV cache"] if sleep == "off" else 0.0
    updating["rounded weights"] = narrow_copy(work.config.adapter, work.trained, work.dtype_bytes)
    updating["packed weights"] = _packed(work)
    updating["copies of the weights"] = _copies(work)
    chunk = chunk_elements(work.shape.vocab, on_cpu=work.device.is_cpu)
    buffers = CHUNK_BUFFERS + (
        DIVERGENCE_BUFFERS["cpu" if work.device.is_cpu else "gpu"] if work.config.distill.top_k is not None else 0
    )
    updating["log-probability chunk"] = 4.0 * buffers * min(chunk, work.rows * work.limit * work.shape.vocab)
    tokens = _micro_batch(work, (1 - SLACK) * room - sum(updating.values()))
    updating["activations"] = _activations(work, min(tokens, work.rows * (work.prompt + work.limit)))
    updating["fragmentation"] = 0.0 if work.device.is_cpu else FRAGMENTS * updating["activations"]
    return Memory(_positive(sampling), _positive(updating), tokens, concurrency(work, sampling["KV cache"], work.limit), sleep)


def _copies(work: Workload) -> float:
    """What an update can be undone with, and its size measured; a card's are in main memory. See `all_or_nothing`, `StepSize`."""
    optim = work.config.optim
    measuring = 2 if work.dtype_bytes < 4 else int(optim.step_kl is not None)
    undoing = 4.0 * work.trained + work.moment_bytes if optim.prompts_per_update is not None else 0.0
    return (4.0 * work.trained * measuring + undoing) * work.device.is_cpu


def _packed(work: Workload) -> float:
    """The copies of the head on a CPU that `microrl.models.onednn` keeps: two with AVX-512, one without. Counted as two."""
    is_packed = work.device.is_cpu and work.dtype_bytes == 4 and CPU_PACKED_MIN <= work.shape.head <= CPU_PACKED_MAX
    return 8.0 * work.shape.head if is_packed else 0.0


def min_cache(work: Workload) -> float:
    """Bytes of one completion's keys and values, and of its state, at its longest."""
    return float(work.shape.row_bytes(work.longest_row + TWO_BLOCKS_TOKENS, work.dtype_bytes))


def _positive(parts: dict[str, float]) -> dict[str, float]:
    return {name: size for name, size in parts.items() if size > 0}


def _reserve(work: Workload, room: float) -> Reserve:
    """What is there beside tensors of our own, of `room` bytes for it and the cache."""
    if work.device.is_cpu:
        return Reserve({"workspaces": 0.7e9}, {}, ())  # Python, torch and the other libraries
    libraries = {LIBRARIES: float(CONTEXT_BYTES + LIBRARY_BYTES)}
    if not work.has_vllm:
        return Reserve(libraries, {}, ())
    built = served(work.config, work.shape, work.dtype_bytes, work.longest_row, work.device.capability)
    held = reserve(built, room - CONTEXT_BYTES, _wanted_cache(work))
    return replace(held, stays=held.stays | libraries)


def _engine_bytes(work: Workload) -> float:
    """The engine's own weights: vLLM's copy with its adapter buffers; on a CPU the folded copies; else the trainer's serve."""
    if work.has_vllm:
        rank = 0 if work.merges else buffer_rank(work.config.adapter.pair_rank or 0)
        buffers = rank * work.adapter_sides * work.dtype_bytes
        return float(work.weight_bytes + buffers)
    if work.dtype_bytes < 4 and work.config.adapter.pair_rank is not None:
        return 0.0  # updates run beside the weights
    if work.config.adapter.trains_weights:
        return 0.0 if work.dtype_bytes == 4 else float(work.weight_bytes)  # the trained copies serve, or are rounded to new ones
    return _targeted(work)


def _exported(work: Workload) -> float:
    """Pairs that are not the trained factors themselves, fp32; merged tensors, of which the proof needs a second copy."""
    adapter = work.config.adapter
    if adapter.pair_rank is None and work.has_vllm and work.dtype_bytes < 4:
        return _targeted(work)
    return 4.0 * (adapter.pair_rank or 0) * work.adapter_sides if adapter.computes_pair else 0.0


def _handed_over(work: Workload) -> float:
    """The canary and what is handed over beside it; transformers takes the trainer's own factors."""
    if not work.has_vllm:
        return 0.0
    rank = work.config.adapter.pair_rank or CANARY_RANK
    return float(hand_over_bytes(rank, work.adapter_sides, work.dtype_bytes, merges=work.merges))


def _targeted(work: Workload) -> float:
    """Bytes of the weights that the adapter changes, in the base's type."""
    chosen = work.shape.targets(work.config.adapter)
    return float(work.dtype_bytes * sum(linear.count * linear.n_in * linear.n_out for linear in chosen))


def _sleep_level(work: Workload) -> str | int | None:
    if not work.has_vllm:
        return None
    wanted = getattr(work.config.engine, "sleep", "auto")
    if wanted != "auto":
        return wanted
    return "kv" if _engine_bytes(work) <= KV_SLEEP_FRACTION * work.device.memory_gb * GB else 2


def _micro_batch(work: Workload, left: float) -> int:
    """Tokens of a micro-batch: as configured, or what fits into `left` bytes; a single row in any case."""
    config = work.config
    tokens = config.optim.tokens_per_microbatch
    if tokens is None:
        tokens = micro_batch_tokens(
            work.shape,
            dtype_bytes=work.dtype_bytes,
            room_bytes=None if work.device.is_cpu else max(left, 0.0),
            checkpointing=work.checkpoints_activations,
            adapter=config.adapter,
            length=work.training_row,
        )
        if work.device.is_cpu:
            return tokens
    return max(tokens, work.training_row)


def concurrency(work: Workload, cache: float, limit: float) -> float:
    """Completions of at most `limit` tokens that decode together in `cache` bytes, at their mean length and with half a block
    unfilled."""
    tokens = work.prompt + LENGTH_FRACTION * limit + TWO_BLOCKS_TOKENS / 4
    if not work.has_vllm:  # room is set aside for each at its longest
        tokens = work.prompt + limit
    per_row = work.shape.row_bytes(tokens, work.dtype_bytes)
    evaluated = work.config.evaluation.problems * work.config.evaluation.samples
    most = max_rows(work.config) if work.has_vllm else max(work.rows, evaluated)
    return max(1.0, min(cache / per_row, most))


def _activations(work: Workload, tokens: float) -> float:
    adapter = work.config.adapter
    return tokens * token_bytes(
        work.shape, adapter, work.dtype_bytes, work.training_row, checkpointing=work.checkpoints_activations
    )


def _wanted_cache(work: Workload) -> float:
    """Keys and values that the batch can use at its longest, or that the configuration asks for."""
    config = work.config
    return max_rows(config) * min_cache(work) if config.engine.max_kv_gb is None else config.engine.max_kv_gb * GB


def _cache(work: Workload, left: float) -> float:
    """Keys and values, as far as there is room."""
    wanted = _wanted_cache(work)
    if work.config.engine.max_kv_gb is not None:
        return wanted
    if work.device.is_cpu:
        return min(wanted, CPU_CACHE_BYTES)
    if not work.has_vllm:
        wanted = min(wanted, (left + LIBRARY_BYTES) / 3)  # they are not loaded when that engine looks what is free
    return max(min(wanted, left), min_cache(work))
