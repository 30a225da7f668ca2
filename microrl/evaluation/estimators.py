"""Unbiased estimators of one question's score from its samples: pass@k, pass^k, maj@k. For intervals see `intervals.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of k samples is right, unbiased, from n samples with c right: 1 - C(n-c, k) / C(n, k).

    Chen et al. 2021, eq. 1. Raises ValueError for k > n, where no unbiased estimate exists.
    """
    if not 1 <= k <= n or not 0 <= c <= n:
        raise ValueError(f"pass@{k} from {n} samples with {c} right")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_all_k(n: int, c: int, k: int) -> float:
    """Probability that all of k samples are right (pass^k), unbiased, from n samples with c right: C(c, k) / C(n, k).

    Yao et al. 2024 (tau-bench), section 3. Raises ValueError for k > n.
    """
    if not 1 <= k <= n or not 0 <= c <= n:
        raise ValueError(f"pass^{k} from {n} samples with {c} right")
    return math.comb(c, k) / math.comb(n, k)


def majority_at_k(answers: Sequence[tuple[int, bool]], *, n: int, k: int) -> float:
    """Probability that the most frequent answer among k samples is right (maj@k), unbiased: the mean over all C(n, k) subsets.

    `answers` holds (count, is right) for each different answer of one question; the n - sum(counts) samples without an answer
    do not vote. A tie is shared equally: 2 right answers among 3 at the top count 2/3. Without a vote it is wrong.
    Raises ValueError for k > n and for more answers than samples.
    """
    blank = n - sum(count for count, _ in answers)
    if not 1 <= k <= n or blank < 0 or any(count < 0 for count, _ in answers):
        raise ValueError(f"maj@{k} from {n} samples with {n - blank} answers")
    total = sum((_right_at_the_top(answers, blank, k, top) for top in range(1, k + 1)), Fraction(0))
    return float(total / math.comb(n, k))


def _right_at_the_top(answers: Sequence[tuple[int, bool]], blank: int, k: int, top: int) -> Fraction:
    """Number of subsets of k whose most frequent answers have `top` votes, each weighted by the share of right ones at the top.

    `ways[used, right, wrong]` counts how the answers seen so far fill `used` places of the subset, with so many right and wrong
    ones at the top. Answers with fewer than `top` samples cannot reach it, so they fill places as blank ones do.
    """
    ways = {(0, 0, 0): 1}
    for count, is_right in answers:
        if count < top:
            blank += count
            continue
        grown: dict[tuple[int, int, int], int] = {}
        for (used, right, wrong), number in ways.items():
            for votes in range(min(top, k - used) + 1):
                at_top = votes == top
                key = (used + votes, right + (at_top and is_right), wrong + (at_top and not is_right))
                grown[key] = grown.get(key, 0) + number * math.comb(count, votes)
        ways = grown
    total = Fraction(0)
    for (used, right, wrong), number in ways.items():
        if right:
            total += Fraction(right, right + wrong) * number * math.comb(blank, k - used)
    return total
