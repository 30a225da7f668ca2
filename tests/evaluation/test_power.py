"""Power said beforehand against simulated evaluations, and `microrl plan --detect`."""

import json
import math
import subprocess
import sys
from functools import lru_cache

import numpy as np
import pytest
from scipy import special

from microrl.evaluation.intervals import TAIL, gain_bounds
from microrl.evaluation.power import POWER, Study, power, questions_needed, smallest_gain
from microrl.evaluation.seeds import hierarchical_gain
from microrl.plan import devices, here

GRID = np.linspace(-6, 6, 20_001)


@lru_cache
def beta_quantiles(mean: float, size: float) -> np.ndarray:
    return special.betaincinv(mean * size, (1 - mean) * size, special.ndtr(GRID))


def both_sides(study: Study, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Success rates before and after: beta marginals, joined by a Gaussian copula."""
    joint = 2 * math.sin(math.pi * study.correlation / 6)
    first = rng.standard_normal(shape)
    second = joint * first + math.sqrt(1 - joint**2) * rng.standard_normal(shape)
    means = (study.accuracy, study.accuracy + study.gain)
    return tuple(
        np.interp(normal, GRID, beta_quantiles(mean, study.size)) for mean, normal in zip(means, (first, second), strict=True)
    )


def shown(study: Study, questions: int, samples: int, repetitions: int) -> float:
    """How often the interval of simulated evaluations of one run lies above 0."""
    rng = np.random.default_rng(questions)
    before, after = (rng.binomial(samples, rates) / samples for rates in both_sides(study, rng, (repetitions, questions)))
    d = after - before
    low, _ = gain_bounds(d.mean(1), np.abs(d).mean(1), (d * d).mean(1), count=questions, samples=samples)
    return float(np.mean(low > 0))


def shown_by_seeds(study: Study, questions: int, samples: int, seeds: int, repetitions: int) -> float:
    rng, hits = np.random.default_rng(seeds), 0
    for _ in range(repetitions):
        before, after = both_sides(study, rng, (questions,))
        moved = (after + study.seed_sd * rng.standard_normal((seeds, 1))).clip(0, 1)
        sides = [np.atleast_2d(rng.binomial(samples, rates) / samples) for rates in (before, moved)]
        groups = [[dict(enumerate(run.tolist())) for run in side] for side in sides]
        hits += hierarchical_gain(*groups, samples=samples, is_fixed=True)(TAIL).ci95[0] > 0
    return hits / repetitions


CASES = [
    (Study(0.03), 4), (Study(0.03), 16), (Study(0.05), 1), (Study(0.1, accuracy=0.2), 8), (Study(0.15), 4),
    (Study(0.05, accuracy=0.8), 8), (Study(0.03, size=1.0, correlation=0.95), 8),
]  # fmt: skip


@pytest.mark.parametrize(("study", "samples"), CASES[3:5])
def test_the_power_that_is_named_is_about_there(study, samples):
    questions = questions_needed(study, samples=samples)
    assert shown(study, questions, samples, 1000) == pytest.approx(POWER, abs=0.04)


@pytest.mark.slow
@pytest.mark.parametrize(("study", "samples"), CASES)
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_the_power_that_is_named_is_there(study, samples, fraction):
    """With the questions that 90 % take, and with half of them."""
    questions = int(fraction * questions_needed(study, samples=samples))
    found, said = shown(study, questions, samples, 4000), power(study, questions=questions, samples=samples)
    print(study, samples, questions, found, said)
    assert found == pytest.approx(said, abs=0.03) and (fraction < 1 or said >= POWER)


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize(("seeds", "gain", "spread"), [(2, 0.2, 0.01), (3, 0.08, 0.01), (5, 0.1, 0.03)])
def test_the_power_of_several_seeds_is_there(seeds, gain, spread):
    study = Study(gain, seed_sd=spread)
    questions = questions_needed(study, samples=4, seeds=seeds)
    found = shown_by_seeds(study, questions, 4, seeds, 1000)
    print(study, seeds, questions, found)
    assert found == pytest.approx(power(study, questions=questions, samples=4, seeds=seeds), abs=0.03)


def test_more_samples_and_larger_gains_take_fewer_questions():
    needed = [questions_needed(Study(0.03), samples=samples) for samples in (1, 4, 16, 64)]
    assert needed == sorted(needed, reverse=True) and needed[0] > 2 * needed[2]
    assert questions_needed(Study(0.06), samples=4) < needed[1] / 3
    assert questions_needed(Study(0.01, seed_sd=0.05), samples=4, seeds=3) is None, "no question makes up for so different seeds"
    for gain, accuracy in ((0.0, 0.5), (-0.1, 0.5), (0.5, 0.5), (0.1, 0.0)):
        with pytest.raises(ValueError):
            Study(gain, accuracy)


def test_plan_says_what_shows_a_gain_and_its_cost(inside):
    page = inside("plan", "micro-r64", "--gpu", "a40", "--detect", 0.03)
    assert page.returncode == 0 and "with a power of 90%" in page.stdout and "a + b = 2" in page.stdout
    found = json.loads(inside("plan", "micro-r64", "--gpu", "a40", "--detect", 0.03, "--json").stdout)
    one = next(design for design in found["designs"] if (design["seeds"], design["samples"]) == (1, 4))
    assert one["questions"] == questions_needed(Study(0.03), samples=4) and one["completions"] == 8 * one["questions"]
    assert f"{one['questions']:,}" in page.stdout
    cost = one["cards"]["a40"]
    assert cost["cost_usd"] == pytest.approx(0.30 * cost["hours"]) and 0.05 < cost["hours"] < 10
    dear = json.loads(inside("plan", "micro-r64", "--gpu", "a40", "--price", 3, "--detect", 0.03, "--json").stdout)
    assert dear["designs"][1]["cards"]["a40"]["cost_usd"] == pytest.approx(10 * cost["cost_usd"])
    assert any(design["questions"] is None for design in found["designs"]) and "never" in page.stdout


def test_without_a_card_the_cost_is_said_of_each(inside, monkeypatch):
    monkeypatch.setattr(here, "gpu", lambda: None)
    page = inside("plan", "micro-r64", "--detect", 0.05, "--accuracy", 0.2)
    assert page.returncode == 0 and all(f"\n{name} " in page.stdout for name in devices.DEVICES)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--detect", "0"], ["not between 0 and 1", "--detect 0.03"]),
        (["--detect", "nan"], ["not between 0 and 1", "--detect 0.03"]),
        (["--detect", "3"], ["not between 0 and 1", "--detect 0.03"]),
        (["--detect", "1e-6"], ["more than 200,000 questions", "larger gain"]),
        (["--detect", "0.2", "--accuracy", "0.9"], ["cannot gain 0.2", "--detect below 0.1"]),
        (["--detect", "0.2", "--accuracy", "-1"], ["not between 0 and 1", "--accuracy 0.3"]),
        (["--accuracy", "0.2"], ["no effect without --detect", "--detect 0.03"]),
    ],
)
def test_a_gain_that_cannot_be_is_refused_with_a_hint(inside, arguments, words):
    done = inside("plan", "micro-r64", *arguments)
    assert done.returncode == 2 and done.stdout == "" and all(word in done.stderr for word in words), done.stderr


@pytest.mark.slow
def test_detect_needs_no_heavy_library():
    words = ["microrl", "plan", "micro-r64", "--gpu", "a40", "--detect", "0.05"]
    program = f"import sys; sys.argv = {words}\nfrom microrl.cli import app\napp(standalone_mode=False)\n"
    program += "assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and "5 points" in done.stdout, done.stderr


def test_the_smallest_gain_is_just_shown():
    gain = smallest_gain(questions=500, samples=4)
    assert 0.03 < gain < 0.06
    assert power(Study(gain), questions=500, samples=4) >= 0.9 > power(Study(gain - 0.001), questions=500, samples=4)
    assert smallest_gain(questions=30, samples=1) > 2 * gain
