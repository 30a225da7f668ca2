"""The weights of the reward's parts."""

from __future__ import annotations

from microrl.config.custom_rewards import parse_functions
from microrl.config.reward import RewardConfig


def part_weights(config: RewardConfig) -> dict[str, float]:
    """The weight of every part of the reward by its name; those of functions come last, in their order."""
    overlong = {} if config.overlong is None else {"overlong": 1.0}  # its factor is in the penalty
    own = {function.name: function.weight for function in parse_functions(config.functions)}
    return {"format": config.format_weight, "accuracy": config.accuracy_weight, **overlong, **own}


def gdpo_weights(config: RewardConfig) -> dict[str, float] | None:
    """The weights of the parts where they are normalised apart; None where their sum is."""
    return part_weights(config) if config.normalise == "apart" else None
