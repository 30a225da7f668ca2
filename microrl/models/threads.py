"""How many CPU threads torch uses: the rule is `microrl.limits.cpu_threads`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from microrl.limits import available_cores, cpu_threads
from microrl.models.tensors import parameter_count


def use_sensible_threads(model: PreTrainedModel) -> None:
    """The threads of everything but an update."""
    torch.set_num_threads(cpu_threads(parameter_count(model), available_cores(), updating=False))


def update_threads(model: PreTrainedModel) -> int:
    """How many threads an update of this base model has; no other part of a step has more. Ask before an adapter is attached,
    whose parameters do not count."""
    return cpu_threads(parameter_count(model), available_cores(), updating=True)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Meanwhile torch uses this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
