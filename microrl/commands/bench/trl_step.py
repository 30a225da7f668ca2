"""One side of `microrl bench peer`: training steps of TRL's `GRPOTrainer`, on the same work as `microrl bench step`.

Runs in an environment that has TRL and need not have microrl: it imports nothing of microrl, and reads the clock's file by its
path. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import runpy
import statistics
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

NEEDED = ("trl", "torch", "transformers", "peft", "datasets")
SUMS = 512
CLOCK = Path(__file__).parents[2] / "clock.py"
"""The clock that times microrl's steps; it needs the standard library alone."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", action="store_true", help="print the versions of the libraries, and do nothing else")
    parser.add_argument("--model", help="a local folder")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--steps", type=int, default=2, help="timed steps, after one untimed step")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    wanted = parser.parse_args()
    result = versions() if wanted.versions else time_steps(wanted)
    print(json.dumps(result), flush=True)


def versions() -> dict[str, str | None]:
    """The version of each library that is needed; None for one that is not installed."""
    found: dict[str, str | None] = {}
    for name in NEEDED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def time_steps(wanted: argparse.Namespace) -> dict[str, Any]:
    """Median seconds of the steps after the first, all steps' seconds, and peak resident memory in GB."""
    os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1")
    import torch
    from transformers import TrainerCallback

    torch.set_num_threads(wanted.threads)
    now_s = runpy.run_path(str(CLOCK))["now_s"]
    seconds: list[float] = []

    class Watch(TrainerCallback):
        """A step begins before its completions are sampled and ends after the optimizer's step."""

        began = 0.0

        def on_step_begin(self, *arguments: Any, **more: Any) -> None:
            self.began = now_s()

        def on_step_end(self, *arguments: Any, **more: Any) -> None:
            if wanted.device == "cuda":
                torch.cuda.synchronize()
            seconds.append(now_s() - self.began)

    with tempfile.TemporaryDirectory() as folder:
        trainer(wanted, Watch(), folder).train()
    assert len(seconds) == wanted.steps + 1, seconds
    return {"step_s_median": statistics.median(seconds[1:]), "steps_s": seconds, "peak_rss_gb": peak_rss_gb()}


def trainer(wanted: argparse.Namespace, watch: Any, folder: str) -> Any:
    """TRL's trainer in float32: one batch holds a step's completions, all of the same forced length; no KL penalty."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        output_dir=folder,
        use_cpu=wanted.device == "cpu",
        bf16=False,
        model_init_kwargs={"dtype": "float32"},
        loss_type="grpo",
        beta=0.0,
        learning_rate=1e-5,
        temperature=1.0,
        num_generations=wanted.group,
        per_device_train_batch_size=wanted.prompts * wanted.group,
        gradient_accumulation_steps=1,
        gradient_checkpointing=False,
        max_completion_length=wanted.tokens,
        generation_kwargs={"min_new_tokens": wanted.tokens},
        max_steps=wanted.steps + 1,
        seed=0,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    lora = LoraConfig(r=wanted.rank, lora_alpha=wanted.rank, target_modules="all-linear", task_type="CAUSAL_LM")
    rows = Dataset.from_list(questions())
    return GRPOTrainer(wanted.model, reward, args=config, train_dataset=rows, peft_config=lora, callbacks=[watch])


def questions() -> list[dict[str, Any]]:
    """The sums of `microrl.commands.bench.step.bench_prompts`, as TRL takes them."""
    draw = random.Random(0)
    pairs = [(draw.randint(10, 99), draw.randint(10, 99)) for _ in range(SUMS)]
    asked = [(f"What is {x} + {y}? Put the final answer in \\boxed{{}}.", str(x + y)) for x, y in pairs]
    return [{"prompt": [{"role": "user", "content": text}], "gold": gold} for text, gold in asked]


def reward(completions: list[list[dict[str, str]]], gold: list[str], **more: Any) -> list[float]:
    """1 for the right answer, plus a little that differs within a group, so that every completion has a gradient."""
    texts = [completion[0]["content"] for completion in completions]
    return [
        float(f"\\boxed{{{answer}}}" in text) + 0.01 * len(text) + 0.001 * number
        for number, (text, answer) in enumerate(zip(texts, gold))
    ]


def peak_rss_gb() -> float:
    """Peak resident memory of this program in GB (1e9 bytes).

    `ru_maxrss` is asked only where there is no /proc: Linux lets it begin at the peak of the process that started this one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        if "VmHWM" in lines:
            return int(lines["VmHWM"].split()[0]) * 1024 / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


if __name__ == "__main__":
    main()
