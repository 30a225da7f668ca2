"""The self-test of `microrl doctor`: one training loop with a tiny model (generate, swap, prove, sleep, wake, one update).

`python -m microrl.commands.selftest` prints one JSON object; `microrl doctor` runs it with a deadline.
"""

from __future__ import annotations

from typing import Any

import torch

from microrl import clock
from microrl.algorithm.batch import Batch, Row
from microrl.commands import isolated
from microrl.commands.bench import synthetic
from microrl.config import resolve
from microrl.models.load import dtype_of
from microrl.models.tiny import build_model, build_tokenizer
from microrl.policy.policy import Policy
from microrl.rollout.factory import make_engine
from microrl.rollout.preflight import installed
from microrl.types import BASE, AdapterSnapshot, Group, Sampling

SAMPLING = Sampling(group_size=4, max_tokens=32)
LARGEST_KL = 1e-3
"""Largest KL between engine and trainer, nats per token; bfloat16 on a GPU stays well below it."""


def run() -> dict[str, Any]:
    """Run the test. Raises any error of the code under test, and AssertionError for a wrong result.

    Its measurements: seconds, nats per token, bytes; the gap and the slope are None where the engine shares the weights.
    """
    vllm = installed()
    here = vllm is not None and vllm.is_supported and (vllm.is_for_cpu or torch.cuda.is_available())
    flags: dict[str, Any] = {"engine.kind": "vllm" if here else "transformers", "adapter.rank": 8, "data.max_prompt_tokens": 64,
                             "sampling.max_completion_tokens": SAMPLING.max_tokens, "sampling.prompts_per_step": 4,
                             "sampling.group_size": SAMPLING.group_size}  # fmt: skip
    if here:
        flags["engine.sync"] = "swap"
    config = resolve((), flags)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = build_tokenizer()
    model = build_model(tokenizer).to(device, dtype_of("auto", torch.device(device))).eval().requires_grad_(False)
    began = clock.now_s()
    engine = make_engine(config, model, tokenizer)
    policy = Policy(model, config)
    prompts = synthetic.prompts(tokenizer, 4)

    def generate(snapshot: AdapterSnapshot, step: int) -> tuple[list[Group], float]:
        began = clock.now_s()
        with engine.awake(snapshot) as sampler:
            groups = [group for _, group in sorted(sampler.groups(prompts, SAMPLING, stream=(0, step)), key=lambda one: one[0])]
        return groups, clock.now_s() - began

    generate(BASE, 0)
    start_s = clock.now_s() - began
    groups, _ = generate(policy.snapshot(), 1)
    began = clock.now_s()
    rows = tuple(
        Row(group.prompt.token_ids, completion.token_ids, completion.logprobs, (-1.0) ** number, True, index)
        for index, group in enumerate(groups)
        for number, completion in enumerate(group.completions)
    )
    update = policy.update(Batch(rows, len(groups), policy.version), lr=0.01)
    update_s = clock.now_s() - began
    assert update.skipped == 0, f"the update was skipped: {update.reason}"
    assert update.kl_sampler < LARGEST_KL, (
        f"engine and trainer disagree: KL(engine, trainer) {update.kl_sampler:.2g} nats per token"
    )
    groups, generate_s = generate(policy.snapshot(), 2)
    report = engine.report
    engine.close()
    return {
        "engine": engine.name,
        "device": device,
        "start_s": start_s,
        "generate_s": generate_s,
        "tokens": sum(completion.length for group in groups for completion in group.completions),
        "swap_s": report.push_s + report.proof_s,
        "probe_gap": report.gap,
        "probe_slope": report.slope,
        "freed_bytes": report.freed_bytes,
        "update_s": update_s,
        "kl_sampler": update.kl_sampler,
    }


if __name__ == "__main__":
    isolated.answer(run)
