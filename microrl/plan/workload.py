"""What a configuration asks of a card: sizes, numbers of rows and tokens, and the assumptions that make them numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from microrl.config import RunConfig
from microrl.config.engine_rules import auto_is_vllm, sync_mode
from microrl.limits import NF4_BYTES, next_round
from microrl.plan.devices import Device
from microrl.plan.shapes import Shape

LENGTH_FRACTION = 0.5
"""Mean completion, as a share of the limit. An assumption: instruct models start below it, reasoning models above."""
LONGEST_FRACTION = 0.9
"""Longest completion of a batch: among a hundred one comes near the limit nearly always."""
PROMPT_FRACTION = 0.3
"""Mean prompt, as a share of its limit: competition problems have 60 to 250 tokens."""
ARITHMETIC_PROMPT = 24
"""Tokens of a generated sum in its chat template."""
USEFUL_FRACTION = 0.5
"""Groups whose rewards differ; DAPO's dynamic sampling drops the others and samples on. An assumption for language models on
mathematics: a curated set had 0.6 before training (deepchokshi.in/blog/grpo-reward-variance-filtering)."""
CHOSEN_FRACTION = 0.7
"""The same where `data.curriculum` or a first pass chooses the questions. An assumption."""
ARITHMETIC_USEFUL = 0.9
"""The same for generated sums: measured on the quickstart's model (the guide's page on data), with and without choosing."""
MOMENT_BYTES = {"adamw": 8.0, "adamw_8bit": 2 + 8 / 256}
"""AdamW's two moments of a number; in 8 bits with a float32 scale for each 256."""
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

SLOWER = frozenset({"qwen3_5_text", "qwen3_next", "lfm2", "granitemoehybrid", "falcon_h1", "jamba"})
"""Architectures with more state than keys and values. A run finds out by itself (`models.ways`); the plan goes by the name."""


def mean_prompt(config: RunConfig) -> float:
    """Tokens of a mean prompt."""
    return ARITHMETIC_PROMPT if config.data.name == "arithmetic" else PROMPT_FRACTION * config.data.max_prompt_tokens


@dataclass(frozen=True, slots=True)
class TeacherSize:
    """What a distillation has beside the student."""

    shape: Shape
    is_shared: bool
    """Whether it is the student's base, which is loaded for both."""
    quant: Literal["nf4"] | None = None
    pair_bytes: float = 0.0
    """Of its LoRA pairs."""
    changed: int = 0
    """Parameters of the tensors that its update changes: it has its own, where the base is shared."""

    def bytes(self, dtype_bytes: int) -> float:
        """Of what is loaded for it alone; `dtype_bytes` of a weight that is not in 4 bits."""
        is_copied = self.is_shared or self.quant is not None  # else they take the place of the base's
        base = 0.0 if self.is_shared else base_bytes(self.shape, self.quant, dtype_bytes)
        return base + self.pair_bytes + is_copied * dtype_bytes * self.changed


def base_bytes(shape: Shape, quant: Literal["nf4"] | None, dtype_bytes: int) -> float:
    """Bytes of a base: the embeddings and the head stay as they are where the rest is in 4 bits."""
    whole = float(shape.parameters * dtype_bytes)
    return whole if quant is None else whole - shape.body_weights * (dtype_bytes - NF4_BYTES)


@dataclass(frozen=True, slots=True)
class Workload:
    """A run on a card, in numbers."""

    config: RunConfig
    shape: Shape
    device: Device
    trained: int
    """Trained parameters."""
    dtype: str
    tool_tokens: int = 0
    """Of a prompt that tell of the environment's tools."""
    teacher: TeacherSize | None = None

    @classmethod
    def from_config(
        cls, config: RunConfig, shape: Shape, device: Device, tool_tokens: int = 0, teacher: TeacherSize | None = None
    ) -> Workload:
        """Raises UserError for targets and ranks that the network does not have."""
        dtype = device.auto_dtype if config.model.dtype == "auto" else config.model.dtype
        return cls(config, shape, device, shape.trainable(config.adapter), dtype, tool_tokens, teacher)

    def changed(self, config: RunConfig, device: Device | None = None) -> Workload:
        """The same with another configuration, or on another card."""
        teacher = self.teacher
        if teacher is not None and config.distill.quant != self.config.distill.quant:
            teacher = replace(teacher, quant=config.distill.quant)
        return Workload.from_config(config, self.shape, device or self.device, self.tool_tokens, teacher)

    @property
    def dtype_bytes(self) -> int:
        """Bytes of a base weight."""
        return DTYPE_BYTES[self.dtype]

    @property
    def has_vllm(self) -> bool:
        """Whether vLLM samples: `auto` takes it on a GPU (where the `gpu` extra is installed) if it can serve the adapter."""
        kind = self.config.engine.kind
        return not self.device.is_cpu and (kind == "vllm" or (kind == "auto" and auto_is_vllm(self.config)))

    @property
    def weight_bytes(self) -> int:
        """Bytes of one copy of the base."""
        return self.shape.parameters * self.dtype_bytes

    @property
    def base_bytes(self) -> float:
        """Bytes of the trainer's base."""
        return base_bytes(self.shape, self.config.model.quant, self.dtype_bytes)

    @property
    def moment_bytes(self) -> float:
        """Bytes of AdamW's two moments."""
        return MOMENT_BYTES[self.config.optim.name] * self.trained

    @property
    def sync(self) -> Literal["auto", "swap", "merge"]:
        """How vLLM gets the trained weights; auto: the run measures both ways."""
        return sync_mode(self.config, None if self.device.is_cpu else self.device.capability)

    @property
    def merges(self) -> bool:
        """Whether the engine gets merged weights and nothing else."""
        return self.sync == "merge"

    @property
    def adapter_sides(self) -> int:
        """Sum of the targeted layers' widths and heights, over all layers."""
        targets = self.shape.targets(self.config.adapter)
        return sum(linear.count * (linear.n_in + linear.n_out) for linear in targets)

    @property
    def rows(self) -> int:
        """Completions that a step trains on."""
        return self.config.sampling.prompts_per_step * self.config.sampling.group_size

    @property
    def limit(self) -> int:
        """Longest completion, tokens."""
        return self.config.sampling.max_completion_tokens

    @property
    def evaluation_limit(self) -> int:
        return self.config.evaluation.max_completion_tokens or self.limit

    @property
    def longest_row(self) -> int:
        """Prompt and completion at their limits, training and evaluation, tokens: what must fit the model's positions."""
        return self.config.data.max_prompt_tokens + max(self.limit, self.evaluation_limit)

    @property
    def training_row(self) -> int:
        """The longest row of an update, tokens."""
        return self.config.data.max_prompt_tokens + self.limit

    @property
    def prompt(self) -> float:
        """Mean prompt, tokens."""
        return min(mean_prompt(self.config) + self.tool_tokens, self.config.data.max_prompt_tokens)

    @property
    def rounds(self) -> tuple[float, ...]:
        """Rows of each round of sampling: one, or with DAPO's dynamic sampling as many as the batch needs to fill up."""
        loss, prompts, size = self.config.loss, self.config.sampling.prompts_per_step, self.config.sampling.group_size
        if not loss.drops_equal_groups:
            return (float(self.rows),)
        asked: list[int] = []
        while more := next_round(prompts, int(USEFUL_FRACTION * sum(asked)), sum(asked)):
            asked.append(more)
        return tuple(float(more * size) for more in asked)

    @property
    def useful_share(self) -> float:
        """Of the groups that a step trains on, those expected to have different rewards."""
        data = self.config.data
        if self.config.loss.drops_equal_groups or self.config.asked_teacher is not None:
            return 1.0
        if data.name == "arithmetic":
            return ARITHMETIC_USEFUL
        return CHOSEN_FRACTION if data.curriculum or data.screen_minutes else USEFUL_FRACTION

    @property
    def checkpoints_activations(self) -> bool:
        """`auto` is off: if that does not fit, `plan.make` turns it on."""
        return self.config.model.gradient_checkpointing is True

    @property
    def prompt_passes(self) -> int:
        """Prompts that an update computes: one for each group, or where they cannot be shared, one for each completion."""
        is_shared = not self.checkpoints_activations and self.shape.model_type not in SLOWER
        return self.config.sampling.prompts_per_step if is_shared else self.rows

    @property
    def minibatches(self) -> int:
        """Optimiser steps in a step."""
        per_update = self.config.optim.prompts_per_update
        return -(-self.config.sampling.prompts_per_step // per_update) if per_update else 1
