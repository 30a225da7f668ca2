"""Which questions of a benchmark stand, word for word or nearly so, among the training questions.

Two questions overlap if they share 13 words in a row (Brown et al. 2020, arXiv 2005.14165, appendix C, whose rule we take: a
sequence found in more than 10 training questions is a stock phrase, and does not count). They are near-duplicates if at least
60 % of the shorter one's sequences are shared; the share is ours. Of fewer than 13 words, all have to be the same. Words are
letters and digits without case, and the signs + - * / = < > ^; other signs and LaTeX's sizes are no difference.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count
from typing import NamedTuple

LENGTH = 13
STOCK = 10
"""Training questions; a sequence of words found in more of them is a stock phrase."""
NEAR = 0.6
_WORD = re.compile(r"[^\W_]+|[-+*/=<>^]")
_SIZES = re.compile(r"\\(?:left|right|displaystyle)(?![a-zA-Z])|(?<=\\)[dt](?=frac)")

Words = tuple[str, ...]


class Overlap(NamedTuple):
    """A question of a benchmark and a training question, by their positions, and the share of word sequences in common."""

    question: int
    training: int
    share: float

    @property
    def is_near(self) -> bool:
        """Whether they are near-duplicates, or the same."""
        return self.share >= NEAR


def words(text: str) -> Words:
    """What is compared of a question."""
    return tuple(_WORD.findall((_SIZES.sub(" ", text) if "\\" in text else text).casefold()))


def sequences(text_words: Words, run: int = LENGTH) -> set[Words]:
    """Every `run` words in a row; of a text of fewer than 13, the whole of it."""
    if len(text_words) < LENGTH:
        return {text_words} if text_words else set()
    return set(zip(*(text_words[start:] for start in range(run)), strict=False))


def overlaps(training: Iterable[str], benchmarks: Mapping[str, Sequence[str]]) -> dict[str, list[Overlap]]:
    """For each benchmark its overlaps with training questions, ordered by its questions."""
    looked_for = {(name, index): words(text) for name, texts in benchmarks.items() for index, text in enumerate(texts)}
    asked = {owner: sequences(text_words) for owner, text_words in looked_for.items()}
    owners: dict[Words, list[tuple[str, int]]] = defaultdict(list)
    for owner, own in asked.items():
        for sequence in own:
            owners[sequence].append(owner)
    hits: dict[int, tuple[int, list[Words]]] = {}
    uses: Counter[Words] = Counter()
    given = [words(text) for text in training]
    for index in _suspects(given, looked_for.values()):
        own = sequences(given[index])
        shared = [sequence for sequence in own if sequence in owners]
        if shared:
            hits[index] = len(own), shared
            uses.update(shared)
    stock = {sequence for sequence, number in uses.items() if number > STOCK}
    telling = {owner: len(own - stock) for owner, own in asked.items()}
    overlaps_by_benchmark: dict[str, list[Overlap]] = {name: [] for name in benchmarks}
    for index, (own_count, shared) in hits.items():
        left = [sequence for sequence in shared if sequence not in stock]
        common = Counter(owner for sequence in left for owner in owners[sequence])
        shorter = own_count - (len(shared) - len(left))
        for owner, number in common.items():
            name, question = owner
            overlaps_by_benchmark[name].append(Overlap(question, index, number / min(telling[owner], shorter)))
    return {name: sorted(pairs) for name, pairs in overlaps_by_benchmark.items()}


def _suspects(given: Sequence[Words], looked_for: Iterable[Words]) -> list[int]:
    """The positions of the texts that may share a sequence with `looked_for`: all that do, and few others.

    Hashes of all sequences at once, since a tuple of words for each would take seconds.
    """
    import numpy as np

    ids: defaultdict[str, int] = defaultdict(count(1).__next__)
    factors = np.random.default_rng(0).integers(1, 2**63, LENGTH, dtype=np.uint64) | np.uint64(1)

    def hashes(texts: Iterable[Words]) -> np.ndarray:
        flat = np.fromiter(map(ids.__getitem__, chain.from_iterable(texts)), np.uint64)
        windows = max(len(flat) - LENGTH + 1, 0)
        return sum((flat[start : start + windows] * factor for start, factor in enumerate(factors)), np.zeros(windows, np.uint64))

    wanted = hashes(looked_for)
    ends = np.cumsum([len(text) for text in given])
    matches = np.flatnonzero(np.isin(hashes(given), wanted))
    suspects = set(np.searchsorted(ends, matches, side="right").tolist())
    return sorted(suspects | {index for index, text in enumerate(given) if len(text) < LENGTH})
