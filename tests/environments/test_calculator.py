"""The built-in calculator: exact, and cheap whatever it is asked."""

import time
from contextlib import closing

import pytest
from command_line import in_process

from microrl.config import resolve
from microrl.config.reward import part_weights
from microrl.environments.builtin.calculator import Calculator
from microrl.environments.process import Instances


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2", "3"),
        ("(1/3 + 2) * 6", "14"),
        ("0.1 + 0.2", "3/10"),
        ("1.00000000000000000000000000001 - 1", "1/100000000000000000000000000000"),
        ("2*3^2", "18"),
        ("-2**2", "-4"),
        ("2**-3", "1/8"),
        ("7 // 2 + 7 % 2", "4"),
        ("-7 // 2", "-4"),
        ("3\u00d74 \u2212 6\u00f74", "21/2"),
        ("1e3 + 0.0", "1000"),
        ("(-1)**1000000000001", "-1"),
        ("1\n+ 2.5", "7/2"),
    ],
)
def test_values_are_exact(expression, value):
    assert Calculator().calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("9**9**9", "too large"),
        ("*".join(["9**1000"] * 9), "too large"),
        ("1e999999", "too large"),
        ("1e-999999", "too small"),
        ("1 / (2 - 2)", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("2 ** 0.5", "has to be an integer"),
        ("__import__('os').getpid()", "only numbers"),
        ("True + 1", "is not a number"),
        ("'a' * 10**9", "is not a number"),
        ("1,000", "only numbers"),
        ("x", "only numbers"),
        ("", "invalid syntax"),
        ("(" * 1_000_000 + "1" + ")" * 1_000_000, "the limit is 1,000"),
        ("(" * 499 + "1" + ")" * 499, "too many nested parentheses"),
        ("-" * 999 + "1", "recursion"),
    ],
)
def test_what_it_does_not_evaluate_costs_nothing(expression, why):
    began = time.process_time()
    with pytest.raises(Exception, match=why.replace("(", r"\(")):
        Calculator().calculate(expression)
    assert time.process_time() - began < 1


def test_it_is_known_by_its_name():
    config = resolve((), {"env.target": "calculator"})
    assert part_weights(config.reward, config.env)["Calculator"] == 1
    with closing(Instances(config.env)) as instances:
        (tool,) = instances.describe().tools
        assert tool["function"]["name"] == "calculate"
        assert tool["function"]["parameters"]["properties"]["expression"]["type"] == "string"
        instance = instances.begin()
        assert instance.ask({"reset": {"question": "?"}}, 20.0) == {"said": None}
        assert instance.ask({"call": "calculate", "arguments": {"expression": "2^10"}}, 20.0)["answer"] == "1024"
    done = in_process("train", "quickstart", "--env", "calculater")
    assert done.returncode == 2 and "did you mean `calculator`?" in done.stderr
