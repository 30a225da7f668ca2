"""How custom reward functions are named: `package.module:function=WEIGHT`, or an entry point."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from microrl.types import BUILT_IN

_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_TARGET = re.compile(rf"{_DOTTED}:{_DOTTED}|[\w.-]+")
GROUP = "microrl.rewards"
"""Of the entry points that are reward functions."""
EXAMPLE = "for example --reward my_rewards:brevity, or with a weight --reward my_rewards:brevity=0.5"


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
