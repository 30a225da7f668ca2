"""How long the tools make a prompt, where no tokenizer says it."""

from __future__ import annotations

import json
from contextlib import closing

from microrl.config.environment import EnvironmentConfig
from microrl.data.prompts import Tools
from microrl.environments.process import Instances

CHARACTERS_PER_TOKEN = 4
"""Of a JSON schema, roughly, for a vocabulary of 100,000 tokens or more."""


def schema_tokens(config: EnvironmentConfig) -> int:
    """About how many tokens of a prompt tell of the tools, of several environments the most; 0 without tools. It takes the
    seconds of starting the class.

    Raises UserError for a class that cannot be used.
    """
    tokens = [0]
    for one in config.each.values():
        with closing(Instances(one)) as instances:
            tokens.append(tokens_of(instances.describe().tools))
    return max(tokens)


def tokens_of(tools: Tools) -> int:
    """As `schema_tokens`, for the tools of one environment that are at hand."""
    return sum(len(json.dumps(tool)) for tool in tools) // CHARACTERS_PER_TOKEN
