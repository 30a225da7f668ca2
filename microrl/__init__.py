"""microrl: reinforcement learning with verifiable rewards for small language models, inside a wall-clock budget."""

import logging

__version__ = "0.1.0"

# peft imports bitsandbytes, which warns of a CPU kernel that it could not load; 4-bit weights are used on a GPU only.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
