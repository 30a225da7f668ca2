"""The typed configuration of a run. The docstring under a field is its help text; `None` means off or derived."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from microrl.config import known_models
from microrl.config.adapters import AdapterConfig, LoraConfig
from microrl.config.data import DataConfig
from microrl.config.environment import EnvironmentConfig
from microrl.config.losses import CustomLossConfig, DistillConfig, DistillLossConfig, GrpoConfig, LossConfig
from microrl.config.oversight import BudgetConfig, EvaluationConfig, GuardConfig, ValidationConfig
from microrl.config.reward import RewardConfig
from microrl.config.section import Decay, Fraction, Positive, Section, Seed, Temperature
from microrl.terminal import time_in_words


class ModelConfig(Section):
    name: str = "Qwen2.5-1.5B-Instruct"
    """Local folder, Hugging Face id (owner/name), `.gguf` file, `quickstart`, or a short name such as `Qwen2.5-1.5B-Instruct`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Weight type; auto: bfloat16 on a GPU (float16 before Ampere, which lacks bfloat16), float32 on a CPU."""
    quant: Literal["nf4"] | None = None
    """nf4: keep the trainer's frozen base in 4 bits (QLoRA; needs bitsandbytes and a GPU). The engine samples from the same
    dequantised weights."""
    head_dtype: Literal["model", "float32"] = "model"
    """Type in which engine and trainer compute the output head; float32 reduces their mismatch in bfloat16."""
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    """Activation recomputation: activations are computed again in the backward pass. By the plan, an update takes 1.3 to 1.6
    times as long, and a token's activations a tenth of the memory. auto: on a GPU, if a single completion does not fit
    otherwise."""


class BaseEngineConfig(Section):
    """Keys of every engine."""

    max_kv_gb: Annotated[float, Field(gt=0)] | None = None
    """Size of the KV cache in GB; limits how many completions decode together. None: what the batch needs, if it fits
    (transformers: at most a third of the GPU's free memory, or 4 GB on a CPU)."""


class BaseVllmConfig(BaseEngineConfig):
    """Keys of the vLLM engine: its memory while the trainer works, and the swap."""

    sleep: Literal["auto", "kv", 1, 2, "off"] = "auto"
    """How the engine frees GPU memory while the trainer works. kv: free the KV cache; 1: also move the weights to host memory;
    2: also drop the weights; auto: kv if the weights take at most 15 % of the GPU, else 2 (1 before vLLM 0.31)."""
    cuda_graphs: bool = True
    """Decode with CUDA graphs: faster, but takes some seconds at the start and up to about 1 GB, as `microrl plan` shows."""
    sync: Literal["auto", "swap", "merge"] = "auto"
    """How a new adapter reaches the engine. swap: as a LoRA adapter; merge: merged into the engine's weights; auto: time both and
    keep the faster one."""


class AutoEngineConfig(BaseVllmConfig):
    """vLLM if it is installed and there is a GPU, else transformers. If vLLM fails, a run goes on with other engine settings,
    and in the end with transformers: after its first finished step, or where `unattended` is set also before it."""

    kind: Literal["auto"] = "auto"
    unattended: bool = False
    """Go on also if vLLM fails before the first step. Otherwise the run ends there, because somebody is still watching, and the
    engine that is left is slower. Set by `--engine auto`, and by a preset or `--set` with engine.kind=auto."""


class VllmEngineConfig(BaseVllmConfig):
    """vLLM in the training process, asleep while the trainer works."""

    kind: Literal["vllm"] = "vllm"


class TransformersEngineConfig(BaseEngineConfig):
    """Sampling with transformers in the training process: works everywhere, meant for CPUs and small models."""

    kind: Literal["transformers"] = "transformers"
    sync: ClassVar[Literal["auto"]] = "auto"  # it shares the trainer's weights: nothing is handed over


EngineConfig = Annotated[AutoEngineConfig | VllmEngineConfig | TransformersEngineConfig, Field(discriminator="kind")]


class BaseScheduleConfig(Section):
    """Keys of every schedule."""

    warmup: Fraction = 0.0
    """Fraction of the budget for the linear learning-rate warm-up: of W warm-up steps, the first uses 1/W of the peak."""


class ConstantSchedule(BaseScheduleConfig):
    """The peak rate to the end."""

    kind: Literal["constant"] = "constant"


class DecayConfig(BaseScheduleConfig):
    """Keys of the decaying schedules."""

    floor: Fraction = 0.0
    """Final learning rate as a fraction of the peak."""


class CosineSchedule(DecayConfig):
    """Cosine decay from the peak to `floor` times the peak."""

    kind: Literal["cosine"] = "cosine"


class LinearSchedule(DecayConfig):
    """Linear decay from the peak to `floor` times the peak."""

    kind: Literal["linear"] = "linear"


ScheduleConfig = Annotated[ConstantSchedule | CosineSchedule | LinearSchedule, Field(discriminator="kind")]


class OptimConfig(Section):
    name: Literal["adamw", "adamw_8bit"] = "adamw"
    """adamw_8bit: keep the moments in 8 bits, a quarter of the memory (needs bitsandbytes and a GPU)."""
    lr: Annotated[float, Field(ge=0)] | Literal["auto"] = "auto"
    """Peak learning rate; one that is given is not steered. auto: the scaling law of Schulman et al. (2025), ten times as high
    for adapters as for `full`."""
    step_kl: Annotated[float, Field(gt=0, lt=1)] | None = 1e-3
    """Steer the learning rate so that one step moves the policy by this much: KL of the weights before to those after, nats per
    token. `lr` is then auto: where the rate begins. The schedule lowers the size of the steps as it lowers a rate. None: the rate
    is fixed at `lr`; this is the default where `lr` is given."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled weight decay."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """AdamW's beta1 and beta2."""
    eps: Annotated[float, Field(ge=1e-16)] = 1e-8
    """AdamW's epsilon. If it is far larger than the gradients, AdamW behaves like SGD with momentum. Values below 1e-16 are
    refused: where a gradient's square underflows to 0 in float32, they would not bound the step."""
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Gradient clipping: maximum global norm; None: off."""
    prompts_per_update: Positive | None = None
    """Split a step's batch into mini-batches of this many prompts, one optimizer step each; None: one for the whole batch."""
    tokens_per_microbatch: Positive | None = None
    """Maximum tokens (prompt and padding included) per forward and backward pass; None: automatic."""
    compile: bool = False
    """Compile each layer's norms and MLP with torch.compile, for the update alone, which differs by rounding. On a CPU,
    compiling took 47 s and saved 4 % of an update's CPU time; not measured on a GPU."""
    schedule: ScheduleConfig = ConstantSchedule()
    """Learning rate over the spent fraction of the budget."""

    @model_validator(mode="before")
    @classmethod
    def _a_given_rate_is_not_steered(cls, values: Any) -> Any:
        if isinstance(values, dict) and "lr" in values and "step_kl" not in values:
            return {**values, "step_kl": None}
        return values


class SftConfig(Section):
    """Supervised fine-tuning (SFT) before reinforcement learning."""

    minutes: Annotated[float, Field(gt=0)] | None = None
    """Maximum minutes of SFT, part of the run's hours; None and no steps either: no SFT."""
    steps: Positive | None = None
    """Maximum number of SFT steps; bound a reproducible run by these instead of minutes."""
    only: bool = False
    """SFT without reinforcement learning (`microrl warmup`)."""
    data: str | None = None
    """Data set with worked solutions, as data.name, or a folder of `microrl teach`, whose tokens are learned as they are; None:
    the run's data. Held-out and validation questions are never used."""
    solution: str | None = None
    """Column of the solution, reasoning included; None tries the usual names."""
    lr: Annotated[float, Field(ge=0)] | None = None
    """Initial learning rate; decays linearly to 0 over the phase. None: optim.lr."""
    batch: Positive = 16
    """Solutions per step."""

    @property
    def is_on(self) -> bool:
        return self.only or self.minutes is not None or self.steps is not None


class SamplingConfig(Section):
    prompts_per_step: Positive = 16
    """Prompts per step."""
    group_size: Annotated[int, Field(ge=2, le=2**31 - 1)] = 8
    """Completions per prompt."""
    max_completion_tokens: Positive = 3584
    """Maximum completion length in tokens."""
    temperature: Temperature = 1.0
    """Sampling temperature, at least 0.01; the trainer uses the same."""

    @model_validator(mode="before")
    @classmethod
    def _from_the_whole_distribution(cls, values: Any) -> Any:
        for name in ("top_p", "top_k", "min_p"):
            if isinstance(values, dict) and name in values:
                raise ValueError(
                    f"sampling.{name} does not exist: truncated sampling would bias the ratio to the trainer's probabilities",
                    "remove it: training samples from the full distribution; for evaluations, set evaluation.top_p",
                )
        return values


class CheckpointsConfig(Section):
    keep_every: Positive | None = None
    """Keep the checkpoint of every so many steps, for `microrl inspect`; None: only the newest ones and the best."""


class DiagnosticsConfig(Section):
    kl_ref_every: Positive | None = None
    """Measure `policy/kl_ref` every so many steps, on one micro-batch, outside the loss; None: only if loss.beta is not 0."""


FORMAT = 1
"""Of `config.json` and `summary.json`; see `microrl/run/versioned.py`."""


class RunConfig(Section):
    """A run. The defaults are those of Plasticity vs. Rigidity (arXiv 2601.06677): Qwen2.5-1.5B-Instruct on open-rs."""

    seed: Seed = 0
    """Random seed of training; the quickstart's pretraining has its own."""
    init: str | None = None
    """Run folder whose trained adapter is the starting point; the model and all `adapter` keys must match."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    adapter: AdapterConfig = LoraConfig()
    loss: LossConfig = GrpoConfig()
    distill: DistillConfig = DistillConfig()
    engine: EngineConfig = AutoEngineConfig()
    optim: OptimConfig = OptimConfig()
    sft: SftConfig = SftConfig()
    sampling: SamplingConfig = SamplingConfig()
    reward: RewardConfig = RewardConfig()
    env: EnvironmentConfig = EnvironmentConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    validation: ValidationConfig = ValidationConfig()
    guard: GuardConfig = GuardConfig()
    checkpoints: CheckpointsConfig = CheckpointsConfig()
    diagnostics: DiagnosticsConfig = DiagnosticsConfig()
    budget: BudgetConfig = BudgetConfig()
    track: Literal["wandb", "trackio", "tensorboard"] | None = None
    """Experiment tracker to which a process of its own sends the metrics."""

    @model_validator(mode="before")
    @classmethod
    def _as_the_models_makers_say(cls, values: Any) -> Any:
        """Where a system message stands by default depends on the model; what is given wins."""
        if not isinstance(values, dict):
            return values
        data, model = values.get("data", {}), values.get("model", {})
        name = model.get("name") if isinstance(model, dict) else getattr(model, "name", None)
        is_open = isinstance(data, dict) and not {"system", "system_role"} & data.keys()
        if is_open and isinstance(name, str) and known_models.instructs_in_question(name):
            return {**values, "data": {**data, "system_role": "user"}}
        return values

    @model_validator(mode="before")
    @classmethod
    def _without_format(cls, tree: Any) -> Any:
        """A run's `config.json` is valid as it is, with the format of its file, which is no setting."""
        has_format = isinstance(tree, dict) and tree.get("format") == FORMAT
        return {key: value for key, value in tree.items() if key != "format"} if has_format else tree

    @property
    def is_bounded(self) -> bool:
        """Whether a limit of time or steps ends it."""
        own = (self.sft.minutes, self.sft.steps) if self.sft.only else (self.budget.steps,)
        return any(limit is not None for limit in (self.budget.hours, *own))

    @property
    def has_stored_teacher(self) -> bool:
        """Whether the teacher is a folder of `microrl teach`, whose scores are the soft targets of the supervised phase."""
        return self.distill.teacher is not None and self.distill.teacher == self.sft.data

    @property
    def asked_teacher(self) -> str | None:
        """The teacher that is in memory, and asked in every update; None: there is none."""
        return None if self.has_stored_teacher else self.distill.teacher

    @property
    def has_rewards(self) -> bool:
        """Whether rewards train it; a custom loss may use them as it likes. Not: SFT alone, or a teacher alone."""
        return not self.sft.only and (self.loss.kind != "distill" or self.distill.reward_weight > 0)

    @model_validator(mode="after")
    def _teacher_is_used(self) -> RunConfig:
        if self.has_stored_teacher and not self.sft.is_on:
            raise ValueError(
                "a teacher's stored scores are learned by SFT, but SFT is off", "--sft-minutes M, or remove sft.only=false"
            )
        has_teacher = self.asked_teacher is not None
        if has_teacher and self.sft.only:
            raise ValueError("--teacher has no effect in a run of SFT alone", "remove it, or remove sft.only")
        if has_teacher and isinstance(self.loss, CustomLossConfig):
            return self  # its class says whether it needs one; see `microrl.algorithm.make`
        if isinstance(self.loss, DistillLossConfig):
            if not has_teacher:
                raise ValueError(
                    "--loss distill needs a teacher" + (" in memory, not stored scores" if self.has_stored_teacher else ""),
                    "remove --loss" if self.has_stored_teacher else "pass --teacher MODEL, or --teacher RUN",
                )
            if not self.distill.reward_weight and (self.data.curriculum or self.data.screen_minutes):
                key = "curriculum" if self.data.curriculum else "screen_minutes"
                raise ValueError(
                    f"data.{key} chooses questions by their rewards, of which this distillation makes no use",
                    f"remove it, or set distill.reward_weight: --set data.{key}={'false' if key == 'curriculum' else 'none'}",
                )
            return self
        known = {"teacher"} if self.has_stored_teacher else set()
        given = next(
            (name for name, value in DistillConfig() if getattr(self.distill, name) != value and name not in known), None
        )
        if given is not None:
            raise ValueError(
                f"{'--teacher' if given == 'teacher' else f'distill.{given}'} has no effect with --loss {self.loss.kind}",
                "remove it, or remove --loss: --teacher MODEL implies --loss distill",
            )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        if self.model.quant is not None and self.adapter.trains_weights:
            raise ValueError(
                "model.quant=nf4 needs a frozen base, and --adapter full trains it", "use --adapter lora, or remove model.quant"
            )
        if self.model.quant is not None and self.adapter.quant_fault:
            why = f"model.quant=nf4 does not work with --adapter {self.adapter.kind}: {self.adapter.quant_fault}"
            raise ValueError(why, "use --adapter lora with a low rank, or remove model.quant")
        overlong = self.reward.overlong
        if overlong and overlong.buffer >= self.sampling.max_completion_tokens:
            raise ValueError(
                f"reward.overlong.buffer {overlong.buffer} must be below sampling.max_completion_tokens "
                f"{self.sampling.max_completion_tokens}",
                f"--set reward.overlong.buffer={self.sampling.max_completion_tokens // 4}",
            )
        if self.reward.normalise == "apart":
            why = "reward.normalise=apart divides each part of the reward by its standard deviation"
            scales = getattr(self.loss, "scale_by_std", None)
            if scales is None:
                hint = "--set reward.normalise=together, or another --loss"
                raise ValueError(f"{why}, and --loss {self.loss.kind} never divides by it", hint)
            if not scales:
                raise ValueError(
                    f"{why}, which loss.scale_by_std=false forbids",
                    "--set loss.scale_by_std=true, or --set reward.normalise=together",
                )
        hours, minutes = self.budget.hours, self.sft.minutes
        if self.sft.only and not self.is_bounded:
            raise ValueError("no budget given for SFT", "pass --hours H or --steps N")
        if hours is not None and minutes is not None and minutes >= hours * 60:
            raise ValueError(
                f"no time is left for training within {time_in_words(hours)}: SFT takes {time_in_words(minutes / 60)}",
                f"for example --sft-minutes {hours * 6:.2g}, a tenth of the time; for SFT alone, use `microrl warmup`",
            )
        screening = self.data.screen_minutes
        if hours is not None and screening is not None and screening + (minutes or 0.0) >= hours * 60 and not self.sft.only:
            raise ValueError(
                f"no time is left for training within {time_in_words(hours)}: the first pass over the questions takes "
                + time_in_words(screening / 60)
                + (f", SFT {time_in_words(minutes / 60)}" if minutes else ""),
                f"for example --set data.screen_minutes={hours * 6:.2g}, a tenth of the time",
            )
        return self
