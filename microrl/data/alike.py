"""Which questions look alike: the same text but for numbers and a few words, as questions of one template do.

Words are those of `contamination`; every number is one and the same word. Two questions are alike if they have half of the longer
one's sequences of three words in common; of fewer than 13 words, all have to be the same. Thirteen in a row, as in
`contamination`, would find a quarter of the pairs that GSM-Symbolic's templates make, where names change as well as numbers;
three find 94 %, and of its pairs of different templates none has more than a third in common.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from microrl.data.contamination import Words, sequences, words

ALIKE = 0.5
FEWEST = 8
"""Clusters that are recognised, rather than named, are taken for samples of others from this number on. Fewer are the kinds of
questions that were meant to be asked."""
_RUN = 3
_COMMON = 100
"""Clusters; a sequence found in more of them is a stock phrase."""


def alike(texts: Sequence[str]) -> list[int]:
    """The cluster of each text, by number. What more than half of the texts share does not make them alike."""
    patterns = [_pattern(text) for text in texts]
    given = Counter(patterns)
    uses: Counter[Words] = Counter()
    for pattern, number in given.items():
        uses.update(dict.fromkeys(sequences(pattern, _RUN) or {pattern}, number))
    parents: list[int] = []
    sizes: list[int] = []
    owners: dict[Words, set[int]] = {}

    def root(cluster: int) -> int:
        while parents[cluster] != cluster:
            parents[cluster] = cluster = parents[parents[cluster]]
        return cluster

    clusters: dict[Words, int] = {}
    for pattern in sorted(given):
        own = {sequence for sequence in (sequences(pattern, _RUN) or {pattern}) if 2 * uses[sequence] <= len(texts)}
        if not own:
            continue
        clusters[pattern] = new = len(parents)
        parents.append(new)
        sizes.append(len(own))
        shared: Counter[int] = Counter()
        for sequence in own:
            known = owners.setdefault(sequence, set())
            if len(known) <= _COMMON:
                shared.update({root(cluster) for cluster in known})
                known.add(new)
        for cluster, number in shared.items():
            if number >= ALIKE * max(len(own), sizes[cluster]):
                parents[root(new)] = root(cluster)
    return [root(clusters[pattern]) if pattern in clusters else -1 - index for index, pattern in enumerate(patterns)]


def _pattern(text: str) -> Words:
    """The text's words, where a number, with its separators and decimals, is `0`."""
    masked = ("0" if word[0].isdecimal() else word for word in words(text))
    return tuple(one for word, equal in groupby(masked) for one in (["0"] if word == "0" else equal))
