"""What this machine lacks for a run, said in the command's first second."""

from __future__ import annotations

from pathlib import Path

from microrl.cli.output import say
from microrl.config import RunConfig
from microrl.errors import UserError
from microrl.rollout.preflight import refuse_without_vllm
from microrl.run.machine import examine


def check(config: RunConfig, folder: Path | None, *, runs: int = 1) -> None:
    """Warn of what `microrl.run.machine.examine` finds; arguments as there. Raise UserError where the run cannot be made here."""
    problems = []
    for found in examine(config, folder, runs=runs):
        if found.status == "problem":
            problems.append(found)
        else:
            say(f"warning: {found.says}; {found.do}")
    if problems:
        raise UserError("; ".join(one.says for one in problems), "; ".join(one.do for one in problems if one.do))
    refuse_without_vllm(config)
