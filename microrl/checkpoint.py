"""Save and resume a run: adapter, optimiser, sampler position, clock, place in the metrics. Whole or not at all.

Nothing else is needed: a completion's randomness follows from (seed, step, prompt, sample), not from a generator's state.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from peft import set_peft_model_state_dict
from safetensors.torch import load_file, save_file

from microrl.policy.policy import Policy

KEPT = 2
_ADAPTER, _OPTIMIZER, _STATE = "adapter_model.safetensors", "optimizer.safetensors", "state.json"


@dataclass(slots=True)
class State:
    """Where a run stands between two steps. `step` is the next one; the offset is in bytes of metrics.jsonl."""

    step: int = 0
    sampler_position: int = 0
    entropy_start: float | None = None
    elapsed_s: float = 0.0
    metrics_offset: int = 0


def save(root: Path, policy: Policy, state: State) -> Path:
    """Write `root/step-NNNNNN` under another name, flush it to disk, rename it; then drop all but the last two."""
    target = root / f"step-{state.step:06d}"
    temporary = root / f".{target.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save_adapter(temporary, policy)
    save_file(_optimizer_tensors(policy), temporary / _OPTIMIZER)
    (temporary / _STATE).write_text(json.dumps({**asdict(state), "version": policy.version}, indent=2))
    for path in (*temporary.iterdir(), temporary):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    shutil.rmtree(target, ignore_errors=True)
    temporary.replace(target)
    for old in all_in(root)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def save_adapter(folder: Path, policy: Policy) -> None:
    """The adapter as PEFT writes it, so that PEFT and vLLM load the folder as it is."""
    policy.peft_model.save_pretrained(str(folder), save_embedding_layers=False)


def all_in(root: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    return sorted(path for path in root.glob("step-*") if (path / _STATE).is_file())


def restore(folder: Path, policy: Policy) -> State:
    """Load a checkpoint into the policy and say where the run stood."""
    values: dict[str, Any] = json.loads((folder / _STATE).read_text())
    set_peft_model_state_dict(policy.peft_model, load_file(folder / _ADAPTER))
    tensors = load_file(folder / _OPTIMIZER)
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = tensor
    policy.optimizer.load_state_dict({"state": state, "param_groups": policy.optimizer.state_dict()["param_groups"]})
    policy.version = values.pop("version")
    return State(**values)


def _optimizer_tensors(policy: Policy) -> dict[str, torch.Tensor]:
    state: dict[int, dict[str, torch.Tensor]] = policy.optimizer.state_dict()["state"]
    return {f"{number}.{name}": tensor.contiguous() for number, values in state.items() for name, tensor in values.items()}
