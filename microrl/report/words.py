"""What a report says of a run in tables: what was trained, what was evaluated. Whether it helped is for `verdict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter, ValidationError

from microrl.evaluation.gain_parts import PARTS, GainParts
from microrl.evaluation.intervals import Estimate
from microrl.report.completions import shown_text
from microrl.report.history import History, finite
from microrl.report.transcripts import OWN
from microrl.run.environment import Environment
from microrl.terminal import counted, time_in_words

UNKNOWN = "unknown"


def facts(history: History) -> list[tuple[str, str]]:
    """What was trained, on what, how long and at what cost: names and values."""
    setting, environment, last = history.setting, history.environment, history.rows[-1] if history.rows else {}
    ended, elapsed_s = history.summary, last.get("budget/elapsed_s")
    hours = (ended.hours_budget if ended is not None else None) or setting("budget.hours")
    spent = ended.hours_spent if ended is not None else None if elapsed_s is None else elapsed_s / 3600
    cost = ended.cost_usd if ended is not None else last.get("budget/cost_usd")
    price, tokens = setting("budget.price"), sum(row.get("tokens/generated") or 0 for row in history.rows)
    sampling = [
        setting(f"sampling.{name}", "?") for name in ("prompts_per_step", "group_size", "max_completion_tokens", "temperature")
    ]
    cores = counted(environment.cpus, "CPU core") if isinstance(environment.cpus, int) else "CPU cores unknown"
    versions = ", ".join(f"{name} {version}" for name, version in environment.packages.items()) or UNKNOWN
    values_by_name = {
        "status": history.status() + (", a control: rewards shuffled" if history.setting("reward.shuffle") is True else ""),
        "model": setting("model.name", UNKNOWN),
        "data": setting("data.name", UNKNOWN),
        "adapter": _adapter(history),
        "trained": _trained(history),
        **({} if setting("sft.only") is True else {"loss": _loss(history)}),
        **({} if (teacher := setting("distill.teacher")) is None else {"teacher": str(teacher)}),
        **_sft(history),
        "sampling": "{} prompts x {} completions a step, at most {} tokens, temperature {}".format(*sampling),
        **_tools(history),
        "steps": f"{ended.steps if ended is not None else len(history.rows):,}, {tokens:,.0f} completion tokens",
        "time": _time(spent) + (f" (limit {_time(hours)})" if hours is not None else ""),
        "cost": f"${_number(cost, '.2f')} at ${price} an hour" if price is not None else "unknown: no price per hour was given",
        "machine": UNKNOWN
        if environment == Environment()
        else f"{environment.gpu or 'no GPU'}, {cores}, engine {environment.engine or UNKNOWN}",
        "versions": versions,
        "seed": setting("seed", UNKNOWN),
    }
    return [(name, shown_text(str(value))) for name, value in values_by_name.items()]


def _tools(history: History) -> dict[str, str]:
    """What was made of the tools; nothing without an environment."""
    if (target := history.setting("env.target")) is None:
        return {}
    turns, calls = (history.series(name)[1] for name in ("turns/mean", "tools/calls"))
    if not turns or not calls:
        return {"tools": str(target)}
    failed = history.failed_calls()
    name = target if isinstance(target, str) else ", ".join(target)
    said = f"{name}: {sum(turns) / len(turns):.1f} turns and {sum(calls) / len(calls):.1f} tool calls for each completion"
    return {"tools": said + (f", of which {failed:.0%} failed" if failed is not None else "")}


def entropies(histories: Sequence[History]) -> list[tuple[str, str, str, str, str]]:
    """(run, rank, entropy before, after, change in per cent) of the runs that were evaluated before and after: micro, table 2.

    On the same held-out questions; nats per token.
    """
    rows = []
    for history in histories:
        if (values := history.entropies()) is not None:
            before, after, change = values
            cells = str(history.setting("adapter.rank", "-")), f"{before:.3f}", f"{after:.3f}", f"{100 * change:+.1f} %"
            rows.append((shown_text(history.name), *cells))
    return rows


def evaluations(histories: Sequence[History]) -> list[dict[str, Any]]:
    """All stored evaluations of these runs, each with its estimates by name."""
    evaluated = []
    for history in histories:
        for name, tree in sorted(history.evaluations.items(), key=lambda item: _place(item[0])):
            estimates = {shown_text(metric): value for metric in tree if (value := _estimate(tree[metric])) is not None}
            settings = tree.get("settings")
            listed = ", ".join(f"{key} {value}" for key, value in settings.items()) if isinstance(settings, Mapping) else ""
            if estimates:
                evaluated.append({
                    "run": shown_text(history.name), "name": shown_text(name), "questions": tree.get("questions"),
                    "samples": tree.get("samples"), "settings": shown_text(listed), "estimates": estimates,
                })  # fmt: skip
    return evaluated


NOT_RIGHT = {"form": "right but not in the asked form", "length": "cut off at the token limit", "answer": "wrong"}


def gain_origin(parts: GainParts) -> list[str]:
    """Where a gain comes from, as sentences."""
    count = parts.questions * parts.samples
    known = {name: part for name in PARTS if (part := getattr(parts, name)) is not None}
    listed = [
        f"{NOT_RIGHT[name]}, {100 * getattr(parts.base, name) / count:.1f} % before and "
        f"{100 * getattr(parts.trained, name) / count:.1f} % after training ({part.points()})"
        for name, part in known.items()
    ]
    said = [
        f"Accuracy changed by {parts.gain.points()}. The answers that are not right account for it: {'; '.join(listed)}. "
        "A plus means fewer of them; the parts add up to the change."
    ]
    if parts.base.lenient is not None and parts.over_lenient is not None:
        said.append(
            f"In any form, the base is right in {100 * parts.base.lenient.mean:.1f} % of its answers; in the asked form, the "
            f"trained model in {100 * parts.trained.right / count:.1f} %: a difference of {parts.over_lenient.points()}."
        )
    else:
        said.append("Programs and procedural tasks have no lenient reading: what is not in their form counts as wrong.")
    sides = [
        f"{name} {100 * accuracy:.1f} % ({side.well_formed_right} of {side.well_formed})"
        if (accuracy := side.well_formed_accuracy) is not None
        else f"{name}: no such answers"
        for name, side in (("the base", parts.base), ("the trained model", parts.trained))
    ]
    return [*said, f"Accuracy on finished answers in the asked form: {', '.join(sides)}."]


_AS_STORED = TypeAdapter(Estimate)


def _estimate(tree: Any) -> Estimate | None:
    """None for what is none."""
    with suppress(ValidationError):
        return _AS_STORED.validate_python(tree)
    return None


def _place(name: str) -> tuple[int, str]:
    """The run's own evaluations come first, in the order in which they were made."""
    return (OWN.index(name) if name in OWN else len(OWN)), name


def _number(value: Any, form: str) -> str:
    return UNKNOWN if (known := finite(value)) is None else format(known, form)


def _time(hours: Any) -> str:
    return UNKNOWN if finite(hours) is None else time_in_words(hours)


def _loss(history: History) -> str:
    kind, beta = history.setting("loss.kind", UNKNOWN), history.setting("loss.beta", "?")
    return f"{kind}, beta {beta}, learning rate {_rate(history)}"


def _rate(history: History) -> str:
    """As configured, and that of the last step where it is steered, or the guard has lowered it."""
    last = history.rows[-1].get("optim/lr") if history.rows else None
    lowered = sum(event.kind == "rolled back" and "halved" in event.message for event in history.events)
    now = f", halved {counted(lowered, 'time')} by the guard: last rate {last:g}" if lowered and last is not None else ""
    if (target := finite(history.setting("optim.step_kl"))) is not None:
        return f"steered to a step KL of {target:g}" + (f"; last rate {last:.3g}" if last is not None and not now else now)
    return f"{history.setting('optim.lr', '?')}{now}"


def _adapter(history: History) -> str:
    kind, rank, alpha = (history.setting(f"adapter.{name}") for name in ("kind", "rank", "alpha"))
    if not isinstance(rank, int) or not isinstance(alpha, int | float) or rank < 1:
        return str(kind or UNKNOWN) + (f", rank {rank}" if rank is not None else "")
    return f"{kind}, rank {rank}, alpha {alpha:g}"


def _sft(history: History) -> dict[str, str]:
    """The phase before reinforcement learning, if there was one."""
    if history.summary is None or (sft := history.summary.sft) is None:
        return {}
    losses = f"loss {_number(sft.first_loss, '.3f')} -> {_number(sft.last_loss, '.3f')}"
    return {"SFT": f"{sft.steps:,} steps of {history.setting('sft.batch', '?')} solutions in {sft.seconds:.0f} s, {losses}"}


def _trained(history: History) -> str:
    count, share = history.environment.trainable_params, history.environment.adapter.get("trained_share")
    known = f" ({share:.2%} of the model)" if isinstance(share, float) else ""
    return f"{count:,} parameters{known}" if isinstance(count, int) else UNKNOWN
