"""The environment: the tools that a model calls in training, and what an episode with them earns."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from microrl.config.section import Section

BUILT_IN = {"calculator": "microrl.environments.builtin.calculator:Calculator"}
"""The environments that come with microrl, by the name that `--env` takes."""
EXAMPLE = "an environment is MODULE:CLASS, for example --env my_tools:Calculator"


class EnvironmentConfig(Section):
    target: Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$|^[\w.-]+$")] | None = None
    """Class whose public methods are the model's tools: `module:Class`, `calculator`, or an entry point of the group
    `microrl.environments`; None: no tools, and every completion is a single turn."""
    path: str | None = None
    """Folder in which its module is looked for besides the installed packages; None: the current folder."""
    deadline_s: Annotated[float, Field(gt=0)] = 30.0
    """Seconds that all the tools of one turn may take together, as well as `reset` and `get_reward`. Then the instance is killed,
    and its episode ends."""

    @property
    def name(self) -> str | None:
        """What its part of the reward is called: as the class."""
        if self.target is None:
            return None
        return BUILT_IN.get(self.target, self.target).rpartition(":")[2].rpartition(".")[2]
