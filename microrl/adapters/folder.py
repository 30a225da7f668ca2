"""An adapter on disk: in PEFT's format, or a whole model, so that others load it as it is."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any

import peft
import torch
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
from peft.tuners.tuners_utils import check_target_module_exists
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from microrl.adapters.adapter import Adapter, replace_base, tuned
from microrl.adapters.attach import export
from microrl.adapters.settings import ALL_LINEAR, SETTINGS, AdapterSettings, LnSettings, base_of, read_settings
from microrl.adapters.tinylora import skip_svd
from microrl.config.adapter import kind_of
from microrl.errors import UserError, first_line, shown
from microrl.models import gpu
from microrl.models.tensors import is_real, linears, norms, not_finite, shape_of, weight_sharing_copy, weights
from microrl.types import AdapterSnapshot, LowRank

WEIGHTS, PICKLED = "adapter_model.safetensors", "adapter_model.bin"
PREFIX = "base_model.model."
"""Of PEFT's names for tensors."""
INCOMPLETE = "the file may be incomplete or made for another model: save or download it again"
ANOTHER = "pass the model that it was trained for (microrl export: --model BASE; microrl eval: --set model.name=BASE)"
MAX_CLAIMED, FEW_NUMBERS = 16, 2**26
"""An adapter is made room for before its missing tensors can be named: up to so many times what its file holds."""


def write(folder: Path, attached: Adapter) -> None:
    """What is low rank as a plain LoRA pair relative to the untouched base; the rest as PEFT writes it; `full` as a model."""
    snapshot = attached.snapshot(0)
    base = getattr(attached.model.config, "_name_or_path", None) or None
    if snapshot.pairs:
        write_pairs(folder, snapshot.pairs, base)
    elif attached.peft_model is not None:
        attached.peft_model.save_pretrained(str(folder), save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)  # PEFT's empty model card
        _sort_names(folder)
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
    _sort_names(folder)
    tensors = {}
    for name, pair in pairs.items():
        B_OR = pair.B_OR if whole else pair.B_OR * pair.scale
        tensors[f"base_model.model.{name}.lora_A.weight"] = pair.A_RI.detach().cpu().contiguous()
        tensors[f"base_model.model.{name}.lora_B.weight"] = B_OR.detach().cpu().contiguous()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def _sort_names(folder: Path) -> None:
    """PEFT keeps the names of modules in sets and writes them in hash order, which differs from process to process."""
    path = folder / SETTINGS
    settings = json.loads(path.read_text())
    for key, value in settings.items():
        if isinstance(value, list) and all(isinstance(name, str) for name in value):
            settings[key] = sorted(value)
    path.write_text(json.dumps(settings, indent=2, sort_keys=True))


def write_model(folder: Path, model: PreTrainedModel, snapshot: AdapterSnapshot) -> None:
    """A whole model, this untouched one with the snapshot merged, in its own type."""
    tensors = {name: tensor.detach().cpu() for name, tensor in weights(model, snapshot)}
    model.save_pretrained(folder, state_dict=tensors)


def read(folder: Path, model: PreTrainedModel) -> AdapterSnapshot:
    """The update in a folder, for this untouched model: PEFT's format, or a whole model.

    The folder may be a stranger's: no code of it is run, and what does not fit the model to the last tensor is refused.
    Raises UserError for what cannot be read, is for another model, is not finite, or has no exact form.
    """
    if (folder / SETTINGS).is_file():
        snapshot = _by_peft(folder, model)
    elif (folder / "config.json").is_file():
        snapshot = AdapterSnapshot(1, merged=_whole(folder, model), seed=None)
    else:
        raise UserError(
            f"{folder} is neither an adapter nor a model: it has no {SETTINGS} and no config.json",
            "pass a run folder, or its best/",
        )
    _refuse_overflow(folder, model, snapshot)
    return snapshot


def _by_peft(folder: Path, model: PreTrainedModel) -> AdapterSnapshot:
    """What PEFT knows how to load, through the same export as a trained one."""
    settings, tree, tensors = read_settings(folder), weight_sharing_copy(model), _tensors(folder, folder / WEIGHTS)
    try:
        with torch.random.fork_rng(), warnings.catch_warnings(), skip_svd():
            warnings.simplefilter("ignore")
            config = PEFT_TYPE_TO_CONFIG_MAPPING[settings.kind](inference_mode=True, **settings.for_peft())
            layers = _targets(folder, settings, config, model)
            held = sum(tensor.numel() for tensor in tensors.values())
            if settings.numbers(layers) > max(MAX_CLAIMED * held, FEW_NUMBERS):
                raise UserError(
                    f"{folder} is incomplete: its rank and its {len(layers)} layers take far more numbers than {WEIGHTS} holds",
                    _hint(folder, INCOMPLETE),
                )
            wrapped = peft.get_peft_model(tree, config)
            _widen(tree)
            _refuse_misfits(folder, peft.get_peft_model_state_dict(wrapped, save_embedding_layers=False), tensors, [*tuned(tree)])
            peft.set_peft_model_state_dict(wrapped, tensors)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"{folder} cannot be loaded: {lines[-1].strip()[:200]}", INCOMPLETE) from error
    return export(tree, 1)


def _widen(tree: torch.nn.Module) -> None:
    """In float32 or finer, as a trained one: PEFT makes some in the base's type, and what is exported is computed in theirs."""
    for layer in tuned(tree).values():
        for leaf, tensor in layer.state_dict(keep_vars=True).items():
            if not leaf.startswith("base_layer."):
                tensor.data = tensor.data.to(torch.promote_types(tensor.dtype, torch.float32))


def _targets(folder: Path, settings: AdapterSettings, config: Any, model: PreTrainedModel) -> dict[str, tuple[int, int]]:
    """(in, out) of the modules that the adapter sits on, by name: linear layers or, for their own kind, norms.

    Raises UserError for anything else. Of an embedding, or of a head that shares its weight, half of the update would be lost.
    """
    if settings.kind == LnSettings.kind:
        fitting = {name: (0, 0) for name in norms(model)}
    else:
        layers: dict[str, Any] = dict(linears(model))
        if settings.target_modules != ALL_LINEAR:
            head, table = model.get_output_embeddings(), model.get_input_embeddings()
            is_tied = head is not None and table is not None and head.weight is table.weight
            layers |= {name: layer for name, layer in model.named_modules() if layer is head and not is_tied}
        fitting = {name: (layer.in_features, layer.out_features) for name, layer in layers.items()}
    if settings.target_modules == ALL_LINEAR:
        return fitting
    chosen = [name for name, _ in model.named_modules() if check_target_module_exists(config, name)]
    if (other := next((name for name in chosen if name not in fitting), None)) is not None:
        raise UserError(
            f"{folder} adapts `{other}`, which is not a layer of this model that can have an adapter of the type {settings.kind}",
            _hint(folder, "only adapters of linear layers or norms can be read"),
        )
    return {name: fitting[name] for name in chosen}


def _refuse_misfits(
    folder: Path, expected: Mapping[str, torch.Tensor], stored: Mapping[str, torch.Tensor], names: Sequence[str]
) -> None:
    """Raise UserError where the tensors are not those that the settings make of this model, name by name and shape by shape."""
    wrong = next((key for key in expected if key in stored and stored[key].shape != expected[key].shape), None)
    if wrong is not None:
        name = next((name for name in names if wrong.startswith(f"{PREFIX}{name}.")), wrong.removeprefix(PREFIX))
        shapes = f"{wrong.rpartition(name)[2].strip('.')} is {tuple(stored[wrong].shape)}, not {tuple(expected[wrong].shape)}"
        raise _for_another_model(folder, name, f" ({shapes})")
    missing = [key for key in expected if key not in stored]
    unexpected = [key for key in stored if key not in expected]
    if missing or unexpected:
        parts = [
            f"{len(keys)} {what} (first: `{shown(keys[0])}`)"
            for what, keys in (("missing", missing), ("unexpected", unexpected))
            if keys
        ]
        raise UserError(f"the tensors in {folder} do not match this model: {', '.join(parts)}", _hint(folder, ANOTHER))


@torch.no_grad()
def _refuse_overflow(folder: Path, model: PreTrainedModel, snapshot: AdapterSnapshot) -> None:
    """Finite factors can have a product that is not, or that the base's type has no room for."""
    for name, tensor in weights(model, snapshot):
        is_changed = name in snapshot.merged or name.removesuffix(".weight") in snapshot.pairs
        if is_changed and not_finite({name: tensor}) is not None:
            raise UserError(
                f"{folder}: with this update `{name}` is not finite in {str(tensor.dtype).removeprefix('torch.')}",
                "large values overflow in float16: try float32 (microrl export: --dtype float32)",
            )


def _whole(folder: Path, model: PreTrainedModel) -> dict[str, Any]:
    """A model's own tensors, for every parameter that this one has."""
    stored: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("model*.safetensors")):  # a checkpoint's other tensors lie beside them
        tensors = _tensors(folder, path)
        if twice := stored.keys() & tensors.keys():
            raise UserError(f"{folder} holds `{shown(min(twice))}` twice", "remove the files that do not belong to this model")
        stored |= tensors
    expected = {name: shape_of(parameter) for name, parameter in model.named_parameters()}
    known = model.state_dict().keys()  # with the tied ones under each of their names
    if not stored.keys() <= known:
        stored = _renamed(folder, model, stored)
    for name, shape in expected.items():
        if name not in stored or stored[name].shape != shape:
            raise _for_another_model(folder, name)
    if (unexpected := next((name for name in stored if name not in known), None)) is not None:
        raise _for_another_model(folder, unexpected)
    return {name: partial(replace_base, stored[name].to(model.device)) for name in expected}


def _renamed(folder: Path, model: PreTrainedModel, stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A checkpoint's tensors as the model has them: transformers stores each expert of a mixture by itself and keeps all in one
    tensor. Those that do not fit are left out or as they were; raises UserError where nothing can be converted."""
    settings: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in stored.values()))
    try:
        loaded, told = type(model).from_pretrained(None, config=model.config, state_dict=dict(stored), dtype=dtype, **settings)
    except RuntimeError as error:
        if gpu.is_out_of_memory(error):
            raise
        raise UserError(f"{folder} is for another model: its experts do not fit", _hint(folder, ANOTHER)) from None
    wrong = told["missing_keys"] | {name for name, *_ in told["mismatched_keys"]}
    fitting = {name: tensor for name, tensor in loaded.state_dict().items() if name not in wrong}
    return fitting | {name: stored[name] for name in told["unexpected_keys"]}


def _tensors(folder: Path, path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file; nothing is unpickled. Raises UserError for what cannot be read or is not finite."""
    if not path.is_file():
        if (folder / PICKLED).exists():
            raise UserError(
                f"{folder} holds its weights as a pickle ({PICKLED}), which can run code: it is not loaded",
                f"get the adapter as {WEIGHTS}, or convert the file yourself if you trust it",
            )
        raise UserError(f"{path} is missing, or not a regular file", INCOMPLETE)
    try:
        tensors = load_file(path)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read: {shown(first_line(error))}", INCOMPLETE) from error
    if (other := next((name for name, tensor in tensors.items() if not is_real(tensor)), None)) is not None:
        kind = str(tensors[other].dtype).removeprefix("torch.")
        raise UserError(f"{path}: `{shown(other)}` is stored as {kind}; weights must be floating-point", INCOMPLETE)
    if (broken := not_finite(tensors)) is not None:
        raise UserError(f"{path} holds weights that are not finite: `{shown(broken)}`", "use an earlier checkpoint")
    return tensors


def _hint(folder: Path, hint: str) -> str:
    """The hint, after the model that the folder says it is for."""
    base = base_of(folder) if (folder / SETTINGS).is_file() else None
    return f"it was made for {base}; {hint}" if base else hint


def _for_another_model(folder: Path, name: str, more: str = "") -> UserError:
    return UserError(f"{folder} is for another model: `{shown(name)}` does not fit{more}", _hint(folder, ANOTHER))
