"""`microrl plan --starts`: which known models fit the card and the budget, and what is published of them."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from typing import Any

from rich.console import Group

from microrl.cli.output import emit, say
from microrl.commands import published
from microrl.config import RunConfig, known_models
from microrl.plan import Device
from microrl.plan.show import caution
from microrl.plan.starting_models import LIMIT, MIN_STEPS, PROMPTS, PROMPTS_TRIED, Start, Starts, first_that_fits, starts
from microrl.tables import WIDE, as_text, table

SORTED_BY = "aime24"


def show(
    config: RunConfig,
    device: Device,
    free_gb: float | None,
    keep: Collection[str],
    words: list[str],
    *,
    tool_tokens: int,
    as_json: bool,
) -> None:
    """Print the known models that fit, the best published one first, and a command that repeats `words`."""
    budget = config.budget.model_copy(update={"steps": None})  # steps are what is asked for
    bounded = config.model_copy(update={"budget": budget})
    compared = starts(bounded, device, free_gb=free_gb, keep=keep, tool_tokens=tool_tokens)
    compared.fitting.sort(key=lambda one: -(published.best(one.model.name, SORTED_BY) or -1.0))
    if as_json:
        emit(_to_json(compared, device))
        return
    print(_page(config, compared, device))
    untrained = [one for one in compared.fitting if not one.model.is_rl_trained]
    enough = next((one for one in untrained if one.plan.steps >= MIN_STEPS), None)
    if enough is not None:
        say(f"to train the first of these that makes {MIN_STEPS} steps: {_command(enough, config, words, keep)}")


def _command(start: Start, config: RunConfig, words: list[str], keep: Collection[str]) -> str:
    sampling, overlong = start.config.sampling, start.config.reward.overlong
    own = {LIMIT: sampling.max_completion_tokens, PROMPTS: sampling.prompts_per_step}
    if overlong is not None and overlong != config.reward.overlong:
        own["reward.overlong.buffer"] = overlong.buffer
    sets = [word for key, value in own.items() if key not in keep for word in ("--set", f"{key}={value}")]
    hours = f"{start.config.budget.hours:g}"
    return shlex.join(["microrl", "train", *words, "--model", start.model.name, "--hours", hours, *sets])


def _to_json(starts: Starts, device: Device) -> dict[str, Any]:
    rows = [
        {
            "model": one.model.name, "hub_id": one.model.hub_id, "licence": one.model.licence, "thinking": one.model.thinking,
            "published": published.untrained(one.model.name),
            "max_completion_tokens": one.config.sampling.max_completion_tokens,
            "limit_source": one.model.limit.source if one.model.limit and one.has_known_limit else None,
            "prompts_per_step": one.config.sampling.prompts_per_step, "group_size": one.config.sampling.group_size,
            **{key: getattr(one.plan, key) for key in ("steps", "steps_low", "steps_high", "step_s", "hours", "cost_usd")},
            "useful_groups_hour": one.plan.useful_groups_hour, "peak_gb": one.plan.memory_gb["peak"],
        }
        for one in starts.fitting
    ]  # fmt: skip
    left_out = {"too_large": starts.too_large, "impossible": starts.impossible, "unknown_shape": starts.unknown}
    return {"gpu": device.name, "starts": rows, **left_out}


def _page(config: RunConfig, starts: Starts, device: Device) -> str:
    results = [line for one in starts.fitting for line in published.untrained(one.model.name)]
    limits = [one.model.limit for one in starts.fitting if one.has_known_limit]
    sources = {limit.paper: limit.source for limit in limits if limit is not None}
    price = device.usd_hour if config.budget.price is None else config.budget.price
    hours = config.budget.hours or 0.0
    title = (
        f"Known models as starts for {hours:g} h on {device.label} (${price * hours:.2f}): {config.adapter.name}, "
        f"{config.sampling.group_size} completions per prompt. Best published first."
    )
    words = [
        "AIME24, MATH500: published accuracies of the model as it was released, each by its own protocol:",
        *(f"  {text}" for text in published.protocols(results)),
        "limit: the completion limit in tokens at which others trained the model by reinforcement learning, as in:",
        *(f"  {paper}: {source}" for paper, source in sources.items()),
        "  this plan: the configured limit, because it was set, or we know of no other. A model that thinks at length needs a "
        "higher one.",
        f"prompts: per step; the largest of {', '.join(map(str, PROMPTS_TRIED))} that leaves {MIN_STEPS} steps, or "
        f"{min(PROMPTS_TRIED)} if none does. useful/h: groups whose rewards differ, per hour of training steps; their share is "
        "assumed.",
    ]
    if trained := [one.model.name for one in starts.fitting if one.model.is_rl_trained]:
        words.append(f"Already trained with verifiable rewards by others, so rather results than starts: {', '.join(trained)}.")
    if config.data.answer_kind != "math":
        words.append("The published accuracies are of mathematics, and so are the limits; this run's data is not.")
    if starts.too_large:
        words.append(f"Too large for this GPU at their limit: {', '.join(starts.too_large)}.")
    words += [f"{name}: {why}." for name, why in starts.impossible.items()]
    if starts.unknown:
        words.append(f"Not compared, because their exact shape is not known: {', '.join(starts.unknown)}.")
    plans = (">prompts", ">s/step", ">steps", ">range", ">useful/h")
    head = ("<model", "licence", *published.SHOWN.values(), ">limit", "as in", *plans)
    cautions = [caution(starts.fitting[0].plan)] if starts.fitting else []
    return as_text(Group(title, "", table(head, map(_row, starts.fitting)), "", *words, *cautions), WIDE)


def _row(start: Start) -> list[str]:
    model, sampling, plan = start.model, start.config.sampling, start.plan
    return [
        model.name, model.licence or "not known", *published.cells(published.untrained(model.name)),
        f"{sampling.max_completion_tokens:,}", model.limit.paper if model.limit and start.has_known_limit else "this plan",
        str(sampling.prompts_per_step), f"{plan.step_s:,.0f}", f"{plan.steps:,}", f"{plan.steps_low:,}-{plan.steps_high:,}",
        f"{plan.useful_groups_hour:,.0f}",
    ]  # fmt: skip


def suggest(config: RunConfig, device: Device, free_gb: float | None, *, tool_tokens: int) -> None:
    """Say it where a known model with a better published accuracy fits the same card and budget. Not beside a teacher, whose
    tokenizer most models do not have."""
    own = known_models.find(config.model.name)
    score = None if own is None else published.best(own.name, SORTED_BY)
    if own is None or score is None or config.budget.hours is None or config.data.answer_kind != "math" or config.asked_teacher:
        return
    starts = (model for model in known_models.MODELS.values() if not model.is_rl_trained)
    scored = [(published.best(model.name, SORTED_BY) or 0.0, model) for model in starts]
    better = sorted((one for one in scored if one[0] > score), key=lambda one: -one[0])
    start = first_that_fits(config, [model for _, model in better], device, free_gb=free_gb, tool_tokens=tool_tokens)
    if start is not None:
        best = published.best_cell(start.model.name, SORTED_BY)
        say(
            f"hint: {start.model.name} fits the same GPU and budget, and has a published accuracy on AIME24 of {best}; "
            f"{own.name} has {published.best_cell(own.name, SORTED_BY)}: see `microrl plan --starts`"
        )
