"""From a configuration to an adapter on a model: by PEFT, with the starts that PEFT does not have, or has by writing the base."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import peft
import torch
from peft.tuners.tinylora import TinyLoraLayer
from transformers import PreTrainedModel

from microrl.adapters import starts
from microrl.adapters.export import constant_merge, export, tuned
from microrl.adapters.ranks import RankAllocator
from microrl.adapters.starts import Start
from microrl.adapters.targets import kind_of, targets
from microrl.config.adapters import (
    AdaLoraConfig,
    Adapter,
    DoraConfig,
    FullConfig,
    Ia3Config,
    LnConfig,
    LoraFaConfig,
    LoraPlusConfig,
    LowRankAdapter,
    MissConfig,
    RankedAdapter,
    ResidualAdapter,
    RlmoConfig,
    RlpoConfig,
    RsLoraConfig,
    TinyLoraConfig,
    VeraConfig,
)  # fmt: skip
from microrl.errors import UserError
from microrl.models.tensors import dequantize, norms, parameter_count, replaced, swap_parameters
from microrl.types import AdapterSnapshot

ADAPTER, START = "default", "start"
"""PEFT's names for what is trained, and for the frozen start that a residual form takes off again."""


class AttachedAdapter:
    """An adapter on a model's layers. Until the first update the model computes what its base does.

    `parameters` are what is trained, by name, in float32 or the base's own type where that is wider. The base's tensors are
    never written. `start` is what computing its start took, if it has one; `notes` are for the user.
    """

    def __init__(self, model: PreTrainedModel, config: Adapter, peft_model: peft.PeftModel | None, base_parameters: int) -> None:
        self.model, self.config, self.peft_model = model, config, peft_model
        self.start: Start | None = None
        self.notes: list[str] = []
        self._base: dict[str, torch.nn.Parameter] = {}
        self._base_parameters = base_parameters
        self._allocator: RankAllocator | None = None
        if peft_model is None:
            self._base = _master_copies(model)
        _widen(model)
        if isinstance(config, AdaLoraConfig):
            self._allocator = RankAllocator(tuned(model), config, ADAPTER)
        self.parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}

    def snapshot(self, version: int) -> AdapterSnapshot:
        """What an engine needs. The tensors are the live ones: an engine that keeps them past `awake` clones them."""
        merged = {name: partial(constant_merge, self.parameters[name].detach()) for name in self._base}
        return AdapterSnapshot(version, merged=merged) if self._base else export(self.model, version)

    @contextmanager
    def off(self) -> Iterator[None]:
        """The untouched base: for residual forms too, whose frozen start goes with the rest."""
        trained = [parameter.requires_grad for parameter in self.model.parameters()]
        if self.peft_model is None:
            with replaced(self.model, self._base):
                yield
            return
        try:
            with self.peft_model.disable_adapter():
                yield
        finally:  # PEFT thaws on the way back whatever is active, frozen or not
            for parameter, was in zip(self.model.parameters(), trained, strict=True):
                parameter.requires_grad_(was)

    def precision(self) -> Any:
        """The context for forward passes: where base weights are trained in float32, the products stay as narrow as the base."""
        dtype = self.dtype
        if dtype.itemsize >= 4 or not isinstance(self.config, FullConfig | LnConfig):
            return nullcontext()
        return torch.autocast(self.model.device.type, dtype=dtype)

    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups for an optimiser; `factor` multiplies the learning rate."""
        if not isinstance(self.config, LoraPlusConfig):
            return [{"params": list(self.parameters.values()), "factor": 1.0}]
        sides: dict[bool, list[torch.nn.Parameter]] = {False: [], True: []}
        for name, parameter in self.parameters.items():
            sides["lora_B" in name].append(parameter)
        return [{"params": sides[False], "factor": 1.0}, {"params": sides[True], "factor": self.config.ratio}]

    def regulariser(self) -> torch.Tensor | None:
        """What this adapter adds to the loss; None: nothing."""
        return self._allocator.regulariser() if self._allocator is not None else None

    def allocate(self, progress: float) -> None:
        """Behind an optimiser's step, with its gradients: move ranks between layers, where `share` of the budget is spent."""
        if self._allocator is not None:
            self._allocator.step(progress)

    def state(self) -> dict[str, torch.Tensor]:
        """The live tensors of the adapter, trained and frozen, each once: with them it goes on as it was."""
        if self._base:
            return {name: parameter.detach() for name, parameter in self.parameters.items()}
        found: dict[int, tuple[str, torch.Tensor]] = {}
        for name, layer in tuned(self.model).items():
            for leaf, tensor in layer.state_dict(keep_vars=True).items():
                if not leaf.startswith("base_layer."):
                    found.setdefault(id(tensor), (f"{name}.{leaf}", tensor.detach()))
        return dict(found.values()) | (self._allocator.state() if self._allocator is not None else {})

    def load(self, state: dict[str, torch.Tensor], where: object) -> None:
        """Put a state back, bit by bit. Raises UserError for another variant's, and leaves everything as it was."""
        own = self.state()
        same = {name for name in own.keys() & state.keys() if own[name].shape == state[name].shape}
        wrong = next((name for name in [*own, *state] if name not in same), None)
        if wrong is not None:
            raise UserError(
                f"{where} does not hold an adapter of this kind ({self.config.name}): `{wrong}` is missing on one side, or of "
                "another shape", "was the run's config.json changed, or the model behind it?",
            )  # fmt: skip
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])

    def moving(self) -> dict[str, torch.Tensor]:
        """The live tensors that an update changes, by name."""
        return {**self.parameters, **(self._allocator.state() if self._allocator is not None else {})}

    def counts(self) -> dict[str, dict[str, int]]:
        """Trained tensors and parameters by kind of tensor (`lora_A`, `ia3_l`, ...)."""
        found: dict[str, dict[str, int]] = {}
        for name, parameter in self.parameters.items():
            kind = _tensor_kind(name)
            entry = found.setdefault(kind, {"tensors": 0, "parameters": 0})
            entry["tensors"] += 1
            entry["parameters"] += parameter.numel()
        return found

    def start_norm(self) -> float:
        """||B0 A0||_F, averaged over the targets (ortho, table 4); 0 where B starts at 0."""
        if not isinstance(self.config, ResidualAdapter):
            return 0.0
        sizes = [starts.norm(layer.lora_A[START].weight, layer.lora_B[START].weight) for layer in tuned(self.model).values()]
        return sum(sizes) / len(sizes)

    def summary(self) -> dict[str, Any]:
        """What is trained and how it is served, in numbers and in a line: what a run writes down at its start."""
        counts, total = self.counts(), self._base_parameters
        trained = sum(entry["parameters"] for entry in counts.values())
        kinds = ", ".join(f"{entry['tensors']} {kind}" for kind, entry in counts.items())
        return {
            "name": self.config.name,
            "trained": counts,
            "trained_params": trained,
            "total_params": total,
            "trained_share": trained / total,
            "start_norm": self.start_norm(),
            "served": self.config.served,
            "line": f"{trained:,} trainable parameters ({trained / total:.3%}) in {kinds}; served {self.config.served}",
        }

    @property
    def dtype(self) -> torch.dtype:
        """Of the base."""
        return next(iter(self._base.values())).dtype if self._base else self.model.get_input_embeddings().weight.dtype


def attach(
    model: PreTrainedModel,
    config: Adapter,
    *,
    seed: int,
    fresh: bool = True,
    progress: starts.Progress = lambda items, *_: items,
) -> AttachedAdapter:
    """Put the adapter on the model. Everything random follows from `seed`.

    Not `fresh`: a state will be loaded, and what takes long to compute is left out. Raises UserError for targets that match
    nothing and for ranks that cannot be.
    """
    layers, total = targets(model, config), parameter_count(model)
    if isinstance(config, FullConfig):
        return AttachedAdapter(model, config, None, total)
    settings = _settings(model, config, sorted({kind_of(name) for name in layers}), seed)
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT asks transformers under a name that is being retired
        warnings.simplefilter("ignore", UserWarning)  # and is not sure of norms and of schedules that are not used
        torch.manual_seed(seed)
        with no_decomposition():
            wrapped = _wrap(model, settings, layers)
        if isinstance(config, ResidualAdapter):
            wrapped.add_adapter(START, _settings(model, config, settings.target_modules, seed))
            wrapped.base_model.set_adapter([ADAPTER, START])
    start = None
    if isinstance(config, RankedAdapter) and starts.has_start(config) and not next(iter(layers.values())).weight.is_meta:
        if fresh:
            start = starts.compute(layers, config, seed=seed, progress=progress)
        _begin_at(model, config, start)
    _freeze(model, config)
    _begin_exactly(model, config)
    attached = AttachedAdapter(model, config, wrapped, total)
    attached.start = start and start._replace(pairs={})  # which are in the layers now
    if isinstance(config, Ia3Config | LnConfig) and attached.dtype.itemsize < 4:
        step = torch.finfo(attached.dtype).eps
        attached.notes.append(
            f"{config.kind} multiplies what is rounded to {str(attached.dtype).removeprefix('torch.')} at once: a change of less "
            f"than about {step / 2:.1g} of a gain is no change. It wants a rate that gets there, such as --set optim.lr=3e-3"
        )
    if isinstance(config, TinyLoraConfig):
        narrow = [name for name, layer in layers.items() if config.rank > min(layer.in_features, layer.out_features)]
        if narrow:
            attached.notes.append(
                f"rank {config.rank} is more than {len(narrow)} layers have, such as {narrow[0]}: they take all they have"
            )
    if isinstance(config, RlpoConfig | RlmoConfig):
        whole = [name for name, layer in layers.items() if config.rank == min(layer.in_features, layer.out_features)]
        if whole:
            attached.notes.append(
                f"rank {config.rank} is all there is in {len(whole)} layers, such as {whole[0]}: there lora-rlpo and lora-rlmo "
                "span the same space"
            )
    return attached


def _wrap(model: PreTrainedModel, settings: peft.PeftConfig, layers: Mapping[str, torch.nn.Linear]) -> peft.PeftModel:
    """PEFT on these layers (norms, where there are none). Raises UserError where it takes others, as in some mixtures of experts.

    It goes by the last part of a layer's name, and translates the names of some architectures.
    """
    hint = 'name other layers, such as --set \'adapter.targets=["q_proj","k_proj","v_proj","o_proj"]\''
    try:
        wrapped = peft.get_peft_model(model, settings, adapter_name=ADAPTER)
    except ValueError as error:
        raise UserError(f"PEFT cannot adapt this {model.config.model_type} model: {str(error).splitlines()[0]}", hint) from error
    wrong = sorted(set(tuned(model)) ^ set(layers)) if layers else []
    if wrong:
        raise UserError(f"PEFT does not adapt what it should of this {model.config.model_type} model, such as {wrong[0]}", hint)
    return wrapped


def _settings(model: PreTrainedModel, config: Adapter, kinds: Sequence[str], seed: int) -> peft.PeftConfig:
    """PEFT's configuration, with every default that is not the paper's definition set."""
    common: dict[str, Any] = {"task_type": "CAUSAL_LM", "target_modules": list(kinds)}
    if isinstance(config, AdaLoraConfig):
        # Its own schedule of ranks is not used, but has to be consistent.
        return peft.AdaLoraConfig(
            init_r=config.rank, target_r=config.final_rank, lora_alpha=config.alpha, total_step=3, tinit=0, tfinal=1, **common
        )
    if isinstance(config, LowRankAdapter):
        return peft.LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,  # PEFT says int, and takes any number
            use_rslora=isinstance(config, RsLoraConfig),
            use_dora=isinstance(config, DoraConfig),
            lora_dropout=0.0,
            bias="none",
            **common,
        )
    if isinstance(config, MissConfig):
        return peft.MissConfig(r=config.rank, init_weights=True, **common)
    if isinstance(config, VeraConfig):
        return peft.VeraConfig(r=config.rank, projection_prng_key=seed, d_initial=config.d_initial, **common)
    if isinstance(config, Ia3Config):
        return peft.IA3Config(feedforward_modules=[kind for kind in kinds if kind == "down_proj"], **common)
    if isinstance(config, TinyLoraConfig):
        return peft.TinyLoraConfig(
            r=config.rank, u=config.size, weight_tying=config.tying, projection_seed=seed, init_weights=True, **common
        )
    assert isinstance(config, LnConfig), config
    return peft.LNTuningConfig(task_type="CAUSAL_LM", target_modules=list(norms(model)))


@contextmanager
def no_decomposition() -> Iterator[None]:
    """PEFT's TinyLoRA decomposes every weight as it is wrapped: here it only makes room, and `starts` fills that."""

    def make_room(layer: Any, adapter: str, rank: int, fan_in_fan_out: bool) -> None:
        layer.r[adapter] = rank = min(rank, layer.in_features, layer.out_features)
        layer.tinylora_A[adapter] = torch.zeros(rank, layer.in_features)
        layer.tinylora_B[adapter] = torch.zeros(layer.out_features, rank)

    original = TinyLoraLayer._init_svd
    TinyLoraLayer._init_svd = make_room
    try:
        yield
    finally:
        TinyLoraLayer._init_svd = original


@torch.no_grad()
def _begin_at(model: PreTrainedModel, config: RankedAdapter, start: Start | None) -> None:
    """Give every layer its start, and residual forms the frozen copy that is taken off."""
    for name, layer in tuned(model).items():
        if isinstance(config, TinyLoraConfig):
            if start is not None:
                layer.tinylora_A[ADAPTER].copy_(start.pairs[name].A_RI)
                layer.tinylora_B[ADAPTER].copy_(start.pairs[name].B_OR)
            continue
        names = [ADAPTER, START] if isinstance(config, ResidualAdapter) else [ADAPTER]
        for adapter in names:
            if start is not None:
                A_RI, B_OR = start.pairs[name]
                layer.lora_A[adapter].weight.copy_(A_RI)
                if B_OR is not None:
                    layer.lora_B[adapter].weight.copy_(B_OR)
        if isinstance(config, ResidualAdapter):
            layer.scaling[START] = -config.scale


@torch.no_grad()
def _begin_exactly(model: PreTrainedModel, config: Adapter) -> None:
    """What PEFT begins with in the base's own type, where it is rounded: the first forward would not be the base's."""
    for layer in tuned(model).values():
        if isinstance(config, DoraConfig):
            base_OI = dequantize(layer.get_base_layer().weight)
            wide = torch.promote_types(base_OI.dtype, torch.float32)
            layer.lora_magnitude_vector[ADAPTER].weight.data = torch.linalg.vector_norm(base_OI.to(wide), dim=1)
        if isinstance(config, VeraConfig):
            d_R = layer.vera_lambda_d[ADAPTER]
            d_R.data = torch.full_like(d_R, config.d_initial, dtype=torch.promote_types(d_R.dtype, torch.float32))
        if isinstance(config, AdaLoraConfig):
            ranks = layer.ranknum[ADAPTER]
            ranks.data = torch.full_like(ranks, config.rank, dtype=torch.promote_types(ranks.dtype, torch.float32))


def _freeze(model: PreTrainedModel, config: Adapter) -> None:
    """What PEFT leaves trainable and the definition does not."""
    for layer in tuned(model).values():
        if isinstance(config, LoraFaConfig):
            layer.lora_A[ADAPTER].weight.requires_grad_(False)
        if isinstance(config, ResidualAdapter):
            layer.lora_A[START].weight.requires_grad_(False)
            layer.lora_B[START].weight.requires_grad_(False)
        if isinstance(config, AdaLoraConfig):  # PEFT thaws its rank counter where it makes 16 bits of it
            layer.ranknum[ADAPTER].requires_grad_(False)


def _widen(model: PreTrainedModel) -> None:
    """Trained tensors in float32, whatever the base is in: a step of 1e-5 is nothing to a bfloat16 number near 1."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))


def _master_copies(model: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    """Every parameter replaced by a trained copy, tied ones by one; returns the base's own by name."""
    copies = {
        name: torch.nn.Parameter(parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32), copy=True))
        for name, parameter in model.named_parameters()
    }
    return swap_parameters(model, copies)


def _tensor_kind(name: str) -> str:
    """`lora_A` of `...q_proj.lora_A.default.weight`."""
    parts = name.split(".")
    found = next((part for part in parts if part.startswith(("lora_", "miss_", "vera_", "ia3_", "tinylora_"))), None)
    return found or ("norm" if "ln_tuning_layers" in parts else parts[-1])
