"""The run: evaluate, train within the budget, save, evaluate again. One step of it is in `train/step.py`."""

from __future__ import annotations

from typing import Any

from microrl.config import RunConfig
from microrl.run.folder import RunFolder
from microrl.train import saving, session, validation
from microrl.train.run import Run
from microrl.train.sft import supervised_phase
from microrl.train.step import training_step


def train(
    config: RunConfig, folder: RunFolder, *, started: float, resume: bool = False, is_extended: bool = False
) -> dict[str, Any]:
    """Run to the end and return the summary, as written to `summary.json`.

    `started`: creation time of the process, in seconds of `clock.now_s`. `is_extended`: the resumed run was given new bounds.
    Raises KeyboardInterrupt after a clean save, UserError, MachineFailure and SwapNotProved.
    """
    with session.opened(config, folder, started=started, resume=resume, is_extended=is_extended) as run:
        with session.recorded(run):  # `run.status` is "failed" until everything below has ended
            validation.before(run)
            session.refuse_without_room_for_a_step(run)
            supervised_phase(run)
            status = reinforce(run)
            saving.save_checkpoint(run)  # a finished run can be given more steps or hours
            saving.save_final(run)
            validation.after(run)
            saving.flush_lines(run)
            run.status = status
        return run.summary


def reinforce(run: Run) -> str:
    """Train until the hours or steps are used up or the guard stops the run; returns the run's status, "done" or "stopped"."""
    if run.state.is_stopped:
        return "stopped"  # by the guard, in an earlier process that was killed before its end
    if run.config.sft.only:
        return "done"
    with session.within_the_budget(run):
        for step in run.budget.steps(start=run.state.step):
            accuracy = validation.validate_if_due(run, step)
            training_step(run, step, accuracy)
            if run.state.is_stopped:
                return "stopped"
            saving.save_if_due(run, run.state.step, run.budget.max_steps)
        validation.validate_last(run)
    return "done"
