"""How long the tools make a prompt, where no tokenizer says it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from microrl.config.environment import EnvironmentConfig
from microrl.environments.process import Instances

CHARACTERS_PER_TOKEN = 4
"""Of a JSON schema, roughly, for a vocabulary of 100,000 tokens or more."""


def schema_tokens(config: EnvironmentConfig) -> int:
    """About how many tokens of a prompt tell of the tools; 0 without tools. It takes the seconds of starting the class.

    Raises UserError for a class that cannot be used.
    """
    if config.target is None:
        return 0
    with closing(Instances(config)) as instances:
        return tokens_of(instances.describe().tools)


def tokens_of(tools: Sequence[dict[str, Any]]) -> int:
    """As `schema_tokens`, for JSON schemas that are at hand."""
    return sum(len(json.dumps(tool)) for tool in tools) // CHARACTERS_PER_TOKEN
