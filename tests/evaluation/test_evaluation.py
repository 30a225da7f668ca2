"""Estimators against numbers worked out by hand, and evaluations against a deadline."""

import random
from contextlib import nullcontext

import pytest

from microrl.commands import weights as commands_weights
from microrl.config import resolve
from microrl.evaluation import evaluate as evaluate_module
from microrl.evaluation.estimators import pass_at_k
from microrl.evaluation.result import Result, gains
from microrl.rewards.scorer import RewardScorer
from microrl.run.console import RunConsole
from microrl.types import Completion, Group, Prompt, Sampling


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [(4, 1, 1, 0.25), (4, 1, 2, 0.5), (4, 2, 2, 1 - 1 / 6), (4, 0, 4, 0.0), (4, 4, 1, 1.0), (8, 1, 8, 1.0), (5, 3, 3, 1.0)],
)
def test_pass_at_k_by_hand(n, c, k, expected):
    assert pass_at_k(n, c, k) == pytest.approx(expected)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 5, 1), (4, 1, 0)])
def test_pass_at_k_refuses_too_few_samples(n, c, k):
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(n, c, k)


class Simulated:
    """An engine in simulated time: a question takes `lengths[i]` steps, and a step a tenth of a second and a hundredth for each
    question that is being answered."""

    def __init__(self, clock, lengths):
        self.clock, self.lengths, self.decode_steps, self.keys = clock, lengths, 0, {}

    def groups(self, prompts, sampling, *, stream, positions, pace, environment=None):
        waiting, in_flight = list(zip(positions, prompts, strict=True)), {}
        while not (pace and pace.is_over()):
            while waiting and (pace is None or pace.may_start(len(in_flight))):
                position, prompt = waiting.pop(0)
                self.keys[prompt.question] = (*stream, position)
                in_flight[position] = (prompt, self.decode_steps + self.lengths[position])
            if not in_flight:
                return
            self.decode_steps += 1
            self.clock[0] += 0.1 + 0.01 * len(in_flight)
            for position, (prompt, end) in list(in_flight.items()):
                if end <= self.decode_steps:
                    del in_flight[position]
                    yield position, Group(prompt, (Completion((1, 2), (0.0, -0.5), "stop", 0, r"\boxed{1}"),))


@pytest.fixture
def simulated(monkeypatch):
    """(deadline, expected seconds, steps of each question) -> (result, random keys by question, seconds)."""
    clock = [100.0]
    monkeypatch.setattr("microrl.clock.now_s", lambda: clock[0])
    scorer = RewardScorer(resolve(()).reward)

    def run(deadline_s, expected_s, lengths):
        prompts = [Prompt(f"question {number}", "1", "", (1,)) for number in range(len(lengths))]
        began, sampler = clock[0], Simulated(clock, lengths)
        result = evaluate_module.evaluate(
            sampler, scorer, prompts, Sampling(1, 8), seed=3, pass_k=(), deadline_s=deadline_s, expected_s=expected_s
        )
        return result, sampler.keys, clock[0] - began

    yield run
    scorer.close()


def test_without_a_deadline_all_questions_are_asked_at_once(simulated):
    lengths = [1 + 37 * number % 40 for number in range(200)]
    result, keys, _ = simulated(None, 0.0, lengths)
    assert len(result.right) == 200 and result.accuracy().mean == 1.0
    assert result.decode_steps == max(lengths) == 40, "no question waits for another one"
    assert result.entropy == 0.25
    assert keys == {f"question {n}": (0xE7A1, 3, n) for n in range(200)}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("expected_s", [0.0, 95.0])
@pytest.mark.parametrize("deadline_s", [12.0, 25.0, 60.0])
def test_an_evaluation_keeps_its_deadline_and_answers_all_that_it_has_begun(simulated, deadline_s, expected_s, seed):
    """Questions that are dropped in the middle of their answers would be the long ones. All 400 at once take 94 s."""
    draw = random.Random(seed)
    lengths = [draw.randint(5, 40) for _ in range(400)]
    result, keys, seconds = simulated(deadline_s, expected_s, lengths)
    assert seconds <= deadline_s + 2.5, "a step with 240 questions"
    assert list(result.right) == [f"question {n}" for n in range(len(result.right))]
    assert keys == {f"question {n}": (0xE7A1, 3, n) for n in range(len(keys))}, "the same random numbers as without a deadline"
    assert len(result.right) >= 0.95 * len(keys)
    assert len(result.right) >= 16 * (deadline_s - 12) / 12 + 12


def test_where_nothing_fits_nothing_is_asked(simulated):
    result, keys, _ = simulated(1.0, 1000.0, [10] * 40)
    assert result is None and not keys


def test_two_questions_with_one_text_stay_two():
    prompts = [Prompt(text, answer, "", (1,)) for text, answer in (("a", "1"), ("b", "1"), ("a", "2"), ("a", "3"))]
    assert evaluate_module.keys(prompts) == ["a", "b", "a (#2)", "a (#3)"]


def test_gains_pair_what_both_sides_have_answered():
    before = Result(Sampling(2, 8), 0, (), {"a": 2, "b": 0, "c": 1})
    after = Result(Sampling(2, 8), 0, (), {"a": 1, "b": 2})
    assert gains(before, after)["paired_gain"]["mean"] == pytest.approx((-0.5 + 1.0) / 2)


@pytest.mark.parametrize("fails", [False, True], ids=["evaluated", "failed"])
def test_an_engine_that_fails_while_closing_neither_costs_the_result_nor_hides_an_error(monkeypatch, capsys, fails):
    class Broken:
        name = "vllm"

        def close(self):
            raise RuntimeError("the worker is gone")

    monkeypatch.setattr(commands_weights, "make_engine", lambda *_, **__: Broken())
    config = resolve(("quickstart",), {})
    with (
        pytest.raises(ValueError, match="first") if fails else nullcontext(),
        RunConsole() as console,
        commands_weights.opened(config, None, None, console),
    ):
        if fails:
            raise ValueError("first")
    assert "warning: the engine failed while closing: the worker is gone" in capsys.readouterr().err
