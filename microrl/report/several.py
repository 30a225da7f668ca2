"""What several runs suffered, counted: what qualifies the answer of a sweep or of a comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from microrl.report.findings import FEW_UPDATES, SURVIVED, Finding, findings, updates
from microrl.report.history import History
from microrl.terminal import alike

CUT = ("evaluation cut", "SFT cut")
"""Kinds of findings that are told although they are not serious."""
MOST = 3
"""Kinds that are told; of more, their number is."""


def learned_nothing(history: History) -> bool:
    """Whether no step of a run changed a weight; no for a run without steps."""
    return bool(history.rows) and not updates(history)


def told_of(histories: Sequence[History], noun: str) -> list[str]:
    """Sentences such as `In 2 of 4 trials, no update: ...`, the most frequent first. `noun`: what a run is called."""
    of = f"of {len(histories)} {noun}{'s' * (len(histories) != 1)}"
    by_kind: dict[str, list[Finding]] = {}
    for history in histories:
        seen = {one.kind: one for one in reversed(findings(history))}
        for kind, one in seen.items():
            if kind in CUT or (one.is_serious and kind not in SURVIVED):
                by_kind.setdefault(kind, []).append(one)
    ranked = sorted(by_kind.items(), key=lambda item: -len(item[1]))
    told = [f"In {len(found)} {of}, {_typical(found)}" for _, found in ranked[:MOST]]
    if len(ranked) > MOST:
        told.append(f"{len(ranked) - MOST} more kinds of trouble are in the report.")
    few = sum(0 < updates(history) < FEW_UPDATES for history in histories)
    return told + ([f"{few} {of} made fewer than {FEW_UPDATES} updates: the answer rests on short runs."] if few else [])


def _typical(found: Sequence[Finding]) -> Finding:
    """A finding of one kind in words: the most frequent of its messages, numbers apart."""
    ways = Counter(alike(one.message) for one in found)
    way, count = ways.most_common(1)[0]
    first = next(one for one in found if alike(one.message) == way)
    return replace(first, count=1, message=first.message if count == len(found) else f"most often, {first.message}")
