"""What went wrong in a run, and what to change: from its events, and from what its numbers show that no event tells."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from microrl.report.completions import shown_text
from microrl.report.history import Event, History, finite
from microrl.run import idle
from microrl.terminal import alike

FEW_UPDATES = 20
"""Of fewer updates hardly a gain can be expected that an evaluation would show."""
FEW_USEFUL = 0.1
"""Mean fraction of useful groups below which nearly all sampling was in vain."""
MUCH_TRUNCATED = 0.5
MOSTLY = 0.5
"""Fraction of steps without an update from which the report speaks of them, or `IDLE_STEPS` at the end of the run."""
IDLE_STEPS = 3
UNUSED = 0.1
"""Fraction of the hours that a run may leave unused without a word."""

EVENTS: dict[str, str] = {
    "guard": "",
    "rolled back": "",
    "failed": "find the cause in the message or in crash.log of the run, then resume: microrl train --resume {path}",
    "hung": "look at the step's last line in run.log, then resume: microrl train --resume {path}",
    "sync check failed": "microrl guide engine says what may cause it",
    "swap retried": "",
    "engine fallback": "",
    "out of memory": "sample less at once: sampling.prompts_per_step, sampling.group_size or sampling.max_completion_tokens",
    "disk full": "free space on the disk; the run goes on without what it could not write",
    "interrupted": "resume: microrl train --resume {path}",
    "resumed": "",
    "bad checkpoint": "",
    "evaluation cut": "give the run more time (--hours), or ask less: evaluation.problems, evaluation.samples",
    "checks killed": "allow answers more time (reward.deadline_s), or look at what hangs: microrl regrade",
    "reward failed": "repair the reward function; call it by itself on the row that the message names",
    "update skipped": "",
    "warning": "",
}
"""Kinds of events that tell of something that went wrong, the worst first, and what to change."""
SERIOUS = ("guard", "rolled back", "failed", "hung", "sync check failed", "swap retried", "engine fallback", "out of memory",
           "killed", "no update", "no right answer", "truncated", "reward failed")  # fmt: skip
SURVIVED = ("swap retried", "engine fallback", "out of memory")
"""Serious events after which the run went on as it should: said when they happen, and not again at its end."""
LOWER = "lower optim.lr (now {lr})"
RULES = {
    "truncated": f"{LOWER}, or raise sampling.max_completion_tokens (now {{limit}})",
    "length_drift": "look at the completions; reward.overlong penalises long ones",
    "useful_groups": "take other questions: harder ones where most answers are right, else easier ones",
    "learning": "train longer (--hours, --steps), raise optim.lr (now {lr}), or take easier questions",
    "kl_sampler": "microrl guide engine says why engine and trainer may differ",
}
"""By rule of the guard; for those that are not here, `LOWER`."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that went wrong in a run. `message`: what happened, with numbers; `advice`: which flag or key to change, empty
    where there is nothing to change; `count`: how often; `steps`: in which steps, as words."""

    kind: str
    message: str
    advice: str = ""
    is_serious: bool = False
    count: int = 1
    steps: str = ""

    def to_json(self) -> dict[str, Any]:
        """As it stands in `summary.json`."""
        return {
            "kind": self.kind, "message": self.message, "advice": self.advice, "serious": self.is_serious, "count": self.count,
        }  # fmt: skip

    def __str__(self) -> str:
        """One line."""
        times = f" (x{self.count})" if self.count > 1 else ""
        advice = f" To change it: {self.advice}." if self.advice else ""
        return f"{self.kind}{times}: {self.message.rstrip('.')}.{advice}"


def findings(history: History) -> list[Finding]:
    """All that went wrong, the serious first; what could not be read of the folder comes last. Empty: nothing did."""
    seen = [*_of_numbers(history)]
    kinds = {one.kind for one in seen}
    events = [one for one in _of_events(history) if "no update" not in kinds or one.kind != "update skipped"]
    found = sorted(seen + events, key=lambda one: not one.is_serious)
    return found + [Finding("damaged", shown_text(note)) for note in dict.fromkeys(history.notes)]


def updates(history: History) -> int:
    """Steps that changed weights, those of SFT included."""
    sft = history.outcome("sft", "steps")
    return sum(_cause(history, row) is None for row in history.rows) + (sft if isinstance(sft, int) else 0)


def _cause(history: History, row: idle.Row) -> idle.Cause | None:
    return idle.cause_of(row, counts_accuracy=bool(history.setting("reward.accuracy_weight", 1.0)))


def _of_events(history: History) -> Iterator[Finding]:
    """Events of one kind whose messages differ in numbers alone are one finding, with the first of the messages."""
    is_told = any(True for _ in _no_update(history))  # by the numbers: the guard's words say no more
    alike_events: dict[tuple[str, str], list[Event]] = {}
    for event in history.events:
        if event.kind in EVENTS and not (event.details.get("rule") == "useful_groups" and is_told):
            alike_events.setdefault((event.kind, alike(event.message)), []).append(event)
    order = list(EVENTS)
    for (kind, _), events in sorted(alike_events.items(), key=lambda item: order.index(item[0][0])):
        first, steps = events[0], [event.step for event in events if event.step is not None]
        is_serious = kind in SERIOUS and not (kind == "guard" and first.details.get("action") == "warn")
        advice = shown_text(_advice(history, first))
        yield Finding(kind, shown_text(first.message), advice, is_serious, len(events), _steps(steps))


def _advice(history: History, event: Event) -> str:
    given = event.details.get("advice", event.details.get("hint"))
    if isinstance(given, str):
        return given
    if event.kind == "guard":
        return advise(str(event.details.get("rule")), None, history.setting)
    return EVENTS[event.kind].format(path=history.path)


def advise(rule: str, cause: idle.Cause | None, setting: idle.Setting) -> str:
    """What to change where this rule of the guard has triggered; `cause`: why there were no updates, if that is why it has."""
    if cause is not None:
        return f"{idle.advice(cause, setting)}; or go on as it is: guard.useful_groups=none"
    return RULES.get(rule, LOWER).format(lr=setting("optim.lr"), limit=setting("sampling.max_completion_tokens"))


def _of_numbers(history: History) -> Iterator[Finding]:
    yield from _ending(history)
    yield from _no_update(history)
    if history.is_running and len(history.rows) < FEW_UPDATES:
        return
    yield from _answers(history)
    if not history.is_running:
        yield from _cut(history)


def _ending(history: History) -> Iterator[Finding]:
    if not history.summary and not history.is_running:
        done = f"after {len(history.rows)} finished steps" if history.rows else "before its first step"
        told = any(event.kind in ("failed", "hung") for event in history.events)
        why = "" if told else ": it was killed, or the machine went down"
        advice = f"resume: microrl train --resume {history.path}"
        yield Finding("killed", f"the run ended {done} without a summary{why}", advice, is_serious=True)


def _no_update(history: History) -> Iterator[Finding]:
    causes = [_cause(history, row) for row in history.rows]
    without = [(row, cause) for row, cause in zip(history.rows, causes, strict=True) if cause is not None]
    at_the_end = len(causes) - max((number for number, cause in enumerate(causes, 1) if cause is None), default=0)
    if len(without) <= MOSTLY * len(causes) and at_the_end < IDLE_STEPS:
        return
    cause, count = Counter(cause for _, cause in without).most_common(1)[0]
    row = next(row for row, one in reversed(without) if one == cause)
    steps = "in the only step" if len(causes) == 1 else f"in any of the {len(causes)} steps"
    of = f"in {len(without)} of {len(causes)} steps" if len(without) < len(causes) else steps
    why = idle.said(cause, row) + ("" if count == len(without) else f" (so in {count} of them)")
    yield Finding("no update", f"the weights were not changed {of}: {why}", idle.advice(cause, history.setting), is_serious=True,
                  steps=_steps([int(row["step"] or 0) for row, _ in without]))  # fmt: skip


def _answers(history: History) -> Iterator[Finding]:
    """What the completions' rewards show, where there were updates nevertheless."""
    causes = Counter(_cause(history, row) for row in history.rows)
    if not history.rows or not causes[None]:
        return
    counts_accuracy = bool(history.setting("reward.accuracy_weight", 1.0))
    accuracy = _mean(history, "reward/accuracy")
    if counts_accuracy and accuracy == 0:
        said = f"not one answer was right in {len(history.rows)} steps: the updates rewarded other parts of the reward alone"
        yield Finding("no right answer", said, idle.advice("wrong", history.setting), is_serious=True)
    truncated = _mean(history, "length/truncated")
    if truncated is not None and truncated > MUCH_TRUNCATED:
        said = f"on average {truncated:.0%} of the completions were cut at the length limit"
        yield Finding("truncated", said, idle.advice("truncated", history.setting), is_serious=True)
    useful = _mean(history, "groups/useful")
    if useful is not None and useful < FEW_USEFUL and accuracy:
        cause: idle.Cause = "right" if accuracy >= MOSTLY else "wrong"
        said = (
            f"on average {useful:.0%} of the groups have differing rewards, and only these teach; {accuracy:.0%} of the answers"
        )
        yield Finding("few useful groups", f"{said} are right", idle.advice(cause, history.setting))


def _cut(history: History) -> Iterator[Finding]:
    """What there was too little of."""
    setting, outcome = history.setting, history.outcome
    more = "give the run more time: --hours"
    made, wanted = outcome("sft", "steps"), setting("sft.steps")
    if isinstance(made, int) and isinstance(wanted, int) and made < wanted:
        minutes = setting("sft.minutes")
        advice = more if minutes is None else f"raise sft.minutes (now {minutes:g}) or --hours"
        yield Finding("SFT cut", f"only {made} of {wanted} SFT steps were made before their time was up", advice)
    steps, bound = outcome("steps"), setting("budget.steps")
    is_done, only_sft = outcome("status") == "done", bool(setting("sft.only"))
    is_cut = is_done and not only_sft and isinstance(steps, int) and isinstance(bound, int) and steps < bound
    if is_cut:
        yield Finding("steps cut", f"only {steps} of {bound} steps were made before the time was up", more)
    count = updates(history)
    if 0 < count < FEW_UPDATES and (history.rows or only_sft):
        advice = _for_more_updates(history, is_cut=is_cut) if is_done else ""
        yield Finding("few updates", f"{count} update{'s' if count != 1 else ''}: too few to expect an effect", advice)
    hours, spent = (finite(outcome(name)) for name in ("hours_budget", "hours_spent"))
    if is_done and bound is None and hours and spent is not None and spent < (1 - UNUSED) * hours:
        used = f"{spent / hours:.0%} of the {_hours(hours)} were used"
        said = f"{used}: the rest was too short for a further step before the final evaluation"
        shorter = "shorten the final evaluation (evaluation.problems, evaluation.samples)"
        yield Finding("budget unused", said, f"{shorter}, or raise --hours")


def _for_more_updates(history: History, *, is_cut: bool) -> str:
    """How a run that has done what it was told makes more updates; empty where more steps would not be more updates."""
    setting = history.setting
    if any(True for _ in _no_update(history)):
        return ""
    if setting("sft.only"):
        bound, smaller = "sft.steps", f"sft.batch (now {setting('sft.batch')})"
        time = "--hours" if setting("sft.minutes") is None else f"sft.minutes (now {setting('sft.minutes'):g})"
        is_cut = history.outcome("sft", "steps") != setting(bound)
    else:
        bound, time = "budget.steps", "--hours"
        smaller = " or ".join(f"{name} (now {setting(name)})" for name in ("sampling.prompts_per_step", "sampling.group_size"))
    if not is_cut and setting(bound) is not None:
        return f"raise {bound} (now {setting(bound)})"
    return f"give the run more time ({time}), or make its steps smaller: {smaller}"


def _mean(history: History, metric: str) -> float | None:
    values = [value for row in history.rows if (value := row.get(metric)) is not None]
    return math.fsum(values) / len(values) if values else None


def _hours(hours: float) -> str:
    return (
        f"{hours:.1f} hours" if hours >= 2 else f"{hours * 60:.0f} minutes" if hours >= 1 / 30 else f"{hours * 3600:.0f} seconds"
    )


def _steps(steps: Sequence[int]) -> str:
    """Counted from 0, as in `metrics.jsonl`."""
    if not steps:
        return ""
    if len(steps) > 6 and steps[-1] - steps[0] == len(steps) - 1:
        return f"steps {steps[0]} to {steps[-1]}"
    listed = ", ".join(map(str, steps[:6])) + (", ..." if len(steps) > 6 else "")
    return f"step{'s' if len(steps) > 1 else ''} {listed}"
