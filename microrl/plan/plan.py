"""The plan of a run on one card: does it fit, how long is a step, how many steps does the budget buy, what does it cost."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from microrl.config import RunConfig
from microrl.config.learning_rate import with_rate
from microrl.limits import (
    BEFORE_FRACTION,
    CHECKPOINT_MINUTES,
    CHECKPOINTS,
    GB,
    SCREENING_FRACTION,
    VALIDATIONS,
    checkpoint_interval_s,
    exit_reserve_s,
)
from microrl.plan import advice, memory, roofline
from microrl.plan.devices import Device
from microrl.plan.memory import Memory
from microrl.plan.roofline import Spread, Timing
from microrl.plan.shapes import Shape
from microrl.plan.workload import LENGTH_FRACTION, TeacherSize, Workload


@dataclass(frozen=True, slots=True)
class Plan:
    """A forecast. Its seconds are a roofline's, corrected by the device's calibration where there is one. GB are 1e9 bytes.

    `_low` and `_high` bound what is credible. A run's own forecasts start from the values without them.
    """

    model: str
    device: Device
    total_params: int
    trainable_params: int
    served: str
    """How the engine gets the trained weights."""
    sync: str
    """The way that the run is expected to take: swap, merge, or shared with the transformers engine."""
    sync_step_s: dict[str, float]
    """A step's seconds by each way that the run may take; where there are two, it measures both and keeps the faster."""
    sync_why: str
    lr: float
    """Peak learning rate, `auto` as a number."""
    memory_gb: dict[str, float]
    """Each part at its largest, and `peak`: the larger of the two phases."""
    sampling_gb: dict[str, float]
    updating_gb: dict[str, float]
    room_gb: float
    """What is there: the card's memory, or what is free of it."""
    fits: bool
    """Whether memory suffices and nothing contradicts."""
    advice: tuple[str, ...]
    """What to change where it does not fit, `FLAGS: why` each; all of them together make it fit."""
    advice_step_s: float | None
    """Seconds of a step with these changes; None where there are none, or where they take another card or model."""
    notes: tuple[str, ...]
    engine: str
    sleep: str | int | None
    completions: int
    """Completions that a step trains on."""
    micro_batch_tokens: int
    micro_batch_rows: int
    """Rows at the assumed mean length that make a micro-batch."""
    micro_batches: int
    checkpoints_activations: bool
    """Whether they are computed again in the backward pass."""
    concurrency: int
    """Completions that decode at a time."""
    step_s: float
    step_low_s: float
    """The least that is credible, and the most; both are `step_s` where the device is calibrated."""
    step_high_s: float
    step_parts_s: dict[str, float]
    times: str
    """Where the seconds come from: "roofline", or what a calibration was called."""
    update_parts_s: dict[str, float]
    """Of the step's update, by what takes them."""
    update_elementwise_gb: float
    """Moved in an update by everything but matrix products, log-probabilities and optimizer; 0 on a CPU."""
    load_s: float
    evaluation_s: float
    """One side of the evaluation before and after."""
    validation_s: float
    save_s: float
    sft_step_s: float
    """Seconds of a supervised step."""
    sft_s: float
    """Of the supervised phase; of SFT alone without a limit of its own, all that the hours leave it."""
    steps: int
    steps_low: int
    """At `step_high_s`."""
    steps_high: int
    groups_hour: float
    """Groups trained on in an hour of steps."""
    useful_groups_hour: float
    """Those of them expected to have different rewards."""
    useful_share: float
    tokens: int
    """Sampled in all steps, at the assumed mean length."""
    hours: float
    hours_low: float
    hours_high: float
    price: float
    """US dollars an hour."""
    cost_usd: float
    cost_low_usd: float
    cost_high_usd: float

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON's types; `gpu` is the card's name."""
        device = asdict(replace(self.device, calibration=None))
        del device["calibration"], device["calibration_warning"]
        return {**asdict(self), "device": device, "gpu": self.device.name, "advice": list(self.advice), "notes": list(self.notes)}


def make(
    config: RunConfig,
    shape: Shape,
    device: Device,
    *,
    free_gb: float | None = None,
    load_s: float | None = None,
    tool_tokens: int = 0,
    teacher: TeacherSize | None = None,
) -> Plan:
    """The plan of this run. `free_gb` is what is free of the card, `load_s` what loading has taken, where these are known.
    `tool_tokens`: of a prompt that tell of an environment's tools. `teacher`: of a distillation (`microrl.run.teacher.size`).

    A run without a bound is planned for a single step. Raises UserError for a rank or targets that the network does not have.
    """
    # Kept apart: a configuration that is steered may not have a fixed rate, and the advice resolves changes of it anew.
    lr = with_rate(config, hidden=shape.hidden, model_type=shape.model_type).optim.lr
    assert not isinstance(lr, str)
    work = Workload.from_config(config, shape, device, tool_tokens, teacher)
    room = (device.memory_gb if free_gb is None else free_gb) * GB
    sizes = memory.estimate_memory(work, room)
    if config.model.gradient_checkpointing == "auto" and not device.is_cpu and not sizes.fits(room):
        model = config.model.model_copy(update={"gradient_checkpointing": True})
        work = work.changed(config.model_copy(update={"model": model}))
        sizes = memory.estimate_memory(work, room)
    timing = roofline.estimate_time(work, sizes)
    if load_s is not None:
        timing = replace(timing, load=load_s)
    wrong = advice.conflicts(work)
    fits = sizes.fits(room) and not wrong
    changes, changed = ((), None) if fits else advice.fixes(work, room)
    spread = Spread.of(work)
    fast, slow = (timing.scaled(*factors) for factors in zip(*spread, strict=True))
    steps, hours, sft_s = _steps(work, timing)
    (steps_high, hours_low, _), (steps_low, hours_high, _) = _steps(work, fast), _steps(work, slow)
    groups_hour = config.sampling.prompts_per_step * 3600 / timing.step_s
    price = device.usd_hour if config.budget.price is None else config.budget.price
    rows, batches = _micro_batches(work, sizes)
    return Plan(
        model=config.model.name,
        device=device,
        total_params=shape.parameters,
        trainable_params=work.trained,
        served="as merged weights" if work.has_vllm and timing.way.mode == "merge" else config.adapter.served,
        sync=timing.way.mode,
        sync_step_s=timing.modes,
        sync_why=advice.why_this_way(work, timing),
        lr=lr,
        memory_gb={**_gb(_largest(sizes)), "peak": round(sizes.peak / GB, 3)},
        sampling_gb=_gb(sizes.sampling),
        updating_gb=_gb(sizes.updating),
        room_gb=room / GB,
        fits=fits,
        advice=changes,
        advice_step_s=None if changed is None else roofline.estimate_time(changed, memory.estimate_memory(changed, room)).step_s,
        notes=(*advice.notes(work, sizes, timing, room, steps), *([warning] if (warning := device.calibration_warning) else [])),
        engine="vllm" if work.has_vllm else "transformers",
        sleep=sizes.sleep,
        completions=work.rows,
        micro_batch_tokens=sizes.micro_batch_tokens,
        micro_batch_rows=rows,
        micro_batches=batches,
        checkpoints_activations=work.checkpoints_activations,
        concurrency=int(sizes.concurrency),
        step_s=timing.step_s,
        step_low_s=fast.step_s,
        step_high_s=slow.step_s,
        step_parts_s=dict(timing.step),
        times="roofline" if device.calibration is None else device.calibration.label,
        update_parts_s=timing.update.parts,
        update_elementwise_gb=timing.update.elementwise_bytes / GB,
        load_s=timing.load,
        evaluation_s=timing.evaluation,
        validation_s=timing.validation,
        save_s=timing.save,
        sft_step_s=_sft_step_s(work, timing),
        sft_s=sft_s,
        steps=steps,
        steps_low=steps_low,
        steps_high=steps_high,
        groups_hour=groups_hour,
        useful_groups_hour=groups_hour * work.useful_share,
        useful_share=work.useful_share,
        tokens=int(steps * sum(work.rounds) * LENGTH_FRACTION * work.limit),
        hours=hours,
        hours_low=hours_low,
        hours_high=hours_high,
        price=price,
        cost_usd=hours * price,
        cost_low_usd=hours_low * price,
        cost_high_usd=hours_high * price,
    )


def _steps(work: Workload, timing: Timing) -> tuple[int, float, float]:
    """(steps, hours, seconds of SFT): what is left of the hours after loading, two evaluations, validation and saves; bounded by
    the steps. SFT alone makes no steps, and takes what is left."""
    budget, is_sft_alone, sft_s = work.config.budget, work.config.sft.only, _sft_s(work, timing)
    each = timing.step_s / (1 - _validation_fraction(work, timing))
    around = timing.load + timing.save + exit_reserve_s(budget.hours) + (0.0 if is_sft_alone else sft_s)
    if budget.hours is None:
        steps, trained_s = (0, sft_s) if is_sft_alone else (budget.steps or 1, (budget.steps or 1) * each)
        total = around + _screening_s(work) + 2 * timing.evaluation + trained_s
        return steps, (total + min(CHECKPOINTS, total / 60 / CHECKPOINT_MINUTES) * timing.save) / 3600, sft_s
    seconds = budget.hours * 3600
    interval_s = checkpoint_interval_s(budget.hours, timing.save)
    saving = min(timing.save / interval_s, 0.5)
    evaluation = min(timing.evaluation, BEFORE_FRACTION * max(seconds - around, 0.0))
    screening = min(_screening_s(work), SCREENING_FRACTION * max(seconds - around - 2 * evaluation, 0.0))
    left = seconds - around - screening - 2 * evaluation
    if is_sft_alone:
        sft_s = min(sft_s, max(left, 0.0))
        return 0, min((seconds - left + sft_s) / 3600, budget.hours), sft_s
    steps = max(int(left * (1 - saving) / each), 0)
    if budget.steps is not None and budget.steps < steps:
        used = around + screening + 2 * evaluation + budget.steps * each / (1 - saving)
        return budget.steps, min(used / 3600, budget.hours), sft_s
    return steps, budget.hours, sft_s


def _sft_step_s(work: Workload, timing: Timing) -> float:
    """A supervised step: its share of an update's rows, without what only reinforcement learning and distillation compute."""
    parts = timing.update.parts
    left_out = sum(parts.get(name, 0.0) for name in ("teacher", "log-probabilities before", "size of the step"))
    update_s = timing.step["update"] * (1 - left_out / sum(parts.values()))
    return update_s * work.config.sft.batch / work.rows


def _sft_s(work: Workload, timing: Timing) -> float:
    """The supervised phase before the first step: by its minutes, or by its steps where these end sooner; without either there is
    none, or of SFT alone no end."""
    sft = work.config.sft
    bounds = [sft.minutes * 60] if sft.minutes is not None else []
    bounds += [sft.steps * _sft_step_s(work, timing)] if sft.steps is not None else []
    return min(bounds, default=math.inf if sft.only else 0.0)


def _screening_s(work: Workload) -> float:
    """The first pass over the questions, which may end sooner."""
    config = work.config
    return 0.0 if config.sft.only else (config.data.screen_minutes or 0.0) * 60


def _micro_batches(work: Workload, sizes: Memory) -> tuple[int, int]:
    """(rows of the assumed mean length that make a micro-batch, micro-batches a step)."""
    row = work.prompt + LENGTH_FRACTION * work.limit
    rows = max(1, min(work.rows, round(sizes.micro_batch_tokens / row)))
    return rows, max(work.minibatches, -(-int(work.rows * row) // sizes.micro_batch_tokens))


def _validation_fraction(work: Workload, timing: Timing) -> float:
    """Fraction of training time that validation takes; its own questions must exist."""
    config = work.config
    settings: Any = config.validation
    if settings.problems == 0 or config.data.validation == 0:
        return 0.0
    fraction = float(settings.fraction)
    if settings.every_minutes is not None:
        fraction = min(fraction, timing.validation / (settings.every_minutes * 60))
    elif config.budget.hours is not None and config.budget.steps is None:
        fraction = min(fraction, VALIDATIONS * timing.validation / (config.budget.hours * 3600))
    return min(fraction, 0.9)


def _largest(sizes: Memory) -> dict[str, float]:
    names = dict.fromkeys((*sizes.updating, *sizes.sampling))
    return {name: max(sizes.sampling.get(name, 0.0), sizes.updating.get(name, 0.0)) for name in names}


def _gb(parts: dict[str, float]) -> dict[str, float]:
    return {name: round(size / GB, 3) for name, size in parts.items()}
