"""The environment: the tools that a model calls in training, and what an episode with them earns."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field, field_validator

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
COLUMN = "environment"
"""Of the row, where it says which of several environments is its own."""
Target = Annotated[str, Field(pattern=r"^([\w.-]+=)?([\w.]+:[\w.]+|[\w.-]+)$")]


class EnvironmentConfig(Section):
    target: Target | tuple[Target, ...] | None = None
    """Class whose public methods are the model's tools: `module:Class`, an entry point of the group `microrl.environments`,
    or `calculator`, `python` or `higher-lower`; None: no tools, and every completion is a single turn. Of several, `NAME=CLASS`
    each, a row's column `environment` names its own."""
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

    @field_validator("target", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        """One without a name is a text, as the configuration files of runs have it; `none` is None, as with `--set`."""
        given = (value,) if isinstance(value, str) else value
        if given in (("none",), ["none"]):
            return None
        if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
            return value
        names = [_named(one)[0] for one in given]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two environments have the name `{twice[0]}`", f"name them: --env NAME={_named(given[0])[1]}")
        return given[0] if len(given) == 1 and "=" not in given[0] else tuple(given) or None

    @property
    def each(self) -> dict[str, EnvironmentConfig]:
        """The environments by their names, each as the only one of a run. The name of one that is given without is its target."""
        given = self.target if isinstance(self.target, tuple) else () if self.target is None else (self.target,)
        return {name: self.model_copy(update={"target": target}) for name, target in map(_named, given)}

    @property
    def label(self) -> str | None:
        """As a text; None: there is none."""
        return self.target if self.target is None or isinstance(self.target, str) else ", ".join(self.target)

    def name_for(self, row: int, raw: str) -> str:
        """The name of a row's environment; `raw` is the whole row as JSON. Raises UserError where there are several, and the row
        names none of them."""
        if not isinstance(self.target, tuple):
            return str(self.target)
        name, names = json.loads(raw).get(COLUMN), [_named(target)[0] for target in self.target]
        if isinstance(name, str) and name in names:
            return name
        why = f"has no column `{COLUMN}`"
        if name is not None:
            why = f"names no environment of this run in `{COLUMN}`: {str(name)[:80]!r}"
        raise UserError(
            f"row {row} {why}",
            f"set the column to one of: {', '.join(names)}; or use one environment for all rows: --env MODULE:CLASS",
        )

    @property
    def is_built_in(self) -> bool:
        """Whether the only environment is one that comes with microrl."""
        return self.target in BUILT_IN

    @property
    def is_strict(self) -> bool:
        """Whether an instance of the only environment must not run where the kernel cannot confine it."""
        return self.confine or self.target in RUNS_CODE

    @property
    def class_name(self) -> str:
        """Of the only environment."""
        target = str(self.target)
        return BUILT_IN.get(target, target).rpartition(":")[2].rpartition(".")[2]


def _named(target: str) -> tuple[str, str]:
    name, _, path = target.rpartition("=")
    return name or path, path
