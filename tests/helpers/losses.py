"""The losses of this package, as the configuration lists them."""

from typing import get_args

from microrl.config.losses import CustomLossConfig, LossConfig

LOSSES = tuple(one.model_fields["kind"].default for one in get_args(get_args(LossConfig)[0]) if one is not CustomLossConfig)
