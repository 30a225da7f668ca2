"""What a sweep will take, before it starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from microrl.config import RunConfig
from microrl.errors import UserError
from microrl.limits import MIN_EVALUATION, exit_reserve_s
from microrl.plan import here, make
from microrl.plan.plan import Plan
from microrl.plan.source import shape_of
from microrl.run.teacher import size
from microrl.sweep.grid import Trial, of_trial, rounds
from microrl.terminal import counted, rounded_up, time_in_words


@dataclass(frozen=True, slots=True)
class TrialForecast:
    """Of one trial. `plan` is None where the model's size is not known here."""

    trial: Trial
    hours: float | None
    plan: Plan | None

    def to_json(self) -> dict[str, Any]:
        forecast = None if self.plan is None else {
            "steps": self.plan.steps, "hours": self.plan.hours, "cost_usd": self.plan.cost_usd, "gpu": self.plan.device.name,
            "trainable_params": self.plan.trainable_params, "fits": self.plan.fits, "sft_hours": self.plan.sft_s / 3600,
        }  # fmt: skip
        return {"trial": self.trial.name, "values": dict(self.trial.values), "hours": self.hours, "forecast": forecast}


def forecasts(trials: Sequence[Trial], strategy: str, hours: float | None) -> list[TrialForecast]:
    """A forecast of every trial, with equal parts of `hours`; for halving, those of its first round."""
    share = None if hours is None else hours / len(trials) / rounds((one.values for one in trials), strategy)
    if hours is not None and share == 0:
        raise UserError(f"{time_in_words(hours)} cannot be divided among {counted(len(trials), 'trial')}", "increase --hours")
    plans: dict[str, Plan | None] = {}
    trial_forecasts = []
    for trial in trials:
        budget = trial.config.budget if share is None else trial.config.budget.model_copy(update={"hours": share})
        config = trial.config.model_copy(update={"budget": budget, "seed": 0})
        key = config.model_dump_json()
        if key not in plans:
            try:
                plans[key] = plan_of(config)
            except UserError as error:
                raise of_trial(trial.name, error) from None
        trial_forecasts.append(TrialForecast(trial, share if share is not None else budget.hours, plans[key]))
    return trial_forecasts


def plan_of(config: RunConfig) -> Plan | None:
    """The plan of a run where it is likely to be made; None where the size of its model is not known here."""
    try:
        shape, teacher = shape_of(config.model.name), size(config)
    except UserError:  # not on this machine, and no network
        return None
    device, free_gb = here.likely(shape)
    return make(config, shape, device, free_gb=free_gb, teacher=teacher)


def refuse_what_does_not_fit(trial_forecasts: Sequence[TrialForecast], hours: float | None) -> None:
    """Raise UserError where a trial's part of the hours would not suffice for loading, a step and short evaluations."""
    needed_s = max((_needed_s(one.trial.config, one.plan) for one in trial_forecasts if one.plan is not None), default=0.0)
    share = trial_forecasts[0].hours
    if hours is None or share is None or share * 3600 >= needed_s:
        return
    fitting = int(hours * 3600 / needed_s)
    what = "1 trial does" if len(trial_forecasts) == 1 else f"{len(trial_forecasts)} trials do"
    enough = f"--hours {rounded_up(needed_s * hours / share / 3600 * 1.1)}"
    raise UserError(
        f"{what} not fit into {time_in_words(hours)}: each needs at least {math.ceil(needed_s):,} s and would get "
        f"{share * 3600:,.{0 if share * 3600 >= 10 else 1}f} s",
        f"{counted(fitting, 'trial')} would fit; vary fewer values, or pass {enough}" if fitting else f"pass {enough}",
    )


def _needed_s(config: RunConfig, plan: Plan) -> float:
    step_s = plan.sft_step_s if config.sft.only else plan.step_s
    return plan.load_s + 2 * MIN_EVALUATION * plan.evaluation_s + step_s + plan.save_s + exit_reserve_s(plan.hours)
