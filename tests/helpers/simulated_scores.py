"""Populations of questions for simulations: success rates, scores of samples, and the truth that an interval should cover."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from microrl.evaluation.estimators import pass_at_k


class Population(NamedTuple):
    """Success rates of questions: Beta(mean * size, (1 - mean) * size)."""

    mean: float
    size: float

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.beta(self.mean * self.size, (1 - self.mean) * self.size, shape)

    def truth(self, k: int) -> float:
        """The population's pass@k: 1 - E[(1 - p)^k]."""
        a, b = self.mean * self.size, (1 - self.mean) * self.size
        return 1 - float(np.exp(special.betaln(a, b + k) - special.betaln(a, b)))


POPULATIONS = {
    "hard": Population(0.15, 1.5), "middle": Population(0.5, 2.0), "easy": Population(0.8, 2.0), "ceiling": Population(0.98, 1.0)
}  # fmt: skip


def scores(rng: np.random.Generator, rates: np.ndarray, samples: int, k: int) -> np.ndarray:
    """Each question's avg@samples (k = 1) or unbiased pass@k, from fresh samples."""
    table = np.array([right / samples if k == 1 else pass_at_k(samples, right, k) for right in range(samples + 1)])
    return table[rng.binomial(samples, rates)]
