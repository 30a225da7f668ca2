"""One side of `microrl bench peer`: TRL's `GRPOTrainer`, on the work of `microrl bench step` or until an accuracy is reached, or
its `DistillationTrainer` on that work.

Runs in an environment that has TRL and need not have microrl: it imports nothing of microrl, and reads the files of the clock and
of the memory by their paths. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import runpy
import statistics
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

NEEDED = ("trl", "torch", "transformers", "peft", "datasets")
SUMS = 512
WINDOW = 640
"""Completions whose mean accuracy is compared with the goal: with 8 of a question its standard error is about 0.04."""
ANSWER = re.compile(r"\\boxed\{([^{}]*)\}|<answer>(.*?)</answer>", re.DOTALL)
CLOCK = Path(__file__).parents[2] / "clock.py"
"""The clock that times microrl's steps; it needs the standard library alone."""
RESIDENT = CLOCK.with_name("resident.py")
"""What measures microrl's memory; likewise."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", action="store_true", help="print the versions of the libraries, and do nothing else")
    parser.add_argument("--model", help="a local folder")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--steps", type=int, default=2, help="timed steps, after one untimed step")
    parser.add_argument("--env", help="a class whose methods are tools, MODULE:CLASS; completions end where the model ends them")
    parser.add_argument("--teacher", help="a local folder; a step then distils from this model")
    parser.add_argument("--path", help="with --env: the folder of its module")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--until", type=float, help="train until this accuracy, instead of timing steps")
    parser.add_argument("--seconds", type=float, help="with --until: the limit")
    parser.add_argument("--questions", help="with --until: a JSON file of prompts and gold answers")
    parser.add_argument("--lr", type=float, help="with --until: learning rate, with the work above; without it, TRL's defaults")
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    result = versions() if wanted.versions else time_steps(wanted) if wanted.until is None else train_until(wanted)
    print(json.dumps(result), flush=True)


def versions() -> dict[str, str | None]:
    """The version of each library that is needed; None for one that is not installed."""
    installed: dict[str, str | None] = {}
    for name in NEEDED:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            installed[name] = None
    return installed


def time_steps(wanted: argparse.Namespace) -> dict[str, Any]:
    """Median seconds of the steps after the first, all steps' seconds, tokens of a step, and peak resident memory in GB; with an
    environment, the tool calls of a completion, too."""
    os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1")
    import torch
    from transformers import TrainerCallback

    torch.set_num_threads(wanted.threads)
    now_s = runpy.run_path(str(CLOCK))["now_s"]
    seconds: list[float] = []
    tokens: list[int] = []
    calls: list[float] = []

    def paid(completions: list[Any], gold: list[str], completion_ids: list[list[int]], **more: Any) -> list[float]:
        tokens.append(sum(map(len, completion_ids)))
        calls.append(sum(message["role"] == "tool" for completion in completions for message in completion) / len(completions))
        return reward(completions, gold)

    class Watch(TrainerCallback):
        """A step begins before its completions are sampled and ends after the optimizer's step."""

        began = 0.0

        def on_step_begin(self, *arguments: Any, **more: Any) -> None:
            self.began = now_s()

        def on_step_end(self, *arguments: Any, **more: Any) -> None:
            if wanted.device == "cuda":
                torch.cuda.synchronize()
            seconds.append(now_s() - self.began)

    options = {**same_work(wanted, 1e-5), "max_steps": wanted.steps + 1}
    if wanted.env is None:
        options["generation_kwargs"] = {"min_new_tokens": wanted.tokens}
    tools = None if wanted.env is None else environment(wanted.env, wanted.path)
    with tempfile.TemporaryDirectory() as folder:
        if wanted.teacher is None:
            trainer(wanted, folder, options, lora(wanted.rank), questions(), paid, Watch(), tools).train()
        else:
            distiller(wanted, folder, options, Watch()).train()
            tokens = [wanted.prompts * wanted.group * wanted.tokens] * len(seconds)  # there is no reward to count them
    assert len(seconds) == len(tokens) == wanted.steps + 1, (seconds, tokens)
    return {
        "step_s_median": statistics.median(seconds[1:]), "steps_s": seconds,
        "tokens_per_step": round(statistics.mean(tokens[1:])), "peak_rss_gb": peak_rss_gb(),
        **({} if tools is None else {"calls": statistics.mean(calls[1:])}),
    }  # fmt: skip


def environment(target: str, path: str) -> type:
    """The class `MODULE:CLASS`, whose module may be in this folder."""
    sys.path.append(path)
    module, _, name = target.partition(":")
    member: Any = import_module(module)
    for part in name.split("."):
        member = getattr(member, part)
    return member


def train_until(wanted: argparse.Namespace) -> dict[str, Any]:
    """Train until the goal is reached or time is out; see `microrl.commands.bench.to_accuracy.compare` for the result."""
    os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1")
    now_s = runpy.run_path(str(CLOCK))["now_s"]
    start = now_s()
    from peft import LoraConfig
    from transformers import TrainerCallback

    seconds: list[float] = []
    accuracies: list[float] = []
    counts: list[int] = []

    def right(completions: list[list[dict[str, str]]], gold: list[str], **more: Any) -> list[float]:
        scores = [float(is_right(completion[0]["content"], answer)) for completion, answer in zip(completions, gold)]
        accuracies.append(sum(scores) / len(scores))
        counts.append(len(scores))
        return scores

    class Watch(TrainerCallback):
        began = 0.0

        def on_step_begin(self, *arguments: Any, **more: Any) -> None:
            self.began = now_s()

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
            seconds.append(now_s() - self.began)
            is_over = now_s() - start > wanted.seconds
            control.should_training_stop = is_over or reached(accuracies, counts[0], wanted.until)
            return control

    options: dict[str, Any] = {}
    adapter = LoraConfig(task_type="CAUSAL_LM")
    if wanted.lr is not None:
        options = {**same_work(wanted, wanted.lr), "lr_scheduler_type": "constant", "max_steps": 10**6}
        adapter = lora(wanted.rank)
    rows = json.loads(Path(wanted.questions).read_text())
    with tempfile.TemporaryDirectory() as folder:
        trainer(wanted, folder, options, adapter, rows, right, Watch()).train()
    return {
        "reached": reached(accuracies, counts[0], wanted.until), "steps": len(seconds), "step_s": sum(seconds),
        "accuracy": recent(accuracies, counts[0]),
    }  # fmt: skip


def is_right(text: str, gold: str) -> bool:
    """Whether the last answer, in a box or in <answer> tags, equals the right one exactly."""
    given = ANSWER.findall(text)
    return bool(given) and "".join(given[-1]).strip() == gold


def recent(accuracies: Sequence[float], per_step: int) -> float:
    """The mean of the last steps' accuracies, over WINDOW completions or what there is."""
    last = accuracies[-max(1, WINDOW // per_step) :]
    return sum(last) / len(last)


def reached(accuracies: Sequence[float], per_step: int, goal: float) -> bool:
    """Whether a whole window of completions has at least this accuracy."""
    return len(accuracies) * per_step >= WINDOW and recent(accuracies, per_step) >= goal


def same_work(wanted: argparse.Namespace, lr: float) -> dict[str, Any]:
    """What microrl's side does, in TRL's names: one batch holds a step's completions; no KL penalty."""
    return {
        "loss_type": "grpo", "beta": 0.0, "learning_rate": lr, "temperature": 1.0, "num_generations": wanted.group,
        "per_device_train_batch_size": wanted.prompts * wanted.group, "gradient_accumulation_steps": 1,
        "gradient_checkpointing": False, "max_completion_length": wanted.tokens,
    }  # fmt: skip


def lora(rank: int) -> Any:
    from peft import LoraConfig

    return LoraConfig(r=rank, lora_alpha=rank, target_modules="all-linear", task_type="CAUSAL_LM")


def trainer(
    wanted: argparse.Namespace, folder: str, options: dict[str, Any], adapter: Any, rows: list[Any], reward: Any, watch: Any,
    tools: type | None = None,
) -> Any:  # fmt: skip
    """TRL's trainer; what `options` leave out is TRL's default."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(**common(wanted, folder), **options)
    rows = Dataset.from_list(rows)
    with_tools = {} if tools is None else {"environment_factory": tools}
    return GRPOTrainer(
        wanted.model, reward, args=config, train_dataset=rows, peft_config=adapter, callbacks=[watch], **with_tools
    )


def distiller(wanted: argparse.Namespace, folder: str, options: dict[str, Any], watch: Any) -> Any:
    """TRL's trainer for distillation on the student's samples, by the reverse KL over the whole vocabulary. It samples one
    completion of each question: its batch has as many questions as a batch of GRPO has completions."""
    from datasets import Dataset
    from trl import DistillationConfig, DistillationTrainer

    kept = {name: value for name, value in options.items() if name not in ("loss_type", "beta", "num_generations")}
    config = DistillationConfig(beta=1.0, teacher_model_init_kwargs={"dtype": "float32"}, **common(wanted, folder), **kept)
    rows = Dataset.from_list([{"prompt": one["prompt"]} for one in questions()])
    return DistillationTrainer(
        wanted.model, wanted.teacher, args=config, train_dataset=rows, peft_config=lora(wanted.rank), callbacks=[watch]
    )


def common(wanted: argparse.Namespace, folder: str) -> dict[str, Any]:
    """The settings of both trainers: float32, and silent."""
    return {
        "output_dir": folder, "use_cpu": wanted.device == "cpu", "bf16": False, "model_init_kwargs": {"dtype": "float32"},
        "seed": wanted.seed, "report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True,
    }  # fmt: skip


def questions() -> list[dict[str, Any]]:
    """Sums of two-digit numbers, as TRL takes them; microrl's side gets the same ones."""
    draw = random.Random(0)
    pairs = [(draw.randint(10, 99), draw.randint(10, 99)) for _ in range(SUMS)]
    asked = [(f"What is {x} + {y}? Put the final answer in \\boxed{{}}.", str(x + y)) for x, y in pairs]
    return [{"prompt": [{"role": "user", "content": text}], "gold": gold} for text, gold in asked]


def reward(completions: list[list[dict[str, str]]], gold: list[str], **more: Any) -> list[float]:
    """1 for the right answer, plus a little that differs within a group, so that every completion has a gradient."""
    texts = [completion[-1]["content"] or "" for completion in completions]
    return [
        float(f"\\boxed{{{answer}}}" in text) + 0.01 * len(text) + 0.001 * number
        for number, (text, answer) in enumerate(zip(texts, gold))
    ]


def peak_rss_gb() -> float:
    """Peak resident memory of this program in GB (1e9 bytes)."""
    return float(runpy.run_path(str(RESIDENT))["peak_gb"]())


if __name__ == "__main__":
    main()
