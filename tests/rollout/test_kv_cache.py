"""The cache that is written in place: what is kept of its rows, and continued."""

import pytest
import torch

from microrl.rollout.kv_cache import InPlaceCache

LAYERS, HEADS, SIZE = 2, 3, 4


def filled(rows: int, tokens: int) -> InPlaceCache:
    cache = InPlaceCache(LAYERS, tokens + 5)
    for layer in range(LAYERS):
        cache.update(torch.randn(rows, HEADS, tokens, SIZE), torch.randn(rows, HEADS, tokens, SIZE), layer)
    return cache


@pytest.mark.parametrize("first", [[1, 4, 2], [0, 1, 2, 3, 4]])  # some of its rows, and all of them
def test_rows_of_several_copies_go_on_side_by_side(first):
    """Rows that began and ended at different positions, of which different numbers of tokens are used."""
    torch.manual_seed(0)
    one, other = filled(5, 20), filled(4, 17)
    starts, lengths = [3, 0, 5, 2, 1][: len(first)], [17, 12, 10, 18, 15][: len(first)]
    kept = [*one.copy(first, starts, lengths), *other.copy([3, 0], [4, 1], [9, 16])]
    used = [*lengths[:2], *(length - 2 for length in lengths[2:]), 9, 7]
    cache = InPlaceCache(LAYERS, 30)
    cache.begin(kept, used, 18)
    sources = [(one, row, start) for row, start in zip(first, starts)] + [(other, 3, 4), (other, 0, 1)]
    assert len({start + length for (_, _, start), length in zip(sources, used, strict=True)}) > 2
    for layer in range(LAYERS):
        for place, ((source, row, start), length) in enumerate(zip(sources, used, strict=True)):
            for have, want in ((cache.layers[layer].keys, source.layers[layer].keys),
                               (cache.layers[layer].values, source.layers[layer].values)):  # fmt: skip
                assert torch.equal(have[place, :, 18 - length :], want[row, :, start : start + length])
        assert cache.layers[layer].keys.shape == (len(kept), HEADS, 18, SIZE) and cache.layers[layer].keys.isfinite().all()
