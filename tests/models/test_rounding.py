"""Stochastic rounding: without a bias, the same everywhere, and with no more memory than a few blocks."""

import copy
import os
import statistics
import weakref
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from microrl.adapters.attach import attach
from microrl.config import resolve
from microrl.models import rounding
from microrl.models.forward import adapted, sequence_logprobs
from microrl.models.load import load
from microrl.models.rounding import StochasticRounding
from microrl.models.tensors import merge_lora, replaced, updated, weight_sharing_copy, weights
from microrl.rollout import sync_check
from microrl.types import AdapterSnapshot, LowRank

TYPES = [torch.bfloat16, torch.float16]
ROUND = StochasticRounding(7, 3, "model.layers.0.mlp.up_proj.weight")


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def pair(out, width, rank=8, size=1e-3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return LowRank(torch.randn(rank, width, generator=generator), torch.randn(out, rank, generator=generator) * size, 0.5)


def base(out, width, dtype, seed=9):
    return (torch.randn(out, width, generator=torch.Generator().manual_seed(seed)) * 0.05).to(dtype)


# Below the number, the step to the next one, and how far the value lies between them.
@pytest.mark.parametrize(
    ("dtype", "below", "step", "share"),
    [
        (torch.bfloat16, 1.0, 2.0**-7, 3 / 8),
        (torch.bfloat16, 0.05078125, 2.0**-12, 2.0**-10),  # a step of Adam at 1e-5 in a weight of 0.05 is about so small
        (torch.bfloat16, 3 * 2.0**-133, 2.0**-133, 5 / 8),  # below the normal ones
        (torch.float16, 1.0, 2.0**-10, 3 / 8),
        (torch.float16, 2.0**-14, 2.0**-24, 5 / 8),
        (torch.float16, 3 * 2.0**-24, 2.0**-24, 5 / 8),  # below the normal ones
        (torch.float16, 0.0, 2.0**-24, 2.0**-10),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_as_many_go_up_as_the_value_is_between_two_numbers(dtype, below, step, share, sign):
    """Of 2^20 numbers share x 2^20 are expected: 393,216, 1,024 and 655,360. The standard deviation is
    sqrt(2^20 share (1 - share)): 496, 32 and 496."""
    count = 2**20
    wide = torch.full((1024, 1024), sign * (below + share * step))
    found = ROUND(wide, dtype, 0).double() * sign
    up = found == below + step
    assert bool((up | (found == below)).all()), "only its two neighbours"
    assert abs(int(up.sum()) - share * count) < 4 * (count * share * (1 - share)) ** 0.5


@pytest.mark.parametrize("dtype", TYPES)
def test_every_number_of_the_type_stays(dtype):
    """All 65,536 of them, infinities too; what is not a number stays none, whatever its bits."""
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).view(256, 256)
    found = ROUND(every.float(), dtype, 0)
    assert torch.equal(found.isnan(), every.isnan())
    assert torch.equal(found[~every.isnan()], every[~every.isnan()])
    no_number = torch.full((64, 64), 0x7FFFFFFF, dtype=torch.int32).view(torch.float32)  # the NaN that NVIDIA's cards make
    assert bool(ROUND(no_number, dtype, 0).isnan().all())


@pytest.mark.parametrize("dtype", TYPES)
def test_beyond_the_largest_number_is_rounded_to_nearest(dtype):
    largest = torch.finfo(dtype).max
    step = largest * torch.finfo(dtype).eps / (2 - torch.finfo(dtype).eps)
    wide = torch.full((64, 64), largest + 0.25 * step)
    wide[1], wide[2], wide[3], wide[4] = (
        -largest - 0.25 * step,
        largest + 0.75 * step,
        1 + 0.25 * torch.finfo(dtype).eps,
        -torch.inf,
    )
    found = ROUND(wide.clone(), dtype, 0)
    assert bool((found[0] == largest).all()) and bool((found[1] == -largest).all()), "no infinity by chance"
    assert bool(found[2].isposinf().all()), "and none kept from being seen"
    assert set(found[3].tolist()) == {1.0, 1 + torch.finfo(dtype).eps}, "the others are rounded as always"
    assert bool(found[4].isneginf().all())


def hashed(number, keys):
    """lowbias32 in Python's own integers."""
    for key in keys:
        number = (number + key) % 2**32
        number = (number ^ number >> 16) * 0x7FEB352D % 2**32
        number = (number ^ number >> 15) * 0x846CA68B % 2**32
        number ^= number >> 16
    return number


def test_the_bits_are_a_hash_of_row_and_column():
    """In unsigned arithmetic, by which a card's must be the same."""
    found = ROUND._bits(torch.empty(200, 70), 16, 1000)
    for row, column in ((0, 0), (1, 0), (0, 1), (37, 61), (199, 69)):
        number = (hashed(1000 + row, ROUND._keys[:2]) ^ hashed(column, ROUND._keys[2:])) * 0x7FEB352D % 2**32
        number = (number ^ number >> 15) * 0x846CA68B % 2**32
        assert int(found[row, column]) == number >> 16


@pytest.mark.slow
def test_the_bits_look_random():
    """Each value as often as the others, and nothing follows from a neighbour, a row, a column, a version or a name: all within
    five standard errors."""
    side = 2048
    bits = ROUND._bits(torch.empty(side, side), 16, 0)
    counts = torch.bincount(bits.flatten(), minlength=2**16).double()
    expected = side * side / 2**16
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi_square - (2**16 - 1)) < 5 * (2 * (2**16 - 1)) ** 0.5
    unit = (bits.double() - (2**16 - 1) / 2) * (12**0.5 / 2**16)

    def correlation(left, right):
        return float((left * right).sum()) / left.numel() ** 0.5

    for lag in (1, 2, 64):
        assert abs(correlation(unit[lag:], unit[:-lag])) < 5 and abs(correlation(unit[:, lag:], unit[:, :-lag])) < 5
    for other in ((8, 3, "a"), (7, 4, "a"), (7, 3, "b")):
        others = StochasticRounding(*other)._bits(bits, 16, 0).double() - (2**16 - 1) / 2
        assert abs(correlation(unit, others * (12**0.5 / 2**16))) < 5
    corners = unit[::2, ::2] * unit[1::2, ::2] * unit[::2, 1::2] * unit[1::2, 1::2]  # of a sum of row and column they would show
    assert abs(float(corners.sum()) / corners.numel() ** 0.5) < 5
    # The largest singular value of random numbers is 2 sqrt(side); an odd row or column would stand out.
    assert torch.linalg.svdvals(unit[:512, :512])[0] < 2.1 * 512**0.5


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("out", "width", "rank"), [(576, 576, 64), (130, 127, 6), (1500, 300, 200), (5, 3, 2)])
def test_the_same_bits_whatever_the_blocks_and_threads(dtype, out, width, rank, monkeypatch, threads):
    weight, update = base(out, width, dtype), pair(out, width, rank)
    expected = merge_lora(weight, update, ROUND)
    state = torch.get_rng_state()
    for elements in (1, 2**13, 2**16, 2**30):
        monkeypatch.setattr(rounding, "BLOCK_ELEMENTS", elements)
        for count in (1, 2, 3):
            threads(count)
            assert torch.equal(merge_lora(weight, update, ROUND), expected)
    assert torch.equal(torch.get_rng_state(), state), "no generator is drawn from"
    for other in ((8, 3, "a"), (7, 4, "a"), (7, 3, "b")):
        assert (out < 100) or not torch.equal(merge_lora(weight, update, StochasticRounding(*other)), expected)


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 127, 128, 130, 1000])
def test_blocks_cover_every_row_once(rows, monkeypatch):
    monkeypatch.setattr(rounding, "BLOCK_ELEMENTS", 64 * 100)
    found = list(rounding.blocks(torch.empty(rows, 100)))
    assert [row for block in found for row in range(block.start, block.stop)] == list(range(rows))
    assert all(block.start % 64 == 0 for block in found) and max(block.stop - block.start for block in found) < 128


@pytest.mark.parametrize("dtype", TYPES)
def test_what_the_adapter_does_not_change_is_not_rounded(dtype):
    weight, update = base(300, 200, dtype), pair(300, 200)
    update.B_OR[100:200] = 0
    found = merge_lora(weight, update, ROUND)
    assert torch.equal(found[100:200].view(torch.int16), weight[100:200].view(torch.int16))
    changed = found[:100] != weight[:100]
    assert float(changed.double().mean()) > 0.05, "the others are"


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors made under it that are still there, and the most of them at a time."""

    def __init__(self, *there_before):
        super().__init__()
        self.now = self.peak = 0
        self.seen = {tensor.untyped_storage()._cdata for tensor in there_before}

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        found = function(*arguments, **(named or {}))
        for tensor in tree_iter(found):
            if isinstance(tensor, torch.Tensor) and (storage := tensor.untyped_storage())._cdata not in self.seen:
                self.seen.add(storage._cdata)
                self.now += storage.nbytes()
                weakref.finalize(storage, self.forget, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return found

    def forget(self, key, size):
        self.seen.discard(key)
        self.now -= size


@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 4), (torch.float16, 5)])
def test_merging_takes_a_few_blocks_beside_the_result(dtype, most, monkeypatch):
    """Of 4 bytes an element: the sum, its random bits, and what their shifts take; in float16 what lifts small numbers, too."""
    monkeypatch.setattr(rounding, "BLOCK_ELEMENTS", 2**14)
    weight, update = base(4096, 256, dtype), pair(4096, 256, rank=4)
    with LiveBytes(weight, update.A_RI, update.B_OR) as live:
        found = merge_lora(weight, update, ROUND)
    beside = live.peak - found.nbytes
    assert 2 * 4 * 2**14 < beside < most * 4 * 2**14, f"{beside / (4 * 2**14):.2f} blocks"
    with LiveBytes(weight, update.A_RI, update.B_OR) as live:
        merge_lora(weight, update)
    assert live.peak > 4 * weight.numel(), "to nearest it is the whole tensor in float32"


# ---- an update that is handed over


def test_only_an_engine_gets_random_weights(model, tokenizer):
    """An export stays rounded to nearest, and what the trainer itself rounds so goes over as it computes with it."""
    narrow = copy.deepcopy(model).to(torch.bfloat16)
    name = "model.layers.0.mlp.up_proj"
    update = pair(256, 128)
    snapshot = AdapterSnapshot(3, {name: update})
    nearest = merge_lora(narrow.get_submodule(name).weight, update)
    assert torch.equal(dict(weights(narrow, snapshot))[f"{name}.weight"], nearest)
    for_engine = dict(weights(narrow, snapshot, for_engine=True))
    assert not torch.equal(for_engine[f"{name}.weight"], nearest)
    assert torch.equal(dict(weights(narrow, replace(snapshot, seed=None), for_engine=True))[f"{name}.weight"], nearest)
    again = dict(weights(narrow, AdapterSnapshot(3, {name: pair(256, 128)}), for_engine=True))
    assert all(torch.equal(again[key], tensor) for key, tensor in for_engine.items()), "a resumed run has the same bits"
    assert not torch.equal(
        dict(weights(narrow, replace(snapshot, version=4), for_engine=True))[f"{name}.weight"], for_engine[f"{name}.weight"]
    )
    assert torch.equal(
        dict(weights(model, snapshot, for_engine=True))[f"{name}.weight"], merge_lora(model.get_submodule(name).weight, update)
    ), "nothing is rounded in float32"
    with adapted(narrow, snapshot, merges=True) as merged:
        computed = merged.get_submodule(name)(torch.eye(128, dtype=torch.bfloat16))
    assert torch.equal(computed.t(), for_engine[f"{name}.weight"]), "the proof computes with these very weights"


@pytest.mark.parametrize(("kind", "seed"), [("lora", 5), ("dora", 5), ("vera", 5), ("ia3", None), ("ln", None), ("full", None)])
def test_what_the_trainer_rounds_to_nearest_goes_over_so(kind, seed, model):
    """In 16 bits `full` and `ln` compute with weights that are cast, `ia3` casts what it multiplies."""
    keys = {"adapter.kind": kind} if kind in ("ia3", "ln", "full") else {"adapter.kind": kind, "adapter.rank": 4}
    assert attach(model, resolve((), keys).adapter, seed=5).snapshot(1).seed == seed


def train(model, adapter, tokenizer, lr, steps):
    """Adam on the log-probabilities of four texts, two of which are to grow likelier."""
    texts = (
        "What is 12 + 30? It is 42.",
        "system user assistant guess",
        "one, two, three, four, five",
        "The sum of 3 and 4 is 7.",
    )
    rows = [torch.tensor([tokenizer(text)["input_ids"][:24]]) for text in texts]
    optimizer = torch.optim.Adam(adapter.parameters.values(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        for row, sign in zip(rows, (1, -1, 1, -1), strict=True):
            scores = model(row).logits[0, :-1].log_softmax(-1).gather(1, row[0, 1:, None])
            (-sign * scores.mean() / 4).backward()
        optimizer.step()


def slopes(model, tokenizer, steps, lr=1e-5, rank=64, seeds=range(3)):
    """By the number of steps the update's change in nats, the slope rounded to nearest, and those of some seeds.

    The base is bfloat16's; everything but the merged weights is computed in float32, so that their rounding alone is seen.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    untouched, sequences = weight_sharing_copy(model), sync_check.sequences(tokenizer)
    adapter = attach(model, resolve((), {"adapter.rank": rank, "adapter.alpha": float(rank)}).adapter, seed=0)

    def scores(of):
        return sync_check.flat(sequence_logprobs(of, sequences, fp32_head=True))

    def slope(snapshot):
        names = [f"{name}.weight" for name in snapshot.pairs]
        tensors = {
            name: torch.nn.Parameter(
                updated(name, untouched.get_parameter(name).bfloat16(), snapshot, for_engine=True).float(), requires_grad=False
            )
            for name in names
        }
        with replaced(untouched, tensors):
            change = scores(untouched) - before
        return float(change @ exact / (exact @ exact))

    before, found, done = scores(untouched), {}, 0
    for step in steps:
        train(model, adapter, tokenizer, lr, step - done)
        done = step
        exact, snapshot = scores(model) - before, adapter.snapshot(step)
        found[step] = (
            float(exact.abs().mean()),
            slope(replace(snapshot, seed=None)),
            [slope(replace(snapshot, seed=seed)) for seed in seeds],
        )
        print(step, found[step])
    return found


def test_a_small_update_survives_a_merge(model, tokenizer):
    """A slope's error is about 0.1 here: eight of them are as likely to lie above 1 as below."""
    for change, nearest, stochastic in slopes(model, tokenizer, (4,), lr=2e-5, rank=16, seeds=range(8)).values():
        assert change < 0.01 and nearest < 0.3
        assert sum(stochastic) / 8 == pytest.approx(1, abs=0.1) and all(0.7 < slope < 1.3 for slope in stochastic)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("MICRORL_TEST_GGUF"), reason="MICRORL_TEST_GGUF names no model")
def test_the_first_step_survives_a_merge_into_a_real_model():
    """SmolLM2-135M at a rate of 1e-5: rounded to nearest a tenth of the first step is left.

    Of 16 seeds, the slopes after the first step had a mean of 0.967 +- 0.047 and a standard deviation of 0.19, which falls with
    the root of the change: 0.055 after 4 steps, 0.019 after 16.
    """
    model, tokenizer = load(resolve((), {"model.name": os.environ["MICRORL_TEST_GGUF"], "model.dtype": "float32"}).model)
    found = slopes(model, tokenizer, (1, 16), seeds=range(6))
    change, nearest, stochastic = found[1]
    assert change < 0.01 and nearest < 0.2 and statistics.mean(stochastic) == pytest.approx(1, abs=3 * 0.19 / 6**0.5)
    change, nearest, stochastic = found[16]
    assert change < 0.1 and nearest < 0.8 and all(0.9 < slope < 1.1 for slope in stochastic)
