"""The weights of the reward's parts."""

from __future__ import annotations

from microrl.config.custom_rewards import parse_functions
from microrl.config.environment import EnvironmentConfig
from microrl.config.reward import RewardConfig
from microrl.types import BUILT_IN

NO_ENVIRONMENT = EnvironmentConfig()


def part_weights(config: RewardConfig, env: EnvironmentConfig = NO_ENVIRONMENT) -> dict[str, float]:
    """The weight of every part of the reward by its name; functions come last, in their order, then the environment."""
    overlong = {} if config.overlong is None else {"overlong": 1.0}  # its factor is in the penalty
    own = {function.name: function.weight for function in parse_functions(config.functions)}
    part = environment_part(config, env)
    environment = {} if part is None else {part: 1.0}
    return {"format": config.format_weight, "accuracy": config.accuracy_weight, **overlong, **own, **environment}


def environment_part(config: RewardConfig, env: EnvironmentConfig) -> str | None:
    """What the environment's own reward is called: as its class, or as its whole target where that name is taken."""
    taken = {*BUILT_IN, *(function.name for function in parse_functions(config.functions))}
    return env.target if env.name in taken else env.name


def gdpo_weights(config: RewardConfig, env: EnvironmentConfig = NO_ENVIRONMENT) -> dict[str, float] | None:
    """The weights of the parts where they are normalised apart; None where their sum is."""
    return part_weights(config, env) if config.normalise == "apart" else None
