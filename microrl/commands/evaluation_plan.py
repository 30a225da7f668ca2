"""`microrl eval --dry-run`: what would be sampled, and about how long it would take. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from microrl.config import RunConfig, catalogue
from microrl.data.load import load_questions, split
from microrl.environments.process import schema_tokens
from microrl.errors import UserError
from microrl.evaluation.benchmark import Benchmark
from microrl.evaluation.power import smallest_gain
from microrl.plan import advice, here, make
from microrl.plan.source import shape_of


def preview(benchmarks: Sequence[Benchmark], *, sides: int) -> dict[str, Any]:
    """`{"device", "seconds", "benchmarks": {NAME: {...}}}` for so many models. Raises UserError."""
    config = benchmarks[0].config
    shape = shape_of(config.model.name)
    gpu = here.gpu()
    device, free_gb = gpu or here.instead_of_gpu(shape)
    previews: dict[str, Any] = {}
    tool_tokens = schema_tokens(config.env)
    for benchmark in benchmarks:
        sampling, questions = benchmark.sampling(), _questions(benchmark.config)
        settings = benchmark.config.evaluation.model_copy(update={"problems": questions})
        asked = benchmark.config.model_copy(update={"evaluation": settings})
        plan = make(asked, shape, device, free_gb=free_gb, tool_tokens=tool_tokens)
        previews[benchmark.name] = {
            "questions": questions,
            "samples": sampling.group_size,
            "pass_k": list(settings.pass_k),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": settings.seed,
            "question_seed": settings.question_seed,
            "tokens_at_most": questions * sampling.group_size * sampling.max_tokens * sides,
            "smallest_gain": smallest_gain(questions=questions, samples=sampling.group_size),
            "seconds": plan.evaluation_s * sides + plan.load_s * sides / len(benchmarks),
        }
    return {
        "device": device.label,
        "is_here": gpu is not None or device.is_cpu,
        "seconds": sum(one["seconds"] for one in previews.values()),
        "benchmarks": previews,
        **({} if config.env.target is None else {"notes": advice.episodes(config, tool_tokens)}),
    }


def _questions(config: RunConfig) -> int:
    """How many questions are asked: counted where the data is at hand, else as the catalogue says."""
    known = catalogue.find(config.data.name)
    try:
        available = len(split(load_questions(config.data), config.data.held_out).held_out)
    except UserError:
        if known is None or "test" not in known.rows:
            raise
        available = known.rows["test"]
    return min(available, config.evaluation.problems)
