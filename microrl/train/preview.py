"""`--dry-run`: the resolved configuration, three rendered prompts with their gold answers, and a forecast."""

from __future__ import annotations

import json
from pathlib import Path

from microrl.config import RunConfig


def preview(config: RunConfig) -> str:
    return json.dumps(config.model_dump(mode="json"), indent=2)
