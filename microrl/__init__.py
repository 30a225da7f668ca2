"""microrl: reinforcement learning with verifiable rewards for small language models, inside a wall-clock budget."""

__version__ = "0.1.0"
