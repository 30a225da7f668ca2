"""Algorithms made from a configuration: GRPO, GRPO without truncated completions, and one that normalises rewards by part."""

from microrl import algorithm
from microrl.config import resolve

GRPO = algorithm.make(resolve(()))
MASKED = algorithm.make(resolve((), {"loss.mask_truncated": True}))
APART = algorithm.make(resolve((), {"reward.normalise": "apart", "reward.functions": ["m:x"]}))
"""Format, accuracy and the part `x`, each normalised by itself."""
