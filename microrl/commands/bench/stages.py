"""One stage of `microrl doctor --measure`, in a process of its own: what crashes or hangs takes only its own stage with it.

`python -m microrl.commands.bench.stages NAME JSON` prints one JSON object; JSON holds the stage's keyword arguments.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from microrl import clock
from microrl.algorithm.batch import Batch, Row
from microrl.commands import isolated
from microrl.commands.bench import synthetic
from microrl.commands.bench.engine import rollout, sampled
from microrl.config import resolve
from microrl.models import gpu
from microrl.models.load import keep_freed_memory
from microrl.models.tensors import parameter_count
from microrl.models.threads import use_sensible_threads
from microrl.models.tiny import build_tokenizer
from microrl.plan import memory, roofline
from microrl.plan.shapes import Shape
from microrl.plan.workload import LENGTH_FRACTION, Workload
from microrl.policy.policy import Policy
from microrl.rollout.engine import Sampler
from microrl.rollout.factory import make_engine
from microrl.train.planning import this_device
from microrl.types import Prompt, Sampling

LARGEST_SLOPE_ERROR = 0.2


def rates() -> dict[str, Any]:
    """Matrix products by type (1e12 operations per second) and the bandwidth of a copy (1e9 bytes read and written per second).

    The median of some; products are square, of a size that fills the device.
    """
    cuda = torch.cuda.is_available()
    device, size, elements = ("cuda", 8192, 2**28) if cuda else ("cpu", 1024, 2**26)
    types = (torch.bfloat16, torch.float16, torch.float32) if cuda else (torch.float32,)
    products = {}
    for dtype in types:
        a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        took = statistics.median(_times(5, partial(torch.matmul, a, b)))
        products[str(dtype).removeprefix("torch.")] = 2 * size**3 / took / 1e12
    source = torch.zeros(elements, device=device)
    target = torch.empty_like(source)
    copied = statistics.median(_times(5, partial(target.copy_, source)))
    return {"product_tflops": products, "stream_gb_s": 2 * elements * 4 / copied / 1e9}


def cycles(**options: Any) -> dict[str, Any]:
    """Weight syncs and sleep on vLLM; see `engine.rollout`. Raises AssertionError where a sync was not right."""
    measured = rollout(**options)
    for cycle in measured["cycles"]:
        slope = cycle["slope"]
        assert slope is None or abs(slope - 1) < LARGEST_SLOPE_ERROR, f"the engine's slope is {slope:.3f}"
    assert measured["cycles"][-1]["slope"] is not None, "the test adapter could not be seen in the scores"
    return measured


def decode(*, shape: str, rank: int, sync: str, prompts: list[int], group: int, tokens: int) -> dict[str, Any]:
    """Tokens per second by the size of the batch, and seconds of the largest divided by the roofline's.

    `sync` is swap, merge, or shared for the transformers engine.
    """
    tokenizer, model = _model(shape)
    flags = _flags(rank=rank, prompts=max(prompts), group=group, tokens=tokens)
    flags |= {"engine.kind": "transformers"} if sync == "shared" else {"engine.kind": "vllm", "engine.sync": sync}
    config = resolve((), flags)
    began = clock.now_s()
    engine = make_engine(config, model, tokenizer)
    started_s = clock.now_s() - began
    policy = Policy(model, config)
    synthetic.move(policy, torch.Generator(model.device).manual_seed(1))

    def sample(sampler: Sampler, asked: list[Prompt]) -> None:
        made = sampled(sampler, asked, Sampling(group, tokens, min_tokens=tokens), (len(asked),))
        assert made == len(asked) * group * tokens, made

    rows = []
    for count in prompts:
        with engine.awake(policy.snapshot()) as sampler:
            took = min(_times(2, partial(sample, sampler, synthetic.prompts(tokenizer, count))))
        rows.append({"completions": count * group, "seconds": took, "tokens_per_s": count * group * tokens / took})
    report = engine.report
    engine.close()
    expected_s, _ = _expected(model, flags, tokens=tokens, merges=sync != "swap")
    return {
        "shape": shape, "rank": rank, "sync": sync, "tokens": tokens, "rows": rows, "started_s": started_s,
        "push_s": report.push_s, "proof_s": report.proof_s, "roofline_s": expected_s,
        "factor": rows[-1]["seconds"] / expected_s,
    }  # fmt: skip


def update(*, shape: str, rank: int, prompts: int, group: int, tokens: int, recompute: bool) -> dict[str, Any]:
    """Seconds of an update, its operations per second (1e12), peak memory, and its seconds divided by the roofline's."""
    tokenizer, model = _model(shape)
    flags = _flags(rank=rank, prompts=prompts, group=group, tokens=tokens) | {"model.gradient_checkpointing": recompute}
    policy = Policy(model, resolve((), flags))
    synthetic.move(policy, torch.Generator(model.device).manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    rows = []
    for place, prompt in enumerate(synthetic.prompts(tokenizer, prompts)):
        for number in range(group):
            ids = tuple(torch.randint(5, 250, (tokens,), generator=generator).tolist())
            rows.append(Row(prompt.token_ids, ids, (-3.0,) * tokens, (-1.0) ** number, True, place))

    def step() -> None:
        done = policy.update(Batch(tuple(rows), prompts, policy.version), lr=1e-6)
        assert done.skipped == 0, done.reason

    took = min(_times(2, step))
    _, expected = _expected(model, flags, tokens=tokens, merges=True)
    return {
        "shape": shape, "parameters": parameter_count(model), "rank": rank, "tokens": prompts * group * tokens,
        "recompute": recompute, "seconds": took,
        "tflops": expected.flops / took / 1e12, "peak_gb": gpu.peak_gb(), "roofline_s": expected.seconds,
        "factor": took / expected.seconds,
    }  # fmt: skip


STAGES: dict[str, Callable[..., dict[str, Any]]] = {"rates": rates, "cycles": cycles, "decode": decode, "update": update}


def _model(shape: str) -> tuple[Any, PreTrainedModel]:
    """(tokenizer, a model as a run loads it, but of random weights)"""
    tokenizer = build_tokenizer()
    model = synthetic.build(tokenizer, shape=shape)
    use_sensible_threads(model)
    keep_freed_memory(model)
    return tokenizer, model


def _flags(*, rank: int, prompts: int, group: int, tokens: int) -> dict[str, Any]:
    """The configuration's limit is such that the plan's mean completion is `tokens` long."""
    limit = round(tokens / LENGTH_FRACTION)
    return {
        **synthetic.work(rank=rank, prompts=prompts, group=group, tokens=limit), "data.name": "arithmetic",
        "data.max_prompt_tokens": 64, "evaluation.samples": group, "evaluation.pass_k": (1,),
        "model.dtype": "bfloat16" if torch.cuda.is_available() else "float32",
    }  # fmt: skip


def _expected(model: Any, flags: dict[str, Any], *, tokens: int, merges: bool) -> tuple[float, roofline.Update]:
    work = Workload.from_config(resolve((), flags), Shape.from_config(model.config.to_dict()), this_device())
    sizes = memory.estimate_memory(work, work.device.memory_gb * 1e9)
    return roofline.fixed_work(work, sizes, tokens=tokens, merges=merges)


def _times(repeats: int, work: Callable[[], Any]) -> list[float]:
    """Seconds of each of so many calls, after one that warms up."""
    taken = []
    for _ in range(repeats + 1):
        began = gpu.done_s()
        work()
        taken.append(gpu.done_s() - began)
    return taken[1:]


if __name__ == "__main__":
    name, options = sys.argv[1], json.loads(sys.argv[2])
    isolated.answer(lambda: STAGES[name](**options))
