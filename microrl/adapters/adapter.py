"""What an adapter is: PEFT's layers on a model, their state, and the update they stand for. Every family is a subclass."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import peft
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import PreTrainedModel

from microrl.adapters import starts
from microrl.adapters.starts import Pair, Start
from microrl.config.adapter import BaseAdapterConfig, RankedConfig, chosen, kind_of
from microrl.errors import UserError, first_line
from microrl.models.load import Progress
from microrl.models.tensors import linears, parameter_count
from microrl.types import AdapterSnapshot, LowRank, Merge

ADAPTER = "default"
"""PEFT's name for what is trained."""
TASK = "CAUSAL_LM"
Update = LowRank | dict[str, Merge]
"""The update of one module: a LoRA pair, or merges by the name of the tensor in the module."""


class Adapter:
    """An adapter on a model. Until the first update the model computes what its base does.

    `parameters` are what is trained, by name, in float32 or the base's own type where that is wider. The base's tensors are
    never written. `start` says what computing the start took, if there is one; `notes` are for the user.

    A family defines `peft_config` and `update`, and overrides what it changes of the methods down to `notes_for`.
    """

    config: BaseAdapterConfig
    peft_layer: ClassVar[type[BaseTunerLayer] | tuple[()]] = ()
    """PEFT's class of the modules that `update` reads; (): none."""
    prefix: ClassVar[str]
    """Of the names of its tensors."""
    rounds: ClassVar[bool] = False
    """Whether its own forward pass rounds to nearest, in a base of 16 bits, what it changes of the weights."""

    def __init__(self, model: PreTrainedModel, config: BaseAdapterConfig, *, seed: int, fresh: bool, progress: Progress) -> None:
        self.model, self.config, self.seed = model, config, seed
        self.peft_model: peft.PeftModel | None = None
        self.start: Start | None = None
        layers, self._base_parameters = self.layers(model, config), parameter_count(model)
        self.put_on(layers, fresh, progress)
        for parameter in model.parameters():
            if parameter.requires_grad:  # in float32: a step of 1e-5 is nothing to a bfloat16 number near 1
                parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))
        self.parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.notes = self.notes_for(layers)

    @staticmethod
    def layers(model: PreTrainedModel, config: Any) -> dict[str, torch.nn.Linear]:
        """The linear layers that it changes, by name. Raises UserError for targets and ranks that cannot be."""
        spared = _expert_names(model.config.model_type) if isinstance(config, RankedConfig) else set()
        if config.targets != "all-linear" and (named := sorted(spared & set(config.targets))):
            raise UserError(
                f"`{named[0]}` cannot be a target in a {model.config.model_type} model: PEFT would take it for an expert",
                'leave it out: --set \'adapter.targets=["q_proj","k_proj","v_proj","o_proj"]\'',
            )
        linear_layers = {name: layer for name, layer in linears(model).items() if kind_of(name) not in spared}
        names = chosen(config, {name: min(layer.in_features, layer.out_features) for name, layer in linear_layers.items()})
        return {name: layer for name, layer in linear_layers.items() if name in names}

    def peft_config(self, kinds: list[str]) -> peft.PeftConfig:
        """PEFT's configuration for these kinds of layers, with every default set that is not the paper's definition."""
        raise NotImplementedError

    @staticmethod
    def update(layer: Any) -> Update:
        """The update of one of PEFT's layers, relative to the untouched base, and exact.

        Merges are of tensors that the base has, since engines and exported models hold no others: no bias where it has none.
        """
        raise NotImplementedError

    def wrap(self, settings: peft.PeftConfig, layers: Mapping[str, torch.nn.Linear]) -> peft.PeftModel:
        """PEFT on these layers (norms, where there are none). Raises UserError where it takes others, as in some mixtures of
        experts: it goes by the last part of a layer's name, and translates the names of some architectures.
        """
        hint = 'name other layers, such as --set \'adapter.targets=["q_proj","k_proj","v_proj","o_proj"]\''
        architecture = self.model.config.model_type
        try:
            wrapped = peft.get_peft_model(self.model, settings, adapter_name=ADAPTER)
        except ValueError as error:
            raise UserError(f"PEFT cannot adapt this {architecture} model: {first_line(error)}", hint) from error
        wrong = sorted(set(tuned(self.model)) ^ set(layers)) if layers else []
        if wrong:
            why = f"PEFT would adapt other layers of this {architecture} model than intended; the first difference: {wrong[0]}"
            raise UserError(why, hint)
        return wrapped

    def set_start(self, layer: Any, pair: Pair) -> None:
        """Write a computed start into a layer: for the kinds in `starts`."""
        raise NotImplementedError

    def finish_layer(self, layer: Any) -> None:
        """Freeze what PEFT leaves trainable and the definition does not; set exactly what PEFT rounds to the base's type."""

    def precision(self) -> AbstractContextManager[Any]:
        """The context for forward passes."""
        return nullcontext()

    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer; `factor` multiplies the learning rate."""
        return [{"params": list(self.parameters.values()), "factor": 1.0}]

    def regulariser(self) -> torch.Tensor | None:
        """What this adapter adds to the loss; None: nothing."""
        return None

    def allocate(self, progress: float) -> None:
        """Move ranks between layers: after an optimizer's step, with its gradients. `progress` of the budget is spent."""

    def moving(self) -> dict[str, torch.Tensor]:
        """The live tensors that an update changes, by name."""
        return dict(self.parameters)

    def start_norm(self) -> float:
        """||B0 A0||_F, averaged over the targets (ortho, table 4); 0 where B starts at 0."""
        return 0.0

    def tensor_kind(self, name: str) -> str:
        """`lora_A` of `...q_proj.lora_A.default.weight`."""
        return next(part for part in name.split(".") if part.startswith(self.prefix))

    def notes_for(self, layers: Mapping[str, torch.nn.Linear]) -> list[str]:
        """What the user should know of it on these layers."""
        return []

    def put_on(self, layers: Mapping[str, torch.nn.Linear], fresh: bool, progress: Progress) -> None:
        """Wrap the layers, then write the start."""
        settings = self.peft_config(sorted({kind_of(name) for name in layers}))
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PEFT asks transformers under a name that is being retired
            warnings.simplefilter("ignore", UserWarning)  # and is not sure of norms and of schedules that are not used
            torch.manual_seed(self.seed)
            self.peft_model = self.wrap(settings, layers)
        with torch.no_grad():
            if fresh and starts.has_start(self.config) and not next(iter(layers.values())).weight.is_meta:
                start = starts.compute(layers, self.config, seed=self.seed, progress=progress)
                for name, layer in tuned(self.model).items():
                    self.set_start(layer, start.pairs[name])
                self.start = start._replace(pairs={})  # which are in the layers now
            for layer in tuned(self.model).values():
                self.finish_layer(layer)

    def snapshot(self, version: int) -> AdapterSnapshot:
        """What an engine needs. The tensors are the live ones: an engine that keeps them past `awake` clones them."""
        return snapshot_of(tuned(self.model), type(self).update, version, None if self.rounds else self.seed)

    @contextmanager
    def off(self) -> Iterator[None]:
        """The untouched base: for residual forms too, whose frozen start goes with the rest."""
        assert self.peft_model is not None
        trained = [parameter.requires_grad for parameter in self.model.parameters()]
        try:
            with self.peft_model.disable_adapter():
                yield
        finally:  # PEFT makes trainable again whatever is active, frozen or not
            for parameter, was in zip(self.model.parameters(), trained, strict=True):
                parameter.requires_grad_(was)

    def state(self) -> dict[str, torch.Tensor]:
        """The live tensors of the adapter, trained and frozen, each once: with them it goes on as it was."""
        tensors_by_id: dict[int, tuple[str, torch.Tensor]] = {}
        for name, layer in tuned(self.model).items():
            for leaf, tensor in layer.state_dict(keep_vars=True).items():
                if not leaf.startswith("base_layer."):
                    tensors_by_id.setdefault(id(tensor), (f"{name}.{leaf}", tensor.detach()))
        return dict(tensors_by_id.values())

    def load(self, state: dict[str, torch.Tensor], where: object) -> None:
        """Put a state back, bit by bit. Raises UserError for another variant's, and leaves everything as it was."""
        own = self.state()
        same = {name for name in own.keys() & state.keys() if own[name].shape == state[name].shape}
        wrong = next((name for name in [*own, *state] if name not in same), None)
        if wrong is not None:
            raise UserError(
                f"{where} does not hold an adapter of this kind ({self.config.name}): `{wrong}` is missing, unexpected, or of "
                "another shape",
                "restore the run's config.json and model as they were, or start a new run: --out DIR",
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])

    def counts(self) -> dict[str, dict[str, int]]:
        """Trained tensors and parameters by kind of tensor (`lora_A`, `ia3_l`, ...)."""
        by_kind: dict[str, dict[str, int]] = {}
        for name, parameter in self.parameters.items():
            entry = by_kind.setdefault(self.tensor_kind(name), {"tensors": 0, "parameters": 0})
            entry["tensors"] += 1
            entry["parameters"] += parameter.numel()
        return by_kind

    def summary(self) -> dict[str, Any]:
        """What is trained and how it is served, in numbers and in a line: what a run writes down at its start."""
        counts, total = self.counts(), self._base_parameters
        trained = sum(entry["parameters"] for entry in counts.values())
        kinds = " and ".join(f"{entry['tensors']} {kind}" for kind, entry in counts.items())
        return {
            "name": self.config.name,
            "trained": counts,
            "trained_params": trained,
            "total_params": total,
            "trained_share": trained / total,
            "start_norm": self.start_norm(),
            "served": self.config.served,
            "line": f"{trained:,} trainable parameters ({trained / total:.3%}) in {kinds} tensors; served {self.config.served}",
        }

    @property
    def dtype(self) -> torch.dtype:
        """Of the base."""
        return self.model.get_input_embeddings().weight.dtype


def _expert_names(model_type: str) -> set[str]:
    """Names of linear layers that PEFT, for a LoRA, takes for experts wherever they are, a shared expert's among them:
    transformers 5 keeps all experts of a layer in one tensor, and PEFT would adapt that instead."""
    from peft.utils import transformers_weight_conversion as conversion

    return {*conversion._MOE_TARGET_MODULE_MAPPING.get(conversion._MODEL_TO_CONVERSION_PATTERN.get(model_type), {})}


def tuned(model: torch.nn.Module) -> dict[str, Any]:
    """PEFT's wrappers by the names that the wrapped modules have in the base model."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, BaseTunerLayer)}


@torch.no_grad()
def snapshot_of(layers: Mapping[str, Any], read: Callable[[Any], Update], version: int, seed: int | None = 0) -> AdapterSnapshot:
    """The updates of PEFT's layers, read one by one. For `seed` see `AdapterSnapshot`."""
    pairs: dict[str, LowRank] = {}
    merged: dict[str, Merge] = {}
    for name, layer in layers.items():
        update = read(layer)
        if isinstance(update, LowRank):
            pairs[name] = update
        else:
            merged |= {f"{name}.{leaf}": merge for leaf, merge in update.items()}
    return AdapterSnapshot(version, pairs, merged, seed)


def replace_base(tensor: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """A merge whose result is known already: it does not depend on the base's tensor."""
    return tensor


def narrow_products(model: PreTrainedModel, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """For base weights that are trained in float32: the products stay as narrow as the base."""
    return nullcontext() if dtype.itemsize >= 4 else torch.autocast(model.device.type, dtype=dtype)


def rounding_notes(kind: str, dtype: torch.dtype) -> list[str]:
    """For gains that are trained in float32, and applied in the base's type."""
    if dtype.itemsize >= 4:
        return []
    step = torch.finfo(dtype).eps
    return [
        f"in {str(dtype).removeprefix('torch.')}, relative changes of a gain below about {step / 2:.1g} are rounded away, "
        f"so {kind} needs a high learning rate, such as --set optim.lr=3e-3"
    ]
