"""Seconds by part, from a roofline: each part is bound by memory traffic, by arithmetic, or by the overhead of an operation.

What a device gives in practice is in `efficiency.py`. Where it has a calibration, sampling and update are multiplied by what was
measured there; where it has none, a range goes with the seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from microrl.config.adapter import LowRankConfig
from microrl.limits import EVERY, SCORED
from microrl.plan import efficiency, memory, starts
from microrl.plan.calibration import Point
from microrl.plan.decoding import Rollout, Way, decode_s, merge, rollout, swap, ways
from microrl.plan.efficiency import Rates
from microrl.plan.layers import CHUNK
from microrl.plan.memory import Memory
from microrl.plan.workload import LENGTH_FRACTION, Workload


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
    """Seconds, with the engine served in the way that takes the least."""

    step: dict[str, float]
    update: Update
    load: float
    evaluation: float
    validation: float
    save: float
    way: Way
    modes: dict[str, float]
    """A step's seconds by each way that the run may take."""

    @property
    def step_s(self) -> float:
        return sum(self.step.values())

    def scaled(self, sampling: float, updating: float) -> Timing:
        """With sampling and update so many times as long."""
        factors = {"generate": sampling, "update": updating, "reference": updating}
        return replace(
            self,
            step={name: seconds * factors.get(name, 1.0) for name, seconds in self.step.items()},
            evaluation=self.evaluation * sampling,
            validation=self.validation * sampling,
        )


class Spread(NamedTuple):
    """Factors on the seconds, the least and the most of what is credible."""

    sampling: tuple[float, float]
    updating: tuple[float, float]

    @classmethod
    def of(cls, work: Workload) -> Spread:
        """A point where the device is calibrated."""
        if work.device.calibration is not None:
            return cls((1.0, 1.0), (1.0, 1.0))
        if work.device.is_cpu:
            return cls(efficiency.CPU_SPREAD, efficiency.CPU_SPREAD)
        return cls(efficiency.SAMPLING_SPREAD, efficiency.UPDATE_SPREAD)


def estimate_time(work: Workload, sizes: Memory) -> Timing:
    """All parts of a run on this device."""
    rates = Rates.of(work)
    timings = [_timing(work, rates, sizes, way) for way in ways(work, rates)]
    return replace(min(timings, key=lambda timing: timing.step_s), modes={timing.way.mode: timing.step_s for timing in timings})


def _timing(work: Workload, rates: Rates, sizes: Memory, way: Way) -> Timing:
    """With the weights handed over in this way."""
    config = work.config
    verify = config.sampling.group_size * efficiency.VERIFY_S
    generate = sum(decode_s(work, rates, sizes, way, rollout(work, rows, work.limit)) for rows in work.rounds)
    update, decode = _update(work, rates, sizes), 1.0
    if (calibration := work.device.calibration) is not None:
        point = calibration.nearest(work.shape.parameters)
        update = replace(update, parts={name: seconds * point.update for name, seconds in update.parts.items()})
        decode = decode_factor(point, way)
    step = {"sync": way.sync_s, "generate": decode * generate, "verify": verify * len(work.rounds), "update": update.seconds}
    if config.loss.beta > 0:
        step["reference"] = _forward(work, rates)
    if sleep_wake := _sleep_wake(work, sizes):
        step["sleep_wake"] = sleep_wake
    sides = way.sync_s + step.get("sleep_wake", 0.0)

    def evaluate(rows: int, limit: int) -> float:
        if rows == 0:
            return 0.0
        own = replace(sizes, concurrency=memory.concurrency(work, sizes.sampling.get("KV cache", 0.0), limit))
        sampling = decode * decode_s(work, rates, own, way, rollout(work, rows, limit))
        return sides + sampling + (efficiency.CPU_EVALUATION_S if work.device.is_cpu else 1.0)

    return Timing(
        step=step,
        update=update,
        load=_load(work),
        evaluation=evaluate(config.evaluation.problems * config.evaluation.samples, work.evaluation_limit),
        validation=evaluate(config.validation.problems * config.validation.samples, work.evaluation_limit),
        save=efficiency.SAVE_S + 12 * work.trained / efficiency.DISK_BYTES_S,
        way=way,
        modes={},
    )


def decode_factor(point: Point, way: Way) -> float:
    """Measured seconds of sampling divided by the roofline's; of another way where this one was not measured."""
    return point.decode.get(way.mode, next(iter(point.decode.values())))


def fixed_work(work: Workload, sizes: Memory, *, tokens: int, merges: bool) -> tuple[float, Update]:
    """(seconds of sampling, the update) for the workload's rows if every completion has exactly `tokens` tokens, half its limit.

    What a measurement of the same work is divided by (see `calibration.Point`); the device's own calibration is left out.
    """
    rates = Rates.of(work)
    way = merge(work, rates) if merges or not work.has_vllm else swap(work)
    asked = Rollout(work.rows, tokens, tokens, work.config.sampling.prompts_per_step, work.prompt)
    return decode_s(work, rates, sizes, way, asked), _update(work, rates, sizes)


def _update(work: Workload, rates: Rates, sizes: Memory) -> Update:
    """Forward and backward of a frozen base: 2 + 2 operations a parameter and token, 2 + 4 in the adapter.

    The head's forward works out logits and slopes, 2 + 2, for completion tokens only. Checkpointing adds a forward pass.
    """
    again, on_cpu, adapter = work.checkpoints_activations, work.device.is_cpu, work.config.adapter
    completion, tokens = _tokens(work)
    full = adapter.trains_weights  # gradients of the weights, too
    base = (4 + 2 * again + 2 * full) * work.shape.body * tokens + (4.5 if again else 3.5) * _attention(work) * tokens
    head = 4 * work.shape.head * completion
    products = (8 if again else 6) * _products(work, sizes.micro_batch_tokens) * tokens
    passes = max(tokens / sizes.micro_batch_tokens, work.minibatches, 1.0)
    elementwise = 0.0 if on_cpu else _elementwise_bytes(work, passes) * (1.5 if again else 1)
    # On a CPU the rates, which are measured, contain them.
    logits = 0.0 if on_cpu else completion * work.shape.vocab * 4 * efficiency.LOGIT_TOUCHES
    optimizer = 0.0 if on_cpu else 2 * memory.BYTES_A_TRAINED_PARAMETER * work.trained
    launching = work.shape.layers * (efficiency.CPU_UPDATE_LAYER_S if on_cpu else efficiency.UPDATE_LAYER_S)
    launching += work.shape.delta_layers * _mean_row(work) / CHUNK * efficiency.DELTA_CHUNK_S
    parts = {
        "base products": (base + head) / rates.update,
        "adapter products": products / (rates.update if adapter.is_one_product else rates.fp32),
        "elementwise": elementwise / rates.stream,
        "log-probabilities": logits / rates.stream,
        "optimizer": optimizer / rates.stream,
        "launches": passes * launching,
    }
    if work.teacher is not None:
        parts["teacher"] = _forward(replace(work, shape=work.teacher.shape), rates)
        if work.config.distill.top_k is not None and not on_cpu:
            parts["teacher"] += completion * work.shape.vocab * 4 * efficiency.DIVERGENCE_TOUCHES / rates.stream
    if work.minibatches > 1:
        parts["log-probabilities before"] = _forward(work, rates)
    if work.config.optim.step_kl is not None:  # of some rows, before and after, in some steps
        parts["size of the step"] = 2 * _forward(work, rates) / SCORED / EVERY
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
        elements += linear.count * (merged if adapter.is_merged(linear, micro_batch_tokens) else pair)
    return elements


def elementwise_bytes_per_token(work: Workload) -> float:
    """Bytes that a layer's elementwise operations move for one token, forward and backward, the adapter's as one product.

    Fitted to counts, op by op, of Qwen2 and Qwen3 networks of several shapes in bfloat16 and float32
    (`tests/helpers/traffic.py`): they are linear in the widths. The norms compute in float32 whatever the type.
    """
    shape, width = work.shape, work.dtype_bytes
    queries, keys = shape.queries / shape.layers, shape.keys / shape.layers
    norms: float = shape.norms_a_layer // shape.hidden * shape.hidden
    if shape.norms_a_layer % shape.hidden:  # norms of queries and keys, whose gains the heads share
        norms += queries + keys
    return (140 - 7.5 * width) * norms + width * (20 * shape.hidden + 14 * shape.intermediate + 33 * queries + 45 * keys)


def _elementwise_bytes(work: Workload, passes: float) -> float:
    """Of an update. Adapters that PEFT computes in float32 move what they keep several times over, instead."""
    _, tokens = _tokens(work)
    adapter = work.config.adapter
    mixed = 0.0 if work.shape.delta is None else work.shape.delta_layers * work.shape.delta.moved_bytes(_mean_row(work)) * tokens
    if adapter.is_one_product:
        masters = efficiency.MASTER_TOUCHES * work.trained * passes if work.dtype_bytes < 4 else 0.0
        return work.shape.layers * elementwise_bytes_per_token(work) * tokens + mixed + masters
    saved = memory.saved_bytes(adapter, work.shape, dtype_bytes=work.dtype_bytes, length=work.training_row)
    return efficiency.TOUCHES * work.shape.layers * saved * tokens + mixed


def _forward(work: Workload, rates: Rates) -> float:
    """A pass without a gradient over the batch: the reference, or the log-probabilities before several optimizer steps."""
    completion, tokens = _tokens(work)
    work_ops = 2 * work.shape.body * tokens + _attention(work) * tokens + 2 * work.shape.head * completion
    logits = 0.0 if work.device.is_cpu else completion * work.shape.vocab * 4 * efficiency.LOGIT_TOUCHES / 2
    return work_ops / rates.update + logits / rates.stream


def _tokens(work: Workload) -> tuple[float, float]:
    """(completion tokens, all tokens) of an update."""
    completion = work.rows * LENGTH_FRACTION * work.limit
    return completion, completion + work.prompt_passes * work.prompt


def _mean_row(work: Workload) -> float:
    """Tokens of a mean prompt with a mean completion."""
    return work.prompt + LENGTH_FRACTION * work.limit


def _attention(work: Workload) -> float:
    """Operations of one token's scores and sums, forward; of the delta rule, three products with its state."""
    context = work.prompt + LENGTH_FRACTION * work.limit / 2
    return 4 * work.shape.queries * context + 6 * work.shape.recurrent_state


def _sleep_wake(work: Workload, sizes: Memory) -> float:
    """Giving the engine's memory away and taking it back: pages are mapped, and dropped weights pushed again."""
    if sizes.sleep is None or sizes.sleep == "off":
        return 0.0
    through_host = 2 * work.weight_bytes / efficiency.HOST_BYTES_S
    on_card = 4 * work.weight_bytes / (work.device.bandwidth_gb_s * 1e9)
    return 0.4 + {"kv": 0.0, 1: through_host, 2: on_card}[sizes.sleep]


def start_s(work: Workload) -> float:
    """Seconds of computing where the adapter begins, a part of loading; the singular vectors are kept in the cache."""
    host = efficiency.cpu_flops(work) if work.device.is_cpu else efficiency.HOST_FLOPS
    return starts.seconds(work.config.adapter, work.shape, work.device, work.dtype_bytes, cpu_flops=host)


def _load(work: Workload) -> float:
    read = work.weight_bytes
    if work.teacher is not None and not work.teacher.is_shared:
        read += work.teacher.shape.parameters * work.dtype_bytes
    reading = read / efficiency.DISK_BYTES_S + start_s(work)
    if work.device.is_cpu:
        return efficiency.CPU_IMPORTS_S + reading
    calibration = work.device.calibration
    start = calibration.start_s if calibration is not None and calibration.start_s is not None else efficiency.VLLM_START_S
    return efficiency.IMPORTS_S + reading + (start if work.has_vllm else 0.0)
