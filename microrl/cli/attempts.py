"""Carry out a run whose folder exists: in this process, or in child processes, of which the next goes on where one failed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from microrl.cli.output import OK, STOPPED, in_run, keep_traceback, say
from microrl.errors import Explained, MachineFailure, UserError
from microrl.terminal import TolerantStream, counted, time_in_words

if TYPE_CHECKING:
    from microrl.config import RunConfig
    from microrl.run.folder import RunFolder

AGAIN = 75
"""Exit status of a child process whose run is to be resumed at once, with other settings of the engine (EX_TEMPFAIL)."""


def run_with_fallback(folder: RunFolder, *, resume: bool, is_extended: bool = False, started: float | None = None) -> int:
    """Load and run a run whose folder exists; returns the exit status. `started`: when its time begins, in seconds of
    `clock.now_s`; None: when this process was created.

    Where vLLM is used on a GPU the run outlives it: each attempt is a child process, and after a failure of the engine the next
    one resumes the run with other settings (see `train.fallback`).
    """
    from microrl import clock
    from microrl.rollout.preflight import starts_vllm
    from microrl.run import child, heartbeat

    folder.lock()
    config = folder.settings()
    in_run(folder)
    is_forked = starts_vllm(config) and child.can_fork()
    began = clock.process_started_s() if started is None else started
    before_s = heartbeat.last_s(folder.path)
    with ExitStack() as until_done:
        until_done.callback(folder.unlock)
        until_done.enter_context(tracked(config, folder))
        while True:
            # The seconds between two attempts count too: the next one knows the run's time by its heartbeat alone. One that was
            # damaged jumps to the checkpoint's time, which is no time of this process.
            now = min(began + heartbeat.last_s(folder.path) - before_s, max(began, clock.now_s()))
            status = child.in_child() if is_forked else None
            if status is None:
                status = _attempt(folder, config, started=now, resume=resume, is_extended=is_extended, may_hang=is_forked)
                if is_forked or status != AGAIN:
                    return status
                _refuse_a_second_vllm(folder, config)
            elif status < 0:
                _after_a_crash(folder, config, signal.Signals(-status).name)
            elif status != AGAIN:
                return status
            resume, is_extended = True, False


def _attempt(folder: RunFolder, config: RunConfig, *, started: float, resume: bool, is_extended: bool, may_hang: bool) -> int:
    """Carry out the run in this process; returns the exit status, or AGAIN after a failure that other settings may avoid.

    `may_hang`: whether another process waits for this one, and resumes the run if this one is ended because it hangs.
    """
    from microrl.cli import early
    from microrl.train import fallback

    def on_hang(error: Explained) -> int | None:
        change = None
        if may_hang:
            error.fault = fallback.fault(fallback.applied(config, folder).engine, "hanging")
            change = fallback.record(config, folder, error)
        if change is None:
            return None
        say(f"engine fallback: {error}; continuing {change}")
        return AGAIN

    say(f"run folder: {folder.path}; loading")
    from microrl.run.signals import Interrupts

    try:
        with redirect_stdout(cast("Any", TolerantStream(sys.stdout))), Interrupts(folder.log) as interrupts:
            early.refuse(config, is_resumed=resume)
            # An interrupted import leaves a half-initialised module, which then fails in arbitrary ways.
            with interrupts.held("loading"):
                from microrl.train.loop import train as run
            summary = run(config, folder, started=started, resume=resume, is_extended=is_extended, on_hang=on_hang)
    except (Explained, OSError) as error:
        change = fallback.record(config, folder, error) if isinstance(error, Explained) else None
        if change is None:
            ending = _ending(error, config, folder)
            if not resume:
                folder.discard()
            raise ending from ending.__cause__
        keep_traceback(error)
        say(f"engine fallback: {error}; continuing {change}")
        return AGAIN
    except KeyboardInterrupt:
        say(f"resume with: microrl train --resume {folder.path}")
        raise
    report(summary, folder.path)
    return STOPPED if summary["status"] == "stopped" else OK


def _refuse_a_second_vllm(folder: RunFolder, config: RunConfig) -> None:
    """Raise MachineFailure where the next attempt would build vLLM on a GPU on which this process has built one already."""
    import torch

    from microrl.config.schema import BaseVllmConfig
    from microrl.train import fallback

    if torch.cuda.is_available() and isinstance(fallback.applied(config, folder).engine, BaseVllmConfig):
        raise MachineFailure("vLLM cannot be started twice in one process", f"microrl train --resume {folder.path}")


@contextmanager
def tracked(config: RunConfig, folder: RunFolder) -> Iterator[None]:
    """Inside, `microrl track` sends the run's metrics, if it is to. It goes on afterwards until it has sent the last of them."""
    from microrl.run import tracking

    if (tracker := config.track) is None:
        yield
        return
    process = None
    try:
        tracking.refuse_if_missing(tracker)
        process = tracking.start(folder, tracker)
    except UserError as error:
        say(f"warning: {error.message}: the metrics are not sent")
    try:
        yield
    finally:
        if process is not None and process.poll() not in (None, 0):
            say(f"warning: sending the metrics to {tracker} has failed; see {folder.path / tracking.log_name(tracker)}")


def _after_a_crash(folder: RunFolder, config: RunConfig, signal_name: str) -> None:
    """Record that the child died of a signal. Raises MachineFailure if another attempt would not help."""
    from microrl.run import child
    from microrl.train import fallback

    error = fallback.crash(config, folder, signal_name)
    change = None if signal_name in child.DEADLY else fallback.record(config, folder, error)
    if change is None:
        raise error if signal_name in child.DEADLY else _ending(error, config, folder)
    say(f"engine fallback: {error.message}; continuing {change}")


def _ending(error: Explained | OSError, config: RunConfig, folder: RunFolder) -> Explained | OSError:
    """The error with which a run ends: of a vLLM that fails before the first step, with the ways to go on without it."""
    from microrl.config.engine_rules import ended_at_start

    if isinstance(error, OSError) or error.fault is None or config.engine.kind != "auto" or folder.has_steps:
        return error
    return ended_at_start(error)


def report(summary: dict[str, Any], path: Path) -> None:
    """Say what a run has come to."""
    from microrl.report.history import History
    from microrl.report.verdict import judge
    from microrl.run.summary import Summary

    history = History.load(path, ending=Summary(**summary))
    verdict = judge(history)
    for line in verdict.lines():
        say(line)
    if verdict.outcome == "worse" and (best := summary["best"]) is not None:
        use = f"{path / 'best'} is from step {best['step']}, with validation accuracy {best['accuracy']:.3f}; use it: "
        use += f"microrl export {path / 'best'} --out DIR"
        none = "No validation was better than the one before the first step"
        say(f"warning: the trained model is worse than the untouched one. {use if best['step'] else none}")
    if summary["status"] == "stopped":
        back = summary["hours_given_back"]
        say("stopped early by the guard" + (f": {time_in_words(back)} saved" if back is not None else ""))
    steps, sft = counted(summary["steps"], "step"), summary["sft"]
    if sft:
        steps = counted(sft["steps"], "SFT step") + (f", {steps}" if summary["steps"] else "")
    cost = f", ${summary['cost_usd']:.2f}" if summary["cost_usd"] else ""
    say(f"{steps} in {time_in_words(summary['hours_spent'])}{cost}. Adapter: {path / 'final'}")
    can_sample = verdict.is_worth_trying and (history.config.get("env") or {}).get("target") is None
    say(f"try it: microrl sample {path} 'your question'" if can_sample else f"read more: microrl report {path}")
