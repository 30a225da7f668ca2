"""With `engine.kind=auto` a run outlives vLLM: after each failure the next process of the run tries other settings.

Every change is made in a new process that resumes the run: on a GPU a failed vLLM may leave memory behind, or a device that no
longer works, and both go with the process. The changes are kept in `engine.json` and hold for the rest of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from microrl import clock
from microrl.config import RunConfig
from microrl.config.engine_rules import Mode, auto_is_vllm, sync_mode
from microrl.config.schema import AutoEngineConfig, TransformersEngineConfig
from microrl.errors import Doing, EngineFault, Explained, MachineFailure
from microrl.rollout import preflight
from microrl.run.folder import RunFolder

FILE, SYNC_FILE = "engine.json", "sync.json"
Change = Literal["sync", "sleep", "cuda_graphs", "restart", "transformers"]
ORDER: tuple[Change, ...] = ("sync", "sleep", "cuda_graphs", "restart", "transformers")
RESTART_FIRST: tuple[Change, ...] = ("restart", "sync", "sleep", "cuda_graphs", "transformers")
CHANGES: dict[Doing, tuple[Change, ...]] = {
    "importing": ("transformers",),
    "starting": tuple(change for change in ORDER if change != "restart"),  # each of these starts it anew
    "receiving weights": ORDER,
    # It has worked before: what a new process mends, such as a fault of the device, must not slow down the rest of the run.
    "sampling": RESTART_FIRST,
    "going to sleep": RESTART_FIRST,
    "running": RESTART_FIRST,
    "hanging": ("restart",),
    # There is too little memory, or a second engine cannot start where a first one was.
    "restarting with a smaller cache": ("restart", "cuda_graphs", "sync", "transformers"),
}
"""What may help, in the order in which it is tried, by what vLLM was doing. Each change is made once in a run."""


class Failure(BaseModel):
    """One failure of the engine, and the change that followed."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)
    time: str
    doing: Doing
    error: str
    change: Change


class _Record(BaseModel):
    """The content of `engine.json`. `engine` replaces these keys of the run's engine section."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)
    engine: AutoEngineConfig | TransformersEngineConfig
    failures: list[Failure]


class _Measured(BaseModel):
    """The part of `sync.json` that is read back: the cheaper mode of `engine.sync`."""

    mode: Mode


def may_be_needed(config: RunConfig) -> bool:
    """Whether a run may use vLLM and outlive its failures, as far as that shows without torch."""
    vllm = preflight.installed() if config.engine.kind == "auto" else None
    return vllm is not None and not vllm.is_for_cpu and vllm.is_supported and auto_is_vllm(config)


def failures(folder: RunFolder) -> list[Failure]:
    """The engine's failures so far, in this and earlier processes of the run. Raises BadFile."""
    record: _Record | None = folder.read_if_there(FILE, _Record)
    return [] if record is None else record.failures


def applied(config: RunConfig, folder: RunFolder) -> RunConfig:
    """The configuration with the changes made so far. Raises BadFile."""
    record: _Record | None = folder.read_if_there(FILE, _Record)
    return config if record is None or config.engine.kind != "auto" else _with_engine(config, record.engine)


def measured_sync(folder: RunFolder) -> Mode | None:
    """The cheaper of swap and merge, as an earlier process of the run has measured; None: not yet. Raises BadFile."""
    measured: _Measured | None = folder.read_if_there(SYNC_FILE, _Measured)
    return None if measured is None else measured.mode


def record(config: RunConfig, folder: RunFolder, error: Explained) -> str | None:
    """Note a failure of the engine and the change that the run's next process makes; returns that in words.

    None if the error is not the engine's, nothing is left to change, it cannot be written, or the configuration forbids it:
    the run ends with this error then. `config` is the run's own, as in `config.json`. Raises BadFile.
    """
    if error.fault is None or config.engine.kind != "auto":
        return None
    before = failures(folder)
    hung = error.fault.doing == "hanging"  # resumed once, whatever other failures there were
    made = {failure.change for failure in before if (failure.doing == "hanging") == hung}
    found = next(_left(applied(config, folder), error.fault, made), None)
    if found is None:
        return None
    change, engine, said = found
    failure = Failure(time=clock.stamp(), doing=error.fault.doing, error=error.message, change=change)
    kept = _Record(engine=engine, failures=[*before, failure])
    try:
        folder.write_json(FILE, kept.model_dump(mode="json"))
    except OSError:  # a full disk: without the record the next process would fail in the same way
        return None
    folder.event("engine fallback", f"{error.message}; continuing {said}", doing=error.fault.doing, change=change)
    return said


def crash(config: RunConfig, folder: RunFolder, signal_name: str) -> MachineFailure:
    """The error for a process of the run that died of a signal, with the engine's settings as far as they are known."""
    likely = ": most likely the machine ran out of memory" if signal_name == "SIGKILL" else ""
    error = MachineFailure(
        f"the training process was ended by {signal_name}{likely}", f"resume it: microrl train --resume {folder.path}"
    )
    error.fault = fault(config, folder, "running")
    return error


def fault(config: RunConfig, folder: RunFolder, doing: Doing) -> EngineFault | None:
    """For a failure of which the engine itself cannot tell; None if the run does not use vLLM, or must not do without."""
    engine = applied(config, folder).engine
    if not isinstance(engine, AutoEngineConfig):
        return None
    sync = measured_sync(folder) or engine.sync
    return EngineFault(doing, sync, engine.sleep, engine.cuda_graphs, engine.max_kv_gb)


def _left(
    config: RunConfig, fault: EngineFault, made: set[Change]
) -> Iterator[tuple[Change, AutoEngineConfig | TransformersEngineConfig, str]]:
    """(change, engine section with it, words for it) for every change that is left, in order."""
    engine = config.engine
    if not isinstance(engine, AutoEngineConfig):
        return
    for change in CHANGES[fault.doing]:
        if change in made:
            continue
        if change == "sync" and (other := _other_sync(config, fault.sync)) is not None:
            words = "with the adapter merged into vLLM's weights" if other == "merge" else "with the adapter loaded as a LoRA"
            yield change, _changed(engine, sync=other), f"in a new process, {words} (engine.sync={other})"
        elif change == "sleep" and (level := _OTHER_SLEEP.get(fault.sleep)) is not None:
            yield change, _changed(engine, sleep=level), f"in a new process, with another sleep level (engine.sleep={level})"
        elif change == "cuda_graphs" and fault.cuda_graphs:
            yield change, _changed(engine, cuda_graphs=False), "in a new process, without CUDA graphs (engine.cuda_graphs=false)"
        elif change == "restart":
            smaller = fault.doing == "restarting with a smaller cache"
            kept = _changed(engine, max_kv_gb=fault.max_kv_gb) if smaller else engine
            yield change, kept, "in a new process" + (f", with a KV cache of {fault.max_kv_gb:.3g} GB" if smaller else "")
        elif change == "transformers":
            slower = TransformersEngineConfig(max_kv_gb=engine.max_kv_gb)
            yield change, slower, "in a new process, with the transformers engine, which is slower"


_OTHER_SLEEP: dict[str | int, Literal[1, 2]] = {"auto": 1, "kv": 1, 1: 2, 2: 1}
"""1 is the level that every version has, and that loses nothing; `off` might not leave the trainer enough memory."""


def _other_sync(config: RunConfig, tried: str) -> Mode | None:
    """The other way of taking weights over; None if there is none for this adapter and these weights."""
    if tried != "merge":
        return "merge"
    can_swap = sync_mode(_with_engine(config, _changed(config.engine, sync="swap"))) == "swap"
    return "swap" if can_swap and config.model.dtype != "float32" else None


def _changed(engine: Any, **values: Any) -> AutoEngineConfig:
    return AutoEngineConfig.model_validate(engine.model_dump() | values)


def _with_engine(config: RunConfig, engine: Any) -> RunConfig:
    return config.model_copy(update={"engine": engine})
