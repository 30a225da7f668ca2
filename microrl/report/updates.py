"""The updates of a run: which steps changed the weights, why others did not, and what to change about that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from microrl.config.schema import OptimConfig
from microrl.report.completions import answered
from microrl.report.history import History, RunFinding, steps_said
from microrl.run import idle
from microrl.run.metrics import MetricsRow
from microrl.terminal import counted

FEW_UPDATES = 20
"""Of fewer updates hardly a gain can be expected that an evaluation would show."""
MOSTLY = 0.5
"""Fraction of steps without an update from which the report speaks of them, or `IDLE_STEPS` at the end of the run."""
IDLE_STEPS = 3
USUAL = 2e-4
"""KL of a step in nats per token, the smallest of the presets'."""
LOWER = "start a new run with a lower {rate}, for example a tenth of it"
RULES = {
    "truncated": f"{LOWER}, or raise sampling.max_completion_tokens (now {{limit}})",
    "length_drift": "look at the completions; reward.overlong penalises long ones",
    "useful_groups": "use other questions: harder if most answers are right, easier if most are wrong",
    "learning": "train longer (--hours, --steps), raise {rate}, or use easier questions",
    "rate": "raise adapter.alpha, or choose another adapter: with this one, no rate moves the policy",
    "kl_sampler": "`microrl guide engine` says why engine and trainer may differ",
}
"""By rule of the guard; for those that are not here, and for collapsed runs, `LOWER`."""


def updates(history: History) -> int:
    """Steps that changed the weights that the run ended with, those of SFT included."""
    undone = history.undone()
    return history.sft_steps + sum(cause_of(history, row) is None for row in history.rows if row["step"] not in undone)


def updates_said(history: History, count: int) -> str:
    """The number of `updates` in words."""
    sft = history.sft_steps
    of_sft = (", by SFT" if count == 1 else ", all by SFT" if sft == count else f", {sft} of them by SFT") if sft else ""
    return f"{counted(count, 'update')}{' not undone by the guard' if history.undone() else ''}{of_sft}"


def cause_of(history: History, row: MetricsRow) -> idle.Cause | None:
    """Why this step changed no weight; None: it did."""
    counts_accuracy = bool(history.setting("reward.accuracy_weight", 1.0))
    return idle.without_effect(row) or idle.cause_of(row, counts_accuracy=counts_accuracy)


def advise(rule: str, setting: idle.Setting, *, has_collapsed: bool = False) -> str:
    """What to change where this rule of the guard has triggered; `has_collapsed`: because a policy has that could learn."""
    advice = LOWER if has_collapsed else RULES.get(rule, LOWER)
    return advice.format(rate=idle.rate_of(setting), limit=setting("sampling.max_completion_tokens"))


def advice_on(cause: idle.Cause, history: History, row: MetricsRow | None = None) -> str:
    """What to change about a cause, which in a policy that has collapsed is the rate alone."""
    is_noticed = any(event.kind == "guard" and event.details.get("collapsed") is True for event in history.events)
    if cause in idle.COLLAPSED and (is_noticed or idle.has_collapsed(history.rows)):
        return advise("useful_groups", history.setting, has_collapsed=True)
    return idle.advice(cause, history.setting, row or {}, history.path)


def hardly_moved(history: History) -> Iterator[RunFinding]:
    """That all updates together moved the policy by less than one of a usual size does, had they all gone the same way: the KL
    grows with the square of the distance, and of the rate. Nothing is said of a run that ended while its rate was warming up,
    nor of one whose rate is steered to larger steps, of which the guard's rule `rate` speaks."""
    made, (rates, sizes) = updates(history) - history.sft_steps, history.series("policy/step_kl", "optim/lr")
    default, steered = OptimConfig.model_fields["step_kl"].default, history.setting("optim.step_kl")
    _, all_rates = history.series("optim/lr")
    is_rising = bool(history.setting("optim.schedule.warmup")) and (len(all_rates) < 2 or all_rates[-1] > all_rates[-2])
    full = [size * (max(all_rates) / rate) ** 2 for rate, size in zip(rates, sizes, strict=True) if rate > 0]
    if made <= 0 or not full or is_rising or max(made, FEW_UPDATES) ** 2 * max(*full, steered or 0.0) >= USUAL:
        return
    said = (
        f"an update moved the policy by {max(sizes):.1g} nats per token (the largest of {counted(len(sizes), 'measured step')})"
    )
    advice = f"start a new run with a higher {idle.rate_of(history.setting)}"
    steering = "" if steered is not None else f", or with --step-kl {default:g}, which adapts the learning rate"
    yield RunFinding("hardly moved", f"{said}, while {USUAL:g} or more is usual", advice + steering, is_serious=True)


def no_update(history: History) -> Iterator[RunFinding]:
    """That most steps, or the last ones, changed no weight."""
    causes = [cause_of(history, row) for row in history.rows]
    without = [(row, cause) for row, cause in zip(history.rows, causes, strict=True) if cause is not None]
    at_the_end = len(causes) - max((number for number, cause in enumerate(causes, 1) if cause is None), default=0)
    if len(without) <= MOSTLY * len(causes) and at_the_end < IDLE_STEPS:
        return
    cause, count = Counter(cause for _, cause in without).most_common(1)[0]
    row = next(row for row, one in reversed(without) if one == cause)
    all_said = "in the only step" if len(causes) == 1 else f"in any of the {len(causes)} steps"
    share = f"in {len(without)} of {len(causes)} steps" if len(without) < len(causes) else all_said
    why = idle.said(cause, row) + ("" if count == len(without) else f" (so in {count} of them)")
    if cause in ("wrong", "format"):
        why += answered(history)
    steps = steps_said([int(row["step"] or 0) for row, _ in without])
    advice = advice_on(cause, history, row)
    yield RunFinding("no update", f"the weights were not changed {share}: {why}", advice, is_serious=True, steps=steps)
