"""Algorithms as the tests need them."""

from microrl import algorithm
from microrl.config import resolve

GRPO = algorithm.make(resolve(()))
MASKED = algorithm.make(resolve((), {"loss.mask_truncated": True}))
APART = algorithm.make(resolve((), {"reward.normalise": "apart", "reward.functions": ["m:x"]}))
"""Format, accuracy and the part `x`, each normalised by itself."""
