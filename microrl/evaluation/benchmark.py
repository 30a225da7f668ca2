"""A problem set with the settings of its evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from microrl.config import RunConfig
from microrl.types import Sampling


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The `data` and `evaluation` of its configuration say what is asked and how. `stem` names its files."""

    name: str
    stem: str
    config: RunConfig

    def sampling(self) -> Sampling:
        """How completions are drawn."""
        return sampling_of(self.config)


def sampling_of(config: RunConfig, *, samples: int | None = None) -> Sampling:
    """How an evaluation draws completions; `samples`: another number of them."""
    settings = config.evaluation
    limit = settings.max_completion_tokens or config.sampling.max_completion_tokens
    return Sampling(samples or settings.samples, limit, settings.temperature, settings.top_p)
