"""The proof of a swap and the choice between swap and merge: numbers worked out by hand, without an engine."""

import pytest
import torch

from microrl.models.forward import Head, adapted, sequence_logprobs
from microrl.models.tensors import merge_lora, weight_sharing_copy, weights
from microrl.rollout import sync_check
from microrl.rollout.sync import SyncChoice, Trial
from microrl.rollout.sync_check import Probe, Reading
from microrl.types import AdapterSnapshot, LowRank


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


def probe():
    """Sides that differ by 0.01 on the base: that is the noise."""
    return Probe(vector(-1.0, -2.0, -3.0), vector(-1.01, -1.99, -3.01))


def test_a_reading_by_hand():
    reading = probe().read(vector(-1.5, -2.25, -3.0), vector(-1.51, -2.24, -3.01))
    assert reading.gap == pytest.approx(0) and reading.slope == pytest.approx(1) and reading.change == pytest.approx(0.25)
    # Four times the noise, grown with the scores from 6.01 to 6.76, and a twentieth of the change.
    assert reading.floor == pytest.approx(0.04 * 6.76 / 6.01 + 0.0125) and reading.failure() is None
    # The engine moved by (-0.25, -0.25, 0) where the trainer moved by (-0.5, -0.25, 0): 0.1875 / 0.3125.
    reading = probe().read(vector(-1.25, -2.25, -3.0), vector(-1.51, -2.24, -3.01))
    assert reading.slope == pytest.approx(0.6) and reading.gap == pytest.approx(0.25 / 3)


def test_the_standard_error_by_hand():
    """Residuals of the slope 0.6: (0.05, -0.1, 0); their mean square over the power of the trainer's change."""
    reading = probe().read(vector(-1.25, -2.25, -3.0), vector(-1.51, -2.24, -3.01))
    assert reading.slope_error == pytest.approx((0.0125 / 3 / 0.3125) ** 0.5)


def test_a_change_below_the_noise_has_no_slope():
    few = 3 * 0.01 * 0.99
    assert probe().read(vector(-1, -2, -3), vector(-1.01 - few, -1.99 - few, -3.01 - few)).slope is None
    many = 3 * 0.01 * 1.01
    assert probe().read(vector(-1, -2, -3), vector(-1.01 - many, -1.99 - many, -3.01 - many)).slope == 0


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (dict(gap=0.02, slope=1.0), None),
        (dict(gap=0.02, slope=None), None),
        (dict(gap=0.02, slope=0.81), None),
        (dict(gap=0.02, slope=0.79), "some layers were left out"),
        (dict(gap=0.02, slope=1.26), "1.26 times the trainer's: most likely the adapter's scale"),
        (dict(gap=0.02, slope=0.79, slope_error=0.01), None),
        (dict(gap=0.02, slope=0.0), "not pushed"),
        (dict(gap=0.05, slope=1.0), "above its limit"),
        (dict(gap=float("nan"), slope=None), "engine's scores are not finite"),
        (dict(gap=float("nan"), slope=None, change=float("nan")), "trainer's own scores are not finite"),
    ],
)
def test_faults_are_named(values, says):
    fault = Reading(**{"change": 0.5, "floor": 0.04, "slope_error": 0.0, **values}).failure()
    assert fault is None if says is None else says in fault


@pytest.mark.parametrize("swaps", [4000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_noise_alone_stops_no_run(swaps):
    """Thousands of healthy swaps whose change is only just measurable, with noise as large as it may be."""
    generator = torch.Generator().manual_seed(0)
    base = -5 * torch.rand(110, dtype=torch.float64, generator=generator)
    calibrated = Probe(base + 0.02 * torch.randn(110, dtype=torch.float64, generator=generator), base)
    engine_base = calibrated._engine_base_N
    faults = measured = 0
    for _ in range(swaps):
        change = 0.08 * torch.randn(110, dtype=torch.float64, generator=generator)
        noise = 0.02 * torch.randn(110, dtype=torch.float64, generator=generator)
        reading = calibrated.read(engine_base + change + noise, base + change)
        measured += reading.slope is not None
        faults += reading.failure() is not None
    assert measured > 0.75 * swaps and faults == 0


def test_the_canary_stands_out_of_the_noise(model, tokenizer):
    base, sequences = weight_sharing_copy(model), sync_check.sequences(tokenizer)
    before = sync_check.flat(sequence_logprobs(base, sequences, fp32_head=False))

    def change_of(pairs):
        with adapted(base, AdapterSnapshot(1, pairs)) as changed:
            return float((sync_check.flat(sequence_logprobs(changed, sequences, fp32_head=False)) - before).abs().mean())

    targets = [name for name, layer in base.named_modules() if name.endswith(("q_proj", "down_proj"))]
    for least in (0.02, 0.5):
        pairs = sync_check.canary(base, targets, 300, change_of, least)
        assert least <= change_of(pairs) <= 4 * least
        assert set(pairs) == set(targets) and pairs[targets[0]].A_RI.shape == (128, 128), "a rank no layer can have is capped"
    with pytest.raises(ArithmeticError):
        sync_check.canary(base, targets, 4, lambda pairs: 0.0, 0.02)


def test_calibration_only_raises_the_noise():
    one = probe()
    one.calibrate(Reading(gap=0.03, change=1.0, slope=1.0, slope_error=0.0, floor=1.0))
    assert one.noise == 0.03
    one.calibrate(Reading(gap=0.001, change=1.0, slope=1.0, slope_error=0.0, floor=1.0))
    assert one.noise == 0.03 and one.canary_change == pytest.approx(0.6)


# ---- what goes over


def test_weights_are_folded_one_by_one(model):
    name = "model.layers.0.mlp.up_proj"
    layer = model.get_submodule(name)
    pair = LowRank(torch.randn(4, layer.in_features), torch.randn(layer.out_features, 4), 0.5)
    found = dict(weights(model, AdapterSnapshot(1, {name: pair})))
    assert found.keys() == dict(model.named_parameters()).keys()
    assert torch.allclose(found[f"{name}.weight"], layer.weight + 0.5 * pair.B_OR @ pair.A_RI, atol=1e-6)
    others = [other for other in found if other != f"{name}.weight"]
    assert all(found[other] is dict(model.named_parameters())[other] for other in others), "nothing else is copied"


def test_a_fold_is_rounded_once():
    """1 + 0.6 * 2^-8 lies past the middle between 1 and 1 + 2^-7 only when scale and product are not rounded before."""
    pair = LowRank(torch.full((3, 1), 0.2), torch.full((1, 3), 1.0), 2.0**-7)
    assert merge_lora(torch.ones(1, 1, dtype=torch.bfloat16), pair).item() == 1 + 2.0**-7


def test_sequence_logprobs_are_the_models(model):
    sequences = [(5, 6, 7, 8, 9), (5, 6), (9, 8, 7)]
    for ids, found in zip(sequences, sequence_logprobs(model, sequences, fp32_head=False), strict=True):
        whole = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        expected = torch.stack([whole[i - 1, ids[i]] for i in range(1, len(ids))])
        assert torch.allclose(found, expected, atol=1e-5)


def test_an_fp32_head_rounds_no_logit():
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 64, generator=generator).bfloat16() for n in (3, 50))
    exact = hidden.double() @ weight.double().t()
    assert torch.allclose(Head(weight, fp32=True).logits(hidden).double(), exact, atol=1e-4)
    assert (Head(weight).logits(hidden).double() - exact).abs().max() > 1e-2


# ---- swap or merge


def trial(push_s, decode_s, tokens=100, slope=1.0):
    return Trial(push_s, tokens, decode_s, gap=0.01, slope=slope)


def reading(slope=1.0, change=0.5):
    return Reading(gap=0.01, change=change, slope=slope, slope_error=0.0, floor=0.04)


def drive(choice, costs, readings=lambda mode, step: reading(), failures=lambda mode: None, steps=8):
    """The modes that were really used, step by step."""
    used = []
    for step in range(steps):
        mode = choice.next()
        if choice.refusal(mode, readings(mode, step), failures(mode)):
            mode = "swap"
        choice.record(mode, costs[mode])
        used.append(mode)
    return used


@pytest.mark.parametrize(
    ("swap", "merge", "kept"),
    [
        (trial(0.1, 10.0), trial(0.5, 9.0), "merge"),  # 10.1 against 9.5
        (trial(0.1, 10.0), trial(1.5, 9.0), "swap"),  # 10.1 against 10.5
        (trial(0.1, 10.0), trial(0.5, 18.0, tokens=200), "merge"),  # twice the tokens, at the same price each as the first
    ],
)
def test_auto_keeps_the_cheaper_one(swap, merge, kept):
    chosen = []
    choice = SyncChoice("auto", None, lambda mode, why, table: chosen.append((mode, why, len(table))))
    assert drive(choice, {"swap": swap, "merge": merge}) == ["swap"] * 3 + ["merge"] * 3 + [kept] * 2
    assert [(mode, count) for mode, _, count in chosen] == [(kept, 6)]


def test_auto_never_merges_what_it_cannot_measure():
    choice = SyncChoice("auto", None, lambda *_: None)
    assert drive(choice, {"swap": trial(9, 9), "merge": trial(0, 0.1)}, lambda *_: reading(slope=None)) == ["swap"] * 8
    assert choice.decided is None, "and stays ready to, once the change can be seen"


@pytest.mark.parametrize(
    ("bad", "failure", "says"),
    [
        (reading(slope=0.79), None, "the check's slope is 0.790"),
        (reading(slope=1.26), None, "the check's slope is 1.260"),
        (reading(slope=None), None, "not measurable"),
        (reading(), "`x` in vLLM's memory is not the trainer's", "`x` in vLLM's memory"),
    ],
)
def test_auto_does_not_sample_from_a_merge_that_the_probe_does_not_confirm(bad, failure, says):
    costs = {"swap": trial(9, 9), "merge": trial(0, 0.1)}
    choice = SyncChoice("auto", None, lambda *_: pytest.fail("nothing is decided"))
    assert drive(choice, costs, lambda mode, _: bad if mode == "merge" else reading(), lambda mode: failure) == ["swap"] * 8
    again = SyncChoice("auto", None, lambda *_: None)
    drive(again, costs, steps=3)
    refused = again.refusal("merge", bad, failure)
    assert says in refused and "changed the log-probabilities by 1 nats per token" in refused


def test_a_merge_that_was_put_off_is_tried_again_at_twice_the_change():
    """The change grows by 0.1 nats a step from 0.1 on: refused at 0.4, merging waits for a swap that showed 0.8."""
    chosen, costs = [], {"swap": trial(9, 9), "merge": trial(0, 0.1)}
    choice = SyncChoice("auto", None, lambda mode, why, table: chosen.append(mode))

    def shown(mode, step):
        change = 0.1 * (step + 1)
        return reading(slope=0.5 if mode == "merge" and change < 0.79 else 1.0, change=change)

    used = drive(choice, costs, shown, steps=12)
    assert used == ["swap"] * 8 + ["merge"] * 4 and chosen == ["merge"]


@pytest.mark.parametrize(
    ("wanted", "stored", "mode"), [("merge", None, "merge"), ("swap", "merge", "swap"), ("auto", "merge", "merge")]
)
def test_a_wish_comes_first_then_what_was_stored(wanted, stored, mode):
    choice = SyncChoice(wanted, stored, lambda *_: pytest.fail("nothing is left to choose"))
    assert drive(choice, {"swap": trial(1, 1), "merge": trial(1, 1)}) == [mode] * 8
