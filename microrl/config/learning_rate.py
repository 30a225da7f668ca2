"""`optim.lr=auto`: the learning rate from a scaling law in the model's width."""

from __future__ import annotations

from microrl.config.schema import RunConfig
from microrl.errors import UserError

BASE_RATE = 5e-5
ADAPTER_FACTOR = 10.0
"""Learning rate of adapters, relative to full fine-tuning."""
REFERENCE_WIDTH = 2000
POWERS = {"qwen": 0.0775, "llama": 0.781}
"""Exponent of the width by model family, as published in Tinker's cookbook."""


def auto_rate(*, hidden: int, model_type: str, full: bool, is_start: bool = False) -> float:
    """5e-5 * M * (2000 / hidden)^p, M = 10 for adapters and 1 for `full` (Schulman and Thinking Machines 2025, "LoRA without
    regret"; peft, section 3.2). Raises UserError for a model family without a published exponent, unless a rate only starts
    here and is then steered: the exponent is taken for 0.
    """
    power = next((power for family, power in POWERS.items() if model_type.startswith(family)), None)
    if power is None and not is_start:
        raise UserError(
            f"optim.lr=auto supports Qwen and Llama architectures, not `{model_type}`",
            "set a number: --lr 1e-5; or steer the rate: --step-kl 1e-3",
        )
    return BASE_RATE * (1.0 if full else ADAPTER_FACTOR) * (REFERENCE_WIDTH / hidden) ** (power or 0.0)


def with_rate(config: RunConfig, *, hidden: int, model_type: str) -> RunConfig:
    """The configuration with `optim.lr=auto` replaced by a number. `hidden` is the model's width. Raises as `auto_rate`."""
    if config.optim.lr != "auto":
        return config
    is_start = config.optim.step_kl is not None
    lr = auto_rate(hidden=hidden, model_type=model_type, full=config.adapter.trains_weights, is_start=is_start)
    return config.model_copy(update={"optim": config.optim.model_copy(update={"lr": lr})})
