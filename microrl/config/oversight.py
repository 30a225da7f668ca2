"""How a run is measured, watched and bounded: evaluation, validation, the guard, the budget."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from microrl.config.section import Positive, Section, Seed, Temperature


class EvaluationConfig(Section):
    problems: Annotated[int, Field(ge=0, le=2**31 - 1)] = 64
    """Held-out problems for the evaluation before and after; 0 runs none."""
    samples: Positive = 8
    """Completions for each problem."""
    pass_k: tuple[Positive, ...] = (8,)
    """The k of pass@k, each at most `samples`."""
    temperature: Temperature = 1.0
    """Sampling temperature, at least 0.01, which is as good as greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus; 1 is off."""
    max_completion_tokens: Positive | None = None
    """Length limit; None takes the training limit."""
    seed: Seed = 0
    """Seed of the evaluation's sampling, apart from the run's."""

    @field_validator("pass_k", mode="before")
    @classmethod
    def _one_is_a_list_too(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int) else value

    @model_validator(mode="after")
    def _enough_samples(self) -> EvaluationConfig:
        if max(self.pass_k, default=1) > self.samples:
            raise ValueError(f"pass_k {max(self.pass_k)} needs at least as many samples, and samples is {self.samples}")
        return self


class ValidationConfig(Section):
    problems: Annotated[int, Field(ge=0, le=2**31 - 1)] = 64
    """Most problems of a validation; 0 runs none, and then there is no `best/`."""
    samples: Positive = 2
    """Completions for each problem."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Most of the run that validation may take: of its time, or with `steps` of what it samples."""
    every_minutes: Annotated[float, Field(gt=0)] | None = None
    """Time between validations; None: as often as `fraction` allows. With `steps`, which must repeat, `fraction` alone counts."""


Action = Literal["warn", "lower", "rollback", "stop"]


class RuleConfig(Section):
    """A rule of the guard: it triggers when `limit` has been passed in `patience` steps on end."""

    limit: Annotated[float, Field(ge=0)] | None = None
    """What must not be passed; None fixes the rule off."""
    patience: Positive = 8
    """Steps on end. For grad_norm a skipped step does not count; for accuracy it is validations, and their mean."""
    action: Action = "rollback"
    """warn; lower the rate; roll back to the best checkpoint and go on at a lower rate; or stop with status 3."""


class GuardConfig(Section):
    """What a run that falls apart looks like, and what is done about it."""

    entropy_low: RuleConfig = RuleConfig(limit=0.003)
    """Policy entropy below this, nats, while less than 90 % of the answers are right."""
    entropy_drop: RuleConfig = RuleConfig(limit=0.95, action="warn")
    """Share of step 0's entropy that is gone, while less than 90 % of the answers are right."""
    entropy_rise: RuleConfig = RuleConfig(limit=3.0)
    """Policy entropy in multiples of step 0's, or of 0.1 nats where step 0's is less."""
    useful_groups: RuleConfig = RuleConfig(limit=0.01, patience=30, action="stop")
    """Share of groups whose rewards differ, below this; only a warning where few ever did. Patient, so that a validation can
    roll a collapse back first."""
    truncated: RuleConfig = RuleConfig(limit=0.3)
    """Share of truncated completions above step 0's by this."""
    length_drift: RuleConfig = RuleConfig(limit=6.0, action="warn")
    """Mean length in multiples of step 0's, or step 0's in multiples of it."""
    kl_sampler: RuleConfig = RuleConfig(limit=0.1, patience=4)
    """KL between the engine and the trainer, nats a token."""
    grad_norm: RuleConfig = RuleConfig(limit=10.0, patience=4)
    """Gradient norm in multiples of its geometric mean so far; one that is not finite passes any limit."""
    accuracy: RuleConfig = RuleConfig(limit=0.2, patience=2)
    """Accuracy of the last `patience` validations, their mean, below the best such mean by this."""
    lower_to: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """What is left of the learning rate after `lower` and `rollback`, as a share."""
    interventions: Annotated[int, Field(ge=0)] = 3
    """How often the rate may be lowered; the next trigger of such a rule stops the run."""


class BudgetConfig(Section):
    hours: Annotated[float, Field(gt=0)] | None = None
    """Wall clock of the whole process, from start to exit."""
    steps: Positive | None = None
    """Most training steps."""
    price: Annotated[float, Field(ge=0)] | None = None
    """US dollars an hour of this machine; None: what the card usually costs to rent, nothing on a CPU."""
