"""One stage of `microrl doctor --measure`, in a process of its own: what crashes or hangs takes only its own stage with it.

`python -m microrl.commands.measure.stage NAME JSON` prints one JSON object; JSON holds the stage's keyword arguments.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from microrl import clock
from microrl.algorithm.batch import Batch, Row
from microrl.commands import isolated
from microrl.commands.bench import rollout, synthetic
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
from microrl.rollout.factory import make_engine
from microrl.train.planning import this_device
from microrl.types import Group, Sampling

LARGEST_SLOPE_ERROR = 0.2
REPEATS = 5


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
        products[str(dtype).removeprefix("torch.")] = 2 * size**3 / _seconds(partial(torch.matmul, a, b)) / 1e12
    source = torch.zeros(elements, device=device)
    target = torch.empty_like(source)
    copied = _seconds(partial(target.copy_, source))
    return {"product_tflops": products, "stream_gb_s": 2 * elements * 4 / copied / 1e9}


def cycles(**options: Any) -> dict[str, Any]:
    """Weight syncs and sleep on vLLM; see `rollout.measure`. Raises AssertionError where a sync was not right."""
    found = rollout.measure(**options)
    for cycle in found["cycles"]:
        slope = cycle["slope"]
        assert slope is None or abs(slope - 1) < LARGEST_SLOPE_ERROR, f"the engine's slope is {slope:.3f}"
    assert found["cycles"][-1]["slope"] is not None, "the test adapter could not be seen in the scores"
    return found


def decode(*, shape: str, rank: int, sync: str, prompts: list[int], group: int, tokens: int) -> dict[str, Any]:
    """Tokens per second by the size of the batch, and seconds of the largest divided by the roofline's.

    `sync` is swap, merge, or shared for the transformers engine.
    """
    tokenizer = build_tokenizer()
    model = synthetic.build(tokenizer, shape=shape)
    use_sensible_threads(model)
    keep_freed_memory(model)
    flags = _flags(rank=rank, prompts=max(prompts), group=group, tokens=tokens)
    flags |= {"engine.kind": "transformers"} if sync == "shared" else {"engine.kind": "vllm", "engine.sync": sync}
    config = resolve((), flags)
    began = clock.now_s()
    engine = make_engine(config, model, tokenizer)
    started_s = clock.now_s() - began
    policy = Policy(model, config)
    synthetic.move(policy, torch.Generator(model.device).manual_seed(1))
    rows = []
    for count in prompts:
        asked, seconds = synthetic.prompts(tokenizer, count), []
        with engine.awake(policy.snapshot()) as sampler:
            for repeat in range(3):  # the first one warms up
                began = clock.now_s()
                made: list[tuple[int, Group]] = list(
                    sampler.groups(asked, Sampling(group, tokens, min_tokens=tokens), stream=(count, repeat))
                )
                seconds.append(clock.now_s() - began)
        assert sum(len(one.token_ids) for _, found in made for one in found.completions) == count * group * tokens
        took = min(seconds[1:])
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
    """Seconds of an update, the share of the measured matrix products that it reaches, and its seconds by the roofline's."""
    tokenizer = build_tokenizer()
    model = synthetic.build(tokenizer, shape=shape)
    use_sensible_threads(model)
    keep_freed_memory(model)
    flags = _flags(rank=rank, prompts=prompts, group=group, tokens=tokens) | {"model.gradient_checkpointing": recompute}
    policy = Policy(model, resolve((), flags))
    synthetic.move(policy, torch.Generator(model.device).manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    rows = []
    for place, prompt in enumerate(synthetic.prompts(tokenizer, prompts)):
        for number in range(group):
            ids = tuple(torch.randint(5, 250, (tokens,), generator=generator).tolist())
            rows.append(Row(prompt.token_ids, ids, (-3.0,) * tokens, (-1.0) ** number, True, place))
    batch, seconds = Batch(tuple(rows), prompts, policy.version), []
    for _ in range(3):  # the first one warms up
        began = clock.now_s()
        done = policy.update(Batch(batch.rows, batch.groups, policy.version), lr=1e-6)
        _wait()
        seconds.append(clock.now_s() - began)
        assert done.skipped == 0, done.reason
    took = min(seconds[1:])
    _, expected = _expected(model, flags, tokens=tokens, merges=True)
    return {
        "shape": shape, "parameters": parameter_count(model), "rank": rank, "tokens": prompts * group * tokens,
        "recompute": recompute, "seconds": took,
        "tflops": expected.flops / took / 1e12, "peak_gb": gpu.peak_gb(), "roofline_s": expected.seconds,
        "factor": took / expected.seconds,
    }  # fmt: skip


STAGES: dict[str, Callable[..., dict[str, Any]]] = {
    "rates": rates,
    "cycles": cycles,
    "decode": decode,
    "update": update,
}


def _flags(*, rank: int, prompts: int, group: int, tokens: int) -> dict[str, Any]:
    """The configuration's limit is such that the plan's mean completion is `tokens` long."""
    return {
        "data.name": "arithmetic", "adapter.rank": rank, "adapter.alpha": float(rank), "sampling.prompts_per_step": prompts,
        "sampling.group_size": group, "sampling.max_completion_tokens": round(tokens / LENGTH_FRACTION),
        "data.max_prompt_tokens": 64, "evaluation.samples": group, "evaluation.pass_k": (1,),
        "model.dtype": "bfloat16" if torch.cuda.is_available() else "float32",
    }  # fmt: skip


def _expected(model: Any, flags: dict[str, Any], *, tokens: int, merges: bool) -> tuple[float, roofline.Update]:
    work = Workload.from_config(resolve((), flags), Shape.from_config(model.config.to_dict()), this_device())
    sizes = memory.estimate_memory(work, work.device.memory_gb * 1e9)
    return roofline.fixed_work(work, sizes, tokens=tokens, merges=merges)


def _seconds(work: Callable[[], Any]) -> float:
    """Median seconds of a call, the first one not counted."""
    taken = []
    for _ in range(REPEATS + 1):
        _wait()
        began = clock.now_s()
        work()
        _wait()
        taken.append(clock.now_s() - began)
    return statistics.median(taken[1:])


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    name, options = sys.argv[1], json.loads(sys.argv[2])
    isolated.answer(lambda: STAGES[name](**options))
