"""The papers' diagnostics, on matrices whose answer is known, and theorem 1 of kl on the digits."""

import math

import numpy as np
import pytest
import torch

from microrl.diagnostics import kl_bound, spectrum


def orthonormal(rows, columns, seed):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((rows, columns)))[0]


@pytest.fixture(params=[(24, 16), (16, 24)], ids=["tall", "wide"])
def known(request):
    """(U, S, V) of a weight matrix [O, I]."""
    n_out, n_in = request.param
    count = min(n_out, n_in)
    return orthonormal(n_out, count, 0), np.linspace(10, 1, count), orthonormal(n_in, count, 1)


def test_an_update_along_known_directions(known):
    left, singular, right = known
    weight = left * singular @ right.T
    update = 3 * np.outer(left[:, 0], right[:, 0]) - 4 * np.outer(left[:, 5], right[:, 5])
    update += 7 * np.outer(left[:, 2], right[:, 3])  # across directions: in no c_i
    found = spectrum.spectrum(spectrum.Basis.of(torch.tensor(weight)), torch.tensor(update))
    expected = np.zeros(16)
    expected[0], expected[5] = 3, 4
    np.testing.assert_allclose(found.singular_K, singular, atol=1e-12)
    np.testing.assert_allclose(found.strength_K, expected, atol=1e-12)
    np.testing.assert_allclose(found.share_K, expected / 7, atol=1e-12)
    np.testing.assert_allclose(found.energy_K, np.cumsum(expected**2) / 25, atol=1e-12)


def test_a_random_update_agrees_with_numpy():
    draw = np.random.default_rng(3)
    weight, update = draw.standard_normal((12, 20)), draw.standard_normal((12, 20))
    left, _, right = np.linalg.svd(weight, full_matrices=False)
    found = spectrum.spectrum(spectrum.Basis.of(torch.tensor(weight, dtype=torch.float32)), torch.tensor(update))
    np.testing.assert_allclose(found.strength_K, [abs(left[:, i] @ update @ right[i]) for i in range(12)], atol=1e-5)


def test_no_update_has_no_shares():
    found = spectrum.spectrum(spectrum.Basis.of(torch.eye(4)), torch.zeros(4, 4))
    assert found.share_K.tolist() == found.energy_K.tolist() == [0.0] * 4


def test_similarity_to_the_ends_of_the_spectrum(known):
    left, singular, right = known
    weight = spectrum.Basis.of(torch.tensor(left * singular @ right.T))
    mixing = np.random.default_rng(4).standard_normal((3, 3))
    top = spectrum.similarity(weight, torch.tensor(mixing @ right[:, :3].T))
    bottom = spectrum.similarity(weight, torch.tensor(mixing @ right[:, -3:].T))
    assert (top.top, top.bottom) == pytest.approx((1, 0), abs=1e-9)
    assert (bottom.top, bottom.bottom) == pytest.approx((0, 1), abs=1e-9)
    half = spectrum.similarity(weight, torch.tensor((right[:, 0] + right[:, 8])[None]))
    assert half.top == pytest.approx(math.sqrt(0.5)) and half.by_chance == pytest.approx((1 / len(right)) ** 0.5)
    assert spectrum.similarity(weight, torch.zeros(2, len(right))).top == 0


def test_chance_is_what_a_random_factor_has():
    draw = torch.Generator().manual_seed(0)
    weight = spectrum.Basis.of(torch.randn(64, 64, generator=draw))
    found = [spectrum.similarity(weight, torch.randn(8, 64, generator=draw)) for _ in range(50)]
    assert np.mean([one.top for one in found]) == pytest.approx(found[0].by_chance, abs=0.02)


@pytest.mark.parametrize("size", [1e-12, 1e-9, 1e-5, 9e-5, 1.1e-4, 1e-2, 1.0])
def test_the_divergence_of_a_shift_of_any_size(size):
    mpmath = pytest.importorskip("mpmath")
    draw = np.random.default_rng(5)
    logits, shift = 3 * draw.standard_normal(10), size * draw.standard_normal(10)
    with mpmath.workdps(60):

        def policy(values):
            powers = [mpmath.exp(mpmath.mpf(float(value[0])) + mpmath.mpf(float(value[1]))) for value in values]
            return [power / sum(powers) for power in powers]

        before, after = policy([(z, 0) for z in logits]), policy(list(zip(logits, shift, strict=True)))
        exact = float(sum(p * mpmath.log(p / q) for p, q in zip(after, before, strict=True)))
    found = kl_bound.kl_of_shift(torch.softmax(torch.tensor(logits), 0), torch.tensor(shift))
    assert float(found) == pytest.approx(exact, rel=1e-6, abs=0)


def test_the_bound_is_that_of_equation_5():
    a0, b0 = torch.eye(2, 6, dtype=torch.float64)[None] * 3, torch.eye(5, 2, dtype=torch.float64)[None] * 2
    change_a, change_b = torch.zeros(1, 2, 6, dtype=torch.float64), torch.zeros(1, 5, 2, dtype=torch.float64)
    change_a[0, 0, 0], change_b[0, 1, 1] = 0.01, 0.02
    mu = math.sqrt(2 * 6) * (2 * 0.01 + 3 * 0.02)
    assert float(kl_bound.bound(a0, b0, change_a, change_b)) == pytest.approx(mu * math.exp(mu))


def test_gradients_are_clipped_seed_by_seed():
    given = [torch.full((2, 1, 2), 3.0), torch.full((2, 2, 1), 4.0)]
    given[0][1], given[1][1] = 1e-5, 1e-5
    by_norm = kl_bound.clipped(given, "norm")
    assert torch.stack([one[0].square().sum() for one in by_norm]).sum().sqrt() == pytest.approx(kl_bound.CLIP)
    assert torch.equal(by_norm[0][1], given[0][1]), "what is small stays"
    assert kl_bound.clipped(given, "value")[0].max() == pytest.approx(kl_bound.CLIP)


@pytest.mark.slow
@pytest.mark.one_of_each
def test_the_papers_study_in_small():
    """Both statements: the bound holds for each seed, and the divergence grows with the rank."""
    pytest.importorskip("sklearn", reason="the extra `study` is not installed")
    found = list(kl_bound.study([2, 8, 32], seeds=2))
    for one in found:
        assert (one.kl_S <= one.bound_S).all() and (one.kl_S > 0).all() and (one.pretrained_accuracy_S > 0.85).all()
    means = [float(one.kl_S.mean()) for one in found]
    assert means == sorted(means) and means[-1] > 3 * means[0]
