"""The environment: the tools that a model calls in training, and what an episode with them earns."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from microrl.config.section import Section
from microrl.errors import UserError

BUILT_IN = {
    "calculator": "microrl.environments.builtin.calculator:Calculator",
    "higher-lower": "microrl.environments.builtin.higher_lower:HigherLower",
    "python": "microrl.environments.builtin.python:Python",
}
"""The environments that come with microrl, by the name that `--env` takes."""
RUNS_CODE = ("python",)
"""Those of them that run what a model wrote."""
EXAMPLE = "an environment is MODULE:CLASS, for example --env my_tools:Calculator"


class EnvironmentConfig(Section):
    target: Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$|^[\w.-]+$")] | None = None
    """Class whose public methods are the model's tools: `module:Class`, an entry point of the group `microrl.environments`,
    or `calculator`, `python` or `higher-lower`; None: no tools, and every completion is a single turn."""
    path: str | None = None
    """Folder in which its module is looked for besides the installed packages; None: the current folder."""
    deadline_s: Annotated[float, Field(gt=0)] = 30.0
    """Seconds that all the tools of one turn may take together, as well as `reset` and `get_reward`. Then the instance is killed,
    and its episode ends."""

    confine: bool = False
    """Whether each instance runs in the sandbox, from before it gets a row: no files but Python's libraries and, where it can
    be had, an empty folder in memory; no network, processes or threads. Those that come with microrl always do."""
    memory_gb: Annotated[float, Field(gt=0)] | None = 4.0
    """Memory (address space) that an instance may take beyond what its class's module takes, GB; None: no limit."""

    def refuse(self, doing: str) -> None:
        """Raise UserError for what does not support environments yet."""
        if self.target is not None:
            raise UserError(f"{doing} does not support environments yet, and this run has one: --env {self.target}")

    @property
    def is_strict(self) -> bool:
        """Whether an instance must not run where the kernel cannot confine it."""
        return self.target is not None and (self.confine or self.target in RUNS_CODE)

    @property
    def name(self) -> str | None:
        """What its part of the reward is called: as the class."""
        if self.target is None:
            return None
        return BUILT_IN.get(self.target, self.target).rpartition(":")[2].rpartition(".")[2]
