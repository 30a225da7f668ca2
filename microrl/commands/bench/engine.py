"""Time what vLLM costs inside microrl: weight syncs and sleep, and sampling against vLLM's own `generate`.

It reads the engine's own parts, which no other command does. On a GPU a process can have vLLM only once.
"""

from __future__ import annotations

import copy
import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch
from transformers import PreTrainedModel

from microrl import clock
from microrl.commands.bench import synthetic
from microrl.config import RunConfig, resolve
from microrl.config.adapters import KINDS
from microrl.config.engine_rules import Mode
from microrl.models import gpu
from microrl.models.threads import threads
from microrl.models.tiny import build_tokenizer
from microrl.policy.policy import Policy
from microrl.rollout.engine import Sampler
from microrl.rollout.factory import make_engine
from microrl.rollout.preflight import select_engine
from microrl.rollout.vllm.engine import VllmEngine
from microrl.types import BASE, Prompt, Sampling

Sleep = Literal["auto", "kv", "1", "2", "off"]
Head = Literal["model", "float32"]


def rollout(
    *,
    shape: str = "tiny",
    architecture: str = "qwen2",
    rank: int = 64,
    targets: Sequence[str] = (),
    sync: Mode = "swap",
    sleep: Sleep = "auto",
    dtype: synthetic.Dtype | None = None,
    head: Head = "model",
    device: synthetic.Device | None = None,
    prompts: int = 16,
    group: int = 8,
    tokens: int | None = None,
    cycles: int = 3,
    pairs: int = 3,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Sync a new adapter and sample with it `cycles` times, then sample `pairs` times with microrl and with vLLM alone.

    The model has random weights, and every completion has `tokens` tokens (None: 64). Without `targets` every linear layer has an
    adapter. `sleep` counts on a GPU only. The result holds, among what was asked for:

    - `cycles`: for each `seconds` and `tokens` of the rollout, the engine's `push_s`, `proof_s` (the sync check), `wake_s`,
      `sleep_s`, `freed_gb` and `retaken_gb` (1e9 bytes), and the check's `gap` (nats per token) and `slope`;
    - `sync_fraction`: seconds of push, check, waking and sleeping per second of rollout, without the first cycle if there are
      others, because it also calibrates the check;
    - `tokens_per_s` and `plain_tokens_per_s`: medians for microrl and for vLLM's own `generate`, and `ratio`, the median of
      the pairs' ratios; `pairs` holds the rates of each.

    On a GPU a process measures once: it has room for one vLLM. Raises UserError where vLLM cannot run here, and for a name that
    is not known.
    """
    device, tokens = synthetic.find_device(device), tokens or 64
    flags: dict[str, Any] = {
        **synthetic.work(rank=rank, prompts=prompts, group=group, tokens=tokens), "engine.kind": "vllm", "engine.sync": sync,
        "adapter.targets": tuple(targets) or None, "model.head_dtype": head, "model.dtype": dtype, "data.max_prompt_tokens": 128,
    }  # fmt: skip
    if device == "cuda":
        flags["engine.sleep"] = int(sleep) if sleep.isdigit() else sleep
    config = resolve((), flags)
    shaped = {"shape": shape, "architecture": architecture, "dtype": dtype, "device": device}
    with (
        threads(1 if device == "cpu" else torch.get_num_threads()),
        _started(config, shaped, lambda text: say(f"{architecture}: {text}")) as (engine, model, tokenizer, started_s),
    ):
        policy = Policy(model, config)
        asked, sampling = synthetic.prompts(tokenizer, prompts), Sampling(group, tokens, min_tokens=tokens)
        done = []
        for number, cycle in enumerate(_cycles(engine, policy, asked, sampling, cycles), start=1):
            done.append(cycle)
            say(f"{architecture}: sync and rollout {number} of {cycles}: {cycle['seconds']:.2f} s")
        compared = []
        with engine.awake(policy.snapshot()) as sampler:
            for number in range(pairs):
                compared.append(_compare(engine, sampler, asked, sampling, number))
                rates = "{ours:.0f} tokens per second, vLLM alone {plain:.0f}".format(**compared[-1])
                say(f"{architecture}: pair {number + 1} of {pairs}: microrl {rates}")
        computed, wrapped = _inside(engine, swaps=sync == "swap")
    later = done[1:] or done
    overhead_s = sum(one["push_s"] + one["proof_s"] + one["wake_s"] + one["sleep_s"] for one in later)
    return {
        "device": gpu.name() if device == "cuda" else "cpu",
        "arch": architecture,
        "shape": shape,
        "rank": rank,
        "sync": sync,
        "sleep": engine.settings.sleep,
        "kv_gb": engine.settings.kv_bytes / 1e9,
        "started_s": started_s,
        "trainable": policy.trainable,
        "head": computed,
        "wrapped": wrapped,
        "cycles": done,
        "sync_fraction": overhead_s / sum(one["seconds"] for one in later),
        "tokens_per_s": statistics.median(pair["ours"] for pair in compared),
        "plain_tokens_per_s": statistics.median(pair["plain"] for pair in compared),
        "ratio": statistics.median(pair["ours"] / pair["plain"] for pair in compared),
        "pairs": compared,
    }


def sync(
    *,
    adapters: Sequence[str] = (),
    shape: str = "tiny",
    layers: int | None = None,
    rank: int = 8,
    versions: int = 3,
    say: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """For each adapter (all, if none is named) and each way in which it can be served: the median seconds of a push.

    The sync check is not timed. The model has random weights; `layers` overrides the shape's number of layers. One engine serves
    all of them, with `versions` changed weights each. A row has `kind`, `mode` (swap or merge), `trained` (number of trained
    parameters), `push_s` (median) and `all_s` (every version's seconds).

    Raises UserError where vLLM cannot run here.
    """
    # Buffers as a residual form needs them serve all the others, too.
    config = resolve((), {"engine.kind": "vllm", "adapter.kind": "pissa", "adapter.rank": rank, "engine.max_kv_gb": 0.5,
                          "sampling.max_completion_tokens": 64, "data.max_prompt_tokens": 128})  # fmt: skip
    rows: list[dict[str, Any]] = []
    with _started(config, {"shape": shape, "layers": layers}, say) as (engine, *_):
        with engine.awake(BASE):
            pass  # from here on it holds the trainer's base
        for kind in adapters or KINDS:
            say(f"{kind}: {versions} versions")
            rows += _pushes(engine, kind, rank, versions)
    return rows


@contextmanager
def _started(
    config: RunConfig, shaped: dict[str, Any], say: Callable[[str], None]
) -> Iterator[tuple[VllmEngine, PreTrainedModel, Any, float]]:
    """(vLLM, its model of random weights, the tokenizer, seconds of the engine's start). `shaped`: of `synthetic.build`."""
    select_engine(config)  # fails before anything is built
    tokenizer = build_tokenizer()
    model = synthetic.build(tokenizer, **shaped)
    say("starting vLLM")
    began = clock.now_s()
    engine = cast(VllmEngine, make_engine(config, model, tokenizer))
    started_s = clock.now_s() - began
    try:
        yield engine, model, tokenizer, started_s
    finally:
        engine.close()


def _cycles(
    engine: VllmEngine, policy: Policy, prompts: Sequence[Prompt], sampling: Sampling, count: int
) -> Iterator[dict[str, Any]]:
    """A new version of the adapter, one step's sampling with it, and what the engine reports of that; `count` times."""
    device = policy.parameters[0].device
    generator = torch.Generator(device=device).manual_seed(1)
    for number in range(count):
        for pair in policy.snapshot().pairs.values():
            noise = torch.randn(pair.B_OR.shape, generator=generator, device=device)
            pair.B_OR.copy_(noise * 0.002 * (1 + number))
        policy.version += 1
        began = clock.now_s()
        with engine.awake(policy.snapshot()) as sampler:
            tokens = sampled(sampler, prompts, sampling, (number,))
        report = engine.report
        yield {
            "seconds": clock.now_s() - began,
            "tokens": tokens,
            "push_s": report.push_s,
            "proof_s": report.proof_s,
            "wake_s": report.wake_s,
            "sleep_s": report.sleep_s,
            "freed_gb": report.freed_bytes / 1e9,
            "retaken_gb": report.retaken_bytes / 1e9,
            "gap": report.gap,
            "slope": report.slope,
        }


def sampled(sampler: Sampler, prompts: Sequence[Prompt], sampling: Sampling, stream: tuple[int, ...]) -> int:
    """Sample, and return the number of tokens."""
    groups = sampler.groups(prompts, sampling, stream=stream)
    return sum(len(completion.token_ids) for _, group in groups for completion in group.completions)


def _compare(
    engine: VllmEngine, sampler: Sampler, prompts: Sequence[Prompt], sampling: Sampling, number: int
) -> dict[str, float]:
    """Tokens per second of microrl's sampler and of vLLM's own `generate`, with the same engine, requests and settings."""
    rates = {}
    for side in ("ours", "plain") if number % 2 else ("plain", "ours"):
        engine.driver.reset_cache()
        gc.collect()
        began = clock.now_s()
        if side == "ours":
            tokens = sampled(sampler, prompts, sampling, (9, number))
        else:
            tokens = _generated(engine, prompts, sampling, 1000 * number)
        rates[side] = tokens / (clock.now_s() - began)
    return rates


def _generated(engine: VllmEngine, prompts: Sequence[Prompt], sampling: Sampling, seed: int) -> int:
    """Have vLLM's `generate` sample, and return the number of tokens."""
    from vllm import SamplingParams

    driver = engine.driver
    settings = [
        SamplingParams(
            n=sampling.group_size, temperature=1.0, max_tokens=sampling.max_tokens, min_tokens=sampling.min_tokens,
            stop_token_ids=engine.stops, logprobs=0, detokenize=False, seed=seed + place if driver.seeded else None,
        )
        for place in range(len(prompts))
    ]  # fmt: skip
    requests = [{"prompt_token_ids": list(prompt.token_ids)} for prompt in prompts]
    outputs = driver.llm.generate(requests, settings, use_tqdm=False, lora_request=driver.lora_request)
    return sum(len(one.token_ids) for output in outputs for one in output.outputs)


def _inside(engine: VllmEngine, *, swaps: bool) -> tuple[str, list[str]]:
    """The type in which vLLM computes the output head, and the kinds of layers that it has wrapped for an adapter."""
    driver = engine.driver
    head = str(driver.runner.model.logits_processor.head_dtype).removeprefix("torch.")
    return head, sorted({name.rsplit(".", 1)[-1] for name in driver.adapter_manager.modules}) if swaps else []


def _pushes(engine: VllmEngine, kind: str, rank: int, versions: int) -> Iterator[dict[str, Any]]:
    """One adapter's rows: swap and merge, or merge alone where there is no LoRA pair."""
    flags = {"adapter.kind": kind} | ({"adapter.rank": rank} if "rank" in KINDS[kind].model_fields else {})
    config = resolve((), flags)
    base = engine.base
    policy = Policy(copy.deepcopy(base), config, fresh=False)
    generator = torch.Generator(device=base.device).manual_seed(1)
    modes: tuple[Mode, ...] = ("swap", "merge") if config.adapter.pair_rank else ("merge",)
    for mode in modes:
        seconds = []
        for _ in range(versions):
            synthetic.move(policy, generator)
            engine.push(policy.snapshot(), mode)
            seconds.append(engine.report.push_s)
        yield {"kind": kind, "mode": mode, "trained": policy.trainable, "push_s": statistics.median(seconds), "all_s": seconds}
        engine.push(BASE, mode)
