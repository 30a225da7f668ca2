"""Log-probabilities and entropies in chunks, beside the naive pass that holds all logits: memory, time, gradients.

N tokens, V vocabulary, D width of the hidden states.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import psutil
import torch

from microrl import clock
from microrl.errors import UserError
from microrl.models import driver
from microrl.models.forward import Head
from microrl.policy.logprobs import chosen_logprobs

NAIVE_BYTES = 12
"""What the naive pass needs for each logit: at its peak three tensors in fp32."""
MARGIN = 1.1
"""Of the memory that is asked for: libraries' own, and our pass."""

Scores = tuple[torch.Tensor, torch.Tensor]
Pass = Callable[[torch.Tensor, torch.Tensor, torch.nn.Linear], Scores]


class Case(NamedTuple):
    """What both sides get. The loss is the sum of the log-probabilities, each times its weight."""

    hidden_ND: torch.Tensor
    targets_N: torch.Tensor
    weights_N: torch.Tensor
    head: torch.nn.Linear


def our_logprobs(hidden_ND: torch.Tensor, targets_N: torch.Tensor, head: torch.nn.Linear) -> Scores:
    return chosen_logprobs(hidden_ND, targets_N, Head(head.weight))


def naive_logprobs(hidden_ND: torch.Tensor, targets_N: torch.Tensor, head: torch.nn.Linear) -> Scores:
    """Full logits, log-softmax in fp32, autograd. No tensor is kept longer than it must be; the entropy carries no gradient."""
    logprobs_NV = head(hidden_ND).float().log_softmax(dim=1)
    with torch.no_grad():
        entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(dim=1)
    return logprobs_NV.gather(1, targets_N.unsqueeze(1)).squeeze(1), entropy_N


SIDES: dict[str, Pass] = {"ours": our_logprobs, "naive": naive_logprobs}


def compare(
    tokens: int, vocab: int, hidden: int, dtype: str, pairs: int, on_pair: Callable[[int, float], None] = lambda pair, ratio: None
) -> dict[str, Any]:
    """Peak memory beyond the inputs, seconds of interleaved pairs, and the largest differences, of both sides and as ratios.

    The gradient is that of the hidden states, the head is frozen; its difference is relative to the largest element.
    `on_pair` is called with the number and the time ratio of every pair. Raises UserError where memory will not suffice.
    """
    driver.require_gpu()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    _require_room(device, tokens, vocab, hidden, getattr(torch, dtype).itemsize)
    case = make_case(device, getattr(torch, dtype), tokens, vocab, hidden)
    peaks = {name: peak_bytes(run, case) for name, run in SIDES.items()}  # the warm-up of the clock, too
    result: dict[str, Any] = {name: {"peak_gb": peak / 1e9, "seconds": [], "processor_s": []} for name, peak in peaks.items()}
    for pair in range(pairs):
        for name in sorted(SIDES, reverse=bool(pair % 2)):
            for key, seconds in zip(("seconds", "processor_s"), _time(SIDES[name], case), strict=True):
                result[name][key].append(seconds)
        on_pair(pair + 1, result["ours"]["seconds"][-1] / result["naive"]["seconds"][-1])
    ratios, processor_ratios = (
        [ours / naive for ours, naive in zip(result["ours"][key], result["naive"][key], strict=True)]
        for key in ("seconds", "processor_s")
    )
    return {
        "memory_ratio": peaks["ours"] / peaks["naive"],
        "time_ratio": statistics.median(ratios),
        "processor_ratio": statistics.median(processor_ratios) if device.type == "cpu" else None,
        **_differences(case),
        **result,
        "time_ratios": ratios,
        "processor_ratios": processor_ratios if device.type == "cpu" else None,
        "tokens": tokens, "vocab": vocab, "hidden": hidden, "dtype": dtype, "pairs": pairs,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu", "threads": torch.get_num_threads(),
    }  # fmt: skip


def make_case(device: torch.device, dtype: torch.dtype, tokens: int, vocab: int, hidden: int) -> Case:
    """Random states, targets and weights; logits of a deviation of about 2."""
    draw = torch.Generator(device).manual_seed(0)
    head = torch.nn.Linear(hidden, vocab, bias=False, device="meta", dtype=dtype).requires_grad_(False).to_empty(device=device)
    head.weight.normal_(std=2 / hidden**0.5, generator=draw)
    return Case(
        torch.randn(tokens, hidden, device=device, dtype=dtype, generator=draw).requires_grad_(),
        torch.randint(vocab, (tokens,), device=device, generator=draw),
        torch.randn(tokens, device=device, generator=draw),
        head,
    )


def _run(run: Pass, case: Case) -> Scores:
    """Forward and backward; the gradient is in `case.hidden_ND.grad`."""
    case.hidden_ND.grad = None
    logprobs_N, entropy_N = run(case.hidden_ND, case.targets_N, case.head)
    (logprobs_N * case.weights_N).sum().backward()
    return logprobs_N.detach(), entropy_N


def _time(run: Pass, case: Case) -> tuple[float, float]:
    """(seconds, processor time of all threads of this process)."""
    began, processor_began = clock.now_s(), clock.processor_s()
    _run(run, case)
    if case.hidden_ND.is_cuda:
        torch.cuda.synchronize()
    return clock.now_s() - began, clock.processor_s() - processor_began


def _differences(case: Case) -> dict[str, float]:
    """The largest ones: of the gradient relative to its largest element, of log-probabilities and entropies in nats."""
    ours, our_gradient = _run(SIDES["ours"], case), case.hidden_ND.grad
    naive, gradient = _run(naive_logprobs, case), case.hidden_ND.grad
    assert our_gradient is not None and gradient is not None
    return {
        "gradient_error": float((our_gradient - gradient).abs().max() / gradient.abs().max()),
        "logprob_error": float((ours[0] - naive[0]).abs().max()),
        "entropy_error": float((ours[1] - naive[1]).abs().max()),
    }


def peak_bytes(run: Pass, case: Case) -> int:
    """Most bytes that torch's allocator holds at a time beyond the inputs: the gradient is counted, libraries' scratch is not.

    On a CPU every allocation and release is in the profiler's record, so that the figure is exact and always the same.
    """
    case.hidden_ND.grad = None
    if case.hidden_ND.is_cuda:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        _run(run, case)
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # its own words on standard error
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        _run(run, case)
    assert record.profiler is not None and record.profiler.kineto_results is not None
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    assert peak > 0, "the profiler has recorded no allocation"
    return peak


def _require_room(device: torch.device, tokens: int, vocab: int, hidden: int, itemsize: int) -> None:
    """Raises UserError with the number of tokens that would fit, where the naive pass does not."""
    free = torch.cuda.mem_get_info()[0] if device.type == "cuda" else psutil.virtual_memory().available
    fixed, each = vocab * hidden * itemsize, NAIVE_BYTES * vocab + 4 * hidden * itemsize
    needed = MARGIN * (fixed + tokens * each)
    if needed <= free:
        return
    where = "GPU" if device.type == "cuda" else "machine"
    fitting = int((free / MARGIN - fixed) / each)
    raise UserError(
        f"the naive pass over {tokens} tokens x {vocab} logits takes {needed / 1e9:.1f} GB, but only {free / 1e9:.1f} GB of "
        f"this {where}'s memory are free",
        f"--tokens {1 << fitting.bit_length() - 1}" if fitting >= 1 else "use a smaller --vocab or --hidden",
    )
