"""The guide: Markdown pages that ship with the package, and a figure."""

from __future__ import annotations

import re
from pathlib import Path

from microrl.errors import UserError, did_you_mean

FOLDER = Path(__file__).resolve().parent
ORDER = (
    "quickstart", "examples", "data", "rewards", "custom-rewards", "environments", "episodes", "configuration", "coming-from",
    "budget", "plan", "rented", "evaluation", "sweeps", "studies", "report", "guard", "warmup", "adapters", "losses",
    "distillation", "engine", "speed", "changes", "contributing", "reading",
)  # fmt: skip
"""The pages, in the order in which a new user needs them."""


def pages() -> dict[str, str]:
    """Every page's first sentence, by topic."""
    return {topic: _first_sentence(text(topic)) for topic in ORDER}


def text(topic: str) -> str:
    """A page as Markdown. Raises UserError for a topic that does not exist."""
    if topic not in ORDER:
        raise UserError(f"the guide has no page `{topic}`", did_you_mean(topic, ORDER))
    return (FOLDER / f"{topic}.md").read_text(encoding="utf-8")


def _first_sentence(page: str) -> str:
    paragraph = page.split("\n\n")[1].replace("\n", " ")
    return re.split(r"(?<=[a-z]{3}\.) ", paragraph)[0]  # not at the point of "Dr."
