"""What the trials of a sweep have come to, from their run folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from microrl.config.adapter import LowRankConfig
from microrl.evaluation.intervals import Estimate
from microrl.evaluation.seeds import OverSeeds
from microrl.files import BadFile
from microrl.report.history import History, finite
from microrl.run import names
from microrl.run.remedies import to_evaluate
from microrl.run.summary import Summary, read_if_there
from microrl.sweep.folder import LOST, PlannedTrial, Status, SweepFolder
from microrl.sweep.grid import SEED, SETTING, key_name

SETTINGS_STAY = "resuming uses the same settings again: if these were refused, start a new sweep; otherwise, "
"""Said before the advice to resume a sweep in which a trial was refused."""


@dataclass(frozen=True, slots=True)
class Line:
    """A trial. Numbers are None until it has ended."""

    trial: PlannedTrial
    status: Status
    scale: float | None
    """What the update is multiplied with; None for an adapter that has none."""
    summary: Summary | None
    why: str
    """Of a trial that failed or was refused, or whose summary is damaged."""

    @property
    def gain(self) -> Estimate | None:
        """Paired gain on the held-out problems, over problems alone."""
        return None if self.summary is None else self.summary.eval.paired_gain

    @property
    def loading(self) -> float | None:
        """Fraction of its time that the trial has loaded."""
        if self.summary is None or not self.summary.hours_spent:
            return None
        return self.summary.seconds_by_phase.get("load", 0.0) / (3600 * self.summary.hours_spent)

    def to_json(self) -> dict[str, Any]:
        summary = self.summary
        return {
            "trial": self.trial.name, "values": self.trial.values, "also": list(self.trial.also), "status": self.status,
            "scale": self.scale, "steps": summary and summary.steps, "hours": summary and summary.hours_spent,
            "cost_usd": summary and summary.cost_usd, "trainable_params": summary and summary.trainable_params,
            "loading": self.loading, "before": summary and summary.eval.before and summary.eval.before.accuracy,
            "after": summary and summary.eval.after and summary.eval.after.accuracy,
            "paired_gain": None if self.gain is None else self.gain.to_json(), "failed": self.why or None,
        }  # fmt: skip


def lines(folder: SweepFolder) -> list[Line]:
    """A line for each trial, in the order of the plan. A damaged summary counts as none."""
    trial_lines = []
    for trial in folder.plan.trials:
        adapter, status = folder.config_to_show(trial).adapter, folder.status(trial.name)
        path, summary = folder.trial(trial.name), None
        why = folder.failures(trial.name)[-1] if status in LOST else ""
        try:
            summary = read_if_there(path)
        except BadFile:
            status = "unfinished"
            why = f"{path / names.SUMMARY} is damaged; to repeat the trial, delete {path} and resume the sweep"
        scale = adapter.scale if isinstance(adapter, LowRankConfig) else None
        trial_lines.append(Line(trial, status, scale, summary, why))
    return trial_lines


def left_out(folder: SweepFolder) -> tuple[str, str]:
    """What trials have no result, and how to get it; empty if all have one."""
    missing: list[str] = []
    hints: dict[str, str] = {}
    for line in lines(folder):
        name = line.trial.name
        if line.status not in ("done", "stopped"):
            missing.append(f"{name} ({line.status}{f': {line.why}' if line.why else ''})")
            keep = SETTINGS_STAY if line.status == "refused" else ""
            hints[keep] = f"{keep}to continue: microrl sweep --resume {folder.path}"
        elif not _is_evaluated(folder, name):
            missing.append(f"{name} (not evaluated)")
            hints["not evaluated"] = f"to evaluate one: {to_evaluate(folder.trial(name), folder.config_to_show(line.trial))}"
    if not missing:
        return "", ""
    said = f"no result yet for {len(missing)} of {len(folder.plan.trials)} trials of {folder.path}: {', '.join(missing)}"
    if SETTINGS_STAY in hints:
        hints.pop("", None)
    return said, "; ".join(hints.values())


# ---- settings, over seeds


@dataclass(frozen=True, slots=True)
class Setting:
    """The trials that differ in their seeds alone, as far as they have ended."""

    method: str
    seeds: int
    scale: float | None
    trained: float | None
    """Trained parameters over all of the model's."""
    hours: OverSeeds | None
    steps: OverSeeds | None
    usd: OverSeeds | None
    entropy_change: OverSeeds | None
    """(H_end - H_start) / H_start on the held-out problems (micro, table 2)."""
    kl_to_base: OverSeeds | None
    """`History.kl_to_base`: nats per token (kl, figure 2)."""


def ended(folder: SweepFolder) -> list[tuple[str, Path]]:
    """(setting, run folder) of the trials that have a result."""
    return [
        (method(folder, line.trial), folder.trial(line.trial.name))
        for line in lines(folder)
        if line.status in ("done", "stopped") and _is_evaluated(folder, line.trial.name)
    ]


def _is_evaluated(folder: SweepFolder, name: str) -> bool:
    """Whether a trial has an evaluation of its own: that of the base model may be shared."""
    return any(path.stem != names.BEFORE for path in (folder.trial(name) / names.EVAL).glob("[!.]*.json"))


def method(folder: SweepFolder, trial: PlannedTrial) -> str:
    """What a trial's setting is called: `lora rank 8, alpha fixed`, and other combinations that come to the same."""
    return " = ".join(label(folder, values, trial) for values in (trial.values, *trial.also))


def label(folder: SweepFolder, values: Mapping[str, Any], trial: PlannedTrial, *, without: str = "") -> str:
    """What a combination of values is called: the adapter, and those of the other axes that vary, except the axis `without`."""
    seen = [one for trial in folder.plan.trials for one in (trial.values, *trial.also)]
    named = (SEED, "rank", "adapter")
    own = {axis: value for axis, value in values.items() if axis not in named and len({str(one.get(axis)) for one in seen}) > 1}
    adapter = folder.config_to_show(trial).adapter
    kind = adapter.kind if without == "rank" else "" if without == "adapter" else adapter.name
    if without == "adapter" and "rank" in values:
        kind = f"rank {values['rank']}"
    return ", ".join(
        filter(None, [kind, *(str(value) if axis == SETTING else f"{key_name(axis)} {value}" for axis, value in own.items())])
    )


def settings(folder: SweepFolder) -> list[Setting]:
    """A line for each setting of which a trial has ended."""
    by_method: dict[str, list[tuple[Line, History]]] = {}
    for line in lines(folder):
        if line.summary is not None and line.status in ("done", "stopped"):
            ended_trials = by_method.setdefault(method(folder, line.trial), [])
            ended_trials.append((line, History.load(folder.trial(line.trial.name))))
    return [_setting(name, ended_trials) for name, ended_trials in by_method.items()]


def _setting(name: str, ended_trials: Sequence[tuple[Line, History]]) -> Setting:
    summaries = [line.summary for line, _ in ended_trials if line.summary is not None]
    return Setting(
        name,
        len(ended_trials),
        ended_trials[0][0].scale,
        _trained(ended_trials[0][1]),
        OverSeeds.of([one.hours_spent for one in summaries]),
        OverSeeds.of([one.steps for one in summaries]),
        OverSeeds.of([one.cost_usd for one in summaries]),
        OverSeeds.of([None if (values := history.entropies()) is None else values[2] for _, history in ended_trials]),
        OverSeeds.of([history.kl_to_base() for _, history in ended_trials]),
    )


def _trained(history: History) -> float | None:
    return finite(history.environment.adapter.get("trained_share"))
