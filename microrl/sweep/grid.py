"""The trials of a sweep: every combination of the values that are varied, as configurations."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails

from microrl.config import RunConfig, keys_set, of_presets, override, presets
from microrl.config.adapter import LowRankConfig, RankedConfig
from microrl.config.adapters import KINDS
from microrl.config.resolve import leaves, refuse_unread
from microrl.errors import UserError, did_you_mean, invalid_value
from microrl.files import Frozen

ALPHA = ("fixed", "rank", "2rank", "rslora")
"""Rules of how the scale follows from the rank: alpha as configured, alpha = r, alpha = 2 r; alpha as configured and the scale
alpha / sqrt(r)."""
SEED = "seed"
SETTING, IN_SETTINGS = "setting", "sweep.settings: "
"""The axis of the settings that a preset names: each sets several keys at once."""
AXES = {"model": "model.name", "adapter": "adapter.kind", "rank": "adapter.rank", "alpha": "adapter.alpha", "loss": "loss.kind"}
"""The axes that have options of their own, in the order in which they vary, and their keys."""
MAX_TRIALS = 2_000
"""Trials of a sweep."""
LONGEST_NAME = 200
"""Characters of a trial's name, its seed apart."""
FULL_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*)+")
"""`optim.lr`: a section and a key of it."""
Whole = Annotated[int, Field(strict=True)]
Strategy = Literal["equal", "halving", "seeds-first"]


class Quoted(str):
    """A value that is a string whatever it looks like. Other text stands for what `--set` makes of it: a number, a list, text."""


class Named(str):
    """The name of a setting, with what it sets by the configuration's keys; `{seed}` in text stands for the trial's seed."""

    sets: Mapping[str, Any]

    def of_seed(self, seed: int) -> dict[str, Any]:
        """Its values in the trial of this seed."""
        return {key: value.replace("{seed}", str(seed)) if isinstance(value, str) else value for key, value in self.sets.items()}


class Study(Frozen):
    """The section `sweep` of a preset: what `microrl sweep` varies unless its options say otherwise."""

    base: tuple[str, ...] = ()
    """Presets below this one."""
    models: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    ranks: tuple[Whole, ...] = ()
    alpha: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    seeds: tuple[Whole, ...] = ()
    settings: dict[str, dict[str, Any]] = Field({})
    """Tables of keys by the name of the setting."""
    vary: dict[str, tuple[Any, ...]] = Field({})
    """Values by configuration keys. An empty list, here and above: what a preset below varies is not varied."""
    strategy: Strategy | None = None
    hours: float | None = None
    """Of all trials together."""

    @classmethod
    def of(cls, names: Iterable[str]) -> Study:
        """The sections of these presets and their bases, later ones over earlier ones, key by key. Raises UserError."""
        tree: dict[str, Any] = {}
        for name in presets.with_bases(names):
            above = presets.sweep(name)
            both = tree.get("vary"), above.get("vary")
            tree |= above
            if isinstance(both[0], dict) and isinstance(both[1], dict):
                tree["vary"] = both[0] | both[1]
        if isinstance(varied := tree.get("vary"), dict):
            for key, value in varied.items():
                if isinstance(value, dict):
                    inside = f'"{key}.{next(iter(value), "KEY")}"'
                    raise UserError(
                        f"`{key}` in the section `sweep.vary` is a table, not a list",
                        f"put a full key in quotes: {inside} = [...]",
                    )
                refuse_varied_key(key, "`sweep.vary`:")
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            raise cls._explained(error.errors(include_url=False)[0]) from None

    @classmethod
    def _explained(cls, error: ErrorDetails) -> UserError:
        where, *inside = (str(part) for part in error["loc"])
        if error["type"] == "extra_forbidden":
            return UserError(f"unknown key `sweep.{where}`", did_you_mean(where, cls.model_fields))
        key, section = (f'"{inside[0]}"', "sweep.vary") if where == "vary" and inside else (where, "sweep")
        if error["type"] == "tuple_type":
            return UserError(
                f"{key} in the section `{section}` is not a list", f"put values in brackets, even a single one: {key} = [...]"
            )
        said = error["msg"].replace("Input should be", "must be").replace("a valid dictionary", "a table, such as plain = {}")
        return invalid_value(f"`sweep.{where}`", error["input"], said)

    def axes(self) -> dict[str, Sequence[Any]]:
        """As in `Grid`."""
        values_by_axis = {
            SETTING: [_named(name, keys) for name, keys in self.settings.items()],
            "model": self.models, "adapter": self.adapters, "rank": self.ranks, "alpha": self.alpha, "loss": self.losses,
            **self.vary, SEED: self.seeds,
        }  # fmt: skip
        return {axis: values for axis, values in values_by_axis.items() if values}


@dataclass(frozen=True, slots=True)
class Trial:
    """A run of a sweep. `values` are those of the axes, by the axis; without those that do not apply.

    `also` are other combinations that come to the same configuration: an alpha of 64 is the rank where that is 64.
    """

    name: str
    values: Mapping[str, Any]
    config: RunConfig
    also: list[Mapping[str, Any]] = field(default_factory=list)

    def also_named(self) -> list[str]:
        """These other combinations in words: `alpha rank, rank 64`."""
        return [", ".join(f"{key_name(axis)} {value}" for axis, value in one.items() if axis != SEED) for one in self.also]


@dataclass(frozen=True, slots=True)
class Grid:
    """What is varied: values by axis. An axis is one of AXES, `setting`, `seed`, or a dotted key of the configuration."""

    presets: Sequence[str] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)
    sets: Sequence[str] = ()
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def trials(self) -> list[Trial]:
        """Every combination, the first seed of all of them first. An adapter without a rank has one trial for all ranks.

        Raises UserError for values that are given twice, for combinations that cannot be, and for too many of them.
        """
        below = of_presets(self.presets)
        axes = {SEED: self.axes.get(SEED) or (override(below, self.flags, self.sets).seed,)}
        axes |= {axis: values for axis, values in self.axes.items() if axis != SEED}
        for axis, values in axes.items():
            _refuse_twice(axis, values)
        self._refuse_overlaps()
        count = 1
        for values in axes.values():
            count *= len(values)
        if count > MAX_TRIALS:
            raise UserError(f"the sweep has {count:,} trials", f"at most {MAX_TRIALS:,} are allowed; vary fewer values")
        trials_by_config: dict[str, Trial] = {}
        names: set[str] = set()
        for combination in itertools.product(*axes.values()):
            trial = self._trial(below, dict(zip(axes, combination, strict=True)))
            first = trials_by_config.setdefault(trial.config.model_dump_json(), trial)
            if first is not trial:
                if trial.values not in (first.values, *first.also):
                    first.also.append(trial.values)
                continue
            if trial.name in names:  # of values that differ in characters that no name of a file has
                trials_by_config[trial.config.model_dump_json()] = replace(trial, name=f"{trial.name}-{len(trials_by_config)}")
            names.add(trial.name)
        return list(trials_by_config.values())

    def _refuse_overlaps(self) -> None:
        """Raise UserError where one setting would hide another: a key that is set and varied, or varied twice, or its section."""
        given = keys_set(self.sets) | {key for key, value in self.flags.items() if value is not None}
        keys = {axis: AXES.get(axis, axis) for axis in self.axes if axis != SETTING}
        in_settings = {f"{IN_SETTINGS}{key}": key for setting in self.axes.get(SETTING, ()) for key in setting.sets}
        if SEED in in_settings.values():  # each trial has one, varied or not
            in_settings[SEED] = SEED
        keys |= in_settings
        for axis, key in keys.items():
            for other in given if axis != "alpha" else ():  # alpha as it is set is the one of the rule `fixed`
                if other == key:
                    raise UserError(f"{key} is both set and varied", "remove it from --set or its own option, or do not vary it")
                if _contains(key, other):
                    raise UserError(f"{other} is set, and {key} is varied", "one contains the other: set single keys instead")
            for other_axis, other in keys.items():
                if axis != other_axis and other == key:
                    axis, longer = sorted((axis, other_axis), key=len)
                    if longer.startswith(IN_SETTINGS):
                        raise UserError(f"{key} is varied, and set in [sweep.settings]", "remove it from one of the two")
                    raise UserError(f"{axis} is varied twice, also as {key}", f"use its own option or --vary {key}, not both")
                if _contains(key, other):
                    raise UserError(f"{key} and {other} are both varied", "one contains the other: vary single keys instead")

    def _trial(self, below: dict[str, Any], values: dict[str, Any]) -> Trial:
        try:
            applied, config = self._resolved(below, values)
        except UserError as error:
            raise of_trial(self._name(values), error) from None
        return Trial(self._name(applied), applied, config)

    def _name(self, values: Mapping[str, Any]) -> str:
        return _name({axis: value for axis, value in values.items() if axis == SEED or len(self.axes[axis]) > 1})

    def _resolved(self, below: dict[str, Any], values: dict[str, Any]) -> tuple[dict[str, Any], RunConfig]:
        """The values that apply, and the configuration with them. Raises UserError."""
        flags = {**self.flags, "seed": values[SEED]}
        sets = list(self.sets)
        for key, value in values.items():
            if isinstance(value, Named):
                named = value.of_seed(values[SEED])
                flags |= named
                sets += [f"{name}={presets.NONE[0]}" for name in named if named[name] is None]  # which as a flag is not given
            if key in AXES or key in (SEED, SETTING):
                continue
            if isinstance(value, str) and not isinstance(value, Quoted):
                sets.append(f"{key}={value}")
            else:
                flags[key] = str(value) if isinstance(value, Quoted) else value
        for axis in ("model", "adapter", "loss"):
            if axis in values:
                flags[AXES[axis]] = values[axis]
        kind = override(below, flags, sets).adapter
        applied = dict(values)
        if "rank" in values:
            if isinstance(kind, RankedConfig):
                flags[AXES["rank"]] = values["rank"]
            else:
                del applied["rank"]
        if (rule := values.get("alpha", "fixed")) not in ALPHA:
            raise invalid_value("--alpha", rule, did_you_mean(str(rule), ALPHA))
        if "alpha" in values:
            if not isinstance(kind, LowRankConfig):
                del applied["alpha"]
            elif rule == "rslora":
                if type(kind) is not KINDS["lora"]:
                    raise UserError(
                        f"--alpha rslora works with the adapter lora only, not with {kind.name}",
                        "remove rslora from --alpha, and pass --adapters lora,rslora instead",
                    )
                sets.append(f"{AXES['adapter']}=rslora")
            elif rule != "fixed":
                sets.append(f"{AXES['alpha']}={rule}")  # over an alpha that is set, which is the one of `fixed`
        config = override(below, flags, sets)
        refuse_unread(config)
        return applied, config


def _named(name: str, keys: Mapping[str, Any]) -> Named:
    named = Named(name)
    named.sets = dict(leaves(keys))
    return named


def setting_of(values: Mapping[str, Any]) -> str:
    """What trials that differ in their seeds alone have in common."""
    return json.dumps({axis: value for axis, value in values.items() if axis != SEED}, sort_keys=True, default=str)


def rounds(trials: Iterable[Mapping[str, Any]], strategy: str) -> int:
    """In how many rounds trials of these values are made: with halving, until one setting is left."""
    return math.ceil(math.log2(len(set(map(setting_of, trials))))) + 1 if strategy == "halving" else 1


def of_trial(name: str, error: UserError) -> UserError:
    """An error of one trial, with the options of `microrl sweep` in place of those of `train`."""
    message, hint = (
        text if text is None or "microrl " in text else re.sub(r"--(rank|model|adapter)(?![\w-])", r"--\1s", text)
        for text in (error.message, error.hint)
    )
    return UserError(f"trial {name}: {message}", hint)


def refuse_varied_key(key: str, of: str) -> None:
    """Raise UserError unless a key that is varied is a full one. `of` is what names it."""
    if FULL_KEY.fullmatch(key) is None:
        raise UserError(
            f"{of} {key}: not a full key", "name its section, too, as in optim.lr; for seeds use `seeds` or --seeds 0,1,2"
        )


def _contains(section: str, key: str) -> bool:
    return key.startswith(f"{section}.")


def _refuse_twice(axis: str, values: Sequence[Any]) -> None:
    twice = next((value for number, value in enumerate(values) if value in values[:number]), None)
    if twice is not None:
        raise UserError(f"{axis} {twice} is given twice", "name each value once")


def _name(values: Mapping[str, Any]) -> str:
    """The name of a trial, which is that of its folder, from the values that differ between trials: `lora-r8-seed0`."""
    parts = []
    for axis, value in values.items():
        if axis == SEED:
            continue
        text = str(value).rstrip("/").rpartition("/")[2].removesuffix(".gguf")  # of a path, its last part
        short = {"rank": f"r{text}", "alpha": f"alpha-{text}", **dict.fromkeys((SETTING, "model", "adapter", "loss"), text)}
        parts.append(short.get(axis, f"{key_name(axis)}-{text}"))
    return "-".join([*(["-".join(map(_safe, parts))[:LONGEST_NAME].strip(".")] if parts else []), f"{SEED}{values[SEED]}"])


def key_name(key: str) -> str:
    """What a key is called in short: its last part, or of a `kind` the section's name."""
    *_, section, last = ["", *key.split(".")]
    return section if last == "kind" else last


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+_-]+", "_", text)[:60].strip(".") or "_"
