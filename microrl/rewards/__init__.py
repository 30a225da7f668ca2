"""From text to scores: format, accuracy, length. What can hang runs in a child that can be killed."""

from microrl.rewards.judge import Judge

__all__ = ["Judge"]
