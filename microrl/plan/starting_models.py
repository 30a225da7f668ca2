"""Which known model to start from: for each, what the same budget buys on the same card."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from microrl.config import RunConfig
from microrl.config.known_models import MODELS, KnownModel
from microrl.errors import UserError
from microrl.plan.devices import Device
from microrl.plan.plan import Plan, make
from microrl.plan.source import CONFIGS, shape_of

LIMIT, PROMPTS = "sampling.max_completion_tokens", "sampling.prompts_per_step"
PROMPTS_TRIED = (64, 32, 16, 8)
"""Prompts per step: the larger a batch, the more groups share what a step costs whatever its size."""
MIN_STEPS = 150
"""As many as the shortest run of the papers has (`ortho-7b`)."""


class Start(NamedTuple):
    """A known model with a plan of its own."""

    model: KnownModel
    config: RunConfig
    plan: Plan

    @property
    def has_known_limit(self) -> bool:
        """Whether the completion limit is that with which others trained the model."""
        return self.model.limit is not None and self.model.limit.tokens == self.config.sampling.max_completion_tokens


def start(
    config: RunConfig,
    model: KnownModel,
    device: Device,
    *,
    free_gb: float | None = None,
    keep: Collection[str] = (),
    tool_tokens: int = 0,
) -> Start:
    """This run from another model: with the completion limit with which others trained it, where that is known, and the most
    prompts per step that leave `MIN_STEPS`. What `keep` names of these two keys stays as configured.

    Raises UserError for an adapter or a rate that the model cannot have.
    """
    limit = config.sampling.max_completion_tokens
    if LIMIT not in keep and model.limit is not None:
        limit = model.limit.tokens
    tried = (config.sampling.prompts_per_step,) if PROMPTS in keep else PROMPTS_TRIED
    for prompts in tried:
        sampling = config.sampling.model_copy(update={"max_completion_tokens": limit, "prompts_per_step": prompts})
        overlong = config.reward.overlong
        if overlong is not None and overlong.buffer >= limit:
            overlong = overlong.model_copy(update={"buffer": limit // 4})
        update = {
            "model": config.model.model_copy(update={"name": model.name}), "sampling": sampling,
            "reward": config.reward.model_copy(update={"overlong": overlong}),
        }  # fmt: skip
        own = config.model_copy(update=update)
        plan = make(own, shape_of(model.name), device, free_gb=free_gb, tool_tokens=tool_tokens)
        if plan.fits and plan.steps >= MIN_STEPS:
            break
    return Start(model, own, plan)


class Starts(NamedTuple):
    """Every known model, by what became of it."""

    fitting: list[Start]
    too_large: list[str]
    impossible: dict[str, str]
    """Why this adapter, rate or length cannot be had with a model."""
    unknown: list[str]
    """Their shape does not ship."""


def starts(
    config: RunConfig,
    device: Device,
    *,
    free_gb: float | None = None,
    keep: Collection[str] = (),
    tool_tokens: int = 0,
) -> Starts:
    """`start` for every known model whose shape ships."""
    compared = Starts([], [], {}, [name for name in MODELS if name not in CONFIGS])
    for name, model in MODELS.items():
        if name not in CONFIGS:
            continue
        try:
            one = start(config, model, device, free_gb=free_gb, keep=keep, tool_tokens=tool_tokens)
        except UserError as error:
            compared.impossible[name] = error.message
            continue
        plan = one.plan
        if plan.fits:
            compared.fitting.append(one)
        elif plan.memory_gb["peak"] <= round(plan.room_gb, 3):  # the peak is rounded likewise
            # It contradicts itself, such as with more tokens than the model's positions.
            compared.impossible[name] = plan.advice[0].partition(": ")[2]
        else:
            compared.too_large.append(name)
    return compared


def first_that_fits(
    config: RunConfig, models: Iterable[KnownModel], device: Device, *, free_gb: float | None, tool_tokens: int = 0
) -> Start | None:
    """The first of these models that fits and makes `MIN_STEPS` in the budget; None if none does."""
    for model in models:
        if model.name not in CONFIGS:
            continue
        try:
            one = start(config, model, device, free_gb=free_gb, tool_tokens=tool_tokens)
        except UserError:  # as `starts` says; a suggestion is no place to tell
            continue
        if one.plan.fits and one.plan.steps >= MIN_STEPS:
            return one
    return None
