"""The trials of a sweep: every combination of the values that are varied, as configurations."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from microrl.config import RunConfig, presets, resolve
from microrl.config.adapters import KINDS, LowRankConfig, RankedConfig
from microrl.errors import UserError, did_you_mean

ALPHA = ("fixed", "rank", "2rank", "rslora")
"""Rules of how the scale follows from the rank: alpha as configured, alpha = r, alpha = 2 r; alpha as configured and the scale
alpha / sqrt(r)."""
SEED = "seed"
AXES = {"model": "model.name", "adapter": "adapter.kind", "rank": "adapter.rank", "alpha": "adapter.alpha", "loss": "loss.kind"}
"""The axes that have options of their own, in the order in which they vary, and their keys."""
MOST = 2_000
"""Trials of a sweep."""


class Quoted(str):
    """A value that is a string whatever it looks like. Other text stands for what `--set` makes of it: a number, a list, text."""


class Study(BaseModel):
    """The section `sweep` of a preset: what `microrl sweep` varies unless its options say otherwise."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base: tuple[str, ...] = ()
    """Presets below this one."""
    models: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    alpha: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    vary: dict[str, tuple[Any, ...]] = {}
    """Values by configuration keys."""
    strategy: str | None = None
    hours: float | None = None
    """Of all trials together."""

    @classmethod
    def of(cls, names: Iterable[str]) -> Study:
        """The sections of these presets, later ones over earlier ones. Raises UserError."""
        tree: dict[str, Any] = {}
        for name in names:
            tree |= presets.sweep(name)
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = str(first["loc"][0])
            if first["type"] == "extra_forbidden":
                raise UserError(f"unknown key `sweep.{key}`", did_you_mean(key, cls.model_fields)) from None
            raise UserError(f"`sweep.{key}` cannot be `{first['input']}`", first["msg"]) from None

    def axes(self) -> dict[str, Sequence[Any]]:
        """As in `Grid`."""
        found = {
            "model": self.models, "adapter": self.adapters, "rank": self.ranks, "alpha": self.alpha, "loss": self.losses,
            **self.vary, SEED: self.seeds,
        }  # fmt: skip
        return {axis: values for axis, values in found.items() if values}


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
    """What is varied: values by axis. An axis is one of AXES, `seed`, or a dotted key of the configuration."""

    presets: Sequence[str] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)
    sets: Sequence[str] = ()
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def trials(self) -> list[Trial]:
        """Every combination, the first seed of all of them first. An adapter without a rank has one trial for all ranks.

        Raises UserError for values that are given twice, for combinations that cannot be, and for too many of them.
        """
        axes = {SEED: self.axes.get(SEED) or (resolve(self.presets, self.flags, self.sets).seed,)}
        axes |= {axis: values for axis, values in self.axes.items() if axis != SEED}
        given = {text.partition("=")[0].strip() for text in self.sets}
        given |= {key for key, value in self.flags.items() if value is not None}
        for axis, values in axes.items():
            _refuse_twice(axis, values)
            key = AXES.get(axis, axis)
            if axis != "alpha" and axis in self.axes and key in given:
                raise UserError(f"{key} is both set and varied", "remove one of the two")
            if AXES.get(axis) in axes:
                raise UserError(
                    f"{axis} is varied twice, also as {AXES[axis]}",
                    f"give its values by its own option or by --vary {AXES[axis]}, not by both",
                )
        count = 1
        for values in axes.values():
            count *= len(values)
        if count > MOST:
            raise UserError(f"the sweep has {count:,} trials", f"at most {MOST:,} are allowed; vary fewer values")
        found: dict[str, Trial] = {}
        names: set[str] = set()
        for combination in itertools.product(*axes.values()):
            trial = self._trial(dict(zip(axes, combination, strict=True)))
            first = found.setdefault(trial.config.model_dump_json(), trial)
            if first is not trial:
                if trial.values not in (first.values, *first.also):
                    first.also.append(trial.values)
                continue
            if trial.name in names:  # of values that differ in characters that no name of a file has
                found[trial.config.model_dump_json()] = replace(trial, name=f"{trial.name}-{len(found)}")
            names.add(trial.name)
        return list(found.values())

    def _trial(self, values: dict[str, Any]) -> Trial:
        flags = {**self.flags, "seed": values[SEED]}
        sets = [*self.sets, *(f"{key}={_as_toml(value)}" for key, value in values.items() if key not in AXES and key != SEED)]
        for axis in ("model", "adapter", "loss"):
            if axis in values:
                flags[AXES[axis]] = values[axis]
        kind = resolve(self.presets, flags, sets).adapter
        applied = dict(values)
        if "rank" in values:
            if isinstance(kind, RankedConfig):
                flags[AXES["rank"]] = values["rank"]
            else:
                del applied["rank"]
        if (rule := values.get("alpha", "fixed")) not in ALPHA:
            raise UserError(f"invalid value '{rule}' for --alpha", did_you_mean(str(rule), ALPHA))
        if "alpha" in values:
            if not isinstance(kind, LowRankConfig):
                del applied["alpha"]
            elif rule == "rslora":
                if type(kind) is not KINDS["lora"]:
                    raise UserError(
                        f"--alpha rslora works with the adapter lora only, not with {kind.name}",
                        "remove rslora from --alpha, and pass --adapters lora,rslora instead",
                    )
                flags[AXES["adapter"]] = "rslora"
            elif rule != "fixed":
                sets.append(f"{AXES['alpha']}={rule}")  # over an alpha that is set, which is the one of `fixed`
        name = _name({axis: value for axis, value in applied.items() if axis == SEED or len(self.axes[axis]) > 1})
        try:
            config = resolve(self.presets, flags, sets)
        except UserError as error:
            raise UserError(f"trial {name}: {error.message}", error.hint) from None
        return Trial(name, applied, config)


def _as_toml(value: Any) -> str:
    is_written = isinstance(value, str) and not isinstance(value, Quoted)
    return value if is_written else json.dumps(value, ensure_ascii=False)  # TOML has no escapes in pairs, as JSON has


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
        short = {"rank": f"r{text}", "alpha": f"alpha-{text}", "model": text, "adapter": text, "loss": text}
        parts.append(short.get(axis, f"{key_name(axis)}-{text}"))
    return "-".join(_safe(part) for part in [*parts, f"{SEED}{values[SEED]}"])


def key_name(key: str) -> str:
    """What a key is called in short: its last part, or of a `kind` the section's name."""
    *_, section, last = ["", *key.split(".")]
    return section if last == "kind" else last


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+_-]+", "_", text)[:60].strip(".") or "_"
