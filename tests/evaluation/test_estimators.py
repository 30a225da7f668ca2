"""Estimators against every subset, intervals against simulated populations, and the tests that cannot be done by hand."""

import math
import random
import time
from collections import Counter
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, product

import numpy as np
import pytest
from scipy import special
from simulated_scores import POPULATIONS, scores

from microrl.evaluation.estimators import majority_at_k, pass_all_k, pass_at_k
from microrl.evaluation.intervals import TAIL, gain_bounds, mean_share, paired_gain, share_bounds, spread
from microrl.evaluation.seeds import hierarchical, hierarchical_gain, holm, p_value

SAMPLED = [(8, 1), (16, 1), (32, 16), (8, 4)]
"""(samples, k): avg@samples, and pass@k of more samples than k."""
GRID = [(name, n, samples, k) for name in POPULATIONS for n in (30, 64, 500) for samples, k in SAMPLED]


def majority_by_hand(answers: list[str | None], right: set[str], k: int) -> float:
    total = Fraction(0)
    for subset in combinations(answers, k):
        votes = Counter(answer for answer in subset if answer is not None)
        top = [answer for answer, count in votes.items() if count == max(votes.values())]
        total += Fraction(sum(answer in right for answer in top), len(top)) if top else 0
    return float(total / math.comb(len(answers), k))


def test_estimators_agree_with_every_subset():
    """All sample sizes up to 7, all right answers, all k."""
    for n in range(1, 8):
        for c, k in product(range(n + 1), range(1, n + 1)):
            subsets = list(combinations([True] * c + [False] * (n - c), k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
            assert pass_all_k(n, c, k) == pytest.approx(sum(map(all, subsets)) / len(subsets))


def test_majority_agrees_with_every_subset():
    """All multisets of up to 6 answers out of three texts and none, any of the texts right, and 60 larger ones."""
    draw = random.Random(0)
    cases = [[*"a" * i, *"b" * j, *"c" * k, *[None] * blank] for i, j, k, blank in product(range(3), repeat=4)]
    cases += [[draw.choice([*"abcde", None]) for _ in range(9)] for _ in range(60)]
    for number, answers in enumerate(cases[1:]):
        right = {text for position, text in enumerate("abc") if number >> position & 1}
        classes = [(count, text in right) for text, count in Counter(filter(None, answers)).items()]
        for k in range(1, len(answers) + 1):
            found = majority_at_k(classes, n=len(answers), k=k)
            assert found == pytest.approx(majority_by_hand(answers, right, k)), (answers, right, k)


def test_majority_of_many_answers_takes_no_time():
    began = time.process_time()
    assert majority_at_k([(1, True)] * 16 + [(1, False)] * 48, n=64, k=16) == pytest.approx(0.25)
    assert majority_at_k([(20, True), (12, False), (8, False), *[(1, False)] * 20], n=64, k=32) > 0.8
    assert time.process_time() - began < 1


@pytest.mark.parametrize("estimate", [pass_at_k, pass_all_k, lambda n, c, k: majority_at_k([(c, True)], n=n, k=k)])
@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 5, 1), (4, 1, 0)])
def test_estimators_refuse_what_cannot_be(estimate, n, c, k):
    with pytest.raises(ValueError, match="from 4 samples"):
        estimate(n, c, k)


def test_an_interval_of_zeros_and_ones_is_clopper_and_pearsons():
    """8 of 10 with single samples: 0.444 to 0.975, as in their table."""
    assert mean_share([1.0] * 8 + [0.0] * 2, samples=1).ci95 == pytest.approx((0.4439, 0.9748), abs=1e-4)
    assert mean_share([1.0] * 20, samples=1).ci95 == pytest.approx((0.025 ** (1 / 20), 1.0))
    assert mean_share([0.0] * 20, samples=1).ci95 == pytest.approx((0.0, 1 - 0.025 ** (1 / 20)))


def test_values_all_but_equal_make_an_interval_too():
    """pass@16 of 64 samples with 48 right is 1 - 2e-15, whose variance once was a divisor."""
    estimate = mean_share([1.0] * 63 + [pass_at_k(64, 48, 16)], samples=64, k=16)
    low, high = estimate.ci95
    assert 0.9 < low < 0.97 and high == pytest.approx(1.0) and low <= estimate.mean <= high
    for values in ([], [1.1], [-0.1]):
        with pytest.raises(ValueError):
            mean_share(values, samples=4)


def test_a_gain_pairs_what_both_sides_have_and_no_change_is_not_certainty():
    gain = paired_gain(
        {"a": 0.0, "b": 0.5, "c": 0.5, "only before": 1.0}, {"a": 0.5, "b": 0.5, "c": 1.0, "only after": 0}, samples=2
    )
    assert gain.mean == pytest.approx(1 / 3) and gain.ci95[0] < 0 < 0.5 < gain.ci95[1]
    assert paired_gain({"a": 1.0}, {"b": 1.0}, samples=2) is None
    same = {str(number): 0.5 for number in range(64)}
    low, high = paired_gain(same, same, samples=8).ci95
    assert low == pytest.approx(-high) and high == pytest.approx(0.029, abs=5e-4)
    moved = {question: value + 0.25 for question, value in same.items()}
    low, high = paired_gain(same, moved, samples=8).ci95
    assert 0.2 < low < 0.25 < high < 0.3


def covered(name: str, n: int, samples: int, k: int, repetitions: int) -> dict[str, float]:
    """Coverage of a mean and of a gain of two fifths of p (1 - p), and the gain's width over the plain t interval's."""
    population, rng = POPULATIONS[name], np.random.default_rng((GRID.index((name, n, samples, k)), repetitions))
    rates = population.draw(rng, (repetitions, n))
    before = scores(rng, rates, samples, k)
    low, high = share_bounds(before.mean(1), before.var(1), count=n, samples=samples, k=k)
    truth = population.truth(k)

    def better(p: np.ndarray) -> np.ndarray:
        return p + 0.4 * p * (1 - p)

    many = population.draw(rng, (10**6,))
    gained = float(np.mean((1 - many) ** k - (1 - better(many)) ** k))
    d = scores(rng, better(rates), samples, k) - before
    gain_low, gain_high = gain_bounds(d.mean(1), np.abs(d).mean(1), (d * d).mean(1), count=n, samples=samples, k=k)
    plain = 2 * special.stdtrit(n - 1, 0.975) * d.std(1, ddof=1) / math.sqrt(n)
    return {
        "truth": truth,
        "share": float(np.mean((low <= truth) & (truth <= high))),
        "gain": float(np.mean((gain_low <= gained) & (gained <= gain_high))),
        "width": float(np.mean(gain_high - gain_low) / np.mean(plain)),
    }


def check(cell: tuple[str, int, int, int], repetitions: int, slack: float) -> None:
    """A mean's coverage: 93.5 to 97.5 % off the ceiling, and at least 93.5 % at it, where failures are too few to be counted."""
    found = covered(*cell, repetitions)
    print(*cell, {name: round(value, 4) for name, value in found.items()})
    is_inside = found["truth"] <= 0.9
    assert 0.935 - slack <= found["share"] <= (0.975 + slack if is_inside else 1.0)
    assert found["gain"] >= 0.935 - slack
    if is_inside:
        assert found["gain"] <= 0.975 + slack and found["width"] <= 1.1


@pytest.mark.parametrize("cell", [("hard", 30, 16, 1), ("easy", 30, 8, 1), ("middle", 64, 8, 4), ("ceiling", 64, 32, 16)])
def test_intervals_cover_the_truth(cell):
    check(cell, 1000, slack=0.015)


@pytest.mark.slow
@pytest.mark.cases(one_of_each=2)
@pytest.mark.parametrize("cell", GRID[::5])
def test_intervals_cover_the_truth_in_a_part_of_the_grid(cell):
    check(cell, 2000, slack=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("cell", GRID)
def test_intervals_cover_the_truth_everywhere(cell):
    check(cell, 4000, slack=0.0)


SIZES = {
    "pairs": lambda rng, count: np.full(count, 2), "fours": lambda rng, count: np.full(count, 4),
    "uneven": lambda rng, count: np.resize([1, 1, 1, 2, 2, 3, 4, 8], count),
    "random": lambda rng, count: rng.geometric(0.3, count),
    "one large": lambda rng, count: np.array([count, *[1] * (count - 1)]),
}  # fmt: skip
"""Questions of each cluster."""


def clustered_coverage(name: str, sizes: str, count: int, samples: int, k: int, repetitions: int) -> dict[str, float]:
    """Coverage of a mean and of a gain where the questions of a cluster have one success rate, and of the mean's interval that
    takes them for independent."""
    population, rng = POPULATIONS[name], np.random.default_rng((len(name), len(sizes), count, samples, repetitions))

    def better(p: np.ndarray) -> np.ndarray:
        return p + 0.4 * p * (1 - p)

    many = population.draw(rng, (10**6,))
    truth, gained = population.truth(k), float(np.mean((1 - many) ** k - (1 - better(many)) ** k))
    hits = Counter()
    for _ in range(repetitions):
        cluster_Q = np.repeat(np.arange(count), SIZES[sizes](rng, count))
        rates = population.draw(rng, (count,))[cluster_Q]
        before, after = (dict(enumerate(scores(rng, p, samples, k).tolist())) for p in (rates, better(rates)))
        of_question = dict(enumerate(cluster_Q.tolist()))
        for case, estimate, target in (
            ("share", mean_share([*before.values()], samples=samples, k=k, clusters=[*of_question.values()]), truth),
            ("gain", paired_gain(before, after, samples=samples, k=k, clusters=of_question), gained),
            ("naive", mean_share([*before.values()], samples=samples, k=k), truth),
        ):
            hits[case] += estimate.ci95[0] <= target <= estimate.ci95[1]
    return {case: hits[case] / repetitions for case in ("share", "gain", "naive")}


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("cell", [
    ("middle", "fours", 16, 8, 1), ("hard", "pairs", 12, 8, 4), ("middle", "uneven", 16, 8, 1), ("ceiling", "fours", 8, 8, 1),
])  # fmt: skip
def test_intervals_go_by_clusters(cell):
    found = clustered_coverage(*cell, 300)
    assert found["share"] >= 0.91 and found["gain"] >= 0.91
    assert found["naive"] < 0.8 or cell[1] == "pairs" or cell[0] == "ceiling", "questions that are alike count once"


CLUSTERED = [
    (name, sizes, count, samples, k)
    for name in POPULATIONS for sizes in SIZES for count in (8, 16) for samples, k in [(8, 1), (8, 4), (32, 1)]
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("cell", CLUSTERED)
def test_intervals_by_clusters_cover_the_truth_everywhere(cell):
    found = clustered_coverage(*cell, 1500)
    print(*cell, found)
    assert found["share"] >= 0.93 and found["gain"] >= 0.93


@pytest.mark.slow
@pytest.mark.cases(one_of_each=2)
@pytest.mark.parametrize("cell", CLUSTERED[::17])
def test_intervals_by_clusters_cover_the_truth_in_a_part_of_the_grid(cell):
    found = clustered_coverage(*cell, 800)
    assert found["share"] >= 0.92 and found["gain"] >= 0.92


def test_clusters_of_one_question_change_nothing_and_one_cluster_says_nothing():
    draw = random.Random(5)
    groups = [[{str(q): draw.randint(0, 8) / 8 for q in range(30)} for _ in range(seeds)] for seeds in (1, 3)]
    own = {question: f"cluster {question}" for question in groups[0][0]}
    values = list(groups[0][0].values())
    assert mean_share(values, samples=8, clusters=list(own.values())) == mean_share(values, samples=8)
    assert paired_gain(groups[0][0], groups[1][0], samples=8, clusters=own) == paired_gain(groups[0][0], groups[1][0], samples=8)
    assert hierarchical(groups[1], samples=8, clusters=own) == hierarchical(groups[1], samples=8)
    assert hierarchical_gain(*groups, samples=8, clusters=own)(TAIL) == hierarchical_gain(*groups, samples=8)(TAIL)
    one = dict.fromkeys(own, "the same")
    assert mean_share(values, samples=8, clusters=list(one.values())).ci95 == (0, 1)
    assert hierarchical_gain(*groups, samples=8, clusters=one)(TAIL).ci95 == (-1, 1)
    assert p_value(hierarchical_gain(*groups, samples=8, clusters=one)) == 1


def test_a_cluster_of_equal_questions_is_one_question():
    """Sixteen values, each of four questions: the variance over clusters is that of the sixteen, worked out by hand."""
    values = [number / 16 for number in range(16)]
    found = spread([value for value in values for _ in range(4)], [number for number in range(16) for _ in range(4)])
    assert found.number == 16 and found.crowding == 0.75
    assert found.variance == pytest.approx(np.var(values)) and found.square == pytest.approx(np.mean(np.square(values)))


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize("seeds", [(1, 1), (1, 3), (3, 3)])
def test_p_is_below_5_percent_exactly_where_the_interval_leaves_out_0(seeds):
    rng, seen = np.random.default_rng(seeds), Counter()
    for number in range(60):
        rates = POPULATIONS["middle"].draw(rng, (40,)).clip(1e-9, 1 - 1e-9)
        before, after = (runs(rng, count, rates, 0.3, shift) for count, shift in zip(seeds, (0.0, number / 60), strict=True))
        clusters = {str(question): str(question // 2) for question in range(40)} if number % 2 else None
        p = p_value(hierarchical_gain(before, after, samples=8, clusters=clusters))
        low, high = hierarchical_gain(before, after, samples=8, clusters=clusters)(TAIL).ci95
        assert (p < 0.05) == (low > 0 or high < 0) and 1e-9 <= p <= 1
        assert p == pytest.approx(p_value(hierarchical_gain(after, before, samples=8, clusters=clusters)), rel=1e-6)
        seen[p < 0.05] += 1
    assert min(seen.values()) >= 5
    same = {str(number): 0.5 for number in range(64)}
    assert p_value(hierarchical_gain([same], [same], samples=8)) == 1
    assert hierarchical_gain([same], [{"x": 1.0}], samples=8) is None
    assert p_value(hierarchical_gain([dict.fromkeys(same, 0.0)], [dict.fromkeys(same, 1.0)], samples=8)) <= 1e-9


def false_alarms(seeds: int, spread: float, questions: int, repetitions: int) -> float:
    """How often p is below 0.05 between two groups of seeds of one method."""
    rng, alarms = np.random.default_rng((seeds, questions)), 0
    for _ in range(repetitions):
        rates = POPULATIONS["middle"].draw(rng, (questions,)).clip(1e-9, 1 - 1e-9)
        alarms += p_value(hierarchical_gain(runs(rng, seeds, rates, spread), runs(rng, seeds, rates, spread), samples=8)) < 0.05
    return alarms / repetitions


@pytest.mark.slow
def test_seeds_that_vary_are_no_gain():
    assert false_alarms(3, 0.5, 64, 100) <= 0.1


def test_p_values_are_adjusted_for_their_number():
    """By hand: 3 times the smallest, 2 times the next, the last as it is, and never less than a smaller one's."""
    assert holm([0.04, None, 0.01, 0.03]) == pytest.approx([0.06, None, 0.03, 0.06])
    assert holm([0.04, 0.01, 0.03], family=6) == pytest.approx([0.16, 0.06, 0.15])
    assert holm([0.4, 0.6]) == [0.8, 0.8] and holm([0.03]) == [0.03] and holm([]) == []


def of_cell(seeds: tuple[int, int], spread: float, populations: int, is_fixed: bool) -> tuple[float, float]:
    """(how often p is below 0.05 without a difference, coverage of a difference of half a logit), over so many populations."""
    rng, alarms, hits = np.random.default_rng((*seeds, int(100 * spread), 5)), 0, 0
    spreads, shifts = (0.0 if is_fixed else spread, spread), (0.0, 0.5)
    none, gain = (truth_of(spreads[1], shift) - truth_of(spreads[0]) for shift in shifts)
    for _ in range(populations):
        for shift, truth in zip(shifts, (none, gain), strict=True):
            rates = POPULATIONS["middle"].draw(rng, (64,)).clip(1e-9, 1 - 1e-9)
            sides = runs(rng, seeds[0], rates, spreads[0]), runs(rng, seeds[1], rates, spreads[1], shift)
            low, high = hierarchical_gain(*sides, samples=8, is_fixed=is_fixed)(TAIL).ci95
            alarms, hits = alarms + (not shift and not low <= truth <= high), hits + (shift > 0 and low <= truth <= high)
    return alarms / populations, hits / populations


@pytest.mark.slow
@pytest.mark.parametrize("is_fixed", [False, True])
def test_one_run_against_several_seeds_is_no_gain_either(is_fixed):
    alarms, hits = of_cell((1, 3), 1.0, 150, is_fixed)
    assert alarms <= 0.08 and hits >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize(
    ("seeds", "is_fixed"),
    [*(((1, several), True) for several in (2, 3, 5)),
     *((seeds, False) for seeds in [(1, 2), (1, 3), (2, 2), (2, 3), (3, 3), (5, 5)])],
)  # fmt: skip
def test_few_seeds_cover_the_truth_and_p_is_what_it_says(seeds, is_fixed, spread):
    """`is_fixed`: one side is an untouched model. 0.0138 is twice the error of a share of 5 % of 1000."""
    alarms, hits = of_cell(seeds, spread, 1000, is_fixed)
    print(seeds, is_fixed, spread, alarms, hits)
    assert alarms <= 0.05 + 0.0138 and hits >= 0.935


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(2, 2), (2, 3), (3, 3), (3, 5)])
@pytest.mark.parametrize("spreads", [(0.0, 1.0), (1.0, 0.0), (1.0, 0.25)])
def test_one_method_may_vary_more_than_the_other(seeds, spreads):
    rng, hits, truth = np.random.default_rng((*seeds, int(spreads[0]))), 0, truth_of(spreads[1]) - truth_of(spreads[0])
    for _ in range(600):
        rates = POPULATIONS["middle"].draw(rng, (64,)).clip(1e-9, 1 - 1e-9)
        sides = [runs(rng, count, rates, spread) for count, spread in zip(seeds, spreads, strict=True)]
        low, high = hierarchical_gain(*sides, samples=8)(TAIL).ci95
        hits += low <= truth <= high
    print(seeds, spreads, hits / 600)
    assert hits / 600 >= 0.92


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("questions", [64, 500])
def test_seeds_that_vary_are_no_gain_however_many(seeds, questions):
    assert false_alarms(seeds, 0.5, questions, 600) <= 0.07


def runs(rng: np.random.Generator, seeds: int, rates_Q: np.ndarray, spread: float, shift: float = 0.0) -> list[dict[str, float]]:
    """Runs of 8 samples a question: each seed moves all logits by `spread`, and each of its questions by 0.4."""
    logits = np.log(rates_Q / (1 - rates_Q)) + shift + spread * rng.standard_normal((seeds, 1))
    rates = 1 / (1 + np.exp(-logits - 0.4 * rng.standard_normal((seeds, len(rates_Q)))))
    return [{str(i): float(v) for i, v in enumerate(row)} for row in rng.binomial(8, rates) / 8]


@lru_cache
def truth_of(spread: float, shift: float = 0.0) -> float:
    rng = np.random.default_rng(1)
    rates = POPULATIONS["middle"].draw(rng, (10**6,)).clip(1e-9, 1 - 1e-9)
    noise = np.hypot(spread, 0.4) * rng.standard_normal(10**6)
    return float(np.mean(1 / (1 + np.exp(-np.log(rates / (1 - rates)) - shift - noise))))


def hierarchical_coverage(seeds: int, spread: float, repetitions: int) -> tuple[float, float, float]:
    """Coverage of the mean, of a gain against as many other runs, and of the gain's interval that ignores the seeds."""
    rng = np.random.default_rng((seeds, int(100 * spread)))
    truth, better = truth_of(spread), truth_of(spread, 0.5)
    hits, naive, gains = 0, 0, 0
    for _ in range(repetitions):
        rates = POPULATIONS["middle"].draw(rng, (200,)).clip(1e-9, 1 - 1e-9)
        first, second = runs(rng, seeds, rates, spread), runs(rng, seeds, rates, spread, 0.5)
        low, high = hierarchical(first, samples=8).ci95
        hits += low <= truth <= high
        low, high = hierarchical_gain(first, second, samples=8)(TAIL).ci95
        gains += low <= better - truth <= high
        pooled = [{q: sum(run[q] for run in group) / seeds for q in first[0]} for group in (first, second)]
        low, high = paired_gain(*pooled, samples=8 * seeds).ci95
        naive += low <= better - truth <= high
    return hits / repetitions, gains / repetitions, naive / repetitions


def test_seeds_widen_an_interval():
    """Two seeds that differ by half: the questions alone would be sure. A single run has the interval of its questions."""
    run = {str(number): float(number % 2) for number in range(200)}
    one = hierarchical([run], samples=1)
    assert one == mean_share(list(run.values()), samples=1)
    low, high = hierarchical([dict.fromkeys(run, 0.25), dict.fromkeys(run, 0.75)], samples=8).ci95
    assert (low, high) == (0.0, 1.0)  # 0.5 +- 12.7 * 0.25
    gain = hierarchical_gain([run], [run], samples=1)(TAIL)
    assert gain == paired_gain(run, run, samples=1)
    assert hierarchical([{"a": 1.0}, {"b": 1.0}], samples=1) is None


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("spread", [0.0, 0.15, 0.3])
def test_seeds_and_questions_cover_the_truth(seeds, spread):
    hits, gains, naive = hierarchical_coverage(seeds, spread, 1500)
    print(seeds, spread, hits, gains, naive)
    assert 0.925 <= hits <= 0.985 and 0.925 <= gains <= 0.995
    assert naive < 0.8 or spread < 0.3, "seeds that differ are not seen by an interval over questions"


@pytest.mark.slow
def test_three_seeds_cover_the_truth():
    hits, gains, _ = hierarchical_coverage(3, 0.3, 400)
    assert hits >= 0.91 and gains >= 0.91
