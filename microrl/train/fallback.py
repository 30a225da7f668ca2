"""A run outlives vLLM: after a failure the run's next process goes on with less memory, without CUDA graphs, or without vLLM.

Every change is made in a new process that resumes the run: on a GPU a failed vLLM leaves memory behind that no second one can
use, or a device that no longer works, and both go with the process. The changes are kept in `engine.json` and hold until the run
is resumed by hand an hour later, or with `--engine`.
"""

from __future__ import annotations

import datetime
import signal
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from microrl import clock
from microrl.config import RunConfig
from microrl.config.engine_rules import Mode, outlasts_vllm
from microrl.config.schema import AutoEngineConfig, BaseVllmConfig, EngineConfig, TransformersEngineConfig
from microrl.errors import Doing, EngineFault, Explained, MachineFailure
from microrl.processes import how_it_ended
from microrl.run import names
from microrl.run.folder import RunFolder
from microrl.terminal import time_in_words

FORGOTTEN_AFTER_S = 3600
"""A run resumed by hand so long after the last failure tries its own settings again: what took the memory may be gone."""
MIN_FRACTION = 0.25
"""Of the batch: a cache for fewer completions is only taken with a word on it."""
Change = Literal["less memory", "restart", "cuda_graphs", "transformers"]
Price = Callable[[RunConfig], float | None]
LADDER: dict[Doing, tuple[Change, ...]] = {
    "importing": ("transformers",),
    "starting": ("cuda_graphs", "transformers"),  # each of these starts it anew
    "hanging": ("restart",),
}
OTHERWISE: tuple[Change, ...] = ("restart", "cuda_graphs", "transformers")
"""What may help after a failure that is no lack of memory, in the order in which it is tried, each once in a run."""


class Failure(BaseModel):
    """One failure of the engine, and the change that followed."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)
    time: str
    doing: Doing
    error: str
    change: Change


class Changes(BaseModel):
    """What failures have changed: the content of `engine.json`. `engine` replaces the configuration's engine section."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)
    engine: EngineConfig
    failures: list[Failure]


class _Measured(BaseModel):
    """The part of `sync.json` that is read back: the cheaper mode of `engine.sync`."""

    mode: Mode


class _Option(NamedTuple):
    """A change, the engine section with it, and words for it."""

    change: Change
    engine: Any
    words: str


def failures(folder: RunFolder) -> list[Failure]:
    """The engine's failures whose changes hold, in this and earlier processes of the run. Raises BadFile."""
    made = folder.read_if_there(names.ENGINE, Changes)
    return [] if made is None else made.failures


def applied(config: RunConfig, folder: RunFolder) -> RunConfig:
    """The configuration with the changes made so far. Raises BadFile."""
    made = folder.read_if_there(names.ENGINE, Changes)
    return config if made is None else _with_engine(config, made.engine)


def forget(folder: RunFolder, *, at_once: bool) -> None:
    """Drop the changes, if the last failure is more than an hour old or `at_once`: the run starts with its own settings again.

    For a run that is resumed by hand. Raises BadFile.
    """
    made = failures(folder)
    if not made:
        return
    age_s = max(clock.wall_s() - datetime.datetime.fromisoformat(made[-1].time).timestamp(), 0.0)  # clocks are set back, too
    if at_once or age_s > FORGOTTEN_AFTER_S:
        (folder.path / names.ENGINE).unlink()
        folder.event("engine settings restored", f"the last failure of vLLM was {time_in_words(age_s / 3600)} ago", age_s=age_s)


def measured_sync(folder: RunFolder) -> Mode | None:
    """The cheaper of swap and merge, as an earlier process of the run has measured; None: not yet. Raises BadFile."""
    measured = folder.read_if_there(names.SYNC, _Measured)
    return None if measured is None else measured.mode


def record(config: RunConfig, folder: RunFolder, error: Explained) -> str | None:
    """Note a failure of the engine and the change that the run's next process makes; returns that in words.

    None if the error is not the engine's, nothing is left to change, it cannot be written, or the configuration forbids it:
    the run ends with this error then. `config` is the run's own, as in `config.json`. Raises BadFile.
    """
    fault = error.fault
    if fault is None or not (fault.out_of_memory or outlasts_vllm(config, has_steps=folder.has_steps)):
        return None
    made = folder.read_if_there(names.ENGINE, Changes) or Changes(engine=config.engine, failures=[])
    next_change = after(config, made, error, _step_s)
    if next_change is None:
        return None
    changes, said = next_change
    try:
        folder.write_json(names.ENGINE, changes.model_dump(mode="json"))
    except OSError:  # a full disk: without the record the next process would fail in the same way
        return None
    last = changes.failures[-1]
    folder.event("engine fallback", f"{error.message}; continuing {said}", doing=last.doing, change=last.change)
    return said


def after(config: RunConfig, made: Changes, error: Explained, step_s: Price = lambda config: None) -> tuple[Changes, str] | None:
    """The changes with the one that follows from a failure, and that one in words.

    `step_s` gives the seconds of a step, by which changes that free memory are chosen; where it cannot, their order counts. None
    if the error is not the engine's, nothing is left to change, or the configuration forbids it.
    """
    fault, now = error.fault, _with_engine(config, made.engine)
    if fault is None or not (config.engine.kind == "auto" or (config.engine.kind == "vllm" and fault.out_of_memory)):
        return None
    if not isinstance(now.engine, BaseVllmConfig):
        return None  # nothing is below the transformers engine
    option = _with_less_memory(now, fault, step_s) if fault.out_of_memory else _next_rung(now, fault, made.failures)
    if option is None:
        return None
    change, engine, said = option
    failure = Failure(time=clock.stamp(), doing=fault.doing, error=error.message, change=change)
    return Changes(engine=engine, failures=[*made.failures, failure]), said


def crash(config: RunConfig, folder: RunFolder, signal_name: str) -> MachineFailure:
    """The error for a process of the run that died of a signal, with the engine's settings as far as they are known."""
    ended = how_it_ended(-signal.Signals[signal_name])
    error = MachineFailure(f"the training process was {ended}", f"resume it: microrl train --resume {folder.path}")
    error.fault = fault(applied(config, folder).engine, "running")
    return error


def fault(engine: EngineConfig, doing: Doing) -> EngineFault | None:
    """For a failure of which the engine itself cannot tell; None if vLLM is not used, or must not be done without."""
    return EngineFault(doing, engine.cuda_graphs) if isinstance(engine, AutoEngineConfig) else None


def _next_rung(config: RunConfig, fault: EngineFault, before: list[Failure]) -> _Option | None:
    """The first change that is left after a failure that is no lack of memory."""
    hung = fault.doing == "hanging"  # resumed once, whatever other failures there were
    made = {failure.change for failure in before if (failure.doing == "hanging") == hung}
    restart = _Option("restart", config.engine, "in a new process")
    options = {option.change: option for option in (restart, *_without(config, fault))}
    left = [change for change in LADDER.get(fault.doing, OTHERWISE) if change in options and change not in made]
    return options[left[0]] if left else None


def _with_less_memory(config: RunConfig, fault: EngineFault, step_s: Price) -> _Option | None:
    """The cheapest of the changes that free memory, by seconds a step; in their order where those are not known."""
    options = [*_half_of_the_cache(config, fault), *_without(config, fault)]
    if not options:
        return None
    seconds = [step_s(_with_engine(config, option.engine)) for option in options]
    known = [(taken_s, n) for n, taken_s in enumerate(seconds) if taken_s is not None]
    taken_s, n = min(known) if len(known) == len(options) else (seconds[0], 0)
    now_s = step_s(config)
    price = "" if taken_s is None or now_s is None else f"; by the plan a step takes {taken_s:.0f} s instead of {now_s:.0f}"
    return options[n]._replace(words=options[n].words + price)


def _half_of_the_cache(config: RunConfig, fault: EngineFault) -> Iterator[_Option]:
    """Nothing where half of it has no room for two completions."""
    if fault.kv_gb is None or fault.fits < 4:
        return
    half_gb, fits = fault.kv_gb / 2, fault.fits / 2
    words = f"in a new process, with a KV cache of {half_gb:.3g} GB"
    if fits < MIN_FRACTION * fault.batch:
        words += f", which holds only {int(fits)} of {fault.batch} completions of full length"
    yield _Option("less memory", _changed(config.engine, max_kv_gb=half_gb), words)


def _without(config: RunConfig, fault: EngineFault) -> Iterator[_Option]:
    """vLLM without CUDA graphs, and, unless vLLM was asked for, no vLLM."""
    engine = config.engine
    if fault.cuda_graphs:
        words = "in a new process, without CUDA graphs (engine.cuda_graphs=false)"
        yield _Option("cuda_graphs", _changed(engine, cuda_graphs=False), words)
    if isinstance(engine, AutoEngineConfig):
        slower = TransformersEngineConfig(max_kv_gb=None if fault.out_of_memory else engine.max_kv_gb)
        yield _Option("transformers", slower, "in a new process, with the transformers engine, which is slower")


def _step_s(config: RunConfig) -> float | None:
    """Seconds of a step by the plan; None where the model's shape is not at hand."""
    from microrl.train import planning  # imports torch

    return None if (made := planning.of_config(config)) is None else made.step_s


def _changed(engine: Any, **values: Any) -> Any:
    return type(engine).model_validate(engine.model_dump() | values)


def _with_engine(config: RunConfig, engine: Any) -> RunConfig:
    return config.model_copy(update={"engine": engine})
