"""LoRA and rsLoRA by PEFT: attach to a model, and export the trained state as plain LoRA pairs."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import peft
import torch
from peft.tuners.lora import LoraLayer
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel

from microrl.config.schema import LoraConfig, RsLoraConfig
from microrl.errors import UserError, did_you_mean
from microrl.types import AdapterSnapshot, LowRank

_ADAPTER = "default"


def attach(model: PreTrainedModel, config: LoraConfig | RsLoraConfig, *, seed: int) -> peft.PeftModel:
    """Wrap the targeted linear layers in place. A starts Kaiming uniform from `seed`, B at 0: the first forward is the base's.

    Raises UserError for targets that match nothing and for a rank above a targeted layer's smaller side.
    """
    layers = targets(model, config)
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,  # PEFT says int, and takes any number
        use_rslora=config.kind == "rslora",
        target_modules=sorted({name.rsplit(".", 1)[-1] for name in layers}),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT asks transformers under a name that is being retired
        torch.manual_seed(seed)
        return peft.get_peft_model(model, settings, adapter_name=_ADAPTER)


def targets(model: PreTrainedModel, config: LoraConfig | RsLoraConfig) -> dict[str, torch.nn.Linear]:
    """The linear layers that get an adapter, by name. Raises UserError for targets and ranks that `attach` refuses."""
    head = model.get_output_embeddings()
    linear = {name: layer for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear) and layer is not head}
    if config.targets != "all-linear":
        kinds = {name.rsplit(".", 1)[-1] for name in linear}
        for target in config.targets:
            if target not in kinds:
                raise UserError(f"no linear layer is called `{target}`", did_you_mean(target, sorted(kinds)))
        linear = {name: layer for name, layer in linear.items() if name.rsplit(".", 1)[-1] in config.targets}
    if not linear:
        raise UserError("the adapter has nothing to attach to", "adapter.targets is empty, or the model has no linear layers")
    limit, narrowest = min((min(layer.in_features, layer.out_features), name) for name, layer in linear.items())
    if config.rank > limit:
        raise UserError(
            f"rank {config.rank} is above {limit}, the smaller side of {narrowest}",
            f"--rank {limit} or less, or leave that layer out with --set adapter.targets",
        )
    return linear


def layers(model: torch.nn.Module) -> dict[str, LoraLayer]:
    """The wrapped layers by the names that they have in the base model."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}


def snapshot(model: torch.nn.Module, version: int) -> AdapterSnapshot:
    """The current update of every layer. The tensors are the live ones: an engine that keeps them past `awake` clones them."""
    return AdapterSnapshot(
        version,
        {
            name: LowRank(
                layer.lora_A[_ADAPTER].weight.detach(), layer.lora_B[_ADAPTER].weight.detach(), float(layer.scaling[_ADAPTER])
            )
            for name, layer in layers(model).items()
        },
    )


def read(folder: Path) -> AdapterSnapshot:
    """A LoRA folder in PEFT's format as a snapshot. Raises UserError where it is not one."""
    try:
        settings = json.loads((folder / "adapter_config.json").read_text())
        tensors = load_file(folder / "adapter_model.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{folder} is not an adapter folder that can be read: {error}") from error
    scale = settings["lora_alpha"] / (math.sqrt(settings["r"]) if settings["use_rslora"] else settings["r"])
    pairs = {
        key.removeprefix("base_model.model.").removesuffix(".lora_A.weight"): LowRank(
            tensor, tensors[key.replace(".lora_A.", ".lora_B.")], scale
        )
        for key, tensor in tensors.items()
        if key.endswith(".lora_A.weight")
    }
    return AdapterSnapshot(1, pairs)
