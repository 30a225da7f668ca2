"""The one typed tree that describes a run. The docstring under a field is its help; `None` means off or derived."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from microrl.config.adapters import AdapterConfig, FullConfig, LoraConfig, TinyLoraConfig
from microrl.config.oversight import BudgetConfig, EvaluationConfig, GuardConfig, ValidationConfig
from microrl.config.section import Decay, Fraction, Positive, Section, Seed, Temperature
from microrl.config.sft import SftConfig


class ModelConfig(Section):
    name: str = "Qwen2.5-1.5B-Instruct"
    """A local folder, a hub id, one of the papers' short names, a `.gguf` file, or `quickstart`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Weights' type; auto is bfloat16 on a GPU (float16 where it has none: before Ampere) and float32 on a CPU."""
    quant: Literal["nf4"] | None = None
    """nf4 keeps the trainer's frozen base in 4 bits (QLoRA; bitsandbytes, on a GPU); the engine samples from the same numbers."""
    head_dtype: Literal["model", "float32"] = "model"
    """Type of the output head's logits, in engine and trainer alike; float32 narrows the gap between the two in bfloat16."""
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    """Recompute activations in the backward pass: about half more time for a fraction of the memory; auto: on a GPU, where not
    even one completion fits without."""


class DataConfig(Section):
    name: str = "open-rs"
    """A known data set, a hub id, a local .jsonl, .json, .csv or .parquet file, or `arithmetic` (generated)."""
    subset: str | None = None
    """The hub data set's configuration, where it has several."""
    split: str = "train"
    """The hub data set's split."""
    question: str | None = None
    """Column of the question; None looks for the usual names."""
    answer: str | None = None
    """Column of the gold answer; None looks for the usual names."""
    answer_kind: Literal["math", "text"] = "math"
    """`math`: the gold must parse as mathematics. `text`: compared as text, ignoring case and space."""
    bad_answers: Literal["error", "drop"] = "error"
    """What happens to a row whose gold answer is not mathematics."""
    system: str | None = "Think step by step inside <think> and </think>, then give the final answer inside \\boxed{}."
    """System message; None sends none."""
    max_prompt_tokens: Positive = 512
    """Longest prompt, in tokens, chat template included."""
    long_prompts: Literal["error", "drop", "truncate_left"] = "error"
    """What happens to a prompt over the limit."""
    held_out: Fraction = 0.05
    """Share of the questions kept for the evaluation before and after, chosen by a hash of the question's text."""
    validation: Fraction = 0.05
    """Share of the questions kept for validation during training: neither trained on nor in the final evaluation."""


Averaging = Literal["sequence_mean", "token_mean", "constant_length"]


class SurrogateConfig(Section):
    """What every loss shares: its knobs, and the properties by which the four differ."""

    averaging: ClassVar[Averaging] = "sequence_mean"  # see `algorithm.loss.token_weights`
    per_sequence: ClassVar[bool] = False  # one ratio a sequence instead of one a token

    @property
    def drops_equal_groups(self) -> bool:
        """Whether groups whose accuracy is all equal are dropped and replaced."""
        return False

    beta: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the k3 KL to the untouched model; 0 runs no reference pass."""
    importance_cap: Annotated[float, Field(gt=0)] | None = 2.0
    """Truncated importance weights min(exp(trainer - engine), cap) for the sampler's mismatch; None is off."""
    mask_truncated: bool = False
    """Leave completions that ran into the length limit out of the loss."""
    scale_by_std: bool = True
    """Divide the group's centred rewards by their standard deviation."""
    clip_low: Fraction = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: Annotated[float, Field(ge=0)] = 0.2
    """The ratio is clipped above at 1 + clip_high."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """For negative advantages bound the objective below by dual_clip * advantage (Ye et al. 2020); None is off."""


class GrpoConfig(SurrogateConfig):
    """GRPO (Shao et al. 2024): token ratios, 1 +- clip, mean over tokens, then over completions."""

    kind: Literal["grpo"] = "grpo"


class DapoConfig(SurrogateConfig):
    """DAPO (Yu et al. 2025): clip-higher, mean over all tokens of the batch, dynamic sampling."""

    kind: Literal["dapo"] = "dapo"
    averaging: ClassVar[Averaging] = "token_mean"
    clip_high: Annotated[float, Field(ge=0)] = 0.28
    """The ratio is clipped above at 1 + clip_high."""
    dynamic_sampling: bool = True
    """Drop groups whose accuracy is all equal and sample on until the batch is full, with at most ten times its prompts; what
    is missing then is left out and counted."""

    @property
    def drops_equal_groups(self) -> bool:
        """Whether groups whose accuracy is all equal are dropped and replaced."""
        return self.dynamic_sampling

    @model_validator(mode="before")
    @classmethod
    def _filled(cls, values: Any) -> Any:
        if isinstance(values, dict) and "max_rounds" in values:
            raise ValueError(
                "loss.max_rounds is no longer a key: a step samples until its batch is full, with at most ten times its prompts",
                "leave it out; --set loss.dynamic_sampling=false samples a single round",
            )
        return values


class DrGrpoConfig(SurrogateConfig):
    """Dr. GRPO (Liu et al. 2025): no division by the standard deviation, none by the completion's own length."""

    kind: Literal["dr_grpo"] = "dr_grpo"
    averaging: ClassVar[Averaging] = "constant_length"
    scale_by_std: bool = False
    """Divide the group's centred rewards by their standard deviation."""


class GspoConfig(SurrogateConfig):
    """GSPO (Zheng et al. 2025): one ratio a sequence, exp of the mean token log-ratio, clipped tightly."""

    kind: Literal["gspo"] = "gspo"
    per_sequence: ClassVar[bool] = True
    clip_low: Fraction = 3e-4
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: Annotated[float, Field(ge=0)] = 4e-4
    """The ratio is clipped above at 1 + clip_high."""


LossConfig = Annotated[GrpoConfig | DapoConfig | DrGrpoConfig | GspoConfig, Field(discriminator="kind")]


class InProcessConfig(Section):
    """What every engine shares."""

    max_kv_gb: Annotated[float, Field(gt=0)] | None = None
    """GB for keys and values, which bounds how many completions decode together; None: what the batch needs, as far as there
    is room (transformers: a third of a GPU's free memory; on a CPU at most 4)."""


class SleepingConfig(InProcessConfig):
    """What an engine on a GPU does with its memory while the trainer works."""

    sleep: Literal["auto", "kv", 1, 2, "off"] = "auto"
    """kv frees the cache; 1 moves the weights to host memory too, 2 drops them; auto: kv up to 3B on 48 GB, else 2."""
    cuda_graphs: bool = True
    """Replay decoding as CUDA graphs: faster, for some seconds and about a GB at the start."""
    sync: Literal["auto", "swap", "merge"] = "auto"
    """How a new adapter reaches the engine: swap hands it over as an adapter, merge folds it into the engine's weights; auto
    measures both and keeps the cheaper."""


class AutoEngineConfig(SleepingConfig):
    """vLLM where it is installed and a GPU is there, else transformers."""

    kind: Literal["auto"] = "auto"


class VllmEngineConfig(SleepingConfig):
    """vLLM in this process, asleep while the trainer works."""

    kind: Literal["vllm"] = "vllm"


class TransformersEngineConfig(InProcessConfig):
    """Generation by transformers in this process: works everywhere, made for CPUs and small models."""

    kind: Literal["transformers"] = "transformers"
    sync: ClassVar[Literal["auto"]] = "auto"  # it shares the trainer's weights: nothing is handed over


EngineConfig = Annotated[AutoEngineConfig | VllmEngineConfig | TransformersEngineConfig, Field(discriminator="kind")]


class RisingConfig(Section):
    """What every schedule shares."""

    warmup: Fraction = 0.0
    """Share of the budget over which the rate rises: the first of W steps trains at a W-th of it."""


class ConstantSchedule(RisingConfig):
    """The full rate to the end."""

    kind: Literal["constant"] = "constant"


class DecayConfig(RisingConfig):
    """What falling schedules share."""

    floor: Fraction = 0.0
    """What is left of the rate at the end, as a share."""


class CosineSchedule(DecayConfig):
    """Half a cosine from the full rate down to `floor` times it."""

    kind: Literal["cosine"] = "cosine"


class LinearSchedule(DecayConfig):
    """A straight line from the full rate down to `floor` times it."""

    kind: Literal["linear"] = "linear"


ScheduleConfig = Annotated[ConstantSchedule | CosineSchedule | LinearSchedule, Field(discriminator="kind")]


class OptimConfig(Section):
    name: Literal["adamw", "adamw_8bit"] = "adamw"
    """adamw_8bit keeps its moments in 8 bits (bitsandbytes, on a GPU): a quarter of their memory."""
    lr: Annotated[float, Field(ge=0)] | Literal["auto"] = 1e-5
    """Peak learning rate; auto: the scaling law of Schulman and others (2025), ten times as high for adapters as for `full`."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled weight decay."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """AdamW's moment decays."""
    eps: Annotated[float, Field(ge=1e-16)] = 1e-8
    """AdamW's denominator floor. Above the gradients' size it fixes AdamW towards SGD with momentum. Below 1e-16 a small
    gradient, whose square is 0 in float32, would make a step without bound."""
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Gradients are scaled down to this global norm; None is off."""
    prompts_per_update: Positive | None = None
    """Split a step's batch into mini-batches of this many prompts, one optimiser step each; None: one for all."""
    tokens_per_microbatch: Positive | None = None
    """Most tokens (prompt and padding included) in one forward and backward pass; None derives it."""
    schedule: ScheduleConfig = ConstantSchedule()
    """How the rate moves over the spent share of the budget."""


class SamplingConfig(Section):
    prompts_per_step: Positive = 16
    """Prompts in a step's batch."""
    group_size: Annotated[int, Field(ge=2, le=2**31 - 1)] = 8
    """Completions sampled for each prompt."""
    max_completion_tokens: Positive = 3584
    """Length limit of a completion, in tokens."""
    temperature: Temperature = 1.0
    """Sampling temperature, at least 0.01; the trainer uses the same."""

    @model_validator(mode="before")
    @classmethod
    def _whole_distribution(cls, values: Any) -> Any:
        for name in ("top_p", "top_k", "min_p"):
            if isinstance(values, dict) and name in values:
                raise ValueError(
                    f"sampling.{name} cannot be set: training samples from the whole distribution, because a cut one is "
                    "renormalised and the ratio to the trainer's probabilities would be biased (evaluation.top_p is free)"
                )
        return values


class OverlongConfig(Section):
    """DAPO's soft penalty: 0 up to the limit less `buffer`, then falling to -factor at the limit."""

    buffer: Positive = 4096
    """Tokens before the limit over which the penalty grows."""
    factor: Annotated[float, Field(ge=0)] = 1.0
    """Penalty at the limit."""


class RewardConfig(Section):
    format_weight: float = 0.2
    """Weight of the <think>...</think> structure."""
    accuracy_weight: float = 1.0
    """Weight of the right answer."""
    overlong: OverlongConfig | None = None
    """Soft penalty for length; None is off."""
    deadline_s: Annotated[float, Field(gt=0)] = 5.0
    """A checker that takes longer is killed and its answer counts as wrong. After two in a step its other slow ones are, too."""


RENAMED: dict[str, str | None] = {
    "sync.mode": "engine.sync",
    "warmup": "sft",
    "validate.share": "validation.fraction",
    "validate": "validation",
    "budget.checkpoint_minutes": None,
}
"""Keys of earlier versions; None: derived today."""


class RunConfig(Section):
    """A whole run. Defaults are the micro paper's setting (one 48 GB GPU, Qwen2.5-1.5B-Instruct, open-rs)."""

    seed: Seed = 0
    """Seed of everything random in training; the quickstart's warm start has its own."""
    init: str | None = None
    """A run whose trained adapter this one starts from: of the same model, and the same `adapter` to the last key."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    adapter: AdapterConfig = LoraConfig()
    loss: LossConfig = GrpoConfig()
    engine: EngineConfig = AutoEngineConfig()
    optim: OptimConfig = OptimConfig()
    sft: SftConfig = SftConfig()
    sampling: SamplingConfig = SamplingConfig()
    reward: RewardConfig = RewardConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    validation: ValidationConfig = ValidationConfig()
    guard: GuardConfig = GuardConfig()
    budget: BudgetConfig = BudgetConfig()

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, values: Any) -> Any:
        """Keys of earlier versions get an error that names today's."""
        if isinstance(values, dict):
            for old, new in RENAMED.items():
                section, _, leaf = old.partition(".")
                if section in values and (not leaf or (isinstance(values[section], dict) and leaf in values[section])):
                    if new is None:
                        raise ValueError(f"`{old}` is no longer a key: it follows from the budget", "leave it out")
                    raise ValueError(f"`{old}` is called `{new}` now", f"replace `{old}` by `{new}`")
        return values

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        if self.model.quant is not None and isinstance(self.adapter, FullConfig):
            raise ValueError(
                "model.quant=nf4 keeps a frozen base in 4 bits, and `full` trains it", "--adapter lora, or leave quant out"
            )
        if self.model.quant is not None and isinstance(self.adapter, TinyLoraConfig):
            why = "model.quant=nf4: PEFT gives tinylora's vectors the type that the weights are stored in"
            raise ValueError(why, "--adapter lora with a low rank, or leave quant out")
        overlong = self.reward.overlong
        if overlong and overlong.buffer >= self.sampling.max_completion_tokens:
            raise ValueError(
                f"reward.overlong.buffer {overlong.buffer} must be below sampling.max_completion_tokens "
                f"{self.sampling.max_completion_tokens}"
            )
        hours, minutes = self.budget.hours, self.sft.minutes
        if self.sft.only and hours is None and minutes is None and self.sft.steps is None:
            raise ValueError("the warm-up has no end", "say how long: --hours H, or --steps N")
        if hours is not None and minutes is not None and minutes >= hours * 60:
            raise ValueError(
                f"a warm-up of {minutes:g} minutes leaves nothing of {hours:g} hours",
                f"--sft-minutes {hours * 6:.2g} would be a tenth; the supervised phase alone is `microrl warmup`",
            )
        return self
