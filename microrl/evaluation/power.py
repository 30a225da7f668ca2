"""Power beforehand: how many questions show a gain of a given size nine times in ten, with the intervals of this package.

A gain is shown where its 95 % interval lies above 0. Success rates of questions are taken to be beta-distributed; before and
after differ by the gain, and by a change of each question that follows from their correlation. Needs no torch.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from microrl.evaluation.intervals import gain_bounds

if TYPE_CHECKING:
    from numpy.typing import NDArray

POWER = 0.9
ACCURACY = 0.5
"""Accuracy before training; the hardest case."""
SIZE = 2.0
"""a + b of Beta(a, b), the questions' success rates: at an accuracy of 0.5, evenly spread over 0 to 1."""
CORRELATION = 0.9
"""Between a question's success rates before and after. An assumption: lower if training changes which questions are solved."""
SEED_SD = 0.01
"""Standard deviation of the accuracy after training between seeds. An assumption."""
MOST = 200_000
"""Questions; no benchmark has more."""


@dataclass(frozen=True, slots=True)
class Study:
    """What is to be shown, and what is assumed about the questions."""

    gain: float
    accuracy: float = ACCURACY
    size: float = SIZE
    correlation: float = CORRELATION
    seed_sd: float = SEED_SD

    def __post_init__(self) -> None:
        if not 0 < self.gain < 1 or not 0 < self.accuracy < 1 - self.gain:
            raise ValueError(f"a gain of {self.gain:g} from an accuracy of {self.accuracy:g}")


def power(study: Study, *, questions: int, samples: int, seeds: int = 1) -> float:
    """Probability that the interval of the gain lies above 0, with one untouched model and `seeds` trained ones.

    For one seed the gain is this run's, with `paired_gain`. For several it is the mean over seeds, with `hierarchical_gain`: its
    estimate of the variance between seeds is a chi-squared variable, over whose quantiles the power is averaged.
    """
    import numpy as np
    from scipy import special

    of_questions, scatter = _variances(study, samples, seeds)
    error = of_questions / questions
    within = _half_width(study.gain, of_questions, questions, samples * seeds)
    if seeds == 1:
        return float(special.ndtr((study.gain - within) / math.sqrt(error)))
    scatter /= seeds * questions
    between = study.seed_sd**2 / seeds
    freedom = seeds - 1
    levels_R = (np.arange(400) + 0.5) / 400
    chi_R = 2 * special.gammaincinv(freedom / 2, levels_R) / freedom
    quantiles = (float(special.stdtrit(freedom, 0.975)), float(special.stdtrit(questions - 1, 0.975)))
    squared_R = (between + scatter) * chi_R * quantiles[0] ** 2 + max(error - scatter, 0.0) * quantiles[1] ** 2
    half_R = np.maximum(np.sqrt(squared_R), within)
    return float(np.mean(special.ndtr((study.gain - half_R) / math.sqrt(error + between))))


def questions_needed(study: Study, *, samples: int, seeds: int = 1) -> int | None:
    """Fewest questions that show the gain nine times in ten; None if 200,000 do not."""
    counts = range(5, MOST + 1)
    index = bisect_left(counts, POWER, key=lambda count: power(study, questions=count, samples=samples, seeds=seeds))
    return None if index == len(counts) else counts[index]


def smallest_gain(*, questions: int, samples: int) -> float | None:
    """Smallest gain, to a thousandth, that one seed shows nine times in ten with the other assumptions of `Study`; None if even
    the largest possible one is not."""
    gains = [gain / 1000 for gain in range(1, int(1000 * (1 - ACCURACY)))]
    index = bisect_left(gains, POWER, key=lambda gain: power(Study(gain), questions=questions, samples=samples))
    return None if index == len(gains) else gains[index]


def _variances(study: Study, samples: int, seeds: int) -> tuple[float, float]:
    """(variance of a question's difference of means, variance of an answer's mean within a seed's question).

    Beta(m s, (1 - m) s) has the variance m (1 - m) / (s + 1), and its answers vary by m (1 - m) s / (s + 1) on average. All of a
    question's change is taken to be shared by the seeds, which is the more careful assumption.
    """
    means = (study.accuracy, study.accuracy + study.gain)
    deviations = [math.sqrt(mean * (1 - mean) / (study.size + 1)) for mean in means]
    answers = [mean * (1 - mean) * study.size / (study.size + 1) / samples for mean in means]
    change = deviations[0] ** 2 + deviations[1] ** 2 - 2 * study.correlation * deviations[0] * deviations[1]
    return change + answers[0] + answers[1] / seeds, answers[1]


def _half_width(gain: float, variance: float, questions: int, samples: int) -> float:
    """The mean difference whose interval begins at 0, for differences of this variance, near the gain."""
    import numpy as np

    means_R: NDArray = np.linspace(0.0, max(6 * math.sqrt(variance / questions), gain), 400)
    square_R = variance + means_R**2
    absolute_R = math.sqrt(2 / math.pi) * np.sqrt(square_R)  # as if normal; it matters for few questions only
    low_R, _ = gain_bounds(means_R, absolute_R, square_R, count=questions, samples=samples)
    return float(np.interp(0.0, low_R, means_R))
