"""The one judge of a run: did training help, what went wrong, what to change. Console, report, watch and sweeps all ask it.

`judge(History.load(path))` reads a run's folder, and needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from microrl.errors import UserError
from microrl.report.completions import shown_text
from microrl.report.findings import ENDINGS, findings
from microrl.report.history import History, RunFinding
from microrl.report.updates import FEW_UPDATES, updates, updates_said
from microrl.run import names, summary, versioned
from microrl.run.control import budget, control_of, is_control
from microrl.terminal import counted, time_in_words

Outcome = Literal["helped", "worse", "no clear effect", "too little to tell", "nothing learned", "not measured", "running"]
HOPELESS = ("no update", "few right answers", "truncated", "reward failed", "killed", *ENDINGS)
"""Kinds of findings after which nobody is asked to try the model, unless training demonstrably helped."""
TOO_LITTLE = ("few updates", "steps cut", "SFT cut", "budget unused")
"""Kinds of findings that advise more training, which is no advice where training made the model worse."""


@dataclass(frozen=True, slots=True)
class Gain(summary.Gain):
    """The mean difference of the accuracies on the held-out questions that were answered both before and after training.
    `left_out`: questions that one side alone has answered."""

    questions: int
    before: float
    after: float
    samples: int | None = None
    left_out: int = 0
    metric: str = "accuracy"
    """Or `pass@K`."""

    def __str__(self) -> str:
        name = "Accuracy" if self.metric == "accuracy" else self.metric
        each = f" ({counted(self.samples, 'sample')} each)" if self.samples is not None else ""
        rest = f"; {self.left_out} more were answered only before or only after, and do not count" if self.left_out else ""
        asked = counted(self.questions, "held-out question")
        return (
            f"{name} on {asked}{each}: {self.before:.3f} before, {self.after:.3f} after training. "
            f"Paired gain {self.mean:+.3f}, 95 % interval [{self.ci95[0]:+.3f}, {self.ci95[1]:+.3f}]{rest}"
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run has come to. `sentences` answer whether it helped; `findings` what went wrong, the serious first."""

    outcome: Outcome
    sentences: tuple[str, ...]
    findings: tuple[RunFinding, ...]
    gain: Gain | None
    """None: not measured, both before and after."""
    updates: int
    """Steps that changed weights, those of SFT included."""
    more_gains: tuple[Gain, ...] = ()
    """In pass@k."""

    def lines(self) -> list[str]:
        """What a console says at the end of a run: all that its page says in words."""
        return [*self.sentences, *map(str, self.more_gains), *map(str, self.findings)]

    @property
    def is_worth_trying(self) -> bool:
        """Whether the trained model may be better than the untouched one."""
        if self.outcome in ("helped", "worse"):
            return self.outcome == "helped"
        hopeless = any(one.kind in HOPELESS and one.is_serious for one in self.findings)
        return self.outcome in ("no clear effect", "not measured") and not hopeless

    def to_json(self) -> dict[str, Any]:
        """As it stands in `summary.json` under `verdict`."""
        return {
            "outcome": self.outcome,
            "sentences": list(self.sentences),
            "updates": self.updates,
            "findings": [one.to_json() for one in self.findings],
        }


def judge(history: History) -> Verdict:
    """The verdict on a run, finished or not."""
    count, gain = updates(history), gain_of(history)
    init = shown_text(str(history.setting("init") or ""))  # before training means the untouched model, whatever it started from
    is_clear = gain is not None and (gain.ci95[0] > 0 or gain.ci95[1] < 0) and not init
    all_findings = tuple(findings(history, is_clear=is_clear))
    outcome = _outcome(history, all_findings, count, gain)
    more = tuple(one for metric in history.evaluated.more_gains() if (one := gain_of(history, metric)) is not None)
    if outcome == "worse":
        all_findings = tuple(one for one in all_findings if one.kind not in TOO_LITTLE)
    little = updates_said(history, count) + (", and an evaluation that was cut short" if _was_cut(all_findings) else "")
    said = _sentences(history, outcome, gain, all_findings, little)
    more_said = [f"The gain includes that of {init}, which the run started from."] if init and gain is not None else []
    trend = _validated(history) if outcome == "not measured" else []
    if history.setting("reward.shuffle") is True:
        more_said.append("This is a control run with shuffled rewards: no gain here comes from rewards.")
    sentences = (*_failure(history, all_findings), *said, *trend, *more_said, *_undone(history, count), *control_said(history))
    return Verdict(outcome, sentences, all_findings, gain, count, more)


def gain_of(history: History, metric: str = "accuracy") -> Gain | None:
    """The gain in accuracy or in `pass@K`; None where it was not measured. Its numbers are of the same questions."""
    stored = history.evaluated
    gain = stored.paired_gain if metric == "accuracy" else stored.more_gains().get(metric)
    if gain is None or stored.before is None or stored.after is None:
        return None
    before = stored.before.accuracy if gain.before is None else gain.before
    after = stored.after.accuracy if gain.after is None else gain.after
    samples = history.evaluations.get(names.AFTER, {}).get("samples")
    shared = stored.after.questions if gain.questions is None else gain.questions
    left_out = stored.before.questions + stored.after.questions - 2 * shared
    known = samples if isinstance(samples, int) else None
    return Gain(gain.mean, gain.ci95, shared, before, after, known, left_out=max(left_out, 0), metric=metric)


def control_said(history: History) -> list[str]:
    """How the accuracy of the run's control changed, the same run with shuffled rewards: sentences where there is one that has
    ended."""
    path, run = control_of(history.path), history.summary
    try:
        config, ended = versioned.config_of(path), summary.read_if_there(path)
    except UserError:
        return []  # there is none, or its own report says that it is damaged
    if run is None or ended is None or ended.eval.paired_gain is None or not is_control(config, dict(history.config)):
        return []
    spent = [f"{counted(one.steps, 'step')} in {time_in_words(one.hours_spent)}" for one in (ended, run)]
    how = "" if ended.status == "done" else f"{ended.status} after "
    said = f"({shown_text(path.name)}, {how}{spent[0]}; this run made {spent[1]}) changed accuracy by"
    sentences = [f"Its control run with shuffled rewards {said} {ended.eval.paired_gain.text('+.3f')}."]
    if budget(config) != budget(dict(history.config)):
        sentences.append("The two do not have the same limits of time and steps, so this is no fair comparison.")
    if history.sft_steps:
        sentences.append("Both changes include that by SFT.")
    return sentences


def _outcome(history: History, all_findings: tuple[RunFinding, ...], count: int, gain: Gain | None) -> Outcome:
    if history.is_running:
        return "running"
    if not count:
        return "nothing learned" if history.rows else "not measured"
    if gain is not None and gain.ci95[0] > 0:
        return "helped"
    if gain is not None and gain.ci95[1] < 0:
        return "worse"
    if count < FEW_UPDATES or (gain is not None and _was_cut(all_findings)):
        return "too little to tell"
    return "not measured" if gain is None else "no clear effect"


def _missing(history: History) -> str:
    """Which evaluation a run without a gain lacks, and what the other one found."""
    if history.summary is None and history.has_ended:
        return f"{names.SUMMARY} is damaged"
    before, after = history.evaluated.before, history.evaluated.after
    if before is None and names.BEFORE in history.evaluations:
        return "The evaluation after training is missing"
    if before is None:
        return f"The evaluation{' before' if after else 's before and after'} training {'is' if after else 'are'} missing"
    return f"The evaluation after training is missing (accuracy before training: {before.accuracy:.3f})"


def _sentences(
    history: History, outcome: Outcome, gain: Gain | None, all_findings: tuple[RunFinding, ...], little: str
) -> list[str]:
    measured = [] if gain is None else [f"{gain}, from one training run."]
    few = f"; it had {little}" if any(one.kind == "few updates" for one in all_findings) else ""
    where = "in this run or the one it started from" if history.setting("init") else "in this run"
    said: dict[Outcome, str] = {
        "running": "The run is still going: this is what there is so far.",
        "helped": f"The interval lies above zero: {where}, training helped{few}.",
        "worse": f"The interval lies below zero: {where}, training made the model worse.",
        "no clear effect": "The interval includes zero: there is no clear evidence that the training helped.",
        "too little to tell": f"Too little happened to tell whether training helps: {little}.",
        "nothing learned": "No step changed the weights: the model is as it was before training.",
        "not measured": f"{_missing(history)}: whether training helped is not known.",
    }
    return [*measured, said[outcome]]


def _failure(history: History, all_findings: tuple[RunFinding, ...]) -> list[str]:
    """First of all that a run has not come to its end, if it has not."""
    failed = [one for one in all_findings if one.kind in ("killed", *ENDINGS) and one.is_serious]
    if history.is_running or not failed or history.status() in ("done", "stopped"):
        return []
    is_untrained = not history.rows and not history.sft_steps
    return [f"{'Nothing was trained' if is_untrained else 'The run did not finish'}: {failed[0].message.rstrip('.')}."]


def _validated(history: History) -> list[str]:
    """The course of the validations, which is all that there is to see where an evaluation is missing."""
    steps, values = history.series("validate/accuracy")
    if len(values) < 2:
        return []
    first, last = (f"{values[at]:.3f} after {counted(round(steps[at]), 'step')}" for at in (0, -1))
    return [f"Accuracy on the validation questions was {first} and {last}."]


def _undone(history: History, count: int) -> list[str]:
    """Which of the steps are in the weights, where the guard has undone some."""
    undone, made = history.undone(), len(history.rows)
    if not undone or not count or history.is_running:
        return []
    is_end = min(undone) == made - len(undone)
    rest = f"those after step {made - len(undone)}" if is_end else f"those that reflect only the other {made - len(undone)}"
    return [f"The guard has undone {len(undone)} of the {made} steps: the weights are {rest}."]


def _was_cut(all_findings: tuple[RunFinding, ...]) -> bool:
    return any(one.kind == "evaluation cut" for one in all_findings)
