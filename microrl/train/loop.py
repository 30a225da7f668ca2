"""The run: evaluate, train within the budget, save, evaluate again. One step of it is in `train/step.py`."""

from __future__ import annotations

from typing import Any

from microrl.config import RunConfig
from microrl.run.folder import RunFolder
from microrl.train import saving, session, validation
from microrl.train.held_out import evaluate_after, evaluate_before
from microrl.train.run import Run
from microrl.train.screening import screening_phase
from microrl.train.sft import sft_phase
from microrl.train.step import training_step
from microrl.train.watchdog import OnHang


def train(
    config: RunConfig,
    folder: RunFolder,
    *,
    started: float,
    resume: bool = False,
    is_extended: bool = False,
    on_hang: OnHang = lambda error: None,
) -> dict[str, Any]:
    """Run to the end and return the summary, as written to `summary.json`.

    `started`: when the time of this process began to count, in seconds of `clock.now_s`. `is_extended`: the resumed run was
    given new bounds. `on_hang`: see `Watchdog`.
    Raises KeyboardInterrupt after a clean save, UserError, MachineFailure and SyncNotProved.
    """
    with session.opened(config, folder, started=started, resume=resume, is_extended=is_extended, on_hang=on_hang) as run:
        with session.recorded(run):  # `run.status` is "failed" until everything below has ended
            evaluate_before(run)
            session.require_time_for_a_step(run)
            sft_phase(run)
            screening_phase(run)
            status = rl_phase(run)
            saving.save_checkpoint(run)  # a finished run can be given more steps or hours
            saving.save_final(run)
            evaluate_after(run)
            saving.flush_lines(run)
            run.status = status
        return run.summary


def evaluate_base(config: RunConfig, folder: RunFolder, *, started: float) -> None:
    """Evaluate the untouched model as a run does before it trains. Arguments and errors as for `train`."""
    with session.opened(config, folder, started=started, resume=False, is_extended=False) as run, session.recorded(run):
        evaluate_before(run)
        run.status = "done"


def rl_phase(run: Run) -> str:
    """Train until the budget is used up or the guard stops the run; returns the run's status, "done" or "stopped".

    Raises KeyboardInterrupt after a signal.
    """
    if run.state.is_stopped:
        return "stopped"  # by the guard, in an earlier process that was killed before its end
    if run.config.sft.only:
        return "done"
    with session.until_time_is_up(run):  # ends the block, even in the middle of a step
        for step in run.budget.steps(start=run.state.step):
            accuracy = validation.validate_if_due(run, step)
            training_step(run, step, accuracy)
            if run.state.is_stopped:
                return "stopped"
            saving.save_if_due(run, step=step + 1, steps=run.budget.max_steps)
        validation.validate_last(run)
    return "done"
