"""`adapter_config.json` of PEFT's format, read as data: nothing in it is taken as a pattern or names code to import."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from microrl.errors import UserError
from microrl.files import RESTORE, BadFile, read_json

SETTINGS = "adapter_config.json"
ALL_LINEAR = "all-linear"
MAX_NAMES = 10_000
RESIDUAL_STARTS = ("pissa", "olora", "corda", "loftq")
"""PEFT's own starts that take something off the base's weights."""
UNUSED = {
    "auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "peft_type", "peft_version", "task_type",
    "init_lora_weights", "init_ia3_weights", "d_initial", "init_v_bound", "loftq_config", "eva_config", "corda_config",
    "lora_ga_config", "qalora_group_size", "megatron_core", "lora_dropout", "vera_dropout", "miss_dropout",
    "tinylora_dropout", "mini_r", "target_r", "tinit", "tfinal", "deltaT", "beta1", "beta2", "orth_reg_weight", "total_step",
    "runtime_config", "projection_seed",
}  # fmt: skip
"""Keys that say how an adapter was trained or where it is from, and change nothing of what it computes."""
_PLAIN = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")
_OFF: tuple[Any, ...] = (None, False, "", "none", [], {})


def _plain(names: Any) -> Any:
    """Refuse what PEFT would take as a regular expression: a stranger's can run for ever."""
    if isinstance(names, str) and names != ALL_LINEAR:
        raise PydanticCustomError("pattern", "regular expressions are not accepted: list the modules by name")
    listed = names if isinstance(names, list | dict) else ()
    if any(isinstance(name, str) and not _PLAIN.fullmatch(name) for name in listed):
        raise PydanticCustomError("pattern", "regular expressions are not accepted: list the modules by name")
    return names


def _printable(text: str) -> str:
    if not text.isprintable():
        raise PydanticCustomError("text", "it has characters that cannot be printed")
    return text


Text = Annotated[str, StringConstraints(max_length=4096), AfterValidator(_printable)]
Names = Annotated[list[str], Field(max_length=MAX_NAMES), BeforeValidator(_plain)]
Targets = Annotated[list[str] | Literal["all-linear"], Field(max_length=MAX_NAMES), BeforeValidator(_plain)]
Rank = Annotated[int, Field(ge=1, le=2**20)]
Alpha = Annotated[float, Field(ge=-1e6, le=1e6)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class AdapterSettings(BaseModel):
    """What decides what an adapter computes. `kind` is PEFT's `peft_type`; the fields are arguments of PEFT's own configuration.

    Runs' own adapters are read through it as well. Any other key that PEFT writes is in UNUSED, or has a value of `_OFF`.
    """

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, allow_inf_nan=False)
    kind: ClassVar[str]

    target_modules: Targets

    def for_peft(self) -> dict[str, Any]:
        """The arguments of PEFT's own configuration. What PEFT takes as patterns are names that match only themselves."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        for name in ("rank_pattern", "alpha_pattern"):
            if name in values:
                values[name] = {re.escape(module): value for module, value in values[name].items()}
        return values

    def numbers(self, layers: Mapping[str, tuple[int, int]]) -> int:
        """How many numbers at least the tensors of these layers, (in, out) by name, must have.

        A rank costs a stranger nothing to claim, and the memory is taken before the tensors are looked at one by one.
        """
        return 0


class _Layered(AdapterSettings):
    layers_to_transform: Annotated[list[int], Field(max_length=MAX_NAMES)] | int | None = None
    layers_pattern: Names | None = None


class LoraSettings(_Layered):
    """LoRA and DoRA."""

    kind = "LORA"
    r: Rank
    lora_alpha: Alpha
    use_rslora: bool = False
    use_dora: bool = False
    exclude_modules: Names | None = None
    rank_pattern: Annotated[dict[str, Rank], Field(max_length=MAX_NAMES), BeforeValidator(_plain)] = {}
    alpha_pattern: Annotated[dict[str, Alpha], Field(max_length=MAX_NAMES), BeforeValidator(_plain)] = {}

    def numbers(self, layers: Mapping[str, tuple[int, int]]) -> int:
        return sum(self._rank(name) * sum(sides) for name, sides in layers.items())

    def _rank(self, name: str) -> int:
        return next((rank for end, rank in self.rank_pattern.items() if f".{name}".endswith(f".{end}")), self.r)


class AdaLoraSettings(_Layered):
    """AdaLoRA, before its ranks are cut out of the tensors."""

    kind = "ADALORA"
    init_r: Rank
    r: int = 8
    """PEFT writes it down and does not use it."""
    lora_alpha: Alpha
    exclude_modules: Names | None = None

    def numbers(self, layers: Mapping[str, tuple[int, int]]) -> int:
        return self.init_r * sum(map(sum, layers.values()))

    def for_peft(self) -> dict[str, Any]:
        # PEFT wants a schedule of ranks even where nothing is trained.
        return {**super().for_peft(), "target_r": self.init_r, "total_step": 3, "tinit": 0, "tfinal": 1}


class MissSettings(_Layered):
    kind = "MISS"
    r: Rank
    init_weights: bool = True
    """PEFT's other modes have names here."""
    exclude_modules: Names | None = None

    def numbers(self, layers: Mapping[str, tuple[int, int]]) -> int:
        return self.r * sum(out for _, out in layers.values())


class VeraSettings(_Layered):
    kind = "VERA"
    r: Rank
    init_weights: bool = True
    projection_prng_key: Seed = 0
    save_projection: bool = True

    def numbers(self, layers: Mapping[str, tuple[int, int]]) -> int:
        return self.r * sum(map(max, zip(*layers.values(), strict=True)))  # one A and one B for all


class Ia3Settings(AdapterSettings):
    kind = "IA3"
    feedforward_modules: Names | None = None
    exclude_modules: Names | None = None


class LnSettings(AdapterSettings):
    kind = "LN_TUNING"
    exclude_modules: Names | None = None


class TinyLoraSettings(_Layered):
    kind = "TINYLORA"
    r: Rank
    u: Rank
    weight_tying: Annotated[float, Field(ge=0, le=1)] = 0.0
    init_weights: bool | Literal["uniform"] = True
    save_projection: Literal[True] = True
    """Without its projections a folder cannot say how large they are."""

    def numbers(self, layers: Mapping[str, tuple[int, int]]) -> int:
        return sum(self.u * min(self.r, *sides) ** 2 for sides in layers.values())


_KINDS: Mapping[str, type[AdapterSettings]] = {
    cls.kind: cls
    for cls in (LoraSettings, AdaLoraSettings, MissSettings, VeraSettings, Ia3Settings, LnSettings, TinyLoraSettings)
}


class _Header(BaseModel):
    model_config = ConfigDict(strict=True)

    peft_type: Text
    base_model_name_or_path: Text | None = None
    init_lora_weights: bool | Text | None = None


def read_settings(folder: Path) -> AdapterSettings:
    """The settings of the adapter in a folder. Raises UserError for what is damaged or not supported."""
    path = folder / SETTINGS
    header = _read(path, _Header)
    start = str(header.init_lora_weights or "")
    if start.startswith(RESIDUAL_STARTS):
        raise UserError(
            f"{folder} is relative to a modified base model (init_lora_weights={start})",
            "save it again relative to the original base, with PEFT's path_initial_model_for_weight_conversion",
        )
    kind = _KINDS.get(header.peft_type)
    if kind is None:
        raise UserError(f"{path}: PEFT type {header.peft_type[:80]} is not supported", "supported types: " + ", ".join(_KINDS))
    settings = _read(path, kind)
    extra = settings.model_extra or {}
    unknown = next((name for name, value in extra.items() if name not in UNUSED and value not in _OFF), None)
    if unknown is not None:
        raise UserError(
            f"{path} sets {ascii(unknown)[:80]}, which changes what the adapter computes and is not supported",
            "merge the adapter with the library that made it",
        )
    return settings


def base_of(folder: Path) -> str | None:
    """The model that an adapter's folder says it is for. Raises UserError where its settings cannot be read."""
    return _read(folder / SETTINGS, _Header).base_model_name_or_path


def _read(path: Path, kind: type[Any]) -> Any:
    try:
        return read_json(path, kind, follow=True)
    except BadFile as error:
        hint = "the file may be incomplete or not in PEFT's format: save or download it again"
        raise BadFile(error.message, hint if error.hint == RESTORE else error.hint) from None
