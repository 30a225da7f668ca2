"""Time how long each adapter takes to reach vLLM, with swap and with merge; the sync check is not timed.

vLLM allows one engine at a time in a process.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch

from microrl.commands.bench import synthetic
from microrl.config import resolve
from microrl.config.adapters import KINDS
from microrl.config.engine_rules import Mode
from microrl.models.tiny import build_tokenizer
from microrl.policy.policy import Policy
from microrl.rollout.factory import make_engine
from microrl.rollout.preflight import select_engine
from microrl.rollout.vllm.engine import VllmEngine
from microrl.types import BASE


def rows(
    *,
    adapters: Sequence[str] = (),
    shape: str = "tiny",
    layers: int | None = None,
    rank: int = 8,
    versions: int = 3,
    device: synthetic.Device | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[dict[str, Any]]:
    """For each adapter (all, if none is named) and each way in which it can be served: the median seconds of a push.

    The model has random weights; `layers` overrides the shape's number of layers. One engine serves all of them, with
    `versions` changed weights each. A row has `kind`, `mode` (swap or merge), `trained` (number of trained parameters),
    `push_s` (median) and `all_s` (every version's seconds).

    Raises UserError where vLLM cannot run here, and for a name that is not known.
    """
    for kind in adapters:
        synthetic.check_name("adapter", kind, KINDS)
    # Buffers as a residual form needs them serve all the others, too.
    config = resolve((), {"engine.kind": "vllm", "adapter.kind": "pissa", "adapter.rank": rank, "engine.max_kv_gb": 0.5,
                          "sampling.max_completion_tokens": 64, "data.max_prompt_tokens": 128})  # fmt: skip
    select_engine(config)  # fails before anything is built
    tokenizer = build_tokenizer()
    model = synthetic.build(tokenizer, shape=shape, layers=layers, device=device)
    say("starting vLLM")
    engine = cast(VllmEngine, make_engine(config, model, tokenizer))
    try:
        with engine.awake(BASE):
            pass  # from here on it holds the trainer's base
        for kind in adapters or KINDS:
            say(f"{kind}: {versions} versions")
            yield from _pushes(engine, kind, rank, versions)
    finally:
        engine.close(at_exit=True)


def _pushes(engine: VllmEngine, kind: str, rank: int, versions: int) -> Iterator[dict[str, Any]]:
    """One adapter's rows: swap and merge, or merge alone where there is no LoRA pair."""
    flags = {"adapter.kind": kind} | ({"adapter.rank": rank} if "rank" in KINDS[kind].model_fields else {})
    config = resolve((), flags)
    base = engine._base
    policy = Policy(copy.deepcopy(base), config, fresh=False)
    generator = torch.Generator(device=base.device).manual_seed(1)
    modes: tuple[Mode, ...] = ("swap", "merge") if config.adapter.pair_rank else ("merge",)
    for mode in modes:
        seconds = []
        for _ in range(versions):
            synthetic.move(policy, generator)
            engine._push_timed(policy.snapshot(), mode)
            seconds.append(engine.report.push_s)
        yield {"kind": kind, "mode": mode, "trained": policy.trainable, "push_s": statistics.median(seconds), "all_s": seconds}
        engine._push(BASE, mode)
