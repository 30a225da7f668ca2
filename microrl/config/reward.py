"""The reward: what a completion earns for its format, its answer, its length, and by custom functions.

How these functions are named: `package.module:function=WEIGHT`, or an entry point.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, field_validator

from microrl.config.environment import EnvironmentConfig
from microrl.config.section import Positive, Section, or_one
from microrl.types import BUILT_IN

_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_TARGET = re.compile(rf"{_DOTTED}:{_DOTTED}|[\w.-]+")
EXAMPLE = "for example --reward my_rewards:brevity, or with a weight --reward my_rewards:brevity=0.5"
NO_ENVIRONMENT = EnvironmentConfig()


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


def part_weights(config: RewardConfig, env: EnvironmentConfig = NO_ENVIRONMENT) -> dict[str, float]:
    """The weight of every part of the reward by its name; functions come last, in their order, then the environment."""
    overlong = {} if config.overlong is None else {"overlong": 1.0}  # its factor is in the penalty
    own = {function.name: function.weight for function in parse_functions(config.functions)}
    environments = dict.fromkeys(environment_parts(config, env).values(), 1.0)
    return {"format": config.format_weight, "accuracy": config.accuracy_weight, **overlong, **own, **environments}


def environment_parts(config: RewardConfig, env: EnvironmentConfig) -> dict[str, str]:
    """What the reward of each environment is called, by the environment's name: as its class, or as its target where that name
    is taken, by another environment's class, too."""
    own = [function.name for function in parse_functions(config.functions)]
    taken = Counter([*BUILT_IN, *own, *(one.class_name for one in env.each.values())])
    return {name: str(one.target) if taken[one.class_name] > 1 else one.class_name for name, one in env.each.items()}


def gdpo_weights(config: RewardConfig, env: EnvironmentConfig = NO_ENVIRONMENT) -> dict[str, float] | None:
    """The weights of the parts where they are normalised apart; None where their sum is."""
    return part_weights(config, env) if config.normalise == "apart" else None


class RewardFunction(NamedTuple):
    """`target` is `module:function`, or the name of an entry point; `name` is what its part of the reward is called."""

    target: str
    weight: float
    name: str


def parse_functions(given: Sequence[str]) -> tuple[RewardFunction, ...]:
    """The functions of `reward.functions`, in order.

    A part is called as its function; where two functions, or a function and a built-in part, have the same name, as its whole
    target. Raises ValueError(message, hint).
    """
    functions = [_parse(one) for one in given]
    names = Counter([function.name for function in functions] + list(BUILT_IN))
    targets = Counter(function.target for function in functions)
    for target, count in targets.items():
        if count > 1:
            raise ValueError(f"the reward `{target}` is given {count} times", "give it once, with the sum of the weights")
    return tuple(function._replace(name=function.target) if names[function.name] > 1 else function for function in functions)


def _parse(text: str) -> RewardFunction:
    target, equals, written = (part.strip() for part in text.partition("="))
    if _TARGET.fullmatch(target) is None:
        hint = "name the module and not the file, without `.py` and with dots for folders; " if "/" in target else ""
        raise ValueError(f"`{text[:200]}` is not a reward function", hint + EXAMPLE)
    if target.partition(":")[0].endswith(".py"):
        raise ValueError(f"`{target}` names a file", f"name its module: --reward {target.replace('.py', '', 1)}")
    try:
        weight = float(written) if equals else 1.0
    except ValueError:
        weight = math.nan
    if not abs(weight) <= 1e12:
        raise ValueError(f"the weight of the reward `{target}` must be a number within ±1e12, not `{written[:40]}`", EXAMPLE)
    return RewardFunction(target, weight, target.rpartition(":")[2].rpartition(".")[2])
