"""What went wrong in a run, and what to change: from its events, and from what its numbers show that no event tells."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from microrl.report.completions import answered, shown_text
from microrl.report.history import Event, History, RunFinding, finite, steps_said
from microrl.report.updates import (
    FEW_UPDATES,
    MOSTLY,
    advice_on,
    advise,
    cause_of,
    hardly_moved,
    no_update,
    updates,
    updates_said,
)
from microrl.report.words import NOT_RIGHT
from microrl.run import heartbeat, idle, names
from microrl.run.view import clock
from microrl.terminal import alike, counted, rounded_up, time_in_words

FEW_RIGHT = 0.01
"""Mean accuracy in training below which hardly anything but the other parts of the reward was rewarded."""
MOST_RIGHT, FIRST_STEPS = 0.9, 10
"""Mean accuracy of so many first steps from which the questions were too easy from the start."""
FEW_USEFUL = 0.1
"""Mean fraction of useful groups below which nearly all sampling was in vain."""
MUCH_TRUNCATED = 0.5
OFTEN_FAILED = 0.25
"""Fraction of the tool calls."""
MOSTLY_WAITING = 0.5
"""Fraction of a step's time from which on rewards are called slow."""
MOSTLY_FORM = 0.5
"""Fraction of a gain from which on what is form or length is most of it."""
UNUSED = 0.1
"""Fraction of the hours that a run may leave unused without a word."""

EVENTS: dict[str, str] = {
    "guard": "",
    "rolled back": "",
    "failed": "find the cause in {path}/crash.log",
    "sync check failed": "`microrl guide engine` says what may cause it",
    "swap retried": "",
    "engine fallback": "",
    "out of memory": "lower sampling.prompts_per_step, sampling.group_size or sampling.max_completion_tokens in a new run",
    "disk full": "free space on the disk; the run goes on without what it could not write",
    "interrupted": "",
    "resumed": "",
    "bad checkpoint": "",
    "evaluation cut": "give the run more time (--hours), or lower evaluation.problems, evaluation.samples or, if a step "
    "takes long, sampling.prompts_per_step",
    "checks killed": "allow answers more time (reward.deadline_s), or look at what hangs: microrl regrade",
    "episodes cut short": "after a timeout, make the tools faster or raise env.deadline_s; after SIGKILL, lower env.memory_gb "
    "or free memory; else run the tool by itself to see why it exits",
    "reward failed": "repair the reward function; call it by itself on the row that the message names",
    "impossible tokens": "see what the teacher writes (microrl sample): if its weights are broken, choose another --teacher",
    "update skipped": "",
    "step shrunk": "",
    "rate at its cap": "raise adapter.alpha, or choose another adapter",
    "not compiled": "install what the message names, such as a C++ compiler, or set optim.compile=false",
    "warning": "",
}
"""Kinds of events that tell of something that went wrong, the worst first, and what to change."""
SERIOUS = ("guard", "failed", "interrupted", "sync check failed", "engine fallback", "reward failed")
ENDINGS = ("failed", "interrupted", "sync check failed")
"""Events that end the process of a run, which may be resumed."""


def findings(history: History, *, is_clear: bool = False) -> list[RunFinding]:
    """All that went wrong, the serious first; what could not be read of the folder comes last. Empty: nothing did.

    `is_clear`: whether the run's gain differs from zero, whatever was too little for it.
    """
    seen = [*_of_numbers(history, is_clear=is_clear)]
    events = [*_of_events(history, is_clear=is_clear)]
    is_explained = {"no update", "few right answers"} & {one.kind for one in seen}
    if is_explained or any(event.details.get("rule") == "useful_groups" for event in history.events):
        events = [one for one in events if one.kind != "update skipped"]
    by_severity = sorted(seen + events, key=lambda one: not one.is_serious)
    return by_severity + [RunFinding("damaged", shown_text(note)) for note in dict.fromkeys(history.notes)]


def _of_events(history: History, *, is_clear: bool) -> Iterator[RunFinding]:
    """Events of one kind whose messages differ in numbers alone are one finding, with the first of the messages."""
    is_told = any(True for _ in no_update(history))  # by the numbers: the guard's words say no more
    resumed = max((number for number, event in enumerate(history.events) if event.kind == "resumed"), default=-1)
    alike_events: dict[tuple[str, str, bool], list[Event]] = {}
    for number, event in enumerate(history.events):
        if number < resumed and _is_made_up_for(history, event):
            continue
        if event.kind in EVENTS and not (event.details.get("rule") == "useful_groups" and is_told):
            event = replace(event, message=_skipped(history, event)) if event.kind == "update skipped" else event
            is_past = event.kind in ENDINGS and number < resumed
            alike_events.setdefault((event.kind, alike(event.message), is_past), []).append(event)
    order = list(EVENTS)
    for (kind, _, is_past), events in sorted(alike_events.items(), key=lambda item: order.index(item[0][0])):
        first, steps = events[0], [event.step for event in events if event.step is not None]
        message = first.message + ("; the run has been resumed since" if is_past else "")
        if any(event.message != first.message for event in events):
            message = f"the first time, {message}"
        is_serious = kind in SERIOUS and not is_past and not (kind == "guard" and first.details.get("action") == "warn")
        is_serious |= kind == "evaluation cut" and not is_clear
        advice = "" if is_past else shown_text(_advice(history, first))
        yield RunFinding(
            kind, shown_text(message), advice, is_serious, len(events), "" if kind == "evaluation cut" else steps_said(steps)
        )


def _is_made_up_for(history: History, event: Event) -> bool:
    """Whether a process that has resumed the run since has made the evaluation for which there was too little time."""
    if event.kind != "evaluation cut":
        return False
    is_missing = event.details.get("questions") == 0 and history.evaluated.before is None
    return event.details.get("side") == "after" or (event.details.get("questions") == 0 and not is_missing)


def _skipped(history: History, event: Event) -> str:
    """Why a step had no update, by its numbers if they are known."""
    row = next((row for row in history.rows if row["step"] == event.step), None)
    cause = None if row is None or "sft_step" in event.details else cause_of(history, row)
    return event.message if row is None or cause is None else idle.said(cause, row)


def _advice(history: History, event: Event) -> str:
    advice = event.details.get("advice", event.details.get("hint"))
    if not isinstance(advice, str):
        is_guard = event.kind == "guard"
        advice = advise(str(event.details.get("rule")), history.setting) if is_guard else EVENTS[event.kind]
    advice = advice.replace("{path}", str(history.path))
    if event.kind not in ENDINGS or "microrl train --resume" in advice or not (history.rows or history.sft_steps):
        return advice
    resume = event.details.get("resume", f"microrl train --resume {history.path}")
    remedy = event.details.get("remedy")
    said = f"resume the run{history.resumes_from()}: {resume}" + (f"; {remedy}" if isinstance(remedy, str) and remedy else "")
    return f"{advice}, then {said}" if advice else said


def _of_numbers(history: History, *, is_clear: bool) -> Iterator[RunFinding]:
    yield from _killed(history)
    yield from no_update(history)
    if history.is_running and len(history.rows) < FEW_UPDATES:
        return
    if not is_clear:
        yield from hardly_moved(history)
    yield from _answers(history, is_clear=is_clear)
    yield from _slow_rewards(history)
    if not history.is_running:
        yield from _cut(history, is_clear=is_clear)
        yield from _form_or_length(history)


def _killed(history: History) -> Iterator[RunFinding]:
    """A run without a summary has neither ended nor failed; events of an earlier process do not explain its end."""
    if history.has_ended or history.is_running:
        return
    sft = f"after {counted(history.sft_steps, 'SFT step')}" if history.sft_steps else "before its first step was finished"
    done = f"after {counted(len(history.rows), 'finished step')}" if history.rows else sft
    beat = heartbeat.read(history.path)
    last_s = max([beat.elapsed_s, *(row.get("budget/elapsed_s") or 0.0 for row in history.rows[-1:])])
    last = f". Its last sign of life came {clock(last_s)} into the run" if last_s else ""
    if beat.silent_s:
        last += f", when there had been no progress for {clock(beat.silent_s)} at `{beat.doing}`"
    lost = "find out why (the kernel's log, dmesg, tells if memory ran out)"
    yield RunFinding(
        "killed",
        f"the run's process ended {done}, without an error: it was killed, or the machine went down{last}",
        f"{lost}, then resume the run{history.resumes_from()}: microrl train --resume {history.path}",
        is_serious=True,
    )


def _answers(history: History, *, is_clear: bool) -> Iterator[RunFinding]:
    """What the completions' rewards show, where there were updates nevertheless."""
    causes = Counter(cause_of(history, row) for row in history.rows)
    if not history.rows or not causes[None]:
        return
    has_teacher = history.mean("distill/kl") is not None  # who teaches any group, whatever its rewards are
    counts_accuracy = bool(history.setting("reward.accuracy_weight", 1.0)) and not has_teacher
    accuracy = history.mean("reward/accuracy")
    few_right = counts_accuracy and accuracy is not None and accuracy < FEW_RIGHT and not is_clear
    if few_right:
        share = f"{accuracy:.1%} of the answers were" if accuracy else "not one answer was"
        said = f"{share} right in {counted(len(history.rows), 'step')}"
        said += "" if accuracy else ": the updates came from other parts of the reward"
        yield RunFinding("few right answers", said + answered(history), advice_on("wrong", history), is_serious=True)
    at_first = [row.get("reward/accuracy") or 0.0 for row in history.rows[:FIRST_STEPS]]
    start = math.fsum(at_first) / len(at_first)
    if counts_accuracy and start > MOST_RIGHT and not is_clear:
        said = f"{start:.0%} of the answers were right from the start, so little was left to learn"
        yield RunFinding("too easy", said, advice_on("right", history), is_serious=True)
    truncated = history.mean("length/truncated")
    if truncated is not None and truncated > MUCH_TRUNCATED:
        said = f"on average {truncated:.0%} of the completions were cut at the length limit"
        yield RunFinding("truncated", said, advice_on("truncated", history), is_serious=True)
    failed = history.failed_calls()
    if failed is not None and failed > OFTEN_FAILED:
        said = f"{failed:.0%} of the tool calls failed"
        advice = "read the tool results (microrl report); for wrong arguments, improve the docstrings; for slow tools, raise "
        yield RunFinding("tools fail", said, f"{advice}env.deadline_s", is_serious=not is_clear)
    useful = history.mean("groups/useful")
    if useful is not None and useful < FEW_USEFUL and accuracy and not (has_teacher or few_right) and start <= MOST_RIGHT:
        cause: idle.Cause = "right" if accuracy >= MOSTLY else "wrong"
        differ = f"on average {useful:.0%} of the groups have differing rewards, and only these give a gradient"
        advice = advice_on(cause, history)
        yield RunFinding("few useful groups", f"{differ}; {accuracy:.0%} of the answers are right", advice, not is_clear)


def _slow_rewards(history: History) -> Iterator[RunFinding]:
    """That a step waits for its rewards most of the time."""
    waited_s, step_s = history.mean("time/verify"), history.mean("time/step")
    if waited_s is None or not step_s or waited_s <= MOSTLY_WAITING * step_s:
        return
    said = f"on average {waited_s:.1f} of the {step_s:.1f} s of a step were spent waiting for rewards after sampling had ended"
    functions = history.setting("reward.functions") or ()
    names = shown_text(" or ".join(f"`{one}`" for one in functions))
    deadline_s = history.setting("reward.deadline_s")
    ends = f"lower reward.deadline_s (now {deadline_s} s): slower checks are cut off, and their answers count as wrong"
    makes = f"make {names} faster" if names else ends
    yield RunFinding("slow rewards", said, makes)


def _cut(history: History, *, is_clear: bool) -> Iterator[RunFinding]:
    """What there was too little of."""
    setting, ended, made = history.setting, history.summary, history.sft_steps
    more = "give the run more time: --hours"
    wanted = setting("sft.steps")
    minutes, is_over = setting("sft.minutes"), ended is not None and ended.status in ("done", "stopped")
    if is_over and ended is not None and ended.sft is not None and isinstance(wanted, int) and made < wanted:
        advice = more if minutes is None else f"raise sft.minutes (now {minutes:g})"
        advice += "" if setting("sft.only") else ", in a new run"
        yield RunFinding("SFT cut", f"only {made} of {wanted} SFT steps were made before their time was up", advice, not is_clear)
    only_sft = bool(setting("sft.only"))
    bound = wanted if only_sft else setting("budget.steps")
    is_done = ended is not None and ended.status == "done"
    is_cut = ended is not None and is_done and not only_sft and isinstance(bound, int) and ended.steps < bound
    if ended is not None and is_cut:
        yield RunFinding("steps cut", f"only {ended.steps} of {bound} steps were made before the time was up", more, not is_clear)
    count = updates(history)
    by_rl = count if only_sft else count - made
    if 0 < by_rl < FEW_UPDATES and (history.rows or only_sft):
        advice = _for_more_updates(history, by_rl if count >= FEW_UPDATES else count, is_cut=is_cut) if is_done else ""
        only = "only " if count < FEW_UPDATES else ""
        if only:
            few = "more updates may gain more" if is_clear else f"at least {FEW_UPDATES} are needed to expect an effect"
        else:
            few = "the gain may be SFT's alone" if is_clear else "too few by reinforcement learning for it to have an effect"
        yield RunFinding(
            "few updates", f"{only}{updates_said(history, count)}: {few}", advice, is_serious=is_done and not is_clear
        )
    hours = ended.hours_budget if ended is not None else None
    if only_sft and minutes is not None:
        hours = None  # its own time ended it
    if ended is not None and is_done and bound is None and hours and ended.hours_spent < (1 - UNUSED) * hours:
        left, steps_s = hours - ended.hours_spent, history.series("time/step")[1]
        evaluation_s = finite(history.evaluations.get(names.AFTER, {}).get("seconds")) or 0.0
        step = f"a further step of up to {max(steps_s):.0f} s" if steps_s else "a further step"
        smaller = f"make steps smaller ({'sft.batch' if only_sft else 'sampling.prompts_per_step'}), "
        if evaluation_s > 0.1 * left * 3600:  # what was kept for it is at least as much
            step += " plus the time kept for the final evaluation"
            smaller += "make the final evaluation shorter (evaluation.problems, evaluation.samples), "
        said = f"{time_in_words(left)} of {time_in_words(hours)} were left: too short for {step}"
        yield RunFinding("budget unused", said, f"{smaller}or raise --hours")


def _form_or_length(history: History) -> Iterator[RunFinding]:
    """That a gain is mostly fewer answers that are right but not in the asked form, or that run out of tokens."""
    if (parts := history.gain_parts) is None or parts.gain.ci95[0] <= 0:
        return
    both = parts.form_and_length
    if both.mean <= MOSTLY_FORM * parts.gain.mean or both.ci95[0] <= 0:
        return
    form = 0.0 if parts.form is None else parts.form.mean
    limit = history.setting("evaluation.max_completion_tokens") or history.setting("sampling.max_completion_tokens")
    changes = [
        f"{abs(100 * mean):.1f} points {'fewer' if mean >= 0 else 'more'} are {NOT_RIGHT[name]}"
        for name, mean in (("form", form), ("length", parts.length.mean), ("answer", parts.answer.mean))
    ]
    said = f"most of the gain of {100 * parts.gain.mean:.1f} points is form or length: of all answers, {', '.join(changes)}"
    advice = []
    if form > 0:
        advice.append("ask for the form more clearly (data.system) and evaluate the base again: it may do as well untrained")
    if parts.length.mean > 0 and isinstance(limit, int):
        base = history.setting("model.name")
        tokens = f"--max-tokens {limit},{4 * limit}"
        advice.append(f"see what is left of the gain with more tokens: microrl eval {history.path} --base {base} {tokens}")
    yield RunFinding("mostly form or length", said, shown_text("; ".join(advice)))


def _for_more_updates(history: History, count: int, *, is_cut: bool) -> str:
    """How a run that has done what it was told makes `FEW_UPDATES` updates; empty where more steps would not be more updates."""
    setting, sft = history.setting, history.sft_steps
    if any(True for _ in no_update(history)):
        return ""
    is_only_sft, minutes = bool(setting("sft.only")), finite(setting("sft.minutes"))
    bound, size = ("sft.steps", "sft.batch") if is_only_sft else ("budget.steps", "sampling.prompts_per_step")
    made = sft if is_only_sft else len(history.rows)
    is_cut |= is_only_sft and made != setting(bound)
    rest = max(FEW_UPDATES - count, 0) + made
    if not is_cut and setting(bound) is not None:
        return f"raise {bound} (now {setting(bound)}) to {rest} or more"
    is_by_minutes = minutes is not None and setting("sft.steps") is None and sft < FEW_UPDATES
    step_s = None if is_only_sft else history.mean("time/step")
    key, time, unit_s = "--hours ", history.summary.hours_budget if history.summary is not None else None, 3600.0
    if is_only_sft and is_by_minutes:
        key, time, unit_s = "sft.minutes=", minutes, 60.0
    said = f"give the run more time: {key.strip(' =')}"
    if time and made:
        more = (rest - made) * (step_s if step_s else time * unit_s / made)
        said = f"give the run more time: {key}{rounded_up(time + more / unit_s)} (now {time:g})"
    now = setting(size)
    if isinstance(now, int) and made and now * made >= 2 * rest:
        said += f"; or make its steps smaller: {size}={now * made // rest} (now {now}): about {rest} steps in the same time"
    if is_by_minutes and minutes and sft and not is_only_sft:
        enough = rounded_up(minutes * FEW_UPDATES / sft)
        said += f"; or give SFT more: sft.minutes={enough} (now {minutes:g}, for {counted(sft, 'step')})"
    return said
