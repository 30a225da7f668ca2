"""Save and restore checkpoints, so that a resumed run continues as if it had never been stopped.

A checkpoint appears completely or not at all, and its checksums detect damage. The randomness of a completion depends only on
(seed, step, prompt, sample); the generators are saved as well, for anything else that draws from them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import ConfigDict, Field
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from microrl import files
from microrl.adapters.adapter import Adapter
from microrl.adapters.attach import attach
from microrl.adapters.folder import write
from microrl.config import RunConfig
from microrl.errors import UserError
from microrl.files import STRICT, BadFile, Count, Fraction, Seconds
from microrl.models.tensors import weight_sharing_copy
from microrl.policy.optimizer import Steering
from microrl.policy.policy import Policy
from microrl.run import generators, names
from microrl.types import AdapterSnapshot

KEPT = 2
Duration = Literal["step", "save", "validation", "sft_step"]
Weight = Annotated[float, Field(ge=0, le=1e9)]
SUMS = "SHA256SUMS"
_ADAPTER, _OPTIMIZER, _RNG, _STATE = "adapter.safetensors", "optimizer.safetensors", "rng.safetensors", "state.json"


@dataclass(slots=True)
class Validation:
    """State of validation: the last result, the best one, and when the next is due."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    questions: Count | None = None
    """Questions per validation; None before the first."""
    step: Annotated[int, Field(ge=-1)] = -1
    accuracy: Fraction | None = None
    best_step: Count | None = None
    best_accuracy: Fraction | None = None
    due_s: Annotated[float, Field(ge=0)] = 0.0
    """When the next validation is due, in elapsed seconds of the run."""


@dataclass(slots=True)
class SftState:
    """State of the supervised phase before the first step."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    steps: Count = 0
    is_done: bool = False
    first_loss: float | None = None
    """Loss of the first supervised step, nats per token."""
    last_loss: float | None = None
    offset: Count = 0
    """Bytes of sft.jsonl."""


@dataclass(slots=True)
class State:
    """State of a run between two steps. `step` is the next one; `metrics_offset` is in bytes of metrics.jsonl."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    step: Count = 0
    version: Count = 0
    """Version of the policy."""
    sampler_position: Count = 0
    question_history: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], tuple[Weight, Weight]] = field(default_factory=dict)
    """What `data.curriculum` knows of each question; see `microrl.data.sampler`."""
    entropy_start: Annotated[float, Field(allow_inf_nan=True)] | None = None
    elapsed_s: Seconds = 0.0
    metrics_offset: Count = 0
    metrics_sha256: str | None = None
    """Of these bytes; None before the first checkpoint."""
    phases: dict[str, Seconds] = field(default_factory=dict)
    """Seconds by phase so far."""
    durations: dict[Duration, list[Seconds]] = field(default_factory=dict)
    """The last few durations of each, in seconds, for the budget's forecasts."""
    is_by_steps: bool | None = None
    """See `Budget`; None before it is decided."""
    is_stopped: bool = False
    """Whether the guard has stopped the run."""
    sft: SftState = field(default_factory=SftState)
    validation: Validation = field(default_factory=Validation)
    guard: dict[str, Any] = field(default_factory=dict)
    steering: Steering = field(default_factory=Steering)
    max_kv_gb: Annotated[float, Field(gt=0)] | None = None
    """Size in GB of the KV cache after memory ran out; None: as configured or derived."""
    engine_failures: Count = 0
    """How often the engine had failed, after which it was given other settings, when `durations` were measured."""
    tokens_per_microbatch: Annotated[int, Field(ge=1)] | None = None
    """Micro-batch size that the trainer has derived and that fits; None before the first checkpoint."""
    checkpoints_activations: bool = False
    """Whether the trainer recomputes activations."""

    def extend(self, *, sft_only: bool) -> None:
        """Reopen a finished run that was given more hours or steps."""
        self.is_stopped, self.is_by_steps = False, None
        self.sft.is_done = self.sft.is_done and not sft_only


def save(root: Path, policy: Policy, state: State, *, keep_every: int | None = None) -> Path:
    """Write `root/step-NNNNNN` under a temporary name, flush it to disk and rename it; then delete old checkpoints.

    Kept are the last two, the best ones that they name, and those of every `keep_every` steps. Raises OSError or
    SafetensorError if it cannot be written, and then changes nothing.
    """
    state.version = policy.version
    target = _path(root, state.step)
    with files.whole_folder(target) as temporary:  # after a kill, `adopt` finds a complete one
        save_file({name: tensor.contiguous() for name, tensor in policy.adapter.state().items()}, temporary / _ADAPTER)
        save_file(_optimizer_tensors(policy), temporary / _OPTIMIZER)
        if state.validation.best_step == state.step:  # `best/` will be a copy of it, and is to be loaded by others
            write(temporary, policy.adapter)
        save_file(generators.states(), temporary / _RNG)
        (temporary / _STATE).write_text(json.dumps(asdict(state), indent=2))
        sums = "".join(f"{files.sha256(path).hexdigest()}  {path.name}\n" for path in sorted(temporary.iterdir()))
        (temporary / SUMS).write_text(sums)
    prune(root, keep_every=keep_every)
    return target


def prune(root: Path, kept: int = KEPT, *, keep_every: int | None = None) -> None:
    """Delete all checkpoints except the last `kept`, the best ones they name, and those of every `keep_every` steps."""
    last = names.saved(root)[-kept:]
    needed = {path.name for path in last} | {_path(root, step).name for path in last if (step := _best_step(path)) is not None}
    for old in names.saved(root):
        if old.name not in needed and (keep_every is None or (names.step_of(old) or 0) % keep_every):
            shutil.rmtree(old, ignore_errors=True)


def steps(root: Path) -> int:
    """Steps that the newest checkpoint contains, intact or not; 0: there is none."""
    return max((names.step_of(path) or 0 for path in names.saved(root)), default=0)


def find_damage(folder: Path) -> str | None:
    """What is damaged in a checkpoint, by its checksums; None: nothing."""
    try:
        named = _sums(folder)
        if not {_ADAPTER, _OPTIMIZER, _RNG, _STATE} <= named.keys():
            return f"{SUMS} is damaged"
        wrong = (name for name, sum in named.items() if files.sha256(folder / name).hexdigest() != sum)
        return next((f"the checksum of {name} does not match" for name in wrong), None)
    except BadFile as error:
        return error.message
    except OSError as error:
        return f"it cannot be read: {error}"


def find_corruption(folder: Path) -> str | None:
    """Why a checkpoint is unusable, as far as it shows without the policy; None: it is usable."""
    return find_damage(folder) or ill_typed(folder)


def ill_typed(folder: Path) -> str | None:
    """What is wrong with a checkpoint whose checksums match; None: nothing."""
    try:
        state, number = read_state(folder), names.step_of(folder)
        if number is not None and state.step != number:
            return f"its state is of step {state.step}"
        for name in (_ADAPTER, _OPTIMIZER, _RNG):
            _names(folder / name)
    except BadFile as error:
        return error.message
    return None


def adopt(root: Path) -> list[tuple[Path, str]]:
    """Rename complete temporary checkpoints, left by a kill, to their final names; remove incomplete ones.

    An intact checkpoint of the same name is kept; a damaged one is renamed. Returns (new path, what is wrong) of these.
    """
    aside = []
    for temporary in root.glob(".step-*.tmp"):
        target = root / temporary.name.removeprefix(".").removesuffix(".tmp")
        if find_corruption(temporary) is None and read_state(temporary).step == names.step_of(target):
            why = find_corruption(target) if os.path.lexists(target) else None
            if why is not None:
                aside.append((set_aside(target), why))
            if not os.path.lexists(target):
                temporary.replace(target)
        files.remove(temporary)
    return aside


def set_aside(folder: Path) -> Path:
    """Rename a bad checkpoint to `bad-NAME`, so that it is not used; returns its new path."""
    place, number = folder.with_name(f"bad-{folder.name}"), 2
    while os.path.lexists(place):
        place, number = folder.with_name(f"bad-{folder.name}-{number}"), number + 1
    return folder.replace(place)


def read_state(folder: Path) -> State:
    """The state stored in a checkpoint. Raises BadFile."""
    path = folder / _STATE
    state = files.read_json(path, State, is_consistent=True)
    best = state.validation
    if max(best.step, best.best_step or 0) > state.step or (best.best_step is None) != (best.best_accuracy is None):
        raise BadFile(f"{path} is damaged: `validation` has step {best.step} and best step {best.best_step}")
    return state


def restore(folder: Path, policy: Policy) -> None:
    """Load a checkpoint into the policy and the random generators. Raises UserError for another adapter's checkpoint and BadFile
    for a damaged one, and then changes nothing."""
    state, rng_states, before = read_state(folder), _tensors(folder / _RNG), generators.states()
    try:
        generators.restore(rng_states, folder / _RNG)
        load_weights(folder, policy)
    except UserError:
        generators.restore(before, folder)
        raise
    policy.version = state.version


def load_weights(folder: Path, policy: Policy) -> None:
    """Load adapter and optimizer state only; the policy's version is kept. Raises as `restore` does."""
    states = _optimizer_states(policy)
    moments = _tensors(folder / _OPTIMIZER)
    expected = {f"{number}.{name}": value for number, state in enumerate(states) for name, value in state.items()}
    _refuse_misfit(folder / _OPTIMIZER, moments, {name: torch.as_tensor(value) for name, value in expected.items()})
    for name, tensor in moments.items():
        if name.endswith((".step", ".exp_avg_sq")) and bool((tensor < 0).any()):
            raise BadFile(f"{folder / _OPTIMIZER} is damaged: `{name}` is below 0")
    load_adapter(folder, policy.adapter)
    for key, tensor in moments.items():
        number, name = key.split(".", 1)
        state = states[int(number)]
        if torch.is_tensor(state[name]):
            state[name].copy_(tensor)
        else:  # bitsandbytes counts its steps in plain numbers
            state[name] = int(tensor)


def load_adapter(folder: Path, adapter: Adapter) -> None:
    """Load the adapter only. Raises as `restore` does."""
    path, own = folder / _ADAPTER, adapter.state()
    tensors = _tensors(path)
    if tensors.keys() == own.keys() and all(tensors[name].shape == own[name].shape for name in own):
        _refuse_misfit(path, tensors, own)
    adapter.load(tensors, folder)  # raises for another adapter's tensors


def update_of(folder: Path, config: RunConfig, model: PreTrainedModel) -> AdapterSnapshot:
    """The update in a checkpoint of a run with this configuration, for its untouched model. Raises as `restore` does."""
    adapter = attach(weight_sharing_copy(model), config.adapter, seed=config.seed, fresh=False)
    load_adapter(folder, adapter)
    return adapter.snapshot(1)


def newest_whole(root: Path) -> Path | None:
    """The newest intact checkpoint, or None. Renames nothing, so the run may be somebody else's."""
    return next((folder for folder in reversed(names.saved(root)) if find_corruption(folder) is None), None)


def best(root: Path, state: State) -> Path | None:
    """The checkpoint with the best validation accuracy; None if there is none or it is damaged."""
    step = state.validation.best_step
    if step is None:
        return None
    folder = _path(root, step)
    return folder if find_corruption(folder) is None else None


def publish(folder: Path, target: Path) -> None:
    """Replace `target` with a copy of a checkpoint, by hard links if the file system supports them."""
    with files.whole_folder(target) as temporary:
        for path in folder.iterdir():
            try:
                os.link(path, temporary / path.name)
            except OSError:
                shutil.copy2(path, temporary)


def _path(root: Path, step: int) -> Path:
    return root / names.of_step(step)


def _best_step(folder: Path) -> int | None:
    try:
        return read_state(folder).validation.best_step
    except BadFile:
        return None  # damaged; reported when it is used


def _sums(folder: Path) -> dict[str, str]:
    """Checksums by file name. Raises BadFile for an invalid line, or a file outside the folder."""
    named = {}
    for line in files.read_bytes(folder / SUMS, 2**20).decode(errors="replace").splitlines():
        match = re.fullmatch(r"([0-9a-f]{64})  ([\w.-]+)", line, re.ASCII)
        if match is None or match[2] in (".", ".."):
            raise BadFile(f"{SUMS} is damaged")
        named[match[2]] = match[1]
    return named


def _names(path: Path) -> dict[str, list[int]]:
    """Names and shapes of the tensors in a safetensors file, by its header. Raises BadFile."""
    files.open_regular(path).close()
    try:
        with safe_open(path, "pt") as file:
            return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, OverflowError) as error:
        raise BadFile(f"{path} is damaged: {error}") from None


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a safetensors file. Raises BadFile."""
    _names(path)
    return load_file(path)


def _refuse_misfit(path: Path, tensors: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    """Raise BadFile unless these are the expected names, shapes and types, and all numbers are finite."""
    for name in (*expected, *tensors):
        hint = "restore the run's config.json and model as they were, or start a new run: --out DIR"
        if name not in tensors or name not in expected:
            raise BadFile(f"{path} does not fit: `{name}` is {'missing' if name in expected else 'unexpected'}", hint)
        ours, theirs = expected[name], tensors[name]
        # The frozen part of some adapters has the base's type, which may differ on another GPU.
        is_type = theirs.dtype == ours.dtype or (_is_wide(theirs.dtype) and _is_wide(ours.dtype))
        if theirs.shape != ours.shape or not is_type:
            difference = f"{theirs.dtype} {list(theirs.shape)} instead of {ours.dtype} {list(ours.shape)}"
            raise BadFile(f"{path} does not fit: `{name}` is {difference}", hint)
        if theirs.dtype.is_floating_point and not bool(theirs.isfinite().all()):
            raise BadFile(f"{path} is damaged: `{name}` has values that are not finite", generators.REMOVE)


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


def _is_wide(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize >= 2
