"""The command line with a vLLM that `auto` takes without a GPU, and that fails as told.

    python failing_engine.py FAULTS.json train|eval ...

FAULTS.json lists what goes wrong next, across all processes of the run: {"at": PLACE}, with "abort", "exit" or "hang": true.
What has happened is taken off the list. Where vLLM is not installed, the transformers engine stands in for it, with vLLM's name.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from microrl.cli import main, target
from microrl.errors import UserError
from microrl.rollout import preflight
from microrl.run import heartbeat

if __name__ == "__main__":
    os.environ["FAULTS"] = sys.argv.pop(1)
FAULTS = Path(os.environ["FAULTS"])


def happens(at: str) -> None:
    """Fail here if this is what goes wrong next."""
    faults = json.loads(FAULTS.read_text())
    if not faults or faults[0]["at"] != at:
        return
    fault, *rest = faults
    FAULTS.write_text(json.dumps(rest))
    if fault.get("abort"):
        os.abort()
    if fault.get("exit"):
        os._exit(7)
    if fault.get("hang"):
        heartbeat.SILENT_S, heartbeat.FIRST_FACTOR, heartbeat.FACTOR = 1.0, 1.0, 0.0  # only now: the machine may be slow
        time.sleep(10_000)
    raise RuntimeError(fault.get("error", "CUDA error: an illegal memory access was encountered"))


def before(function, at: str):
    def with_fault(*arguments, **named):
        happens(at)
        return function(*arguments, **named)

    return with_fault


def journalled(add):
    """As it is, and then fail if this was the answer: "answer 1" is the first of a process."""
    count = itertools.count(1)

    def added(*arguments):
        add(*arguments)
        happens(f"answer {next(count)}")

    return added


def imported() -> None:
    try:
        happens("importing")
    except RuntimeError as error:
        raise UserError("vLLM is installed but cannot be imported: no such symbol") from error


def break_vllm() -> None:
    """Put the faults into the real engine."""
    from microrl.rollout.vllm.driver import VllmDriver
    from microrl.rollout.vllm.engine import VllmEngine

    VllmDriver.__init__ = before(VllmDriver.__init__, "starting")
    VllmDriver.load = before(VllmDriver.load, "receiving weights")
    VllmDriver.sample = before(VllmDriver.sample, "sampling")
    settle, compare = VllmDriver.settle, VllmDriver.adapter_difference

    def settled(self):
        if sys._getframe(1).f_code is VllmEngine.awake.__wrapped__.__code__:  # at the end of a waking time
            happens("going to sleep")
        return settle(self)

    def difference(self, pairs):
        try:
            happens("proving")
        except RuntimeError as error:
            return str(error)
        return compare(self, pairs)

    VllmDriver.settle, VllmDriver.adapter_difference = settled, difference


def stand_in() -> None:
    """The transformers engine in vLLM's place, with the same faults. FAULTS.started lists its processes and settings."""
    from microrl.rollout.transformers import TransformersEngine
    from microrl.rollout.vllm import engine

    class StandIn(TransformersEngine):
        name = "vllm"
        fault_named, _fault = engine.VllmEngine.fault_named, engine.VllmEngine._fault
        _out_of_memory, shrink = engine.VllmEngine._out_of_memory, engine.VllmEngine.shrink

        def __init__(self, model, tokenizer, settings, choice, on_event):
            self.settings, self.base = settings, model
            with FAULTS.with_suffix(".started").open("a") as file:
                file.write(f"{os.getpid()} {settings.kv_bytes} {settings.cuda_graphs}\n")
            with self.fault_named("starting"):
                happens("starting")
                super().__init__(model, tokenizer, max_kv_gb=settings.kv_bytes / 1e9)

        @contextmanager
        def awake(self, snapshot, *, is_training=False):
            with self.fault_named("receiving weights"):
                happens("receiving weights")
            with super().awake(snapshot, is_training=is_training) as sampler:
                with self.fault_named("sampling"):
                    happens("sampling" if is_training else "evaluating")
                yield sampler
            with self.fault_named("going to sleep"):
                happens("going to sleep")

    engine.VllmEngine = StandIn


def break_engine() -> None:
    """In this process, have `auto` take what fails."""
    from microrl.commands import evaluate
    from microrl.evaluation import record
    from microrl.rollout import factory
    from microrl.train import setup

    def select(config):
        return "transformers" if config.engine.kind == "transformers" else "vllm"

    evaluate.select_engine = factory.select_engine = setup.select_engine = select
    factory.import_vllm = imported
    record.FileJournal.add = journalled(record.FileJournal.add)
    (break_vllm if importlib.util.find_spec("vllm") else stand_in)()


def patched(prepare):
    """Called in the process that trains, and before anything heavy is imported in the one that waits for it."""

    def prepared(*arguments, **named):
        break_engine()
        return prepare(*arguments, **named)

    return prepared


preflight.installed = lambda: preflight.Installed("vllm", "0.32.0")
if __name__ == "__main__":
    target.prepare_hub = patched(target.prepare_hub)
    main()
else:  # a process that the command has begun
    break_engine()
