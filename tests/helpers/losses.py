"""The losses of this package, as the configuration lists them; `DISTILL` apart, which needs a teacher."""

from typing import get_args

from microrl.config.losses import CustomLossConfig, DistillLossConfig, LossConfig

DISTILL = DistillLossConfig().kind
LOSSES = tuple(
    one.model_fields["kind"].default
    for one in get_args(get_args(LossConfig)[0])
    if one not in (CustomLossConfig, DistillLossConfig)
)
