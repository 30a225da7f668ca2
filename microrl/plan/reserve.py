"""What vLLM takes of a GPU beside its weights and its KV cache, by part, from what it is built for. Bytes.

Counted in the source of vLLM 0.32.0 (file:line in the docstrings below) and from published logs: not measured on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from microrl.config import RunConfig
from microrl.config.adapter import Linear
from microrl.config.engine_rules import sync_mode
from microrl.limits import BATCHED_TOKENS, MAX_SEQUENCES, TWO_BLOCKS_TOKENS, buffer_rank
from microrl.plan.shapes import Shape
from microrl.plan.workload import LENGTH_FRACTION, mean_prompt

MIB = 2**20
CONTEXT_BYTES = 426 * MIB
"""CUDA's context, with torch 2.10 and CUDA 13.0 on an RTX 6000 Ada (unslothai/unsloth-zoo#1053)."""
LIBRARY_BYTES = (338 + 150) * MIB
"""What is loaded and allocated outside torch once kernels run: 0.16 to 0.33 GiB in vLLM's logs (vllm#12126, #15039, #14452). And
what vLLM itself leaves free, since its own profiling may count too little (v1/worker/gpu_worker.py:991)."""
LIBRARIES = "CUDA and libraries"
KERNEL_BYTES = 40 * 1024
"""A kernel in a captured graph. Llama-3.2-1B: 35 graphs of 16 layers took 0.21 GiB (vllm#11349), 39 KiB for each of 10 kernels.
That may be too much: of Qwen3-8B's 36 layers vLLM puts 51 graphs in pieces and 35 whole ones at 0.52 GiB (LMCache#3430); the
whole ones alone would be 0.48."""
LAYER_KERNELS, ADAPTER_KERNELS = 10, 3
"""Kernels of a decoder layer: two norms, four products, rotary embedding, cache, attention, activation. Of an adapter on one of
the four products: fill, shrink, expand. With adapters on all of them that is 2.2 times as many; vllm#25914 measured 1.62 GiB of
graphs with adapters, and 0.76 more for as many without."""
SAMPLER_WORDS = 3 * 1024 + 128 + 1024 + 129 + 128
"""4-byte words that the sampler keeps for a completion besides its vocabulary: allowed tokens and biases
(v1/worker/gpu/sample/logit_bias.py:33), stop tokens, forbidden words (bad_words.py:30), chosen tokens (logprob.py:247)."""
TOKEN_BYTES, ADAPTER_TOKEN_BYTES = 4 + 8 + 1 + 8, 4 * 8 + 4 * 4
"""Kept for every token of the largest batch: ids, positions, padding, slots (v1/worker/gpu/input_batch.py:25, block_table.py:78);
with adapters, their indices (lora/punica_wrapper/punica_base.py:133, lora/ops/triton_ops/lora_kernel_metadata.py:54)."""
BLOCK_TOKENS = 16
MULTIPROCESSORS = 170
"""The most of any card in `devices`, an RTX 5090's: top-p keeps a row of float32 logits for each
(v1/sample/ops/topk_topp_triton.py:1679)."""
ROUNDING = 5 * MIB
"""Of a layer, by the pools that can sleep: 1 MiB on average for each of its four weights and its cache, in units of 2 MiB."""
FLASHINFER_BYTES = 394 * MIB
"""Of FlashInfer, vLLM's attention on compute capability 10 (platforms/cuda.py:158, v1/attention/backends/flashinfer.py:1107)."""
SPLITS = 32
"""Parts into which FlashAttention 3 cuts a decode step's attention in a graph, on capability 9 (config/attention.py:61)."""
SCORED_TOKENS = 128
"""The probe's: their logits are computed at once."""
FRAGMENTS = 0.1
"""What allocations of changing sizes leave unusable between them."""

QKV, GATE_UP = {"q_proj", "k_proj", "v_proj"}, {"gate_proj", "up_proj"}


@dataclass(frozen=True, slots=True)
class Served:
    """What vLLM is built for, as far as its memory goes."""

    shape: Shape
    dtype_bytes: int
    head_bytes: int
    """Of a logit: 4 with a float32 head."""
    rows: int
    """Completions that it decodes at a time at most."""
    length: int
    """Tokens of the longest sequence."""
    row_bytes: float
    """Keys and values of a completion at its mean length, with half a block unfilled."""
    rank: int
    """Of the adapter's buffers; 0: weights are merged."""
    wrapped: int
    """Products of a decoder layer that have an adapter: queries, keys and values are one, and so are gate and up."""
    loads_weights: bool
    """Whether merged weights may go into it while its cache is there."""
    has_graphs: bool
    capability: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Reserve:
    """Bytes by part, and the numbers of rows that graphs are captured for."""

    stays: dict[str, float]
    """Through the update too."""
    passes: dict[str, float]
    """Only while the engine is awake."""
    capture_sizes: tuple[int, ...]

    @property
    def parts(self) -> dict[str, float]:
        return self.stays | self.passes


def served(config: RunConfig, shape: Shape, dtype_bytes: int, length: int, capability: tuple[int, int]) -> Served:
    """What a run's engine is built for, if that is vLLM on a GPU of this capability; `length` is its longest sequence."""
    sync, pair_rank = sync_mode(config, capability), config.adapter.pair_rank
    rank = 0 if sync == "merge" or pair_rank is None else buffer_rank(pair_rank)
    tokens = mean_prompt(config) + LENGTH_FRACTION * config.sampling.max_completion_tokens + TWO_BLOCKS_TOKENS / 4
    return Served(
        shape=shape,
        dtype_bytes=dtype_bytes,
        head_bytes=4 if config.model.head_dtype == "float32" else dtype_bytes,
        rows=max_rows(config),
        length=length,
        row_bytes=shape.row_bytes(tokens, dtype_bytes),
        rank=rank,
        wrapped=_products(shape.targets(config.adapter)) if rank else 0,
        loads_weights=sync != "swap",
        has_graphs=getattr(config.engine, "cuda_graphs", False),
        capability=capability,
    )


def max_rows(config: RunConfig) -> int:
    """Completions that vLLM is built to decode at a time."""
    rows = config.sampling.prompts_per_step * config.sampling.group_size
    return min(max(rows, config.evaluation.samples), MAX_SEQUENCES)


def capture_sizes(rows: int) -> tuple[int, ...]:
    """Numbers of rows that a graph is captured for; a decode step takes the next larger one.

    vLLM's own are multiples of 8 to 256 and of 16 above, 51 up to 512. These are 21: where a batch is small, most of a step is
    reading weights, and where it is large, matrix products come in tiles of 64 or 128 rows, so that filling up costs little.
    """
    sizes = [1, 2, 4, *range(8, 32, 8), *range(32, 128, 16), *range(128, 256, 32), *range(256, rows, 64)]
    return (*(size for size in sizes if size < rows), rows)


def reserve(built: Served, room: float, wanted: float) -> Reserve:
    """What to leave to vLLM of `room` bytes that are free for it and its cache, of which the batch can use `wanted`.

    Graphs are captured for no more rows than the cache then holds at their mean length: rows beyond that are only there while
    all are short, and so many hide what launching kernels costs.
    """
    stays = {LIBRARIES: float(LIBRARY_BYTES), "vLLM's buffers": _buffers(built)}
    passes = {"vLLM's largest batch": (1 + FRAGMENTS) * _largest_batch(built)}
    if not built.has_graphs:
        return Reserve(stays, passes, ())
    cache = min(room - sum(stays.values()) - sum(passes.values()), wanted)
    sizes = capture_sizes(max(1, min(built.rows, math.ceil(cache / built.row_bytes))))
    return Reserve({"CUDA graphs": _graphs(built, sizes), **stays}, passes, sizes)


def _products(linears: Iterable[Linear]) -> int:
    kinds = {linear.kind for linear in linears}
    return len(kinds - QKV - GATE_UP) + bool(kinds & QKV) + bool(kinds & GATE_UP)


def _graphs(built: Served, sizes: tuple[int, ...]) -> float:
    """Each size once and, with adapters, once more with them (v1/worker/gpu/lora_utils.py:20: no setting makes it one), and the
    memory that all share: activations of the largest, its output, and what FlashAttention 3 adds up."""
    kernels = 2 * LAYER_KERNELS + ADAPTER_KERNELS * built.wrapped if built.rank else LAYER_KERNELS
    shape, largest = built.shape, sizes[-1]
    splits = SPLITS * shape.heads * (shape.head_dim + 1) * 4 if built.capability[0] == 9 else 0
    shared = largest * (_activations(built) + shape.hidden * built.dtype_bytes + splits)
    return float(len(sizes) * shape.layers * kernels * KERNEL_BYTES + shared)


def _buffers(built: Served) -> float:
    """What vLLM allocates once. Counted as if it stayed through the update, although at sleep levels 1 and 2 the sampler's part
    is freed with the weights."""
    top_p = 4 * built.shape.vocab * min(2 ** math.ceil(math.log2(built.rows)), MULTIPROCESSORS)
    return float(runner_bytes(built) + top_p + built.shape.layers * ROUNDING + _attention_workspace(built))


def runner_bytes(built: Served) -> int:
    """The buffers of vLLM's model runner ("V2", v1/worker/gpu).

    For each row and token of the vocabulary the count that penalties need (sample/penalties.py:45), although nothing here asks
    for penalties, and two bits, of the prompt (line 40) and of a grammar (structured_outputs.py:87). Token ids are in the host's
    memory (states.py:37).
    """
    vocab, blocks = built.shape.vocab, -(-built.length // BLOCK_TOKENS)
    row = 4 * vocab + 2 * 4 * -(-vocab // 32) + 4 * SAMPLER_WORDS + 2 * 4 * blocks
    return built.rows * row + BATCHED_TOKENS * (TOKEN_BYTES + (ADAPTER_TOKEN_BYTES if built.rank else 0))


def _attention_workspace(built: Served) -> float:
    if built.capability[0] != 10:
        return 0.0
    return float(max(FLASHINFER_BYTES, BATCHED_TOKENS * built.shape.heads * built.shape.head_dim * 16))


def _activations(built: Served) -> int:
    """Bytes of one token at the peak of a compiled layer: the residual beside the gated MLP's two inputs and their product; or
    beside its own input, the two, and the adapter's float32 products (lora/punica_wrapper/punica_gpu.py:251)."""
    hidden, inner = built.shape.hidden, built.shape.intermediate
    return max((hidden + 3 * inner) * built.dtype_bytes, (2 * hidden + 2 * inner) * built.dtype_bytes + 2 * built.rank * 4)


def _largest_batch(built: Served) -> float:
    """The most that a step allocates and gives back: a full batch of prompts; the logits of all rows, with the float32 copy that
    a temperature or top-p makes (v1/worker/gpu/sample/sampler.py:242), or those of the probe; or, where weights are
    merged, a second copy of the largest of them, the embeddings (model_executor/model_loader/reload/layerwise.py:354)."""
    shape = built.shape
    logits = max(built.rows * (built.head_bytes + 4), SCORED_TOKENS * built.head_bytes) * shape.vocab
    hidden = BATCHED_TOKENS * shape.hidden * built.dtype_bytes
    embedding = shape.head * built.dtype_bytes if built.loads_weights else 0
    return float(max(BATCHED_TOKENS * _activations(built), hidden + logits, embedding))
