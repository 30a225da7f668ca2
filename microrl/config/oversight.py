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


Limit = Annotated[float, Field(ge=0)] | None


class GuardConfig(Section):
    """What a run that collapses looks like: the limit of each rule (None turns it off), and what is done about it."""

    entropy_low: Limit = 0.003
    """Policy entropy below this, in nats, while less than 90 % of the answers are right."""
    entropy_drop: Limit = 0.95
    """Fraction of step 0's entropy that is gone, while less than 90 % of the answers are right."""
    entropy_rise: Limit = 3.0
    """Policy entropy in multiples of step 0's, or of 0.1 nats where step 0's is less."""
    useful_groups: Limit = 0.01
    """Fraction of groups whose rewards differ, below this; only a warning where few ever did."""
    truncated: Limit = 0.3
    """Fraction of truncated completions above step 0's by this."""
    length_drift: Limit = 6.0
    """Mean length in multiples of step 0's, or step 0's in multiples of it."""
    kl_sampler: Limit = 0.1
    """KL between the engine and the trainer, in nats per token."""
    grad_norm: Limit = 10.0
    """Gradient norm in multiples of its geometric mean so far; one that is not finite exceeds any limit."""
    accuracy: Limit = 0.2
    """Mean accuracy of the last two validations, below the best such mean by this."""
    patience: Annotated[float, Field(gt=0)] = 1.0
    """Multiplies every rule's patience: the consecutive steps (4 to 30) in which its limit must be exceeded."""
    action: Literal["auto", "warn", "stop"] = "auto"
    """auto: each rule's own, which is to warn, to roll back to the best checkpoint at half the learning rate, or to stop with
    status 3; warn: every rule only warns; stop: every rule stops the run."""

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, values: Any) -> Any:
        for rule, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, dict) and rule in cls.model_fields:
                leaf = next(iter(value), "limit")
                new = {"limit": rule}.get(leaf, leaf if leaf in cls.model_fields else rule)
                raise ValueError(f"`guard.{rule}.{leaf}` is called `guard.{new}` now", f"replace it by `guard.{new}`")
        return values


class BudgetConfig(Section):
    hours: Annotated[float, Field(gt=0)] | None = None
    """Wall clock of the whole process, from start to exit."""
    steps: Positive | None = None
    """Most training steps."""
    price: Annotated[float, Field(ge=0)] | None = None
    """US dollars an hour of this machine; None: what the card usually costs to rent, nothing on a CPU."""
