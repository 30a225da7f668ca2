"""The content of `summary.json`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from microrl.errors import UserError
from microrl.evaluation.result import gains
from microrl.files import BadFile
from microrl.report.history import History
from microrl.report.verdict import judge
from microrl.run import names
from microrl.run.summary import Summary
from microrl.train.run import Run
from microrl.train.sft import spent_s


def summary_of(run: Run) -> dict[str, Any]:
    """The run's `Summary` as JSON. Times in seconds unless the key says hours."""
    budget, state = run.budget, run.state
    elapsed_s, left_s = budget.elapsed_s(), budget.left_s()
    phases = {name: round(seconds, 3) for name, seconds in run.watch.totals.items()}
    validated, sft = state.validation, state.sft
    fields: dict[str, Any] = {
        "status": run.status,
        "steps": state.step,
        "hours_budget": budget.hours,
        "hours_spent": elapsed_s / 3600,
        "hours_given_back": max(left_s, 0.0) / 3600 if run.status == "stopped" and left_s is not None else None,
        "seconds_by_phase": {**phases, "idle": round(max(elapsed_s - sum(phases.values()), 0.0), 3)},
        "cost_usd": budget.cost_usd(),
        "trainable_params": run.policy.trainable,
        "forecast": None if run.config.sft.only else run.forecast.to_json(state.step, budget.step.typical_s() or None),
        "sft": None
        if not run.config.sft.is_on
        else {"steps": sft.steps, "seconds": spent_s(run), "first_loss": sft.first_loss, "last_loss": sft.last_loss},
        "best": None if validated.best_step is None else {"step": validated.best_step, "accuracy": validated.best_accuracy},
        "validated": None if validated.accuracy is None else {"step": validated.step, "accuracy": validated.accuracy},
        "eval": {
            "before": run.before.summary() if run.before else None,
            "after": run.after.summary() if run.after else None,
            **(gains(run.before, run.after) if run.before and run.after else {"paired_gain": None}),
        },
    }
    with suppress(OSError, BadFile):  # gone, or something else is in its place
        size = run.folder.size(names.METRICS)
        fields["metrics"] = {"bytes": size, "sha256": run.folder.metrics_sum.at(size)}
    ended = Summary(**fields)
    with suppress(UserError, OSError):  # gone or damaged: the rest, or the error that ends the run, matters more
        ended.verdict = judge(History.load(run.folder.path, ending=ended)).to_json()
    return ended.to_json()
