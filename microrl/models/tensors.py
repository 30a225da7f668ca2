"""A model's parameters as numbers, with an update merged, and other ones in their place."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from microrl.models.rounding import StochasticRounding, blocks
from microrl.types import AdapterSnapshot, LowRank, Merge


def weight_sharing_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A second tree of modules over the same tensors: the trainer is then free to wrap its own modules."""
    assert not any("base_layer" in name for name, _ in model.named_modules()), "build the engine before the adapter"
    shared: dict[int, object] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    for parameter in model.parameters():
        if (state := getattr(parameter, "quant_state", None)) is not None:
            shared[id(state)] = state  # the scales of a weight in 4 bits, which its layer holds on to as well
    return copy.deepcopy(model, shared).eval()


def dequantize(parameter: torch.Tensor) -> torch.Tensor:
    """A weight as numbers: one that is stored in 4 bits in the type that its layer computes in, any other as it is."""
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return parameter
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(parameter.data, state)


def rows_at(x: torch.Tensor, index_B: torch.Tensor) -> torch.Tensor:
    """`x[index_B]`, whose gradient is the same to the last bit every time, however often a row is taken.

    On a CPU indexing adds up the gradients of a row with atomics, in the order in which the threads arrive; `index_select` adds
    them one after the other. On CUDA it is `index_select` that has atomics.
    """
    return x.index_select(0, index_B) if x.device.type == "cpu" else x[index_B]


def shape_of(parameter: torch.Tensor) -> torch.Size:
    """The shape of a weight's numbers, however few bits they are stored in."""
    return torch.Size(getattr(parameter, "quant_state", parameter).shape)


GATES = ("in_proj_a", "in_proj_b", "in_proj_ba", "shared_expert_gate", "feed_forward.router", "dt_proj")
"""Layers that give a number a head or an expert, which is below most ranks. Of Mamba's `dt_proj` only the weight is read, so that
nothing on it would be computed."""
PEFT_SPARES_OUT_PROJ = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")
"""Types of models of which PEFT does not adapt `out_proj`: in training mode fused kernels read its weight."""


def linears(model: PreTrainedModel) -> dict[str, torch.nn.Linear]:
    """Every linear layer but the head and gates, by name. A router that is a subclass and returns something else is none, and
    neither is a grouped layer, such as DeepSeek V4's, which is as many products as it has groups."""
    head = model.get_output_embeddings()
    without = (*GATES, "out_proj") if model.config.model_type in PEFT_SPARES_OUT_PROJ else GATES
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear)
        and "Linear" in type(layer).__name__
        and "Grouped" not in type(layer).__name__
        and layer is not head
        and not name.endswith(without)
    }


def norms(model: PreTrainedModel) -> dict[str, torch.nn.Module]:
    """Every norm with a gain, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if type(module).__name__.endswith("Norm") and getattr(module, "weight", None) is not None
    }


def parameter_count(model: torch.nn.Module) -> int:
    """Parameters, tied ones once, however few bits they are stored in."""
    return sum(shape_of(parameter).numel() for parameter in model.parameters())


def is_real(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds numbers that weights are stored in: 16, 32 or 64 bits of floating point."""
    return tensor.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@torch.no_grad()
def not_finite(tensors: Mapping[str, torch.Tensor]) -> str | None:
    """The name of a tensor with NaN or an infinity; None: there is none. What is not floating point (4-bit weights) is skipped.

    Where all is well it is one fused sum of squares, and one wait for the device. The sum may overflow on finite numbers:
    then the tensors are looked at one by one.
    """
    real = {name: tensor for name, tensor in tensors.items() if is_real(tensor)}
    if bool(torch.nn.utils.get_total_norm(real.values(), norm_type=2.0).isfinite()):
        return None
    return next((name for name, tensor in real.items() if not bool(tensor.isfinite().all())), None)


def swap_parameters(model: torch.nn.Module, tensors: Mapping[str, torch.nn.Parameter]) -> dict[str, torch.nn.Parameter]:
    """Put these in the place of the parameters of these names, in every module that shares them; returns what was there."""
    before = {name: model.get_parameter(name) for name in tensors}
    new = {id(before[name]): tensor for name, tensor in tensors.items()}
    for module in model.modules():
        for leaf, parameter in module._parameters.items():
            if id(parameter) in new:
                module._parameters[leaf] = new[id(parameter)]
    return before


@contextmanager
def replaced(model: torch.nn.Module, tensors: Mapping[str, torch.nn.Parameter]) -> Iterator[None]:
    """The model with these in the place of its own parameters."""
    before = swap_parameters(model, tensors)
    try:
        yield
    finally:
        swap_parameters(model, before)


def merge_lora(base_OI: torch.Tensor, pair: LowRank, rounding: StochasticRounding | None = None) -> torch.Tensor:
    """round(W_base + scale * B A), with the sum in fp32 (or better) and one rounding to the base's type.

    It is to nearest without a `rounding`, which is for narrow types, and goes by blocks.
    """
    wide = torch.promote_types(base_OI.dtype, torch.float32)
    B_OR, A_RI = (factor.to(base_OI.device, wide) for factor in (pair.B_OR, pair.A_RI))
    if rounding is None:
        return torch.addmm(base_OI.to(wide), B_OR, A_RI, alpha=pair.scale).to(base_OI.dtype)
    merged_OI = torch.empty_like(base_OI)
    for rows in blocks(base_OI):
        sum_OI = base_OI[rows].to(wide).addmm_(B_OR[rows], A_RI, alpha=pair.scale)
        merged_OI[rows] = rounding(sum_OI, base_OI.dtype, rows.start)
    return merged_OI


def _merge(base: torch.Tensor, merge: Merge, rounding: StochasticRounding | None) -> torch.Tensor:
    """A tensor's update that is no pair, rounded as in `merge_lora`."""
    trained = merge(base)
    if rounding is None:
        return trained.to(base.dtype)
    merged = torch.empty_like(base)
    trained_OI, merged_OI = trained.reshape(len(base), -1), merged.view(len(base), -1)
    for rows in blocks(trained_OI):
        merged_OI[rows] = rounding(trained_OI[rows].to(torch.float32, copy=True), base.dtype, rows.start)
    return merged


def updated(name: str, parameter: torch.Tensor, snapshot: AdapterSnapshot, *, for_engine: bool = False) -> torch.Tensor:
    """The parameter of this name with its update, if it has one, in the base's own type.

    Rounding is to nearest, and `for_engine` as the snapshot's `seed` says.
    """
    base = dequantize(parameter)
    rounding = None
    if for_engine and snapshot.seed is not None and base.dtype.itemsize < 4:
        rounding = StochasticRounding(snapshot.seed, snapshot.version, name)
    if merge := snapshot.merged.get(name):
        return _merge(base, merge, rounding)
    pair = snapshot.pairs.get(name.removesuffix(".weight"))
    return base if pair is None else merge_lora(base, pair, rounding)


def merged(model: PreTrainedModel, snapshot: AdapterSnapshot) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The snapshot's merged tensors, as an engine gets them, frozen, by name."""
    for name in snapshot.merged:
        tensor = updated(name, model.get_parameter(name), snapshot, for_engine=True)
        yield name, torch.nn.Parameter(tensor, requires_grad=False)


def stored_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """What a checkpoint holds of a model, each tensor once: parameters, and buffers such as the scalars of Gemma 4's layers."""
    stored = model.state_dict().keys()
    return dict(model.named_parameters()) | {name: buffer for name, buffer in model.named_buffers() if name in stored}


def weights(model: PreTrainedModel, snapshot: AdapterSnapshot, *, for_engine: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
    """Every stored tensor by its name, as in `updated`: one after the other, so that no second model is ever held."""
    for name, tensor in stored_tensors(model).items():
        yield name, updated(name, tensor, snapshot, for_engine=for_engine)
