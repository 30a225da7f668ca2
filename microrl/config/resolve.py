"""Layer defaults < presets in the order given < flags < `--set a.b=c`, validate the result, and explain errors."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from microrl.config import other_names, paths, presets
from microrl.config.losses import CustomLossConfig, DistillConfig, DistillLossConfig, GrpoConfig
from microrl.config.plugins import ALGORITHMS, entry_points
from microrl.config.schema import RunConfig
from microrl.config.section import Section
from microrl.errors import UserError, did_you_mean, invalid_value, nearest, shown
from microrl.terminal import is_torn

Tree = dict[str, Any]
LARGEST = 1e12


def resolve(preset_names: Iterable[str] = (), flags: Mapping[str, Any] | None = None, sets: Iterable[str] = ()) -> RunConfig:
    """The validated configuration.

    `flags` maps dotted keys to values; None: the flag was not given. A layer that sets `hours` or `steps` replaces both bounds
    of the layers below, and one that sets `lr` or `step_kl` replaces both. Raises UserError.
    """
    config = override(of_presets(preset_names), flags or {}, sets)
    refuse_unread(config)
    return config


def refuse_unread(config: RunConfig) -> None:
    """Raise UserError for a key that distillation without rewards does not read. Only for a new run: earlier ones with such a key
    stay readable."""
    if not isinstance(config.loss, DistillLossConfig) or config.distill.reward_weight:
        return
    of_rewards, of_sampled_tokens = ("loss.scale_by_std", "reward.normalise"), ("loss.importance_cap", "loss.importance_mode")
    for key in of_rewards if config.distill.top_k is None else of_rewards + of_sampled_tokens:
        section, _, name = key.partition(".")
        keys = getattr(config, section)
        default = type(keys).model_fields[name].default
        if getattr(keys, name) != default:
            with_top_k = " and distill.top_k is set" if key in of_sampled_tokens else ""
            raise UserError(
                f"{key} has no effect while distill.reward_weight is 0{with_top_k}",
                f"--set {key}={str(default).lower()}, or a distill.reward_weight above 0",
            )


def of_presets(names: Iterable[str]) -> Tree:
    """The defaults with these presets over them, not validated yet. Raises UserError."""
    tree = RunConfig().model_dump()
    for follows_from_a_name in ("system", "system_role", "bad_answers", "long_prompts"):
        del tree["data"][follows_from_a_name]
    for name in presets.with_bases(names):
        tree = _replacing_layer(tree, _spelled_out(presets.load(name)))
    return tree


def override(tree: Tree, flags: Mapping[str, Any], sets: Iterable[str]) -> RunConfig:
    """A full configuration with flags and `--set` values applied, validated; `tree` stays as it is. Raises UserError."""
    given = _nest((key, value) for key, value in flags.items() if value is not None)
    above = _spelled_out(layer(given, _nest(_assignment(text) for text in sets)))
    return check(_sft_of(_replacing_layer(tree, above), above))


def _spelled_out(above: Tree) -> Tree:
    """A layer with what its short forms stand for.

    One that names `auto` asks for all of it, and says so from here on; see `AutoEngineConfig.unattended`. A loss that is not one
    of microrl's is the target of a custom one. A teacher in memory, without a loss, means distillation.
    """
    engine, loss, distill = above.get("engine"), above.get("loss", {}), above.get("distill")
    if isinstance(engine, dict) and engine.get("kind") == "auto":
        above = {**above, "engine": {"unattended": True, **engine}}
    if isinstance(loss, dict) and _is_of_another_package(kind := loss.get("kind")):
        above = {**above, "loss": {**loss, "kind": "custom", "target": kind}}
    elif isinstance(loss, dict) and isinstance(distill, dict) and (teacher := distill.get("teacher")) not in NO_TEACHER:
        above = above if _is_stored(teacher) else {**above, "loss": {"kind": "distill", **loss}}
    return above


def _is_stored(teacher: Any) -> bool:
    return isinstance(teacher, str) and teacher not in NO_TEACHER and paths.is_taught(teacher)


def _sft_of(tree: Tree, above: Tree) -> Tree:
    """All layers together, of which `above` is the last one, with what follows for SFT.

    A teacher that is a folder of `microrl teach` is the data of SFT with soft targets; there is no reinforcement learning unless
    something bounds the SFT itself. Of a run of SFT alone, the last layer's steps are its steps, and a preset's are none. Raises
    UserError where other SFT data is named as well.
    """
    own = above.get("sft", {})
    if not all(isinstance(one, dict) for one in (tree["sft"], tree["budget"], tree["distill"], own)):
        return tree  # refused later
    sft, budget, teacher = {**tree["sft"]}, {**tree["budget"]}, tree["distill"].get("teacher")
    if _is_stored(teacher):
        if sft["data"] not in (None, teacher):
            raise UserError(
                f"--teacher {teacher} is a folder of completions to learn, and --sft-data names another: {sft['data']}",
                "leave one of them out: --teacher learns from the stored scores, and --sft-data from the tokens alone",
            )
        sft["data"] = teacher
        if sft["minutes"] is None and sft["steps"] is None and "only" not in own:
            sft["only"] = True
    if sft["only"]:
        given = above.get("budget", {}).get("steps")
        sft["steps"], budget["steps"] = (given if sft["steps"] is None else sft["steps"]), None
    return {**tree, "sft": sft, "budget": budget}


def _is_of_another_package(kind: object) -> bool:
    if not isinstance(kind, str) or kind in _kinds(RunConfig, "loss"):
        return False
    return ":" in kind or kind in entry_points(ALGORITHMS)


REPLACED: Tree = {"budget": {"hours": None, "steps": None}, "optim": {"lr": "auto", "step_kl": None}}
"""Keys of which a layer that sets one replaces all, by section, and what becomes of the others."""
NO_TEACHER = (None, "none")
PHASES = ("sft", "evaluation")
"""Sections of what is no reinforcement learning."""


def _replacing_layer(below: Tree, above: Tree) -> Tree:
    """`layer`, but where `above` has one of the keys in `REPLACED`, it replaces the others as well; and where it names another
    teacher or none, the loss that came with the former one goes, and with none the rest of it."""
    distill = above.get("distill")
    if isinstance(distill, dict) and "teacher" in distill:
        if isinstance(below["loss"], dict) and below["loss"].get("kind") == DistillLossConfig().kind:
            below = layer(below, {"loss": {"kind": GrpoConfig().kind}})
        if distill["teacher"] in NO_TEACHER:
            below = {**below, "distill": DistillConfig().model_dump()}
    for section, keys in REPLACED.items():
        given, old = above.get(section), below.get(section)
        if isinstance(given, dict) and isinstance(old, dict) and any(given.get(key) is not None for key in keys):
            below = {**below, section: {**old, **keys}}
    optim = above.get("optim")
    if isinstance(optim, dict) and optim.get("step_kl") is not None and optim.get("lr") not in (None, "auto"):
        raise UserError(
            f"`optim.step_kl` steers the learning rate, but `optim.lr` fixes it at {optim['lr']}",
            "remove one of them; where the rate is steered, the rate that it starts from is chosen automatically",
        )
    return layer(below, above)


def check(tree: Tree) -> RunConfig:
    """Validate a nested dictionary and make its paths absolute. Raises UserError for the first error, with its key and a hint."""
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        raise _explain(*error.errors()) from None
    _refuse_what_cannot_be_used(config.model_dump())
    return paths.absolute(config)


def _refuse_what_cannot_be_used(tree: Tree) -> None:
    """Raise UserError for numbers whose squares could overflow, and for text that is not valid Unicode."""
    for key, value in leaves(tree):
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, float) and abs(part) > LARGEST:
                raise invalid_value(f"`{key}`", part, f"the largest magnitude allowed is {LARGEST:g}")
            if isinstance(part, str) and is_torn(part):
                raise UserError(f"`{key}` is not valid Unicode", "write it in UTF-8")


def leaves(tree: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    """(`section.key`, value) of nested sections; an empty one is a value."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{section}{key}.")
        else:
            yield f"{section}{key}", value


def as_set(value: Any) -> str:
    """A value as `--set` takes it."""
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)


def layer(below: Tree, above: Tree, model: type[BaseModel] = RunConfig) -> Tree:
    """Merge `above` over `below`, section by section.

    If `above` changes a section's `kind`, only those keys of `below` are kept that exist in both kinds with the same default:
    a rank survives the change from lora to rslora, but dapo's clip_high does not become grpo's.
    """
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if not (isinstance(value, dict) and isinstance(old, dict)):
            merged[key] = value
            continue
        kinds = _kinds(model, key)
        if kinds and "kind" in value:
            before, after = (kinds.get(kind) if isinstance(kind, str) else None for kind in (old.get("kind"), value["kind"]))
            if before is not None and after is not None and before is not after:
                old = {name: v for name, v in old.items() if name != "kind" and _same_field(before, after, name)}
        merged[key] = layer(old, value, _section(model, key))
    return merged


def _same_field(before: type[BaseModel], after: type[BaseModel], name: str) -> bool:
    a, b = before.model_fields.get(name), after.model_fields.get(name)
    return a is not None and b is not None and a.default == b.default


def _section(model: type[BaseModel], key: str) -> type[BaseModel]:
    field = model.model_fields.get(key)
    annotation = field.annotation if field else None
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else Section


def _kinds(model: type[BaseModel], key: str) -> dict[str, type[BaseModel]]:
    """The alternatives of a union on `kind`, by name; empty if `key` is not such a union."""
    field = model.model_fields.get(key)
    options = get_args(field.annotation) if field else ()
    return {
        option.model_fields["kind"].default: option
        for option in options
        if isinstance(option, type) and issubclass(option, BaseModel) and "kind" in option.model_fields
    }


def _assignment(text: str) -> tuple[str, Any]:
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {text}: expected KEY=VALUE", "for example: --set optim.lr=2e-5")
    return key.strip(), _value(raw.strip())


def keys_set(sets: Iterable[str]) -> set[str]:
    """The keys that these `--set` options give a value, those in a table one by one: `adapter={rank=8}` sets adapter.rank."""
    return {key for key, _ in leaves(_nest(_assignment(text) for text in sets))}


def _value(raw: str) -> Any:
    """A value parsed as TOML, or plain text if that fails; `none` is None."""
    if raw.lower() in presets.NONE:
        return None
    try:
        parsed = tomllib.loads(f"value = {raw}")["value"]
    except (ValueError, RecursionError):  # not TOML, a number without end, too deep a nesting
        return raw
    try:
        tomllib.loads(f"value = [{raw}]")  # fails where a comment or another line hides the bracket
    except ValueError:
        raise UserError(f"`{shown(raw)}` is not a single value", "remove the comment or line that follows it") from None
    return parsed


def _nest(items: Iterable[tuple[str, Any]]) -> Tree:
    tree: Tree = {}
    for dotted, value in items:
        *path, leaf = dotted.split(".", presets.DEEPEST)
        node = tree
        for part in path:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise UserError(
                    f"`{part}` in `{dotted}` is a value, not a section", "list all keys with `microrl presets show NAME --json`"
                )
        node[leaf] = value
    presets.refuse_depth(tree, "--set")
    return tree


def _known_elsewhere(path: list[str], model: type[BaseModel], given: Any) -> str | None:
    """A hint for another trainer's name, in a section of ours or as a section."""
    *section, name = path
    leaf = (other_names.ours(name) or "").partition("=")[0].rpartition(".")[2]
    if section and leaf in model.model_fields:
        return f"did you mean `{'.'.join([*section, leaf])}`?"
    if section and section[0] in PHASES:
        return None  # what trains by rewards has other keys
    return other_names.hint(".".join(path), given)


def _explain(error: ErrorDetails, *others: ErrorDetails) -> UserError:
    """A validation error as a UserError that names the key, and hints at what is allowed. `others` came up with it."""
    model, path = _walk([str(part) for part in error["loc"]])
    key = shown(".".join(path)) or "the configuration"
    context = error.get("ctx", {})
    if error["type"] == "extra_forbidden":
        tag = model.model_fields.get("kind")
        if tag is None:
            given, is_misspelled = error["input"], nearest(path[-1], model.model_fields, cutoff=0.8)
            known = None if isinstance(given, dict) and is_misspelled else _known_elsewhere(path, model, given)
            return UserError(f"unknown key `{key}`", known or did_you_mean(path[-1], model.model_fields))
        why = f"`{tag.default}` has no `{shown(path[-1])}`"
        own = f"set its own keys as loss.options.{shown(path[-1])}" if model is CustomLossConfig else ""
        union: type[BaseModel] = RunConfig
        for part in path[:-2]:
            union = _section(union, part)
        if any(path[-1] in kind.model_fields for kind in _kinds(union, path[-2]).values()):
            flag = "remove --rank, or choose another --adapter" if key == "adapter.rank" else own or "remove it"
            return UserError(
                f"`{key}` cannot be set: {why}", f"{flag}; `{tag.default}` has these keys: {', '.join(model.model_fields)}"
            )
        known = other_names.hint(path[-1], error["input"]) or did_you_mean(path[-1], model.model_fields)
        return UserError(f"{why}: unknown key `{key}`", f"{own}; {known}" if own else known)
    if error["type"].startswith("union_tag"):
        kinds = ["MODULE:CLASS" if kind == "custom" else kind for kind in _kinds(model, path[-1])]
        kind = str(context.get("tag", ""))
        hint = other_names.hint(kind) or did_you_mean(kind, kinds)
        return invalid_value(f"`{key}.kind`", kind, hint) if kind else UserError(f"`{key}` needs a `kind`", hint)
    if error["type"] == "missing":
        example = "--loss MODULE:CLASS" if key == "loss.target" else f"--set {key}=VALUE"
        return UserError(f"`{'.'.join(path[:-1])}` needs the key `{path[-1]}`", example)
    if error["type"] == "literal_error" and not isinstance(error["input"], dict | list):
        allowed = [part.strip(" '") for part in str(context["expected"]).replace(" or ", ",").split(",")]
        hint = did_you_mean(shown(error["input"]), allowed)
        if any(other["type"] == "tuple_type" and other["loc"][:-1] == error["loc"][:-1] for other in others):
            hint += ', or a list whose entries are in quotes: ["...", "..."]'
        return invalid_value(f"`{key}`", error["input"], hint)
    if error["type"] == "value_error":
        raised = context.get("error")
        return (
            UserError(*raised.args) if isinstance(raised, ValueError) else UserError(error["msg"])
        )  # with a hint, if it has one
    if error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return UserError(f"`{key}` is a section, not a value", f"set one of its keys: --set {key}.NAME=VALUE")
    if error["type"] == "tuple_type":
        return invalid_value(f"`{key}`", error["input"], 'must be a list, such as [1, 2] or ["a", "b"]')
    hint = error["msg"].replace("Input should be", "must be").split(" or object")[0].split(", unable to ")[0]
    return invalid_value(f"`{key}`", error["input"], hint)


def _walk(location: list[str]) -> tuple[type[BaseModel], list[str]]:
    """(section of an error, path of the key in it): without names of union members, and no deeper than a field."""
    model: type[BaseModel] = RunConfig
    path: list[str] = []
    parts = iter(location)
    for part in parts:
        path.append(part)
        kinds = _kinds(model, part)
        if kinds:
            member = next(parts, None)
            if member not in kinds:
                break
            model = kinds[member]
        elif (section := _section(model, part)) is not Section:
            model = section
        else:
            break
    return model, path
