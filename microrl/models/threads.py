"""How many of a CPU's cores torch uses.

A rule and not a measurement: on a CPU the number of threads can change the last bit, and a run must repeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from microrl.limits import available_cores
from microrl.models.tensors import parameter_count

SMALL_PARAMETERS = 20_000_000
SMALL_UPDATE_THREADS = 2
"""Of an update of a small model, on two cores or more. All of the cores would make the last bit differ between more machines."""


def use_sensible_threads(model: PreTrainedModel) -> None:
    """One thread for a small model, whose operations in sampling are too small to share out; otherwise one per core."""
    torch.set_num_threads(1 if _is_small(model) else available_cores())


@contextmanager
def more_for_update(model: PreTrainedModel) -> Iterator[None]:
    """Meanwhile a small model has two threads, if there are two cores: an update has thousands of tokens in an operation."""
    before = torch.get_num_threads()
    if _is_small(model):
        torch.set_num_threads(update_threads(model))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def update_threads(model: PreTrainedModel) -> int:
    """How many threads an update of this model has, and no other part of a step has more."""
    return min(SMALL_UPDATE_THREADS, available_cores()) if _is_small(model) else torch.get_num_threads()


def _is_small(model: PreTrainedModel) -> bool:
    return parameter_count(model) < SMALL_PARAMETERS
