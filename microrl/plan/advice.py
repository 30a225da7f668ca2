"""What prevents a run from fitting on a device, and which settings would make it fit; every suggestion is checked first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from microrl.config import RunConfig, known_models
from microrl.config.resolve import as_set, override
from microrl.errors import UserError
from microrl.limits import GB, MAX_SWAP_RANK
from microrl.plan import memory, roofline
from microrl.plan.devices import DEVICES, Device
from microrl.plan.memory import Memory
from microrl.plan.roofline import Timing
from microrl.plan.workload import LENGTH_FRACTION, SLOWER, Workload

MIN_LIMIT, MIN_RANK = 256, 8
LONG_START_S = 10.0
"""An adapter's start that takes longer is worth a note; it is the longer ones that are cached, too."""

FLAGS = {"adapter.rank": "--rank", "engine.kind": "--engine"}
"""Of keys that are not set by `--set`."""
COMPILE_S = 47.0
"""Seconds that `optim.compile` took with SmolLM2-135M on a CPU of two cores, which were busy."""
SAVED_ON_CPU = 0.05
"""Fraction of an update that it saved there. What it saves on a GPU is not known."""


class Fix(NamedTuple):
    """Keys of the configuration with other values, and why; in words, as the command line takes them."""

    values: dict[str, Any]
    why: str

    def __str__(self) -> str:
        return f"{sets(self.values)}: {self.why}"


WAYS = {
    "swap": "swap (the LoRA pair stays beside each weight as two dense matmuls)",
    "merge": "merge (all weights are pushed once a step)",
}


def why_this_way(work: Workload, timing: Timing) -> str:
    """In which way the engine gets the trained weights, and why."""
    if not work.has_vllm:
        return "the transformers engine shares the trainer's weights"
    if len(timing.modes) > 1:
        taken, other = sorted(timing.modes, key=lambda mode: timing.modes[mode])
        both = ", ".join(f"{timing.modes[mode]:,.1f} s with {WAYS[mode]}" for mode in (taken, other))
        return f"time per step with each way: {both}; the run measures both in its first steps and keeps the faster"
    config, rank = work.config, work.config.adapter.pair_rank
    if rank is None:
        why = f"since {config.adapter.kind} is not a LoRA pair"
    elif rank > MAX_SWAP_RANK:
        why = f"since vLLM takes pairs up to rank {MAX_SWAP_RANK}"
    else:
        why = "as engine.sync says" if config.engine.sync != "auto" else f"since the {work.device.label} serves LoRA pairs slowly"
    return f"{WAYS[timing.way.mode]}, {why}"


def conflicts(work: Workload) -> list[Fix]:
    """What contradicts whatever the memory, with the way out."""
    config, contradictions = work.config, []
    positions = work.shape.max_positions
    if positions is not None and work.longest_row > positions:
        prompt, completion = config.data.max_prompt_tokens, work.longest_row - config.data.max_prompt_tokens
        why = f"prompts of up to {prompt} tokens and completions of up to {completion} exceed the model's {positions} positions"
        contradictions.append(Fix(shorter(config, positions), why))
    if work.dtype == "bfloat16" and work.device.auto_dtype == "float16":
        contradictions.append(Fix({"model.dtype": "float16"}, f"the {work.device.label} has no bfloat16"))
    if work.has_vllm and work.dtype == "float32" and not work.merges:
        contradictions.append(Fix({"engine.sync": "merge"}, "on a GPU, vLLM computes adapters in 16 bits only"))
    if work.has_vllm and work.merges and config.engine.sync == "swap":
        why = f"{config.adapter.name} is served {config.adapter.served}, and vLLM takes pairs up to rank {MAX_SWAP_RANK}"
        contradictions.append(Fix({"engine.sync": "merge"}, why))
    return contradictions


def shorter(config: RunConfig, bound: int) -> dict[str, Any]:
    """Limits with which prompt and completion together are at most `bound` tokens; a prompt keeps at least half of them."""
    prompt = min(config.data.max_prompt_tokens, bound // 2)
    values = {} if prompt == config.data.max_prompt_tokens else {"data.max_prompt_tokens": prompt}
    if config.sampling.max_completion_tokens > bound - prompt:
        values |= _limit(config, bound - prompt)
    if (config.evaluation.max_completion_tokens or 0) > bound - prompt:
        values["evaluation.max_completion_tokens"] = bound - prompt
    return values


def fixes(work: Workload, room: float) -> tuple[tuple[str, ...], Workload | None]:
    """What to change so that the run fits into `room` bytes, several lines only where no single one does it; and the run so
    changed, None where it takes another card or model."""
    needed = conflicts(work)
    work = _after(work, needed)
    if memory.estimate_memory(work, room).fits(room):
        return tuple(map(str, needed)), work
    for fix in _candidates(work):
        if memory.estimate_memory(changed := _after(work, [fix]), room).fits(room):
            return tuple(map(str, [*needed, fix._replace(why=fix.why + _or_in_4_bits(work, fix, room))])), changed
    pile: list[Fix] = []
    for fix in _candidates(work):
        pile = [kept for kept in pile if not _replaces(fix, kept)] + [fix]
        if memory.estimate_memory(_after(work, pile), room).fits(room):
            pile = _mildest(work, pile, room)
            return tuple(map(str, [*needed, *pile])), _after(work, pile)
    if (quantised := _in_4_bits(work, room)) is not None:
        values, changed = quantised
        why, card = "no other setting tried makes this model fit", _cheapest(work)
        if card is not None:
            why += f"; as it is, the cheapest GPU that fits it is --gpu {card.name}"
        return tuple(map(str, [*needed, Fix(values, why)])), changed
    return (*map(str, needed), _larger_card(work)), None


def _in_4_bits(work: Workload, room: float, *, with_vllm: bool = False) -> tuple[dict[str, Any], Workload] | None:
    """What fits with a base of 4 bits, and the run so changed; None where nothing does. `with_vllm`: only with that engine."""
    if work.config.model.quant is not None:
        return None
    quantised = {"model.quant": "nf4"}
    with suppress(UserError):  # of adapters that are not for a base of 4 bits
        for other in ({}, *(one.values for one in _candidates(_after(work, [Fix(quantised, "")])))):
            changed = _after(work, [Fix(quantised | other, "")])
            if (changed.has_vllm or not with_vllm) and memory.estimate_memory(changed, room).fits(room):
                return quantised | other, changed
    return None


def _or_in_4_bits(work: Workload, fix: Fix, room: float) -> str:
    """What else fits where only another engine does, with a base of 4 bits; empty where nothing does."""
    if "engine.kind" not in fix.values or (quantised_run := _in_4_bits(work, room, with_vllm=True)) is None:
        return ""
    other, changed = quantised_run
    seconds = roofline.estimate_time(changed, memory.estimate_memory(changed, room)).step_s
    return f"; or {sets(other)}, with which a step takes about {seconds:,.0f} s"


def _mildest(work: Workload, pile: list[Fix], room: float) -> list[Fix]:
    """The pile with each knob left alone, or turned less, where it fits so too."""

    def fits(fixes: list[Fix]) -> bool:
        return memory.estimate_memory(_after(work, fixes), room).fits(room)

    for fix in list(pile):
        others = [kept for kept in pile if kept is not fix]
        if fits(others):
            pile = others
            continue
        for milder in _candidates(work):
            if next(iter(milder.values)) == next(iter(fix.values)) and fits([*others, milder]):
                pile = [milder if kept is fix else kept for kept in pile]
                break
    return pile


def _candidates(work: Workload) -> Iterator[Fix]:
    """In the order of what they cost: first time, then what is learned."""
    config = work.config
    if config.optim.tokens_per_microbatch is not None:
        yield Fix({"optim.tokens_per_microbatch": None}, "derive the micro-batch size from the memory")
    if config.engine.max_kv_gb is not None:
        yield Fix({"engine.max_kv_gb": None}, "derive the KV cache size from the memory")
    if work.has_vllm and getattr(config.engine, "sleep", None) != 2:
        why = "the engine drops its weights while the trainer works; costs about a second per step"
        yield Fix({"engine.sleep": 2}, why)
    if _has_a_second_model(work) and not work.device.is_cpu and config.distill.quant is None:
        yield Fix({"distill.quant": "nf4"}, "the teacher in 4 bits")
    if not work.checkpoints_activations:
        yield Fix({"model.gradient_checkpointing": True}, "activation recomputation: less memory, a slower update")
    limit = work.limit // 2
    while limit >= MIN_LIMIT:
        yield Fix(_limit(config, limit), "shorter completions")
        limit //= 2
    rank = getattr(config.adapter, "rank", 0) // 2
    while rank >= max(MIN_RANK, getattr(config.adapter, "target_rank", None) or 0):
        yield Fix({"adapter.rank": rank}, "a smaller adapter and optimizer state")
        rank //= 2
    if config.optim.name == "adamw" and not work.device.is_cpu:
        yield Fix({"optim.name": "adamw_8bit"}, "optimizer state in 8 bits")
    if work.has_vllm:
        yield Fix({"engine.kind": "transformers"}, "no second copy of the weights, but slower sampling")


def _replaces(fix: Fix, kept: Fix) -> bool:
    """Whether the later turn leaves nothing of the earlier: the same knob, or another engine."""
    knob = next(iter(kept.values))
    return knob in fix.values or ("engine.kind" in fix.values and knob.startswith("engine."))


def _after(work: Workload, applied: list[Fix]) -> Workload:
    values = {key: value for fix in applied for key, value in fix.values.items()}
    if not values:
        return work
    tree = work.config.model_dump()
    for key in [key for key, value in values.items() if value is None]:  # a flag of None means that it was not given
        section, leaf = key.split(".")
        tree[section][leaf] = values.pop(key)
    return work.changed(override(tree, values, ()))


def _limit(config: RunConfig, limit: int) -> dict[str, Any]:
    """A completion limit, and the overlong penalty's buffer where it would pass it."""
    values: dict[str, Any] = {"sampling.max_completion_tokens": limit}
    overlong = config.reward.overlong
    if overlong is not None and overlong.buffer >= limit:
        values["reward.overlong.buffer"] = limit // 4
    return values


def sets(values: dict[str, Any]) -> str:
    """As flags."""
    shown = {key: as_set(value) for key, value in values.items()}
    return " ".join(f"{FLAGS[key]} {text}" if key in FLAGS else f"--set {key}={text}" for key, text in shown.items())


def _larger_card(work: Workload) -> str:
    if (device := _cheapest(work)) is not None:
        return f"--gpu {device.name}: no setting tried makes this model fit here; the cheapest GPU that fits it: {device.label}"
    if _has_a_second_model(work):
        return "--teacher SMALLER, or --model SMALLER: these two do not fit together on any known GPU"
    return "--model SMALLER: this model does not fit on any known GPU"


def _cheapest(work: Workload) -> Device | None:
    """The cheapest GPU that fits the run as it is; None if none does."""
    for device in sorted(DEVICES.values(), key=lambda device: device.usd_hour):
        candidate = work.changed(work.config, device)
        if not conflicts(candidate) and memory.estimate_memory(candidate, device.memory_gb * GB).fits(device.memory_gb * GB):
            return device
    return None


def _has_a_second_model(work: Workload) -> bool:
    return work.teacher is not None and not work.teacher.is_shared


def episodes(config: RunConfig, tool_tokens: int) -> list[str]:
    """What the plan assumes of turns, where there is an environment."""
    if config.env.target is None:
        return []
    about_tools = f"; about {tool_tokens} tokens of each prompt describe the tools" if tool_tokens else ""
    return [
        "how often a model calls its tools is not known before a run: all turns of an episode and the tools' answers together "
        f"are assumed to reach {LENGTH_FRACTION:.0%} of the limit{about_tools}. The tools' own time, and reading earlier "
        "turns again, are not included"
    ]


def notes(work: Workload, sizes: Memory, timing: Timing, room: float, steps: int) -> tuple[str, ...]:
    """What a reader should know beside the numbers."""
    config, remarks = work.config, []
    if work.shape.note:
        remarks.append(work.shape.note)
    remarks += episodes(config, work.tool_tokens)
    if config.sft.only:
        remarks.append("this is a run of SFT alone: its steps are not estimated, and what is said of sampling does not apply")
    if work.shape.model_type in SLOWER:
        if work.has_vllm:
            apart = ". vLLM has not been tried with this architecture on a GPU: if the run is refused, pass --engine transformers"
        else:
            apart = "; it does not include that prompts of different lengths are decoded in separate batches"
        remarks.append(
            f"the estimate includes that the update recomputes the prompt for each completion of a hybrid model{apart}"
        )
    known = known_models.find(config.model.name)
    if known is not None and known.context is not None and work.longest_row > known.context:
        remarks.append(
            f"prompts and completions may reach {work.longest_row:,} tokens; {known.name} is made for {known.context:,}"
        )
    if work.shape.delta is not None and not work.device.is_cpu:
        remarks.append(
            "the update's time assumes transformers' own code for Gated DeltaNet layers, which rereads the whole sequence for "
            "every 64 tokens. flash-linear-attention has faster kernels; microrl was not tested with them"
        )
    if steps == 0 and not config.sft.only and sizes.fits(room):
        remarks.append("the budget is too small for loading, two evaluations and one step: increase --hours")
    if (start_s := roofline.start_s(work)) > LONG_START_S:
        remarks.append(f"loading includes about {start_s:.0f} s to initialise {config.adapter.name}; later runs use the cache")
    updates_s = steps * timing.step["update"]
    saved_s = SAVED_ON_CPU * updates_s if work.device.is_cpu else updates_s
    if config.optim.compile and saved_s < COMPILE_S:
        saves = f"and saves about {saved_s:.0f} s" if work.device.is_cpu else f"and all updates take {updates_s:.0f} s"
        remarks.append(f"optim.compile=true will not pay off: compiling takes about {COMPILE_S:.0f} s, {saves}")
    price = config.budget.price
    if price is not None and work.device.usd_hour and not 0.75 <= price / work.device.usd_hour <= 1.33:
        remarks.append(
            f"the configured price is ${price:.2f}/h; the {work.device.label} typically costs about ${work.device.usd_hour:.2f}/h"
        )
    if work.checkpoints_activations and not work.device.is_cpu and sizes.fits(room):
        without = _after(work, [Fix({"model.gradient_checkpointing": False}, "")])
        sizes_without = memory.estimate_memory(without, room)
        if sizes_without.fits(room):
            gain = timing.step["update"] - roofline.estimate_time(without, sizes_without).step["update"]
            if gain > 0:
                remarks.append(f"--set model.gradient_checkpointing=false also fits and saves about {gain:.3g} s per step")
    if sizes.concurrency < LENGTH_FRACTION * work.rows and sizes.fits(room):
        remarks.append(f"the KV cache holds about {int(sizes.concurrency)} of {work.rows} completions at a time; the others wait")
    return tuple(remarks)
