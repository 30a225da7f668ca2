"""The weights of the reward's parts."""

from __future__ import annotations

from collections import Counter

from microrl.config.custom_rewards import parse_functions
from microrl.config.environment import EnvironmentConfig
from microrl.config.reward import RewardConfig
from microrl.types import BUILT_IN

NO_ENVIRONMENT = EnvironmentConfig()


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
