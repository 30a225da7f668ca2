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
    for finding in examine(config, folder, runs=runs):
        if finding.status == "problem":
            problems.append(finding)
        else:
            say(f"warning: {finding.says}; {finding.do}")
    if problems:
        raise UserError(
            "; ".join(finding.says for finding in problems), "; ".join(finding.do for finding in problems if finding.do)
        )
    refuse_without_vllm(config)
