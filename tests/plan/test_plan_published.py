"""The plan's seconds beside published ones: the list that the guide shows, and the ranges that the plan derives from it."""

from typing import NamedTuple

import pytest

from microrl import guide
from microrl.config import resolve
from microrl.plan import Shape, devices, efficiency, make, roofline
from microrl.plan.decoding import Rollout, decode_s, merge
from microrl.plan.efficiency import Rates
from microrl.plan.memory import Memory
from microrl.plan.source import CONFIGS, shape_of
from microrl.plan.workload import Workload


def _shape(hidden, inner, layers, heads, kv_heads, vocab, model_type="llama", tied=False):
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")
    values = dict(zip(sizes, (hidden, inner, layers, heads, kv_heads, vocab), strict=True))
    return Shape.from_config({"model_type": model_type, "tie_word_embeddings": tied, **values})


SHAPES = {
    "Llama-3.1-8B": _shape(4096, 14336, 32, 32, 8, 128256),
    "Llama-2-7B": _shape(4096, 11008, 32, 32, 32, 32000),
    "Qwen2.5-0.5B": _shape(896, 4864, 24, 14, 2, 151936, "qwen2", tied=True),
    "Qwen-1.8B": _shape(2048, 5504, 24, 16, 16, 151936, "qwen2"),
    "Qwen-7B": _shape(4096, 11008, 32, 32, 32, 151936, "qwen2"),
    **{name: Shape.from_config(CONFIGS[f"{name}-Instruct"]) for name in ("Qwen2.5-1.5B", "Qwen2.5-3B", "Qwen2.5-7B")},
    "Qwen2-7B": Shape.from_config(CONFIGS["Qwen2.5-7B-Instruct"]),
    "R1-Distill-Qwen-1.5B": Shape.from_config(CONFIGS["DeepSeek-R1-Distill-Qwen-1.5B"]),
}
"""Sizes as the models' `config.json` on the hub have them."""

MART_A40 = "[1](https://www.databasemart.com/blog/vllm-gpu-benchmark-a40)"
MART_4090 = "[2](https://www.databasemart.com/blog/vllm-gpu-benchmark-rtx4090)"
QWEN2_A100 = "[3](https://github.com/dennislee22/vLLM-benchmarking)"
LORA_A100 = "[4](https://github.com/vllm-project/vllm/pull/11267)"
A10G = "[5](https://github.com/neuralmagic/nm-vllm/commit/4c041221fb69670a5aa00d30d1bcf656586b7e3c)"
QWEN_SPEED = "[6](https://github.com/QwenLM/Qwen2.5/blob/010c37c/docs/source/benchmark/speed_benchmark.rst)"
A6000 = "[7](https://ld-singh.github.io/ai-factory-ops-lab/portfolio-lab/06-validation-reports/inference-benchmark-report/)"
A100_SWEEP = "[8](https://johnmusgrave.com/p/vllm-throughput-latency-sweep-on)"
QWEN_LORA = "[9](https://github.com/QwenLM/Qwen/blob/03cd81f/README.md#profiling-of-memory-and-speed)"
VECTOR = "[10](https://github.com/VectorInstitute/vectorlm/blob/9045f08/docs/reference_throughput.md)"


class Sampled(NamedTuple):
    """Completions by vLLM on one card, from the first prompt to the last token. Lengths in tokens."""

    gpu: str
    model: str
    rows: tuple[int, ...]
    """Of each wave: an engine that holds 256 at most finishes them before it begins others of the same length."""
    mean: float
    longest: float
    prompt: float
    seconds: float
    source: str
    at_once: float = 256
    """vLLM's own bound, or what the cache holds."""

    @property
    def name(self) -> str:
        rows = sum(self.rows)
        return f"{self.gpu}, {self.model}, {rows:,} x {self.mean:,.0f} tokens"

    @property
    def is_like_a_run(self) -> bool:
        return sum(self.rows) >= 10

    def planned(self) -> float:
        flags = {"engine.kind": "vllm", "engine.sync": "merge", "adapter.rank": 8, "optim.lr": 1e-5}
        work = Workload.from_config(resolve((), flags), SHAPES[self.model], devices.DEVICES[self.gpu])
        rates, sizes = Rates.of(work), Memory({}, {}, 0, self.at_once, None)
        asked = [Rollout(rows, self.mean, self.longest, rows, self.prompt) for rows in self.rows]
        return sum(decode_s(work, rates, sizes, merge(work, rates), one) for one in asked)


class Updated(NamedTuple):
    """A LoRA step with activation recomputation on one A100: rows of exactly so many tokens, one or several a micro-batch."""

    model: str
    rows: int
    tokens: int
    micro_batch: int
    rank: int
    targets: str
    seconds: float
    source: str

    @property
    def name(self) -> str:
        return f"a100, {self.model}, LoRA step of {self.rows} x {self.tokens:,} tokens"

    @property
    def is_like_a_run(self) -> bool:
        return self.micro_batch >= 1024

    def planned(self) -> float:
        flags = {
            "model.gradient_checkpointing": True, "sampling.prompts_per_step": self.rows // 2, "sampling.group_size": 2,
            "sampling.max_completion_tokens": 2 * self.tokens, "data.max_prompt_tokens": 16, "adapter.rank": self.rank,
            "optim.lr": 1e-5,
        }  # fmt: skip
        config = resolve((), flags, [f"adapter.targets={self.targets}"])
        work = Workload.from_config(config, SHAPES[self.model], devices.DEVICES["a100"])
        _, update = roofline.fixed_work(work, Memory({}, {}, self.micro_batch, 1.0, None), tokens=self.tokens, merges=True)
        return update.seconds


SAMPLED = [
    Sampled("a40", "Qwen2.5-7B", (50,), 514, 600, 100, 23.48, MART_A40),
    Sampled("a40", "Llama-3.1-8B", (50,), 443, 600, 100, 21.81, MART_A40),
    Sampled("a40", "Llama-3.1-8B", (50,), 550, 600, 100, 23.81, MART_A40),  # R1-Distill-Llama-8B
    Sampled("4090", "R1-Distill-Qwen-1.5B", (256, 44), 600, 600, 100, 300 / 13.85, MART_4090),
    Sampled("4090", "Qwen2.5-3B", (256, 44), 600, 600, 100, 300 / 10.31, MART_4090),
    *(
        Sampled("a100", "Qwen2-7B", (rows,), 1024, 1024, 1024, seconds, QWEN2_A100)
        for rows, seconds in ((10, 14.30), (20, 14.70), (30, 15.56), (50, 21.70), (75, 25.64), (100, 30.31), (200, 45.11))
    ),
    Sampled("a100", "Llama-2-7B", (1000,), 235, 800, 246, 1000 / 11.45, LORA_A100),
    Sampled("a10g", "Llama-2-7B", (1000,), 128, 128, 256, 1000 / 3.84, A10G, at_once=37),
    Sampled("a100", "Qwen2-7B", (1,), 1024, 1024, 1024, 12.05, QWEN2_A100),
    Sampled("a100", "Qwen2.5-0.5B", (1,), 2048, 2048, 1, 2048 / 311.55, QWEN_SPEED),
    Sampled("a100", "Qwen2.5-1.5B", (1,), 2048, 2048, 1, 2048 / 183.33, QWEN_SPEED),
    Sampled("a100", "Qwen2.5-3B", (1,), 2048, 2048, 1, 2048 / 127.61, QWEN_SPEED),
    Sampled("a100", "Qwen2.5-7B", (1,), 2048, 2048, 1, 2048 / 84.28, QWEN_SPEED),
    Sampled("a6000", "Qwen2.5-7B", (1,), 51, 51, 0, 51 * 0.0219, A6000),
    Sampled("a100-40gb", "Llama-3.1-8B", (1,), 128, 128, 1024, 128 / 75, A100_SWEEP),
]
ALL_LINEAR = '["q_proj","k_proj","v_proj","o_proj","gate_proj","up_proj","down_proj"]'
QWEN_SECONDS = {"Qwen-1.8B": (1.0, 1.0, 1.1, 1.7, 3.3, 6.8), "Qwen-7B": (1.2, 1.5, 2.8, 5.2, 10.1, 21.3)}
UPDATED = [
    *(
        Updated(model, 8, tokens, tokens, 64, ALL_LINEAR, seconds, QWEN_LORA)
        for model, all_seconds in QWEN_SECONDS.items()
        for tokens, seconds in zip((256, 512, 1024, 2048, 4096, 8192), all_seconds, strict=True)
    ),
    *(
        Updated("Llama-3.1-8B", rows, tokens, rows * tokens, 8, '["q_proj","v_proj"]', rows * tokens / rate, VECTOR)
        for rows, tokens, rate in ((8, 2048, 4079.28), (4, 4096, 3682.15), (2, 8192, 3528.93))
    ),
]


@pytest.mark.parametrize(("settings", "spread"), [(SAMPLED, efficiency.SAMPLING_SPREAD), (UPDATED, efficiency.UPDATE_SPREAD)])
def test_published_seconds_lie_in_the_ranges_of_the_plan(settings, spread):
    """Where a rollout or an update is like a run's; and the point lies in the middle of them, rather too slow than too fast."""
    ratios = sorted(one.seconds / one.planned() for one in settings if one.is_like_a_run)
    assert len(ratios) in (14, 11)
    assert spread[0] <= ratios[0] and ratios[-1] <= spread[1], ratios
    mean = sum(ratios) / len(ratios)
    assert 0.85 < mean < 1.05, ratios
    said = " ".join(guide.text("plan").split())
    assert f"average {mean:.2f} times it" in said
    assert f"between {ratios[0]:.2f} and {ratios[-1]:.2f} times it for" in said


def line(one: Sampled | Updated) -> str:
    planned = one.planned()
    like = "" if one.is_like_a_run else " *"
    return f"| {one.name}{like} | {one.seconds:.3g} | {planned:.3g} | {one.seconds / planned:.2f} | {one.source} |"


@pytest.mark.parametrize("one", [*SAMPLED, *UPDATED], ids=lambda one: one.name)
def test_the_guide_shows_the_list(one):
    assert line(one) in guide.text("plan").splitlines()


def test_the_guides_step_seconds_are_the_plans():
    """To 15 per cent, so that a change of the memory's arithmetic does not count."""
    table = guide.text("plan").partition("| preset |")[2].partition("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in table]
    cards, seen = [name.strip() for name in table[0].strip("|").split("|")], 0
    for name, *values in cells[2:]:
        config = resolve(name.strip("`").split(), {})
        for card, value in zip(cards, values, strict=True):
            plan = make(config, shape_of(config.model.name), devices.find(card))
            now = value.rpartition(" ")[2].replace(",", "")
            assert float(now) == pytest.approx(plan.step_s, rel=0.15), (name, card)
            seen += 1
    assert seen >= 20


if __name__ == "__main__":
    print(*map(line, [*SAMPLED, *UPDATED]), sep="\n")
