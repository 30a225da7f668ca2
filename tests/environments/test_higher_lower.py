"""The built-in game: its rows, what it answers, when it ends, and what it pays."""

import json
import math
from contextlib import closing

import pytest

from microrl.config import resolve
from microrl.config.data import DataConfig
from microrl.data.load import load_questions
from microrl.environments.builtin.higher_lower import HigherLower
from microrl.environments.process import Instances

ROW = {"question": "?", "answer": "11", "low": 8, "high": 15}


@pytest.fixture
def game():
    one = HigherLower()
    one.reset(**ROW)
    return one


def test_a_game_that_is_won_goes_on_to_the_answer(game):
    assert [game.guess(12), game.guess(9), game.guess(11)] == ["lower", "higher", "right"]
    assert (game.done, game.get_reward()) == (False, 1.0)
    game.guess(1), game.guess(2)
    assert (game.done, game.get_reward()) == (False, 1.0)


def test_a_game_that_is_lost_pays_for_what_was_learned(game):
    assert game.get_reward() == 0
    assert [game.guess(8), game.guess(9), game.done, game.guess(10), game.guess(15), game.done, game.guess(11)] == [
        "higher", "higher", False, "higher", "lower", True, "no guesses are left",
    ]  # fmt: skip
    assert game.get_reward() == pytest.approx(0.5 * (1 - math.log(4) / math.log(8)))


def test_guesses_that_say_nothing_new_pay_nothing(game):
    for number in (-5, 100, -5, 100):
        game.guess(number)
    assert (game.done, game.get_reward()) == (True, 0)


@pytest.mark.parametrize("number", [10.5, 11.0, float("nan"), math.inf, True, "11", None, [11]])
def test_what_is_no_whole_number_is_no_guess(number, game):
    """Fractions would narrow the range to almost nothing, and the reward has its logarithm."""
    with pytest.raises(ValueError, match="whole number"):
        game.guess(number)
    assert (game.allowed, game.get_reward()) == (4, 0)


def test_its_process_offers_one_tool_and_a_reward():
    with closing(Instances(resolve((), {"env.target": "higher-lower"}).env)) as instances:
        described, one = instances.describe(), instances.begin()
        assert [tool["function"]["name"] for tool in described.tools] == ["guess"] and described.rewards
        one.ask({"reset": ROW}, 60.0)
        assert one.ask({"call": "guess", "arguments": {"number": 11}}, 60.0) == {"answer": "right", "done": False}
        assert one.ask({"reward": True}, 60.0) == {"reward": 1.0}
        one.end()


def test_every_row_can_be_won_by_halving():
    """And the rows come without a file: `--data higher-lower`."""
    questions = load_questions(DataConfig(name="higher-lower"), raw=True)
    assert len({question.text for question in questions}) == 1000 and questions == load_questions(
        resolve((), {"data.name": "higher-lower"}).data, raw=True
    )
    for question in questions:
        row, game = json.loads(question.raw), HigherLower()
        game.reset(**row)
        low, high, said = row["low"], row["high"], ""
        assert row["answer"] == question.answer and str(low) in question.text and str(high) in question.text
        while said != "right" and not game.done:
            middle = (low + high) // 2
            said = game.guess(middle)
            low, high = (middle + 1, high) if said == "higher" else (low, middle - 1)
        assert game.get_reward() == 1 and middle == int(question.answer)
