"""An adapter on disk: in PEFT's format, or a whole model, so that others load it as it is."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import peft
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from microrl.adapters.attach import Attached
from microrl.adapters.export import export, instead
from microrl.adapters.targets import kind_of
from microrl.errors import UserError
from microrl.parameters import shape_of, twin, weights
from microrl.types import AdapterSnapshot, LowRank

RESIDUAL_STARTS = ("pissa", "olora", "corda", "loftq")
"""PEFT's own starts that take something off the base's weights."""
SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def write(folder: Path, attached: Attached) -> None:
    """What is low rank as a plain LoRA pair relative to the untouched base; the rest as PEFT writes it; `full` as a model."""
    snapshot = attached.snapshot(0)
    base = getattr(attached.model.config, "_name_or_path", None) or None
    if snapshot.pairs:
        write_pairs(folder, snapshot.pairs, base)
    elif attached.peft_model is not None:
        attached.peft_model.save_pretrained(str(folder), save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)  # PEFT's empty model card
    else:
        with attached.off():
            write_model(folder, attached.model, snapshot)


def write_pairs(folder: Path, pairs: Mapping[str, LowRank], base: str | None) -> None:
    """A LoRA folder in PEFT's format. A scale that is no whole alpha / r goes into B, since some readers take whole numbers."""
    ranks = {name: len(pair.A_RI) for name, pair in pairs.items()}
    rank, scale = max(ranks.values()), next(iter(pairs.values())).scale
    whole = len(set(ranks.values())) == 1 and (scale * rank).is_integer() and all(p.scale == scale for p in pairs.values())
    settings = peft.LoraConfig(
        r=rank,
        lora_alpha=int(scale * rank) if whole else rank,
        target_modules=sorted({kind_of(name) for name in pairs}),
        rank_pattern={name: other for name, other in ranks.items() if other != rank},
        alpha_pattern={name: other for name, other in ranks.items() if other != rank},
        base_model_name_or_path=base,
        task_type="CAUSAL_LM",
        inference_mode=True,
    )
    folder.mkdir(parents=True, exist_ok=True)
    settings.save_pretrained(str(folder))
    tensors = {}
    for name, pair in pairs.items():
        B_OR = pair.B_OR if whole else pair.B_OR * pair.scale
        tensors[f"base_model.model.{name}.lora_A.weight"] = pair.A_RI.detach().cpu().contiguous()
        tensors[f"base_model.model.{name}.lora_B.weight"] = B_OR.detach().cpu().contiguous()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def write_model(folder: Path, model: PreTrainedModel, snapshot: AdapterSnapshot) -> None:
    """A whole model, this untouched one with the snapshot merged, in its own type."""
    tensors = {name: tensor.detach().cpu() for name, tensor in weights(model, snapshot)}
    model.save_pretrained(folder, state_dict=tensors)


def read(folder: Path, model: PreTrainedModel) -> AdapterSnapshot:
    """The update in a folder, for this untouched model: PEFT's format, or a whole model.

    Raises UserError for what cannot be read, is for another model, or has no exact form.
    """
    if not (folder / SETTINGS).is_file():
        if (folder / "config.json").is_file():
            return AdapterSnapshot(1, merged=_whole(folder, model))
        raise UserError(f"{folder} is neither an adapter nor a model: it has no {SETTINGS} and no config.json")
    try:
        settings = json.loads((folder / SETTINGS).read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / SETTINGS} cannot be read: {error}") from error
    start = str(settings.get("init_lora_weights") or "")
    if start.startswith(RESIDUAL_STARTS):
        raise UserError(
            f"{folder} is an update of a residual base: it began with init_lora_weights={start}",
            "save it again relative to the base itself, by PEFT's path_initial_model_for_weight_conversion",
        )
    if settings.get("peft_type") == "LORA" and not settings.get("use_dora"):
        return AdapterSnapshot(1, _pairs(folder, settings, model))
    return _by_peft(folder, model)


def _pairs(folder: Path, settings: dict[str, Any], model: PreTrainedModel) -> dict[str, LowRank]:
    tensors = _tensors(folder / WEIGHTS)
    pairs = {}
    for key, A_RI in tensors.items():
        if not key.endswith(".lora_A.weight"):
            continue
        name = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        B_OR = tensors.get(key.replace(".lora_A.", ".lora_B."))
        layer = _find(model, name)
        sides = (A_RI.shape[1], None if B_OR is None else len(B_OR))
        if B_OR is None or not isinstance(layer, torch.nn.Linear) or (layer.in_features, layer.out_features) != sides:
            raise _for_another_model(folder, settings, name)
        alpha = _pattern(settings.get("alpha_pattern"), name, settings["lora_alpha"])
        scale = alpha / (math.sqrt(len(A_RI)) if settings.get("use_rslora") else len(A_RI))
        pairs[name] = LowRank(A_RI.to(model.device), B_OR.to(model.device), scale)
    unread = len(tensors) - 2 * len(pairs)
    if unread or not pairs:
        raise UserError(
            f"{folder} holds {unread or 'no'} tensors that are no LoRA pairs of linear layers",
            "is it a LoRA of a language model?",
        )
    return pairs


def _pattern(patterns: Mapping[str, float] | None, name: str, default: float) -> float:
    """PEFT's rule: the first pattern that the module's name ends with."""
    return next((value for pattern, value in (patterns or {}).items() if re.match(rf"(.*\.)?({pattern})$", name)), default)


def _by_peft(folder: Path, model: PreTrainedModel) -> AdapterSnapshot:
    """What PEFT knows how to load, through the same export as a trained one."""
    tree = twin(model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            peft.PeftModel.from_pretrained(tree, str(folder))
    except (RuntimeError, ValueError, KeyError, OSError, TypeError, SafetensorError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"{folder} cannot be loaded: {lines[-1].strip()[:200]}", "is it an adapter for this model?") from error
    return export(tree, 1)


def _whole(folder: Path, model: PreTrainedModel) -> dict[str, Any]:
    """A model's own tensors, for every parameter that this one has."""
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("model*.safetensors")):  # a checkpoint's other tensors lie beside them
        found |= _tensors(path)
    merged = {}
    for name, parameter in model.named_parameters():
        if name not in found or found[name].shape != shape_of(parameter):
            raise _for_another_model(folder, {}, name)
        merged[name] = partial(instead, found[name].to(model.device))
    return merged


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read: {error}", "was it written to its end?") from error


def _find(model: PreTrainedModel, name: str) -> torch.nn.Module | None:
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


def _for_another_model(folder: Path, settings: Mapping[str, Any], name: str) -> UserError:
    made_for = settings.get("base_model_name_or_path")
    return UserError(
        f"{folder} is for another model: `{name}` does not fit",
        f"it was made for {made_for}" if made_for else "name its own model",
    )
