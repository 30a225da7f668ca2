"""The reward: what a completion earns for its format, its answer, its length, and by custom functions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from microrl.config.custom_rewards import parse_functions
from microrl.config.section import Positive, Section, or_one


class OverlongConfig(Section):
    """DAPO's soft overlong penalty: 0 up to `buffer` tokens before the limit, then falling linearly to -factor at the limit."""

    buffer: Positive = 4096
    """Number of tokens before the limit over which the penalty grows."""
    factor: Annotated[float, Field(ge=0)] = 1.0
    """Penalty at the limit."""


class RewardConfig(Section):
    format_weight: float = 0.2
    """Reward for the <think>...</think> format."""
    accuracy_weight: float = 1.0
    """Reward for a right answer."""
    sandbox: Literal["strict", "weak"] = "strict"
    """strict: refuse to run what a model wrote where the kernel cannot confine it; weak: run it with resource limits alone."""
    code_credit: Literal["share", "all"] = "share"
    """What a program earns that passes only some of its tests. share: the share that it passes; all: nothing. An evaluation
    counts only a program that passes all of them."""
    overlong: OverlongConfig | None = None
    """Soft overlong penalty; None: off."""
    deadline_s: Annotated[float, Field(gt=0)] = 5.0
    """Seconds after which the check of an answer is killed and the answer counts as wrong. After two killed checks in a step, its
    other slow answers count as wrong unchecked."""
    functions: Annotated[tuple[str, ...], or_one(str)] = ()
    """Custom reward functions: `package.module:function`, or an entry point of the group `microrl.rewards`; with `=WEIGHT`
    behind it, else the weight is 1."""
    path: str | None = None
    """Folder in which their modules are looked for besides the installed packages; None: the current folder."""
    confine_functions: bool = False
    """Whether these functions run in the sandbox, once their modules are imported: no files but Python's libraries, no network,
    no processes or threads."""
    function_deadline_s: Annotated[float, Field(gt=0)] = 30.0
    """Seconds after which a call of a reward function is killed; its completions are left out of the update. After two killed
    calls in a step, the function is not called any more in it."""
    normalise: Literal["together", "apart"] = "together"
    """together: the weighted sum of the parts is normalised within its group (GRPO); apart: each part is, then their weighted
    sum over the batch (GDPO)."""
    shuffle: bool = False
    """Permute the rewards at random within each group, as a control run: they then say nothing about the completions. Metrics and
    evaluations still count the true ones."""

    @field_validator("functions")
    @classmethod
    def _well_formed(cls, functions: tuple[str, ...]) -> tuple[str, ...]:
        parse_functions(functions)
        return functions
