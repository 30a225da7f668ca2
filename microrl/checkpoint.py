"""Save and resume a run, so that a resumed one goes on as if it had never been stopped.

A checkpoint appears whole or not at all, and its checksums tell whether it still is. A completion's randomness follows from
(seed, step, prompt, sample); the generators are saved all the same, for whatever else draws from them.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from microrl.adapters.folder import write
from microrl.policy.policy import Policy

FOLDER = "checkpoints"
"""Of a run folder."""
KEPT = 2
SUMS = "SHA256SUMS"
_ADAPTER, _OPTIMIZER, _RNG, _STATE = "adapter.safetensors", "optimizer.safetensors", "rng.safetensors", "state.json"


@dataclass(slots=True)
class Validation:
    """Where validation stands: what was measured last, what was best, when the next one is due."""

    questions: int | None = None
    """How many are asked; None before the first."""
    step: int = -1
    accuracy: float | None = None
    best_step: int | None = None
    best_accuracy: float | None = None
    due_s: float = 0.0
    """Of the run's elapsed seconds."""


@dataclass(slots=True)
class Warmup:
    """Where the supervised phase before the first step stands."""

    steps: int = 0
    is_done: bool = False
    first_loss: float | None = None
    """Of the first step and of the last, nats a token."""
    last_loss: float | None = None
    offset: int = 0
    """Bytes of warmup.jsonl."""


@dataclass(slots=True)
class State:
    """Where a run stands between two steps. `step` is the next one; the offset is in bytes of metrics.jsonl."""

    step: int = 0
    sampler_position: int = 0
    entropy_start: float | None = None
    elapsed_s: float = 0.0
    metrics_offset: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds by phase so far."""
    durations: dict[str, list[float]] = field(default_factory=dict)
    """The last few of each, seconds: what the clock forecasts from."""
    is_by_steps: bool | None = None
    """See `Budget`; None before it was decided."""
    is_stopped: bool = False
    """Whether the guard has ended the run."""
    warmup: Warmup = field(default_factory=Warmup)
    validation: Validation = field(default_factory=Validation)
    guard: dict[str, Any] = field(default_factory=dict)
    max_kv_gb: float | None = None
    """GB of the engine's cache after it ran out of memory; None: as configured or derived."""
    tokens_per_microbatch: int | None = None
    """As the trainer has derived it and found it to fit; None before the first checkpoint."""
    checkpoints_activations: bool = False
    """Whether the trainer computes them again."""


def save(root: Path, policy: Policy, state: State) -> Path:
    """Write `root/step-NNNNNN` under another name, flush it to disk, rename it; then drop what is no longer needed.

    The last two stay, and the best of each. Raises OSError or SafetensorError where there is no room, and leaves the rest as
    it was.
    """
    target = _path(root, state.step)
    temporary = root / f".{target.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        save_file({name: tensor.contiguous() for name, tensor in policy.adapter.state().items()}, temporary / _ADAPTER)
        save_file(_optimizer_tensors(policy), temporary / _OPTIMIZER)
        if state.validation.best_step == state.step:  # `best/` will be a copy of it, and is to be loaded by others
            write(temporary, policy.adapter)
        save_file(_generators(), temporary / _RNG)
        (temporary / _STATE).write_text(json.dumps({**asdict(state), "version": policy.version}, indent=2))
        sums = "".join(f"{_sha256(path)}  {path.name}\n" for path in sorted(temporary.iterdir()))
        (temporary / SUMS).write_text(sums)
        flush(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    # From here on the temporary one is whole, and `newest` finds it under either name.
    shutil.rmtree(target, ignore_errors=True)
    temporary.replace(target)
    _flush_one(root)
    prune(root)
    return target


def prune(root: Path, kept: int = KEPT) -> None:
    """Drop all checkpoints but the last ones and what these call their best."""
    last = all_in(root)[-kept:]
    needed = {path.name for path in last} | {_path(root, step).name for path in last if (step := _best_step(path)) is not None}
    for old in all_in(root):
        if old.name not in needed:
            shutil.rmtree(old, ignore_errors=True)


def all_in(root: Path) -> list[Path]:
    """The checkpoints, oldest first, whole or not."""
    return sorted(root.glob("step-*"))


def fault(folder: Path) -> str | None:
    """What is wrong with a checkpoint, by its checksums; None: nothing."""
    try:
        lines = (folder / SUMS).read_text().splitlines()
        named = {name: sum for sum, name in (line.split("  ", 1) for line in lines)}
        if not {_ADAPTER, _OPTIMIZER, _RNG, _STATE} <= named.keys():
            return f"{SUMS} is torn"
        return next((f"{name} is not what was written" for name, sum in named.items() if _sha256(folder / name) != sum), None)
    except (OSError, ValueError) as error:
        return f"it cannot be read: {error}"


def newest(root: Path, metrics_bytes: int, on_bad: Callable[[Path, str], None]) -> tuple[Path, State] | None:
    """The newest checkpoint that is whole, and whose metrics are all still there.

    Newer ones that are not get another name, and `on_bad` hears of them.
    """
    for temporary in root.glob(".step-*.tmp"):  # killed while it was written, or just before it got its name
        target = root / temporary.name.removeprefix(".").removesuffix(".tmp")
        if fault(temporary) is None and (not target.exists() or fault(target) is not None):
            shutil.rmtree(target, ignore_errors=True)
            temporary.replace(target)
        shutil.rmtree(temporary, ignore_errors=True)
    for folder in reversed(all_in(root)):
        wrong = fault(folder)
        if wrong is None:
            state = read_state(folder)
            if state.metrics_offset <= metrics_bytes:
                return folder, state
            wrong = f"metrics.jsonl has {metrics_bytes} bytes, and {state.metrics_offset} were written before it"
        aside = root / f"bad-{folder.name}"
        shutil.rmtree(aside, ignore_errors=True)
        folder.replace(aside)
        on_bad(aside, wrong)
    return None


def read_state(folder: Path) -> State:
    """Where the run stood."""
    values: dict[str, Any] = json.loads((folder / _STATE).read_text())
    del values["version"]
    parts = {"validation": Validation(**values["validation"]), "warmup": Warmup(**values.get("warmup", {}))}
    return State(**values | parts)


def restore(folder: Path, policy: Policy) -> None:
    """Load a checkpoint into the policy and the generators."""
    load_weights(folder, policy)
    _restore_generators(load_file(folder / _RNG))
    policy.version = json.loads((folder / _STATE).read_text())["version"]


def load_weights(folder: Path, policy: Policy) -> None:
    """A checkpoint's adapter and optimiser alone. The policy's version goes on counting."""
    load_adapter(folder, policy)
    states = _optimizer_states(policy)
    for key, tensor in load_file(folder / _OPTIMIZER).items():
        number, name = key.split(".", 1)
        state = states[int(number)]
        if torch.is_tensor(state[name]):
            state[name].copy_(tensor)
        else:  # bitsandbytes counts its steps in plain numbers
            state[name] = int(tensor)


def load_adapter(folder: Path, policy: Policy) -> None:
    """A checkpoint's adapter without its optimiser. Raises UserError for another variant's."""
    policy.adapter.load(load_file(folder / _ADAPTER), folder)


def newest_whole(root: Path) -> Path | None:
    """The newest checkpoint that is whole. Nothing is renamed: it may be another run's."""
    return next((folder for folder in reversed(all_in(root)) if fault(folder) is None), None)


def best(root: Path, state: State) -> Path | None:
    """The checkpoint that scored best on the validation split, if there is a whole one."""
    step = state.validation.best_step
    if step is None:
        return None
    folder = _path(root, step)
    return folder if fault(folder) is None else None


def publish(folder: Path, target: Path) -> None:
    """Make `target` a copy of a checkpoint, by hard links where the file system has them."""
    temporary, old = target.with_name(f".{target.name}.tmp"), target.with_name(f".{target.name}.old")
    for leftover in (temporary, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        shutil.copytree(folder, temporary, copy_function=os.link)
    except (OSError, shutil.Error):
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(folder, temporary)
    if target.exists():
        target.replace(old)
    temporary.replace(target)
    shutil.rmtree(old, ignore_errors=True)


def flush(folder: Path) -> None:
    """Have the disk hold a folder's files."""
    for path in (*folder.iterdir(), folder):
        _flush_one(path)


def _flush_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _path(root: Path, step: int) -> Path:
    return root / f"step-{step:06d}"


def _best_step(folder: Path) -> int | None:
    try:
        return read_state(folder).validation.best_step
    except (OSError, ValueError, KeyError, TypeError):
        return None  # corrupted; it is found out when somebody wants it


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _optimizer_tensors(policy: Policy) -> dict[str, torch.Tensor]:
    """Every parameter's moments. safetensors wants tensors that share no memory."""
    tensors = {}
    for number, values in enumerate(_optimizer_states(policy)):
        for name, value in values.items():
            tensor = torch.as_tensor(value)
            tensors[f"{number}.{name}"] = tensor.clone() if name.startswith("qmap") else tensor.contiguous()  # one for all
    return tensors


def _optimizer_states(policy: Policy) -> list[dict[str, Any]]:
    """The live state of every parameter. Not by `state_dict`, in which bitsandbytes hides its tensors one level deeper."""
    return [policy.optimizer.state[parameter] for group in policy.optimizer.param_groups for parameter in group["params"]]


def _generators() -> dict[str, torch.Tensor]:
    """Python's, numpy's and torch's global generators, and each card's, as tensors: nothing is pickled."""
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


def _restore_generators(saved: dict[str, torch.Tensor]) -> None:
    gauss = saved["python_gauss"].tolist()
    random.setstate((3, tuple(saved["python"].tolist()), gauss[0] if gauss else None))
    *keys, position, has_gauss = saved["numpy"].tolist()
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, float(saved["numpy_gauss"])))
    torch.set_rng_state(saved["torch"])
    for number in range(torch.cuda.device_count()):
        if f"cuda{number}" in saved:
            torch.cuda.set_rng_state(saved[f"cuda{number}"], number)
