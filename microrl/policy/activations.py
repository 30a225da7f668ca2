"""What a micro-batch's activations may take of the memory, and doing without most of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from microrl.config import RunConfig
from microrl.errors import UserError
from microrl.plan import Shape, memory


class ActivationBudget(NamedTuple):
    """What there is for a micro-batch's activations. Ask while the engine sleeps and the optimizer's moments are there."""

    shape: Shape
    config: RunConfig
    dtype_bytes: int
    bytes: float | None
    """None on a CPU, where a fixed rule keeps the bits the same."""

    @classmethod
    def of(cls, model: PreTrainedModel, config: RunConfig, trained: int, dtype: torch.dtype) -> ActivationBudget:
        """`dtype` is what the base computes in: trained base weights are wider."""
        room, shape = None, Shape.from_config(model.config.to_dict())
        if model.device.type == "cuda":
            room = memory.activation_room(*torch.cuda.mem_get_info(model.device), trained, shape.vocab)
            room = max(room - memory.narrow_copy(config.adapter, trained, dtype.itemsize), 0.0)
        return cls(shape, config, dtype.itemsize, room)

    @property
    def _row(self) -> dict[str, Any]:
        length = self.config.data.max_prompt_tokens + self.config.sampling.max_completion_tokens
        return {"adapter": self.config.adapter, "length": length}

    def fits_a_row(self) -> bool:
        """Whether the longest row fits with all its activations kept."""
        return self.bytes is None or memory.fits_a_row(
            self.shape, dtype_bytes=self.dtype_bytes, room_bytes=self.bytes, **self._row
        )

    def tokens(self, *, checkpointing: bool) -> int:
        """Tokens of a micro-batch, as the plan counts them."""
        return memory.micro_batch_tokens(
            self.shape, dtype_bytes=self.dtype_bytes, room_bytes=self.bytes, checkpointing=checkpointing, **self._row
        )


def can_recompute(model: PreTrainedModel) -> bool:
    """Whether the model's layers are marked as ones whose activations can be computed again."""
    return bool(layers(model))


def layers(model: PreTrainedModel) -> list[torch.nn.Module]:
    """The model's layers, as far as they are marked so."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def recompute(model: PreTrainedModel) -> None:
    """Keep no activations but each layer's input: the rest is computed again in the backward pass.

    transformers' own switch works in training mode only, which turns dropout on; here the model stays in eval mode.
    Raises UserError where no layer is marked as one that can be checkpointed.
    """
    if not can_recompute(model):
        raise UserError(
            f"{model.config.model_type} models do not support model.gradient_checkpointing",
            "--set model.gradient_checkpointing=false",
        )
    for layer in layers(model):
        # Nothing is random without dropout, so that there is no generator's state to keep.
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)


@contextmanager
def recomputed(model: PreTrainedModel) -> Iterator[None]:
    """`recompute`, for the time of a `with` statement."""
    recompute(model)
    try:
        yield
    finally:
        for layer in layers(model):
            del layer.forward  # the class's own is behind it
