"""One training step: sample and judge groups, turn them into a batch, update, and say what happened."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from microrl import clock
from microrl.algorithm.batch import Batch, assemble
from microrl.policy.update_metrics import Update
from microrl.rollout.engine import SyncReport
from microrl.run import metrics
from microrl.run.stopwatch import Stopwatch
from microrl.train.refill import MayRefill, Refill, always
from microrl.train.setup import Parts
from microrl.types import Group, Sampling

Progress = Callable[[Iterable[tuple[int, Group]], int], Iterator[tuple[int, Group]]]


def sample(
    parts: Parts, step: int, watch: Stopwatch, progress: Progress, sampling: Sampling, may_refill: MayRefill = always
) -> tuple[list[Group], list[Group]]:
    """(groups to train on, all groups sampled). They differ under DAPO's dynamic sampling, which refills what it drops."""
    refill = Refill(parts.config, may_refill)
    entered, counted, number = clock.now_s(), 0.0, 0
    parts.scorer.renew()
    with parts.engine.awake(parts.policy.snapshot(), trial=True) as sampler:
        while asked := refill.next_round():
            prompts = parts.prompts.draw(asked)
            began = ended = clock.now_s()

            def decoding(groups: Iterator[tuple[int, Group]]) -> Iterator[tuple[int, Group]]:
                nonlocal ended
                yield from groups
                ended = clock.now_s()

            groups = decoding(sampler.groups(prompts, sampling, stream=(parts.config.seed, step, number)))
            scored = parts.scorer.score(progress(groups, len(prompts)))
            done = clock.now_s()
            watch.add("generate", ended - began)
            watch.add("verify", done - ended)
            counted += done - began
            refill.add(scored, done - began)
            number += 1
    report = parts.engine.report
    sleep_wake = report.wake_s + report.sleep_s
    watch.add("sleep_wake", sleep_wake)
    watch.add("sync", clock.now_s() - entered - counted - sleep_wake)  # push, proof, and what goes with them
    return refill.batch, refill.sampled


def to_batch(parts: Parts, groups: list[Group]) -> Batch:
    """Groups with advantages, as the configured loss defines them."""
    return assemble(groups, scale_by_std=parts.config.loss.scale_by_std, mask_truncated=parts.config.loss.mask_truncated)


def describe(
    step: int,
    sampled: list[Group],
    update: Update,
    sync: SyncReport,
    *,
    lr: float,
    entropy_start: float | None,
    phase_seconds: dict[str, float],
    seconds: float,
) -> dict[str, Any]:
    """The step's metrics but for the budget's."""
    generate = phase_seconds.get("generate", 0.0)
    found = metrics.of_groups(sampled)
    change = (update.entropy / entropy_start - 1) * 100 if entropy_start else 0.0
    return {
        "step": step,
        **found,
        "policy/entropy": update.entropy,
        "policy/entropy_change_pct": change,
        "policy/kl_sampler": update.kl_sampler,
        "policy/outside_share": update.outside_share,
        "policy/impossible_tokens": update.impossible_tokens,
        "policy/kl_ref": update.kl_ref,
        "policy/clip_fraction": update.clip_fraction,
        "policy/grad_norm": update.grad_norm,
        "update/skipped": update.skipped,
        "optim/lr": lr,
        "loss": update.loss,
        "time/step": seconds,
        "time/generate": generate,
        "time/verify": phase_seconds.get("verify", 0.0),
        "time/update": phase_seconds.get("update", 0.0),
        "time/sync": phase_seconds.get("sync", 0.0),
        "time/sleep_wake": phase_seconds.get("sleep_wake", 0.0),
        "time/proof": sync.proof_s,
        "sync/probe_gap": sync.gap,
        "sync/slope": sync.slope,
        "memory/freed_gb": sync.freed_bytes / 1e9 if sync.freed_bytes else None,
        "memory/retaken_gb": sync.retaken_bytes / 1e9 if sync.retaken_bytes else None,
        "tokens/per_second": found["tokens/generated"] / generate if generate > 0 else None,
        "memory/peak_gb": peak_gb(),
    }


def gpu_name() -> str | None:
    """The card's name; None without one."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def peak_gb() -> float:
    """Peak memory in GB (1e9 bytes): the GPU's where there is one, else this process's resident set."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
