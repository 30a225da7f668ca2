"""The keys of each algorithm. What it does with them is in the file of its name in `microrl.algorithm`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from microrl.config.section import Fraction, Section


class CommonLossConfig(Section):
    """Keys of every loss."""

    @property
    def drops_equal_groups(self) -> bool:
        """Whether groups in which all answers are right, or all wrong, are dropped and replaced; of a custom algorithm, those
        that it does not keep."""
        return bool(getattr(self, "dynamic_sampling", False))

    beta: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL term (k3 estimator) to the untouched model; 0: no term, and no reference pass."""
    importance_cap: Annotated[float, Field(gt=0)] | None = 2.0
    """Cap of the importance weights exp(trainer - engine), which correct the mismatch between engine and trainer; None: off."""
    importance_mode: Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = "token_truncate"
    """token: one weight a token; sequence: their product for all tokens of a completion. truncate: a weight above importance_cap
    becomes the cap; mask: it becomes 0, which leaves the token or the completion out."""
    mask_truncated: bool = False
    """Exclude completions that reached the length limit from the loss."""

    @model_validator(mode="after")
    def _mode_is_read(self) -> Self:
        if self.importance_cap is None and self.importance_mode != "token_truncate":
            raise ValueError(
                f"loss.importance_mode={self.importance_mode} has no effect where loss.importance_cap is none",
                "set loss.importance_cap, or remove loss.importance_mode",
            )
        return self


class ClipConfig(Section):
    """Keys of a clipped ratio (PPO's surrogate)."""

    clip_low: Fraction = 0.2
    """Lower clip: the ratio is clipped at 1 - clip_low."""
    clip_high: Annotated[float, Field(ge=0)] = 0.2
    """Upper clip: the ratio is clipped at 1 + clip_high."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Dual clip (Ye et al. 2020): for negative advantages the objective is at least dual_clip * advantage; None: off."""


class BaseLossConfig(CommonLossConfig):
    """Keys of losses with GRPO's advantages."""

    scale_by_std: bool = True
    """Divide the group's centred rewards by their standard deviation."""


class ClippedLossConfig(ClipConfig, BaseLossConfig):
    """Keys of losses with GRPO's advantages and a clipped ratio."""


class GrpoConfig(ClippedLossConfig):
    """GRPO (Shao et al. 2024): token ratios, 1 +- clip, mean over tokens, then over completions."""

    kind: Literal["grpo"] = "grpo"


class DapoConfig(ClippedLossConfig):
    """DAPO (Yu et al. 2025): clip-higher, mean over all tokens of the batch, dynamic sampling."""

    kind: Literal["dapo"] = "dapo"
    clip_high: Annotated[float, Field(ge=0)] = 0.28
    """Upper clip: the ratio is clipped at 1 + clip_high."""
    dynamic_sampling: bool = True
    """Drop groups in which all answers are right, or all wrong, and sample more until the batch is full, up to ten times its
    prompts. Groups still missing then are counted in groups/missing."""


class DrGrpoConfig(ClippedLossConfig):
    """Dr. GRPO (Liu et al. 2025): no division by the standard deviation or by the completion's length."""

    kind: Literal["dr_grpo"] = "dr_grpo"
    scale_by_std: bool = False
    """Divide the group's centred rewards by their standard deviation."""


class GspoConfig(ClippedLossConfig):
    """GSPO (Zheng et al. 2025): one ratio per sequence, exp of the mean token log-ratio, clipped tightly."""

    kind: Literal["gspo"] = "gspo"
    clip_low: Fraction = 3e-4
    """Lower clip: the ratio is clipped at 1 - clip_low."""
    clip_high: Annotated[float, Field(ge=0)] = 4e-4
    """Upper clip: the ratio is clipped at 1 + clip_high."""


class CispoConfig(BaseLossConfig):
    """CISPO (MiniMax-M1 2025): the capped token ratio weights the log-probability and has no gradient; mean over all tokens."""

    kind: Literal["cispo"] = "cispo"
    ratio_cap: Annotated[float, Field(ge=1)] = 5.0
    """Cap of the ratio. There is no lower bound, as in the paper; the cap is that of ScaleRL (arXiv 2510.13786)."""


class SapoConfig(BaseLossConfig):
    """SAPO (Gao et al. 2025): a sigmoid of the token ratio instead of a clip, mean over tokens, then over completions."""

    kind: Literal["sapo"] = "sapo"
    temperature_positive: Annotated[float, Field(gt=0)] = 1.0
    """Temperature of the sigmoid where the advantage is positive: the higher, the sooner a token far from ratio 1 fades out."""
    temperature_negative: Annotated[float, Field(gt=0)] = 1.05
    """The same where the advantage is negative."""


class DppoConfig(BaseLossConfig):
    """DPPO (Qi et al. 2026): masks a token whose probability has moved too far from the engine's; mean over all tokens."""

    kind: Literal["dppo"] = "dppo"
    mask_low: Fraction = 0.2
    """Where the advantage is negative, a token is masked once its probability is lower than the engine's by more than this."""
    mask_high: Fraction = 0.2
    """Where the advantage is positive, a token is masked once its probability is higher than the engine's by more than this."""


class MaxRlConfig(ClipConfig, CommonLossConfig):
    """MaxRL (Tajwar et al. 2026): centred rewards divided by their mean, so that rarely solved questions count more."""

    kind: Literal["maxrl"] = "maxrl"


class DistillLossConfig(BaseLossConfig):
    """On-policy distillation (Agarwal et al. 2024): the advantage of a token is how much likelier the teacher finds it; mean over
    all tokens. The section `distill` names the teacher."""

    kind: Literal["distill"] = "distill"


class DistillConfig(Section):
    """The teacher that the loss `distill` trains towards, or whose scores are stored."""

    teacher: Annotated[str, Field(min_length=1)] | None = None
    """Whose log-probabilities the model is trained towards: a model as model.name, a run folder, or an adapter's folder in PEFT's
    format; None: no teacher. Giving one sets loss.kind=distill. Or a folder of `microrl teach`: its scores are learned in the
    supervised phase, as sft.data, and unless sft.minutes or sft.steps is given, there is no reinforcement learning."""
    quant: Literal["nf4"] | None = None
    """nf4: load the teacher in 4 bits, as model.quant does; unless the student's base is in 4 bits, too, it is then a second
    model. None: as the teacher was trained, and the student's base where that is the same."""
    top_k: Annotated[int, Field(gt=0)] | Literal["all"] | None = None
    """Outcomes over which KL(student || teacher) is computed at each position, with its exact gradient: the student's top_k
    likeliest tokens, and all others together; all, or as many as there are: the whole vocabulary. None: the KL is estimated from
    the drawn token alone, with a policy gradient."""
    reward_weight: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the reward's group-relative advantage, which is added to the advantage of every token; 0: the teacher alone."""

    @field_validator("teacher", mode="before")
    @classmethod
    def _none(cls, value: Any) -> Any:
        """`none` is None, as with `--set`."""
        return None if value == "none" else value


class CustomLossConfig(ClippedLossConfig):
    """An algorithm of another package, which inherits from `microrl.algorithm.grpo.Algorithm`."""

    kind: Literal["custom"] = "custom"
    target: Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$|^[\w.-]+$")]
    """Its class as `module:Class`, or an entry point of the group `microrl.algorithms`; `--loss module:Class` sets kind and
    target."""
    path: str | None = None
    """Folder in which its module is looked for besides the installed packages; None: the current folder."""
    dynamic_sampling: bool = False
    """Replace the groups that the algorithm does not keep by more sampling, as `dapo` does."""
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Keys of its own, which it reads as `self.config.options`."""


LossConfig = Annotated[
    GrpoConfig
    | DapoConfig
    | DrGrpoConfig
    | GspoConfig
    | CispoConfig
    | SapoConfig
    | DppoConfig
    | MaxRlConfig
    | DistillLossConfig
    | CustomLossConfig,
    Field(discriminator="kind"),
]
