"""Full fine-tuning: every parameter is trained, as a float32 copy in place of the base's. PEFT has no part in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from microrl.adapters.adapter import Adapter, narrow_products, replace_base
from microrl.models.load import Progress
from microrl.models.tensors import linears, replaced, swap_parameters
from microrl.types import AdapterSnapshot


class Full(Adapter):
    rounds = True

    @staticmethod
    def layers(model: PreTrainedModel, config: Any) -> dict[str, torch.nn.Linear]:
        return linears(model)

    def put_on(self, layers: Mapping[str, torch.nn.Linear], fresh: bool, progress: Progress) -> None:
        copies = {
            name: torch.nn.Parameter(parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32), copy=True))
            for name, parameter in self.model.named_parameters()
        }
        self._base = swap_parameters(self.model, copies)  # tied parameters by one copy

    def snapshot(self, version: int) -> AdapterSnapshot:
        merged = {name: partial(replace_base, self.parameters[name].detach()) for name in self._base}
        return AdapterSnapshot(version, merged=merged, seed=None)

    @contextmanager
    def off(self) -> Iterator[None]:
        with replaced(self.model, self._base):
            yield

    def state(self) -> dict[str, torch.Tensor]:
        return {name: parameter.detach() for name, parameter in self.parameters.items()}

    def precision(self) -> AbstractContextManager[Any]:
        return narrow_products(self.model, self.dtype)

    def tensor_kind(self, name: str) -> str:
        return name.rpartition(".")[2]

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self._base.values())).dtype
