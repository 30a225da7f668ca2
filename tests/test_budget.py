"""The clock, with an injected one."""

import time

import pytest

from microrl.budget import EXIT_S, MARGIN, Budget, process_started


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def run(budget, clock, seconds):
    """Step through the budget; each step takes the next of `seconds`."""
    done = []
    for step in budget.steps(start=0):
        clock.now += seconds[min(step, len(seconds) - 1)]
        done.append(step)
    return done


def test_steps_bound_a_run():
    clock = Clock()
    assert run(Budget(hours=None, steps=3, started=1000.0, now=clock), clock, [100.0]) == [0, 1, 2]


def test_a_step_starts_only_if_it_and_the_reserve_fit():
    clock = Clock()
    budget = Budget(hours=100 / 3600, steps=None, started=990.0, now=clock)
    budget.reserve(20.0)
    steps = run(budget, clock, [5.0])
    left = 100 - 10 - 5 * len(steps)
    assert left >= 20 * MARGIN + EXIT_S, "the final evaluation still fits"
    assert left < 20 * MARGIN + EXIT_S + 5 * MARGIN, "and no step that would have fitted was left out"


def test_the_slowest_recent_step_counts():
    clock = Clock()
    budget = Budget(hours=100 / 3600, steps=None, started=1000.0, now=clock)
    assert run(budget, clock, [1.0, 60.0, 1.0]) == [0, 1], "after a step of 60 s another one may not fit"


def test_time_of_earlier_processes_counts():
    clock = Clock()
    budget = Budget(hours=1.0, steps=None, price=0.30, started=1000.0, before_s=1800.0, now=clock)
    clock.now += 900
    assert budget.elapsed_s() == 2700 and budget.left_s() == 900 and budget.process_s() == 900
    assert budget.cost_usd() == pytest.approx(0.225)
    assert budget.share(step=5) == pytest.approx(0.75)
    assert Budget(hours=1.0, steps=10, started=0.0, now=clock).share(step=5) == 0.5


def test_the_process_is_older_than_this_test():
    assert 0 < time.time() - process_started() < 24 * 3600
