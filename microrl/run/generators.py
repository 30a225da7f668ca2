"""Save and restore the global random generators of Python, numpy, torch and each GPU as tensors, without pickle."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from microrl.files import BadFile

REMOVE = "remove this checkpoint to resume from the one before it, or start a new run"
"""The hint of damage in one checkpoint alone."""


def states() -> dict[str, torch.Tensor]:
    """The states of all generators."""
    _, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": torch.tensor(words),
        "python_gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy": torch.tensor([*map(int, keys), position, has_gauss]),
        "numpy_gauss": torch.tensor([cached], dtype=torch.float64),
        "torch": torch.get_rng_state(),
        **{f"cuda{number}": state for number, state in enumerate(torch.cuda.get_rng_state_all())},
    }


def restore(saved: Mapping[str, torch.Tensor], path: Path) -> None:
    """Set the generators to saved `states`. Raises BadFile naming `path` for what is none; some may have been set then."""
    try:
        for name, kind in (("python", torch.int64), ("numpy", torch.int64), ("python_gauss", torch.float64)):
            if saved[name].dtype != kind or not bool(saved[name].isfinite().all()):
                raise ValueError(f"`{name}` is {saved[name].dtype}")
        gauss, (*keys, position, has_gauss) = saved["python_gauss"].tolist(), saved["numpy"].tolist()
        cached = float(saved["numpy_gauss"])
        if len(gauss) > 1 or not 0 <= position <= len(keys) or has_gauss not in (0, 1) or not math.isfinite(cached):
            raise ValueError("a generator's position is out of range")
        random.setstate((3, tuple(saved["python"].tolist()), gauss[0] if gauss else None))
        np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, cached))
        torch.set_rng_state(saved["torch"])
        for number in range(torch.cuda.device_count()):
            if (state := saved.get(f"cuda{number}")) is not None:
                torch.cuda.set_rng_state(state, number)
    except (KeyError, ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise BadFile(f"{path} is damaged: {type(error).__name__}: {error}", REMOVE) from None
