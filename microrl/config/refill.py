"""DAPO's dynamic sampling: how many prompts the next round of a step asks for, and when the step has asked enough."""

from __future__ import annotations

import math

MOST_BATCHES = 10
"""A step asks at most this many times the prompts of its batch: the bound that DAPO's own recipe sets in verl. A batch is filled
where a tenth of the groups and more are mixed."""
REFILL_SHARE = 0.9
"""Most of a step's sampling time that refilling may take, in a run that the clock ends."""
GROWTH = 4
"""A round asks at most this many times what the rounds before it have asked: from few groups their share is known roughly."""


def next_round(wanted: int, kept: int, sampled: int) -> int:
    """Prompts to ask next, when `kept` of `sampled` groups were mixed and `wanted` make a batch; 0: none.

    The first round asks for the batch. Each later one asks for (m + sqrt(m (1 - p))) / p prompts, where m groups are missing
    and p = (kept + 1) / (sampled + 2) estimates the share of mixed ones: one standard deviation more than fills the batch on
    average, since a further round would wait for its own longest completion. No clock decides, so that this repeats.
    """
    if not sampled:
        return wanted
    missing = wanted - kept
    if missing <= 0:
        return 0
    share = (kept + 1) / (sampled + 2)
    asked = math.ceil((missing + math.sqrt(missing * (1 - share))) / share)
    return max(min(asked, GROWTH * sampled, MOST_BATCHES * wanted - sampled), 0)


def has_time(first_s: float, refills_s: float, next_s: float) -> bool:
    """Whether a round of `next_s` seconds leaves refilling within its share of the sampling time."""
    refilling_s = refills_s + next_s
    return refilling_s <= REFILL_SHARE * (first_s + refilling_s)
