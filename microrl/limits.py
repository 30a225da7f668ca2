"""Constants and rules that the estimate (`microrl plan`) and the runtime share, each in one place so that they cannot drift."""

from __future__ import annotations

import math
import os

GB = 1e9
"""Bytes."""

QUESTIONS_A_STEP = 16
"""An evaluation may have as many hanging checks as a training step for each so many questions."""

# ---- the clock

BEFORE_FRACTION = 0.3
"""At most this much of what is left after loading goes to the evaluation before training."""
SCREENING_FRACTION = 0.5
"""At most this much of the time for training goes to the first pass over the questions, whatever was asked for."""
TRIAL_EVALUATION = 2.0
"""A sweep's trial reserves this many times what the base's evaluation took: trained models often answer at greater length."""
VALIDATIONS = 20
"""A run validates no more often than this, however cheap it is."""
CHECKPOINTS = 20
"""A run writes about this many checkpoints; more where they would be further apart than CHECKPOINT_MINUTES."""
CHECKPOINT_MINUTES = 15.0
SAVING_FRACTION = 0.02
"""At most this much of the time goes to checkpoints."""
MIN_EVALUATION = 0.25
"""A step that would leave the final evaluation less than this fraction of its time is abandoned."""


def checkpoint_interval_s(hours: float | None, save_s: float) -> float:
    """Seconds between two checkpoints: what follows from the budget, and from the seconds that one takes."""
    longest_s = CHECKPOINT_MINUTES * 60
    derived_s = longest_s if hours is None else min(hours * 3600 / CHECKPOINTS, longest_s)
    return max(derived_s, save_s / SAVING_FRACTION)


def exit_reserve_s(hours: float | None) -> float:
    """Seconds kept back for closing the engine and leaving the process: 0.7 s and half a per cent of the hours, at most 10 s."""
    return 0.7 + min(0.005 * (hours or 0.0) * 3600, 9.3)


# ---- the size of a step

SCORED = 8
"""One completion in so many tells how far a step has moved the policy, by a pass before it and one after."""
FIRST, EVERY = 8, 4
"""With `optim.step_kl`, each of the first steps is measured, and later one in so many: measuring all of them would take a fifth
of a step's time on the tiny model, where small operations cost as much as large ones."""
SHRUNK_ABOVE, MAX_SHRINKS = 30, 3
"""With `optim.step_kl`, a step that has moved the policy so many times as far as it should is taken back in part, and so often at
most. After SFT, SmolLM2's first step at the automatic rate was 10,000 times too large: nothing was right any more."""
ABOVE_ROUNDING = 0.03
"""Nats per token: far above what rounding to 16 bits makes of any change of the weights, however small. On SmolLM2 in bfloat16
that is 1e-3 to 2e-3."""
FIXED = 4
"""With a fixed rate, the first step is measured, and then always one that is so many times as late: 1, 4, 16 and so on. That
takes a hundredth of the tiny model's run of 4 steps, and half of that of its run of 100."""

# ---- memory and types

KV_SLEEP_FRACTION = 0.15
"""`engine.sleep=auto` keeps the engine's weights on the GPU during sleep if they take at most this fraction of its memory."""
TWO_BLOCKS_TOKENS = 256
"""Two blocks of the KV cache, which a completion may leave unfilled: vLLM's have 16 tokens on a GPU, 128 on a CPU."""
CANARY_RANK = 8
"""Rank of the sync check's test adapter, where the run's own adapter is not a LoRA pair."""
GPU_CHUNK_ELEMENTS = 2**26
"""Logits of one chunk of the log-probabilities on a GPU: 268 MB in float32, 441 tokens of Qwen's vocabulary. Each chunk reads the
whole head once more. Calculated: not measured on a GPU."""
CPU_CHUNK_ROWS, CPU_BLOCK_ELEMENTS = 256, 2**20
"""The same on a CPU. A chunk has at least 256 tokens, because with fewer, reading the head takes longer than the arithmetic, and
at least 2**20 logits (4 MB), about what a processor's caches hold. Purely elementwise operations go in blocks of 2**20."""
CPU_CACHE_BYTES, CPU_ROWS = 4e9, 2048
"""Largest KV cache on a CPU, in bytes, and most completions that are decoded at once there: more only take memory. For 10,000
completions of the quickstart's model, 2,048 at once took as long as all of them (11 s), and 512 took 1.2 times as long."""
CPU_PACKED_MIN, CPU_PACKED_MAX = 2**16, 2**25
"""Elements of the smallest weight that is prepacked on a CPU, as a call with such a weight takes at least 20 microseconds, and of
the largest, whose two copies take 270 MB."""
SPINS_BEFORE_SLEEP = "6000"
"""`GOMP_SPINCOUNT` of a run: how often one of OpenMP's threads looks for work before it sleeps."""
NF4_BYTES = 0.5 + 4 / 64
"""A weight in 4 bits, with one float32 for each 64."""
MIN_BF16 = (8, 0)
"""The first compute capability with bfloat16; below it torch emulates it, and vLLM refuses it."""


def auto_dtype(capability: tuple[int, int] | None) -> str:
    """What `model.dtype=auto` is on a GPU of this compute capability; None: on a CPU."""
    if capability is None:
        return "float32"
    return "bfloat16" if capability >= MIN_BF16 else "float16"


MIN_FLASH = (8, 0)
"""The first compute capability with torch's FlashAttention, the one kernel that takes grouped queries and stores no scores."""


def shares_keys(dtype_bytes: int, capability: tuple[int, int]) -> bool:
    """Whether a GPU's attention reads a key once for all query heads that share it; else it is repeated for each of them."""
    return dtype_bytes == 2 and capability >= MIN_FLASH


def chunk_elements(vocab: int, *, on_cpu: bool) -> int:
    """Logits of one chunk of the log-probabilities, in whole tokens or not."""
    return max(CPU_CHUNK_ROWS * vocab, CPU_BLOCK_ELEMENTS) if on_cpu else GPU_CHUNK_ELEMENTS


def merging_takes_less(rows: float, inputs: int, outputs: int, rank: int) -> bool:
    """Whether a LoRA pair that is merged into its weights for a product and its gradients takes fewer multiplications.

    Both ways have two products of rows x outputs x inputs. Beside them the merged one has two merges and the gradients of A and
    B; the other one three products of the rank with A's side, three with B's.
    """
    gradients = min(_gradients_by_pair(rows, inputs, outputs, rank), _gradients_by_weights(rows, inputs, outputs, rank))
    return 2 * rank * inputs * outputs + gradients < 3 * rows * rank * (inputs + outputs)


def gradients_take_less_by_weights(rows: float, inputs: int, outputs: int, rank: int) -> bool:
    """Whether the gradients of A and B take fewer multiplications by way of the gradient of the weights."""
    return _gradients_by_weights(rows, inputs, outputs, rank) < _gradients_by_pair(rows, inputs, outputs, rank)


def _gradients_by_pair(rows: float, inputs: int, outputs: int, rank: int) -> float:
    return 2 * rows * rank * (inputs + outputs)


def _gradients_by_weights(rows: float, inputs: int, outputs: int, rank: int) -> float:
    return (rows + 2 * rank) * inputs * outputs


# ---- the processor


def available_cores() -> int:
    """The cores that this process may use; no more than OMP_NUM_THREADS, where it is set."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        return max(1, min(cores, int(os.environ["OMP_NUM_THREADS"].split(",")[0])))
    except (KeyError, ValueError):
        return cores


CPU_SMALL_PARAMETERS = 20_000_000
"""Base models below this size use one thread, because their operations are too small to split, and two in an update, where an
operation covers thousands of tokens. With all cores, results would differ in the last bit between more machines."""


def cpu_threads(parameters: int, cores: int, *, updating: bool) -> int:
    """Threads that a base model of this size uses on a machine with so many cores.

    A fixed rule, not a timing: the number of threads can change the last bit of a result, and a run must repeat.
    """
    if parameters >= CPU_SMALL_PARAMETERS:
        return cores
    return min(2, cores) if updating else 1


# ---- vLLM

MIN_SWAP = (8, 0)
"""The first compute capability whose tensor cores Triton uses: below it vLLM's adapter kernels are slow, and `engine.sync=auto`
merges."""
MAX_SEQUENCES = 512
"""Completions that vLLM decodes at a time."""
BATCHED_TOKENS = 4096
"""Tokens of vLLM's largest batch, prompts included. Its own choice is 8,192, or 16,384 on most cards of 70 GiB or more, whose
activations take twice or four times as much memory; already 4,096 keep a card's arithmetic busy: calculated, 25 ms of it
for 1.5 billion parameters at half of an H100's rate, where launching a layer's kernels takes microseconds."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Sizes of vLLM's adapter buffers."""
MAX_SWAP_RANK = LORA_RANKS[-1]
"""vLLM's largest adapter."""


def buffer_rank(rank: int) -> int:
    """The rank of the buffers that vLLM serves an adapter of this rank from; `rank` is at most MAX_SWAP_RANK."""
    return next(size for size in LORA_RANKS if size >= rank)


# ---- DAPO's dynamic sampling

MAX_BATCHES = 10
"""A step asks at most this many times the prompts of its batch: the bound that DAPO's own recipe sets in verl. A batch is filled
where at least a tenth of the groups are mixed."""
REFILL_FRACTION = 0.9
"""At most this much of a step's sampling time goes to refilling, in a run that the clock ends."""
GROWTH = 4
"""A round asks at most this many times what the rounds before it have asked: a few groups tell their rate roughly."""


def next_round(wanted: int, kept: int, sampled: int) -> int:
    """Prompts to ask next, when `kept` of `sampled` groups were mixed and `wanted` make a batch; 0: none.

    The first round asks for the batch. Each later one asks for (m + sqrt(m (1 - p))) / p prompts, where m groups are missing
    and p = (kept + 1) / (sampled + 2) estimates the fraction of mixed ones: one standard deviation more than fills the batch on
    average, since a further round would wait for its own longest completion. No clock decides, so that this repeats.
    """
    if not sampled:
        return wanted
    missing = wanted - kept
    if missing <= 0:
        return 0
    mixed = (kept + 1) / (sampled + 2)
    asked = math.ceil((missing + math.sqrt(missing * (1 - mixed))) / mixed)
    return max(min(asked, GROWTH * sampled, MAX_BATCHES * wanted - sampled), 0)


def has_time(first_s: float, refills_s: float, next_s: float) -> bool:
    """Whether a round of `next_s` seconds leaves refilling within its fraction of the sampling time."""
    refilling_s = refills_s + next_s
    return refilling_s <= REFILL_FRACTION * (first_s + refilling_s)
