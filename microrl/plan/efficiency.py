"""What a device gives in practice: shares of its data sheet and of published measurements, and costs that are fixed.

None of it was measured by us on a GPU. The shares were chosen so that published throughputs lie around what follows from them:
`tests/plan/test_plan_published.py` has the list, with sources, and holds every ratio within `SAMPLING_SPREAD` and
`UPDATE_SPREAD`.
"""

from __future__ import annotations

from dataclasses import dataclass

from microrl.limits import cpu_threads
from microrl.plan.devices import CPU_CORE_TFLOPS
from microrl.plan.workload import Workload

# Sampling with vLLM.
DECODE_BANDWIDTH = 0.72
"""Of the data sheet's bandwidth: weights and cache read by a decode step."""
DECODE_ARITHMETIC = 0.6
"""Of `Device.products`: matrix products of a decode step's few hundred rows."""
DECODE_STEP_S = 1e-3
"""vLLM's own work for each decode step."""
DECODE_LAYER_S = 0.07e-3
"""A layer's kernels in a CUDA graph, beside what they read: gaps, norms, activations."""
ROW_S = 25e-6
"""Scheduling, sampling and log-probabilities of one row in one decode step."""
EAGER_LAYER_S = 0.4e-3
"""What launching a layer's kernels one by one costs (no CUDA graphs)."""
GRAPH_KERNEL_S = 3e-6
"""A small kernel in a CUDA graph."""
HF_DECODE_LAYER_S = 1.0e-3
"""A layer of transformers' decode step with its adapters beside the weights."""

# The update.
UPDATE_ARITHMETIC = 0.75
"""Of `Device.products`: products of a few thousand tokens in 16 bits, padding (some 5 %) included."""
FP32_ARITHMETIC = 0.6
"""Of the data sheet: products outside the tensor cores, of adapters that PEFT computes in float32. Published: 0.51 (L4) to 0.98
(A100), in the list that `Device.products` is from."""
STREAM_BANDWIDTH = 0.7
"""Of the data sheet: element by element operations."""
UPDATE_LAYER_S = 3e-3
"""Launching a layer's kernels of a micro-batch, forward and backward."""
DELTA_CHUNK_S = 37 * 15e-6
"""Launching 37 operations for every 64 tokens of a row in a gated delta network; a layer's 195 others take `UPDATE_LAYER_S`."""
TOUCHES = 3
"""How often each saved activation is written or read in a pass forward and backward, by adapters that PEFT computes."""
MASTER_TOUCHES = 2 * 6 + 6
"""Bytes a trained parameter for each micro-batch on a 16-bit base: the float32 masters are rounded, forward and backward, and
their gradients widened. (Models whose prompts and completions are two passes move twice as much.)"""
LOGIT_TOUCHES = 10
"""Passes over a chunk of fp32 logits: scaling, log-softmax, entropy, slopes."""

DIVERGENCE_TOUCHES = 24
"""The same where student and teacher are compared (`distill.top_k`): two log-softmaxes and their exponentials, gaps, slopes."""

# What published measurements are, divided by what the plan says.
SAMPLING_SPREAD = (0.8, 1.2)
"""Of 14 settings with at least 10 rows: 0.81 to 1.13."""
UPDATE_SPREAD = (0.75, 1.25)
"""Of eleven settings on an A100 with at least 1,024 tokens a micro-batch: 0.79 to 1.0. As far up as down, because no other card's
is published, and none of ours is measured."""
CPU_SPREAD = (0.45, 1.3)
"""Of the steps of SmolLM2-135M and of the quickstart's model on three machines, in the guide's page on speed: 0.45 to 1.26."""

# Around the steps.
PROBE_S = 0.3
"""Handing the adapter over and scoring the probe on both sides."""
MERGE_TOUCHES = 10
"""Bytes moved for each byte of the weights by a merged push: the product in float32, random bits to round with, the copy."""
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
    """What this run gets out of its device: operations a second in base and adapters, bytes a second."""

    decode: float
    update: float
    fp32: float
    stream: float
    decode_bytes: float

    @classmethod
    def of(cls, work: Workload) -> Rates:
        device = work.device
        bytes_s = device.bandwidth_gb_s * 1e9
        if device.is_cpu:
            rate = cpu_flops(work) * work.shape.hidden / (work.shape.hidden + CPU_HALF_WIDTH)
            return cls(rate * CPU_DECODE, rate, rate, bytes_s, bytes_s)
        products = device.products if work.dtype_bytes < 4 else device.fp32
        return cls(
            products * DECODE_ARITHMETIC, products * UPDATE_ARITHMETIC, device.fp32 * FP32_ARITHMETIC,
            bytes_s * STREAM_BANDWIDTH, bytes_s * DECODE_BANDWIDTH,
        )  # fmt: skip


def cpu_flops(work: Workload) -> float:
    """float32 operations a second. The second core that a small model has in updates is not counted: it saves a fifth of one."""
    cores = round(work.device.tflops / CPU_CORE_TFLOPS)
    return cpu_threads(work.shape.parameters, cores, updating=False) * CPU_CORE_TFLOPS * 1e12
