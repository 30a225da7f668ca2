"""Seconds by part, from a roofline: each part is bound by memory traffic, by arithmetic, or by the overhead of an operation.

The efficiencies below are stated, not measured by us on any GPU; on a CPU two runs of ours fix them (see `CPU_*`). Where a
device has a calibration, sampling and update are multiplied by what was measured there. The one
anchor for a GPU is not ours either: the micro paper's 24 hours on an A40 were under 300 steps, with code and a batch of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from microrl.config.adapters import FullConfig, LowRankConfig
from microrl.limits import cpu_threads
from microrl.plan import memory, starts
from microrl.plan.calibration import Point
from microrl.plan.devices import CPU_CORE_TFLOPS
from microrl.plan.memory import Memory
from microrl.plan.workload import LENGTH_FRACTION, LONGEST_FRACTION, Workload

# Shares of the data sheet's numbers that such kernels reach in practice.
DECODE_BANDWIDTH = 0.65
"""Weights and cache read by a decode step; vLLM's kernels on one card are reported at 0.6 to 0.8."""
DECODE_ARITHMETIC = 0.5
UPDATE_ARITHMETIC = 0.5
"""Products of a few thousand tokens in 16 bits, padding (some 5 %) included."""
FP32_ARITHMETIC = 0.6
"""Products outside the tensor cores: of adapters that PEFT computes in float32."""
STREAM_BANDWIDTH = 0.7
"""Element by element operations."""
DECODE_STEP_S = 2e-3
"""vLLM's own work for each token of a batch: scheduling, sampling, log-probabilities."""
EAGER_LAYER_S = 0.4e-3
"""What launching a layer's kernels one by one costs (no CUDA graphs)."""
HF_DECODE_LAYER_S = 1.0e-3
"""The same for transformers' decode step with its adapters beside the weights."""
UPDATE_LAYER_S = 3e-3
"""Launching a layer's kernels of a micro-batch, forward and backward."""
TOUCHES = 3
"""How often each saved activation is written or read in a pass forward and backward, by adapters that PEFT computes."""
MASTER_TOUCHES = 2 * 6 + 6
"""Bytes a trained parameter for each micro-batch on a 16-bit base: the float32 masters are rounded, forward and backward, and
their gradients widened. (Models whose prompts and completions are two passes move twice as much.)"""
LOGIT_TOUCHES = 10
"""Passes over a chunk of fp32 logits: scaling, log-softmax, entropy, slopes."""
PROBE_S = 0.3
"""Handing the adapter over and scoring the probe on both sides."""
HOST_FLOPS = 0.2e12
"""float32 operations a second of a GPU's host: four cores."""
HOST_BYTES_S = 15e9
"""Between host and card."""
DISK_BYTES_S = 1e9
IMPORTS_S = 20.0
"""Python, torch, transformers, the data, and vLLM's imports."""
VLLM_START_S = 60.0
"""Starting vLLM: compiling (cached from the second time on), CUDA graphs, the canary of the swap's proof."""
VERIFY_S = 2e-3
"""A completion's check. The checks run while others still decode: only the last group's count."""
SAVE_S = 0.2

# On a CPU. Fixed by the quickstart (1 core, 2 layers of 128: 0.08 s sampling, 0.13 s update a step), and not far off for the
# README's step of SmolLM2-135M (2 cores, 30 layers of 576).
CPU_DECODE = 0.9
"""Of the update's rate, for products with the few rows of a decode step."""
CPU_HALF_WIDTH = 80
"""Hidden size at which products reach half of a core's rate: small ones pay for their packing."""
CPU_DECODE_LAYER_S = 0.35e-3
CPU_UPDATE_LAYER_S = 10e-3
CPU_IMPORTS_S = 7.0
CPU_EVALUATION_S = 0.5


@dataclass(frozen=True, slots=True)
class Rates:
    """What this run gets out of its card: operations a second in base and adapters, bytes a second."""

    decode: float
    update: float
    fp32: float
    stream: float
    decode_bytes: float

    @classmethod
    def of(cls, work: Workload) -> Rates:
        device, flops = work.device, work.device.tflops * 1e12
        if device.is_cpu:
            rate = _cpu_flops(work) * work.shape.hidden / (work.shape.hidden + CPU_HALF_WIDTH)
            bytes_s = device.bandwidth_gb_s * 1e9
            return cls(rate * CPU_DECODE, rate, rate, bytes_s, bytes_s)
        bytes_s = device.bandwidth_gb_s * 1e9
        if work.dtype_bytes == 4:
            flops = device.fp32
        return cls(
            flops * DECODE_ARITHMETIC, flops * UPDATE_ARITHMETIC, device.fp32 * FP32_ARITHMETIC, bytes_s * STREAM_BANDWIDTH,
            bytes_s * DECODE_BANDWIDTH,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Update:
    """Seconds of an update by what takes them. What a GPU does one kernel after the other does not overlap: they add up."""

    parts: dict[str, float]
    elementwise_bytes: float
    """Moved by everything that is not a matrix product, log-probabilities and optimizer apart; 0 on a CPU, whose measured rates
    contain it."""
    flops: float
    """Operations of its matrix products."""

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds."""

    step: dict[str, float]
    update: Update
    load: float
    evaluation: float
    validation: float
    save: float


def estimate_time(work: Workload, sizes: Memory) -> Timing:
    """All parts of a run on this card."""
    rates, config = Rates.of(work), work.config
    sync, adapter_bytes = _sync(work, rates)
    verify = config.sampling.group_size * VERIFY_S
    generate = sum(_decode_some(work, rates, sizes, rows, work.limit, adapter_bytes) for rows in work.rounds)
    update, decode = _update(work, rates, sizes), 1.0
    if (calibration := work.device.calibration) is not None:
        point = calibration.nearest(work.shape.parameters)
        update = replace(update, parts={name: seconds * point.update for name, seconds in update.parts.items()})
        decode = decode_factor(work, point, merges=not adapter_bytes)
    step = {"sync": sync, "generate": decode * generate, "verify": verify * len(work.rounds), "update": update.seconds}
    if config.loss.beta > 0:
        step["reference"] = _forward(work, rates, work.rows)
    if sleep_wake := _sleep_wake(work, sizes):
        step["sleep_wake"] = sleep_wake
    sides = sync + step.get("sleep_wake", 0.0)

    def evaluate(rows: int, limit: int) -> float:
        if rows == 0:
            return 0.0
        sampling = decode * _decode_some(work, rates, sizes, rows, limit, adapter_bytes)
        return sides + sampling + (CPU_EVALUATION_S if work.device.is_cpu else 1.0)

    return Timing(
        step=step,
        update=update,
        load=_load(work),
        evaluation=evaluate(config.evaluation.problems * config.evaluation.samples, work.evaluation_limit),
        validation=evaluate(config.validation.problems * config.validation.samples, work.evaluation_limit),
        save=SAVE_S + 12 * work.trained / DISK_BYTES_S,
    )


def decode_factor(work: Workload, point: Point, *, merges: bool) -> float:
    """Measured seconds of sampling divided by the roofline's; of the other mode where this one was not measured."""
    kind = "merge" if merges else "swap"
    return point.decode.get(kind if work.has_vllm else "shared", next(iter(point.decode.values())))


def fixed_work(work: Workload, sizes: Memory, *, tokens: int, merges: bool) -> tuple[float, Update]:
    """(seconds of sampling, the update) for the workload's rows if every completion has exactly `tokens` tokens, half its limit.

    What a measurement of the same work is divided by (see `calibration.Point`); the device's own calibration is left out.
    """
    rates = Rates.of(work)
    adapter_bytes = 0.0 if merges else float(work.config.adapter.pair_rank or 0) * work.adapter_sides * work.dtype_bytes
    decode = _decode(work, rates, sizes, work.rows, tokens, tokens, adapter_bytes if work.has_vllm else 0.0)
    return decode, _update(work, rates, sizes)


def _decode_some(work: Workload, rates: Rates, sizes: Memory, rows: float, limit: int, adapter_bytes: float) -> float:
    """Sampling `rows` completions of the assumed lengths."""
    return _decode(work, rates, sizes, rows, LENGTH_FRACTION * limit, LONGEST_FRACTION * limit, adapter_bytes)


def _decode(work: Workload, rates: Rates, sizes: Memory, rows: float, mean: float, longest: float, adapter_bytes: float) -> float:
    """Sampling `rows` completions. Each token of a batch reads the weights once and every row's keys and values."""
    shape = work.shape
    tokens = rows * mean
    crowd = max(rows / sizes.concurrency, 1.0)
    # vLLM fills a place as soon as it is free; the other engine decodes wave after wave, each to its longest.
    steps = longest + mean * (crowd - 1) if work.has_vllm else longest * crowd
    computing = shape.body + shape.head
    reading = steps * (computing * work.dtype_bytes + adapter_bytes) / rates.decode_bytes
    arithmetic = 2 * computing * tokens / rates.decode
    if not work.has_vllm and work.dtype_bytes < 4:
        arithmetic += 2 * work.shape.products(work.config.adapter) * tokens / rates.fp32
    cache = tokens * (work.prompt + mean / 2) * shape.kv_bytes(work.dtype_bytes) / rates.decode_bytes
    prefill = 2 * shape.body * (rows / work.config.sampling.group_size) * work.prompt / rates.update
    return max(reading, arithmetic) + cache + prefill + steps * _decode_step(work)


def _decode_step(work: Workload) -> float:
    """Seconds of overhead for each token of a batch."""
    if work.device.is_cpu:
        return work.shape.layers * CPU_DECODE_LAYER_S
    if not work.has_vllm:
        return work.shape.layers * HF_DECODE_LAYER_S
    has_graphs = getattr(work.config.engine, "cuda_graphs", True)
    return DECODE_STEP_S + (0.0 if has_graphs else work.shape.layers * EAGER_LAYER_S)


def _update(work: Workload, rates: Rates, sizes: Memory) -> Update:
    """Forward and backward of a frozen base: 2 + 2 operations a parameter and token, 2 + 4 in the adapter.

    The head's forward works out logits and slopes, 2 + 2, for completion tokens only. Checkpointing adds a forward pass,
    and then prompts are read again for each row instead of once for their group.
    """
    again, on_cpu, adapter = work.checkpoints_activations, work.device.is_cpu, work.config.adapter
    completion, tokens = _tokens(work)
    full = isinstance(adapter, FullConfig)  # gradients of the weights, too
    base = (4 + 2 * again + 2 * full) * work.shape.body * tokens + (4.5 if again else 3.5) * _attention(work) * tokens
    head = 4 * work.shape.head * completion
    products = (8 if again else 6) * _products(work, sizes.micro_batch_tokens) * tokens
    passes = max(tokens / sizes.micro_batch_tokens, work.minibatches, 1.0)
    elementwise = 0.0 if on_cpu else _elementwise_bytes(work, passes) * (1.5 if again else 1)
    # On a CPU the rates, which are measured, contain them.
    logits = 0.0 if on_cpu else completion * work.shape.vocab * 4 * LOGIT_TOUCHES
    optimizer = 0.0 if on_cpu else 2 * memory.BYTES_A_TRAINED_PARAMETER * work.trained
    parts = {
        "base products": (base + head) / rates.update,
        "adapter products": products / (rates.update if adapter.is_one_product else rates.fp32),
        "elementwise": elementwise / rates.stream,
        "log-probabilities": logits / rates.stream,
        "optimizer": optimizer / rates.stream,
        "launches": passes * work.shape.layers * (CPU_UPDATE_LAYER_S if on_cpu else UPDATE_LAYER_S),
    }
    if work.minibatches > 1:
        parts["log-probabilities before"] = _forward(work, rates, work.rows)
    return Update({name: seconds for name, seconds in parts.items() if seconds}, elementwise, base + head + products)


def _products(work: Workload, micro_batch_tokens: float) -> float:
    """Elements of the factors that a token is multiplied with beside the base's weights, three times in an update.

    A pair that is merged takes instead the products for its gradients alone: two of these three, or one with the size of the
    weights.
    """
    adapter, shape = work.config.adapter, work.shape
    if work.dtype_bytes < 4 or not isinstance(adapter, LowRankConfig):
        return shape.products(adapter)
    elements = 0.0
    for linear in shape.targets(adapter):
        pair = adapter.extra_rank * (linear.n_in + linear.n_out)
        merged = min(2 * pair, linear.n_in * linear.n_out) / 3
        elements += merged if memory.is_merged(linear, adapter, micro_batch_tokens) else pair
    return shape.layers * elements


def elementwise_bytes_per_token(work: Workload) -> float:
    """Bytes that a layer's elementwise operations move for one token, forward and backward, the adapter's as one product.

    Fitted to counts, op by op, of Qwen2 and Qwen3 networks of several shapes in bfloat16 and float32 (`tests/traffic.py`): they
    are linear in the widths. The norms compute in float32 whatever the type.
    """
    shape, width = work.shape, work.dtype_bytes
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    norms = shape.norms_a_layer // shape.hidden * shape.hidden
    if shape.norms_a_layer % shape.hidden:  # norms of queries and keys, whose gains the heads share
        norms += queries + keys
    return (140 - 7.5 * width) * norms + width * (20 * shape.hidden + 14 * shape.intermediate + 33 * queries + 45 * keys)


def _elementwise_bytes(work: Workload, passes: float) -> float:
    """Of an update. Adapters that PEFT computes in float32 move what they keep several times over, instead."""
    _, tokens = _tokens(work)
    adapter = work.config.adapter
    if adapter.is_one_product:
        masters = MASTER_TOUCHES * work.trained * passes if work.dtype_bytes < 4 else 0.0
        return work.shape.layers * elementwise_bytes_per_token(work) * tokens + masters
    saved = memory.saved_bytes(adapter, work.shape, dtype_bytes=work.dtype_bytes, length=work.training_row)
    return TOUCHES * work.shape.layers * saved * tokens


def _forward(work: Workload, rates: Rates, rows: float) -> float:
    """A pass without a gradient over the batch: the reference, or the log-probabilities before several optimizer steps."""
    completion, tokens = _tokens(work)
    work_ops = 2 * work.shape.body * tokens + _attention(work) * tokens + 2 * work.shape.head * completion
    logits = 0.0 if work.device.is_cpu else completion * work.shape.vocab * 4 * LOGIT_TOUCHES / 2
    return work_ops / rates.update + logits / rates.stream


def _tokens(work: Workload) -> tuple[float, float]:
    """(completion tokens, all tokens) of an update: prompts count once for their group, with checkpointing once a row."""
    completion = work.rows * LENGTH_FRACTION * work.limit
    prompts = work.rows if work.checkpoints_activations else work.config.sampling.prompts_per_step
    return completion, completion + prompts * work.prompt


def _attention(work: Workload) -> float:
    """Operations of one token's scores and sums, forward."""
    context = work.prompt + LENGTH_FRACTION * work.limit / 2
    return 4 * work.shape.layers * work.shape.heads * work.shape.head_dim * context


def _sync(work: Workload, rates: Rates) -> tuple[float, float]:
    """(seconds a step, bytes that the adapter adds to each decode step). `auto` takes the cheaper of swap and merge."""
    rank = work.config.adapter.pair_rank or work.config.adapter.extra_rank
    if not work.has_vllm:
        # In fp32 the update is folded into copies of the weights; beside narrower ones it runs as it is.
        return (2 * work.shape.body * rank / rates.update if work.dtype_bytes == 4 else 0.0), 0.0
    swap_bytes = rank * work.adapter_sides * work.dtype_bytes
    swap_s = swap_bytes * LONGEST_FRACTION * work.limit / rates.decode_bytes
    merge_s = 2 * work.shape.body * rank / rates.fp32 + 5 * work.weight_bytes / rates.stream
    if work.merges or (work.config.engine.sync == "auto" and merge_s < swap_s):
        return PROBE_S + merge_s, 0.0
    return PROBE_S, float(swap_bytes)


def _sleep_wake(work: Workload, sizes: Memory) -> float:
    """Giving the engine's memory away and taking it back: pages are mapped, and dropped weights pushed again."""
    if sizes.sleep is None or sizes.sleep == "off":
        return 0.0
    moved = {"kv": 0.0, 1: 2 * work.weight_bytes / HOST_BYTES_S, 2: 4 * work.weight_bytes / (work.device.bandwidth_gb_s * 1e9)}
    return 0.4 + moved[sizes.sleep]


def start_s(work: Workload) -> float:
    """Seconds of computing where the adapter begins, a part of loading; the singular vectors are kept in the cache."""
    host = _cpu_flops(work) if work.device.is_cpu else HOST_FLOPS
    return starts.seconds(work.config.adapter, work.shape, work.device, work.dtype_bytes, cpu_flops=host)


def _cpu_flops(work: Workload) -> float:
    """float32 operations a second. The second core that a small model has in updates is not counted: it saves a fifth of one."""
    cores = round(work.device.tflops / CPU_CORE_TFLOPS)
    return cpu_threads(work.shape.parameters, cores, updating=False) * CPU_CORE_TFLOPS * 1e12


def _load(work: Workload) -> float:
    reading = work.weight_bytes / DISK_BYTES_S + start_s(work)
    if work.device.is_cpu:
        return CPU_IMPORTS_S + reading
    calibration = work.device.calibration
    start = calibration.start_s if calibration is not None and calibration.start_s is not None else VLLM_START_S
    return IMPORTS_S + reading + (start if work.has_vllm else 0.0)
