"""The time budget: which steps and evaluations fit, and when it is over. The clock is set by hand."""

from functools import partial
from itertools import count
from types import SimpleNamespace

import pytest
from planned import seconds_of

from microrl.run.budget import EVALUATION_MARGIN, Budget, Durations
from microrl.run.forecast import Forecast


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def made(clock, *, seconds=100.0, steps=None, **more):
    return Budget(hours=seconds / 3600, steps=steps, started=1000.0, now=clock, **more)


def run(budget, clock, seconds):
    """Step through the budget; each step takes the next of `seconds`."""
    done = []
    for step in budget.steps(start=0):
        taken = seconds[min(step, len(seconds) - 1)]
        clock.now += taken
        budget.step.add(taken)
        done.append(step)
    return done


def test_steps_bound_a_run():
    clock = Clock()
    assert run(Budget(hours=None, steps=3, started=1000.0, now=clock), clock, [100.0]) == [0, 1, 2]


def test_a_forecast_is_a_high_quantile_of_the_last_few_with_less_margin_the_more_there_are():
    durations = Durations(7.0)
    assert durations.forecast_s() == durations.typical_s() == 7.0
    durations.add(10.0)
    assert durations.forecast_s() == pytest.approx(12.0)
    durations.add(5.0)
    assert durations.forecast_s() == pytest.approx(11.0) and durations.typical_s() == 7.5
    for _ in range(16):
        durations.add(2.0)
    assert durations.forecast_s() == pytest.approx(2.0 * (1 + 0.2 / 16)), "what is long ago is forgotten"
    for hiccup in (9.0, 8.0):
        durations.add(hiccup)
    assert durations.forecast_s() == pytest.approx(2.0 * (1 + 0.2 / 16)), "two hiccups among sixteen"
    durations.add(3.0)
    assert durations.forecast_s() == pytest.approx(3.0 * (1 + 0.2 / 16)), "a third slow one is a trend"


def test_a_step_starts_only_if_it_and_the_reserve_fit():
    clock = Clock()
    budget = made(clock)
    budget.evaluation_s = 20.0
    budget.save.guess_s = 3.0
    assert budget.reserve_s() == pytest.approx(20 * (1 + EVALUATION_MARGIN) + 3 + 1.2)
    steps = run(budget, clock, [5.0])
    left = 100 - 5 * len(steps)
    assert left >= budget.reserve_s(), "the final evaluation still fits"
    assert left < budget.reserve_s() + budget.step.forecast_s(), "and no step that would have fitted was left out"


def test_the_slowest_recent_step_counts():
    clock = Clock()
    assert run(made(clock), clock, [1.0, 60.0, 1.0]) == [0, 1], "after a step of 60 s another one may not fit"


def test_a_run_makes_at_least_one_step_at_the_price_of_a_part_of_its_evaluation():
    clock = Clock()
    budget = made(clock)
    budget.evaluation_s, budget.step.guess_s = 80.0, 40.0
    assert not budget.fits(40.0) and budget.fits(budget.step.forecast_s(), barely=True)
    assert run(budget, clock, [40.0]) == [0]
    budget = made(Clock())
    budget.evaluation_s, budget.step.guess_s = 80.0, 90.0
    assert not budget.fits(budget.step.forecast_s(), barely=True) and run(budget, clock, [40.0]) == []


def test_work_is_given_up_when_not_even_a_part_of_the_evaluation_would_fit():
    clock = Clock()
    budget = made(clock)
    budget.evaluation_s = 20.0
    clock.now += 93.7
    assert not budget.is_over(), "5 s of evaluation and 1.2 s for the exit"
    clock.now += 0.2
    assert budget.is_over()
    assert not Budget(hours=None, steps=3, started=0.0, now=clock).is_over()


def test_the_least_budget_is_enough_and_hardly_more():
    clock = Clock()
    budget = made(clock, seconds=36.0)
    clock.now += 30
    min_s = budget.min_hours(20.0) * 3600
    assert 50 * 1.1 <= min_s < 50 * 1.25


def test_the_exit_takes_little_of_any_budget():
    assert made(Clock(), seconds=72).exit_s() == pytest.approx(1.06)
    assert made(Clock(), seconds=86400).exit_s() == 10.0


def test_time_of_earlier_processes_counts():
    clock = Clock()
    budget = Budget(hours=1.0, steps=None, price=0.30, started=1000.0, before_s=1800.0, now=clock)
    clock.now += 900
    assert budget.elapsed_s() == 2700 and budget.left_s() == 900 and budget.process_s() == 900
    assert budget.cost_usd() == pytest.approx(0.225)
    assert budget.progress(step=5) == pytest.approx(0.75)
    both = Budget(hours=1.0, steps=10, started=1000.0, before_s=1800.0, now=clock)
    assert both.progress(step=5) == pytest.approx(0.75) and both.progress(step=8) == 0.8, "the nearer end counts"
    both.is_by_steps = True
    assert both.progress(step=5) == 0.5, "but where steps end the run, it must repeat"


@pytest.mark.parametrize(("took_s", "expected"), [([20.0], 4), ([1.0], 80), ([20.0, 1.0, 1.0], 61)])
def test_the_expected_number_of_steps_follows_the_pace_from_the_first_step_on(took_s, expected):
    """100 s, of which the end needs 20; the plan had expected a step to take 8 s."""
    plan = seconds_of(step_s=8.0, save_s=0.0, validation_s=0.0, evaluation_s=0.0)
    clock = Clock()
    budget = made(clock)
    forecast = Forecast(plan, budget, done=0)
    budget.evaluation_s = (20.0 - budget.exit_s()) / (1 + EVALUATION_MARGIN)
    for seconds in took_s[:-1]:
        clock.now += seconds
        budget.step.add(seconds)
    clock.now += took_s[-1]
    assert forecast.expected(len(took_s), took_s[-1]) == expected


def forecast_of(before):
    """A forecast with this evaluation before training, and its budget, of an hour."""
    budget = Budget(hours=1.0, steps=None, started=0.0, now=partial(next, count()))
    forecast = Forecast(seconds_of(), budget, done=0)
    forecast.evaluated(before)
    return forecast, budget


def test_fewer_completions_than_a_validation_has_are_not_expected_to_be_faster():
    """In one batch the longest completion decides: the evaluation of 4 took as long as the validation of 8 did."""
    expected = {}
    for completions in (4, 8, 32, 80):
        before = SimpleNamespace(seconds=100.0, mean_length=10.0, right=[0.0] * (completions // 2), samples=2)
        forecast, budget = forecast_of(before)
        forecast.validated(20.0, 8)
        forecast.stepped(0, 10.0)
        expected[completions] = budget.evaluation_s
    assert expected == {4: 20.0, 8: 20.0, 32: 80.0, 80: 100.0}
    for step in range(1, 21):
        forecast.stepped(step, 50.0)  # since that validation, completions have become five times as long
    assert budget.evaluation_s == 500.0


def test_the_final_evaluation_is_expected_to_be_slower_where_the_machine_has_become_slower():
    forecast, budget = forecast_of(SimpleNamespace(seconds=100.0, mean_length=10.0, right=[0.0] * 40, samples=2))
    steps, expected = count(), []
    for seconds, completions, length in [(40, 8, 10), (60, 8, 10), (30, 8, 10), (80, 8, 20), (160, 8, 20), (60, 4, 20)]:
        for _ in range(20):
            forecast.stepped(next(steps), length)
        forecast.validated(seconds, completions)
        forecast.stepped(next(steps), length)
        expected.append(budget.evaluation_s)
    # 1.5 times the seconds of the first; a faster machine counts as equal; twice the seconds for twice the length are no slower.
    assert expected == [100, 150, 100, 200, 400, 200]


def test_a_mean_length_of_0_does_not_end_a_run():
    """An evaluation in which every completion is empty is all that is known when a run first validates."""
    forecast, budget = forecast_of(SimpleNamespace(seconds=100.0, mean_length=0.0, right=[0.0] * 40, samples=2))
    forecast.validated(40.0, 8)
    forecast.stepped(0, 1.0)
    assert budget.evaluation_s == 100.0
