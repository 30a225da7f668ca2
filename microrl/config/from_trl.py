"""A preset from the YAML file that `trl grpo --config` takes. Names, values and defaults are those of `other_names`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

import yaml

from microrl.config import other_names, presets
from microrl.config.resolve import resolve
from microrl.errors import UserError, first_line, invalid_value, shown
from microrl.terminal import printable

MAX_CHARACTERS, MAX_BRACKETS = 100_000, 200
_NUMBER = re.compile(r"[-+]?\d+\.?\d*(e[-+]?\d+)?", re.IGNORECASE)
_SECRET = re.compile("(token|key|password)$")
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_EXAMPLE = "a line of it: `learning_rate: 1.0e-5`"
_BATCH = "per_device_train_batch_size, gradient_accumulation_steps, num_processes, steps_per_generation, generation_batch_size"
_MIN = dict.fromkeys(["num_generations", *_BATCH.split(", ")], 1) | {"warmup_steps": 0, "max_steps": -1}
"""The least that each number can be that others are computed from."""
Setting = tuple[str, Any, str]
"""Our key, its value, and the keys of TRL that it is from; after a colon it is explained."""


def preset(path: Path) -> str:
    """The preset in TOML, which can be resolved; of each key without a counterpart, a comment says why. Raises UserError."""
    given = _read(path)
    values = other_names.TRL_DEFAULTS | {name: _value(value) for name, value in given.items() if value is not None}
    left = {name: "as if left out" for name, value in given.items() if value is None}
    counterparts = {key: (value, names) for key, value, names in _derived(values)}
    done = {name for _, names in counterparts.values() for name in _names(names)}
    for key, value, name in _renamed({name: value for name, value in values.items() if name not in done}, left):
        if key in counterparts and _names(counterparts[key][1]) & given.keys():
            left[name] = f"`{key}` is set by {counterparts[key][1]}"
        else:
            counterparts[key] = value, name
    taken: dict[str, Any] = {}
    # Those first that decide which other keys there are.
    for key in sorted(counterparts, key=lambda key: (not key.endswith((".kind", ".importance_cap")), key)):
        tried = {**taken, key: counterparts[key][0]}
        try:
            resolve((), tried, [f"{name}={presets.NONE[0]}" for name, value in tried.items() if value is None])
            taken = tried
        except UserError as error:
            left |= dict.fromkeys(_names(counterparts[key][1]), error.message)
    lines = [f"# Made by `microrl presets from-trl` from {shown(path.name)}."]
    for key in sorted(taken):
        value = json.dumps(presets.NONE[0] if taken[key] is None else taken[key], ensure_ascii=False)
        names = counterparts[key][1]
        lines.append(f"{key} = {value}  # {names.removeprefix(': ')}{'' if _names(names) & given.keys() else ' (its default)'}")
    lines += [] if "budget.steps" in taken else ["# There is no end yet: pass --steps N or --hours H."]
    lines += [
        f"# {shown(name)}: {shown('***' if _SECRET.search(name) else given[name])} -- {shown(why)}"
        for name, why in left.items()
        if name in given
    ]
    return "\n".join([*map(printable, lines), ""])


def _names(said: str) -> set[str]:
    return set(said.partition(":")[0].split(", "))


def _derived(given: dict[str, Any]) -> Iterator[Setting]:
    """What follows from several of TRL's keys, or needs more than another name.

    TRL counts completions, and its steps are updates; microrl counts prompts, and its steps are rounds of sampling.
    """
    for name, least in _MIN.items():
        value = given.get(name, least)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < 2**31:
            raise invalid_value(f"`{name}`", value, f"a number of at least {least}")
    group, accumulation = given["num_generations"], given.get("gradient_accumulation_steps", 1)
    micro = given["per_device_train_batch_size"] * given.get("num_processes", 1)
    update, steps, warmup = micro * accumulation, given.get("max_steps", -1), given.get("warmup_steps", 0)
    sampled = max(update, given.get("generation_batch_size", micro * given.get("steps_per_generation", accumulation)))
    rest = f", not divisible by {group}: rounded up" if sampled % group else ""
    yield "sampling.prompts_per_step", ceil(sampled / group), f"{_BATCH}: {sampled} completions{rest}"
    if update < sampled:
        yield "optim.prompts_per_update", ceil(update / group), f"gradient_accumulation_steps: {update} completions an update"
    if steps > 0:
        yield "budget.steps", ceil(steps * update / sampled), f"max_steps: {steps} updates"
    if 0 < warmup < 1 or (warmup and steps > 0):
        yield "optim.schedule.warmup", min(warmup if warmup < 1 else warmup / steps, 1.0), "warmup_steps"
    low, kind = given["epsilon"], given["loss_type"]
    source = "loss_type"
    if given.get("importance_sampling_level") == "sequence":
        averaged = "" if kind == "grpo" else f": gspo averages over completions, as `grpo` does, and not as `{shown(str(kind))}`"
        kind, source = "gspo", f"loss_type, importance_sampling_level{averaged}"
    yield "loss.kind", kind, source
    yield "loss.clip_low", low, "epsilon"
    yield "loss.ratio_cap" if kind == "cispo" else "loss.clip_high", given.get("epsilon_high", low), "epsilon_high"
    if kind == "dapo":
        yield "loss.dynamic_sampling", False, "loss_type: TRL does not replace groups"
    if given.get("vllm_importance_sampling_correction") is False:
        yield "loss.importance_cap", None, "vllm_importance_sampling_correction"
    variant = next((kind for kind in ("rslora", "dora") if given.get(f"use_{kind}")), "lora")
    yield "adapter.kind", variant if given.get("use_peft") else "full", "use_peft, use_rslora, use_dora"
    if given.keys() & {"adam_beta1", "adam_beta2"}:
        yield "optim.betas", [given.get("adam_beta1", 0.9), given.get("adam_beta2", 0.999)], "adam_beta1, adam_beta2"
    yield "data.system", "", ": TRL sends no message of its own"
    names = given.get("reward_funcs", [])
    names = [str(name) for name in (names if isinstance(names, list) else [names])]
    weights = given.get("reward_weights")
    weights = weights if isinstance(weights, list) and len(weights) == len(names) else [1.0] * len(names)
    weight_of = dict(zip(names, map(_value, weights), strict=True))
    known = [name for name in names if name in other_names.TRL_REWARDS]
    functions = [name for name in names if name not in known and _FUNCTION.fullmatch(name)]
    if known or functions:  # else nothing would be rewarded
        for name, key in other_names.TRL_REWARDS.items():
            yield key, weight_of.get(name, 0.0), "reward_funcs, reward_weights"
        others = [name for name in names if name not in {*known, *functions}]
        said = f": no counterpart of {shown(', '.join(others))}" if others else ""
        custom = [f"{':'.join(name.rsplit('.', 1))}={weight_of[name]}" for name in functions]
        yield "reward.functions", custom, f"reward_funcs, reward_weights{said}"


def _renamed(given: dict[str, Any], left: dict[str, str]) -> Iterator[Setting]:
    """The keys that have another name here, perhaps with other values; `left` gets the rest, and why."""
    for name, value in given.items():
        key, equals, means = (other_names.ours(name) or "").partition("=")
        if isinstance(value, list) and len(value) == 1 and key != "adapter.targets":
            value = value[0]
        if isinstance(value, str | bool):
            value = other_names.VALUES.get(key, {}).get(value, value)
        if not key:
            left[name] = other_names.INSTEAD.get(name, "no counterpart")
        elif value is None or (equals and not value):
            left[name] = "off here too"
        else:
            yield key, means or value, name


def _read(path: Path) -> dict[str, Any]:
    text = presets.read(path)
    try:
        # PyYAML's time grows with the square of the open brackets.
        if (
            len(text) > MAX_CHARACTERS
            or max(map(text.count, "[{")) > MAX_BRACKETS
            or any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text))
        ):
            raise UserError(f"{path} is too long, has too many brackets, or refers to its own parts by *NAME", _EXAMPLE)
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # not YAML, no such date, too deep a nesting
        raise UserError(f"{path} is not valid YAML: {first_line(error)}", _EXAMPLE) from None
    if not isinstance(document, dict):
        raise UserError(f"{path} is not a mapping of keys to values", _EXAMPLE)
    return {str(name): value for name, value in document.items()}


def _value(value: Any) -> Any:
    """In YAML 1.1, 1e-6 is text: it has no dot. A switch in quotes is one too, which TRL reads."""
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
