"""Configuration of evaluation, validation, guard and budget."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from microrl.config.section import MIN_TEMPERATURE, Positive, Section, Seed, or_one


class EvaluationConfig(Section):
    problems: Annotated[int, Field(ge=0, le=2**31 - 1)] = 64
    """Maximum number of held-out problems for the evaluations before and after training; 0 disables them."""
    samples: Positive = 8
    """Completions per problem."""
    pass_k: Annotated[tuple[Positive, ...], or_one(int)] = (8,)
    """k of pass@k; one or several, each at most `samples`."""
    temperature: Annotated[float, Field(ge=0)] = 1.0
    """Sampling temperature; 0: greedy decoding, always the likeliest token."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling; 1 disables it."""
    max_completion_tokens: Positive | None = None
    """Completion limit in tokens; None: sampling.max_completion_tokens."""
    seed: Seed = 0
    """Seed of the evaluation's sampling, independent of the run's seed."""
    question_seed: Seed = 0
    """Seed of the choice and order of the problems: evaluations that share it ask the same ones, whatever their `seed`."""

    @field_validator("temperature")
    @classmethod
    def _greedy_or_not(cls, value: float) -> float:
        if 0 < value < MIN_TEMPERATURE:
            raise ValueError(
                f"`evaluation.temperature` must be 0 (greedy) or at least {MIN_TEMPERATURE}, not {value:g}",
                "--set evaluation.temperature=0",
            )
        return value

    @model_validator(mode="after")
    def _enough_samples(self) -> EvaluationConfig:
        if max(self.pass_k, default=1) > self.samples:
            raise ValueError(
                f"pass@{max(self.pass_k)} needs at least {max(self.pass_k)} samples per problem, but there are {self.samples}",
                f"--set evaluation.samples={max(self.pass_k)}",
            )
        return self


class ValidationConfig(Section):
    problems: Annotated[int, Field(ge=0, le=2**31 - 1)] = 64
    """Maximum number of validation problems; 0 disables validation and `best/`."""
    samples: Positive = 2
    """Completions per problem."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Maximum fraction of the run spent on validation: of its time, or of its completions if the run is bounded by steps."""
    every_minutes: Annotated[float, Field(gt=0)] | None = None
    """Minutes between validations; None: as often as `fraction` allows. Ignored if the run is bounded by steps, to keep it
    reproducible."""


Limit = Annotated[float, Field(ge=0)] | None


class GuardConfig(Section):
    """The rules that detect a collapsing run: the limit of each (None disables the rule), and what to do when one is exceeded."""

    entropy_low: Limit = 0.003
    """Minimum policy entropy in nats, while less than 90 % of the answers are right."""
    entropy_drop: Limit = 0.95
    """Fraction of the first step's entropy that is lost, while less than 90 % of the answers are right."""
    entropy_rise: Limit = 3.0
    """Policy entropy as a multiple of the first step's (or of 0.1 nats if that is larger)."""
    entropy_teacher: Limit = 0.1
    """Minimum policy entropy as a fraction of the teacher's, in a distillation."""
    useful_groups: Limit = 0.01
    """Minimum fraction of groups whose rewards differ. If few groups ever differed, the rule only warns."""
    truncated: Limit = 0.3
    """Increase of the fraction of truncated completions since the first step."""
    length_drift: Limit = 6.0
    """Mean completion length as a multiple of the first step's, or the inverse."""
    kl_sampler: Limit = 0.1
    """KL(engine, trainer) in nats per token."""
    grad_norm: Limit = 10.0
    """Gradient norm as a multiple of its geometric mean so far; a norm that is not finite exceeds any limit."""
    rate: Limit = 0.09
    """Learning rate where optim.step_kl steers it, and a step still moves the policy by less than 1e-6 nats per token."""
    accuracy: Limit = 0.2
    """Drop of the mean accuracy of the last two validations below the best such mean; must also exceed what chance explains."""
    learning: Limit = 0.1
    """Rise of the validation accuracy from the first half of the validations to the second. The rule warns once it is surely
    smaller, and no rise has been seen."""
    patience: Annotated[float, Field(gt=0)] = 1.0
    """Factor applied to the patience of every rule: the consecutive steps (4 to 30) in which its limit must be exceeded."""
    action: Literal["auto", "warn", "stop"] = "auto"
    """auto: the action of each rule (warn, roll back to the best checkpoint at half the learning rate, or stop with status 3);
    warn: every rule only warns; stop: every rule stops the run."""


class BudgetConfig(Section):
    hours: Annotated[float, Field(gt=0)] | None = None
    """Time limit in hours for the whole run, from start to exit, loading and evaluation included."""
    steps: Positive | None = None
    """Maximum number of training steps."""
    price: Annotated[float, Field(ge=0)] | None = None
    """Price of this machine, US dollars per hour; None: the GPU's typical rental price, or 0 on a CPU."""
