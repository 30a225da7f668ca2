"""Format, boxed answers, and checkers that cannot hang or crash a run."""

import subprocess
import sysconfig
import time
import venv

import pytest
from places import ROOT

from microrl.answers import has_format, last_boxed
from microrl.config.reward import RewardConfig
from microrl.rewards.answer_checker import AnswerChecker
from microrl.rewards.scorer import RewardScorer
from microrl.sandbox import levels
from microrl.types import Completion, Group, Prompt

GOLD, HOSTILE = (
    r"\sum_{n=1}^{9} 2^{n}+\int_0^0 x \, dx",
    r"1022+\int_0^1 \frac{\sqrt{\sin(x^{9}+99)+\ln(x^{7}+3)}}{10^{12}} \, dx",
)
"""A check that only a computer algebra system can make, and it does not end: the values differ by 1e-15, relatively."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so \boxed{42}", "42"),
        (r"\boxed{1} and then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{ 7 }", "7"),
        (r"\boxed{1} \boxed{2", "1"),
        ("The answer is 42", None),
        (r"\boxed{}", ""),
        ("", None),
    ],
)
def test_last_boxed(text, expected):
    assert last_boxed(text) == expected


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        (r"<think>a</think> \boxed{b}", False, True),
        ("  <think>\na\n</think>\n\\boxed{b} ", False, True),
        (r"a</think> \boxed{b}", True, True),
        ("<think>a</think> b", False, False),
        ("a</think> b", False, False),
        ("<think>a</think>", False, False),
        ("<think>a b", False, False),
        ("x <think>a</think> b", False, False),
        ("<think>a</think> <think>b</think> c", False, False),
        ("", True, False),
    ],
)
def test_format(text, opened, expected):
    assert has_format(text, opened=opened) is expected


@pytest.fixture(scope="module")
def checker():
    checker = AnswerChecker(deadline_s=3.0)
    yield checker
    checker.close()


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("42", "42", True),
        ("42", "042", True),
        ("42", "43", False),
        ("42", "42.0", True),
        (r"\frac{1}{2}", "0.5", True),
        (r"\frac{1}{2}", r"\dfrac12", True),
        ("x^2+2x+1", "(x+1)^2", True),
        (r"\sqrt{2}", "1.5", False),
        ("42", None, False),
        ("42", "", False),
        ("42", "}{", False),
        ("42", "\x00\ud800", False),
        ("9" * 5000, "9" * 5000, True),
    ],
)
def test_accuracy_by_math_verify(checker, gold, answer, right):
    assert checker.check(gold, answer) == (right, False)


@pytest.mark.parametrize(
    ("gold", "good"),
    [
        ("42", True),
        (r"\frac{1}{2}", True),
        ("", False),
        ("x^2+", False),
        ("see the figure", False),
        (r"\text{even}", True),
        ("3 cm", True),
    ],
)
def test_gold_answers_must_be_mathematics(checker, gold, good):
    assert checker.parses(gold) is good


def test_text_answers_ignore_case_and_space():
    checker = AnswerChecker(deadline_s=1.0, kind="text")
    assert checker.check("New  York", "new york").right and not checker.check("New York", "York").right
    assert checker.parses("see the figure")


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_check_that_hangs_is_killed_at_its_deadline_and_the_next_one_works():
    checker = AnswerChecker(deadline_s=30.0, children=1)
    try:
        checker.check("1/2", "0.5")  # the child is up
        checker.deadline_s, began = 1.0, time.monotonic()
        assert checker.check(GOLD, HOSTILE) == (False, True)
        assert time.monotonic() - began < 30, "and it would go on for hours"
        checker.deadline_s = 30.0
        assert checker.check("1/3", r"\frac{2}{6}") == (True, False)
    finally:
        checker.close()


@pytest.mark.slow
def test_an_infinite_sum_is_worked_out_in_confinement():
    """sympy would import numpy for it, whose threads are not allowed there."""
    checker = AnswerChecker(deadline_s=60.0, children=1)
    try:
        gold = r"\sum_{n=1}^{\infty} \frac{1}{n^2}"
        assert checker.check(gold, r"\frac{\pi^2}{6}") == (True, False)
        assert checker.check(gold, r"\frac{\pi^2}{7}") == (False, False)
    finally:
        checker.close()


@pytest.mark.slow
@pytest.mark.one_of_each
def test_packages_of_another_environment_can_be_read_in_confinement(tmp_path):
    """Named by a .pth file, as also those of `pip install --user` lie outside of the environment's own folder."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    code = (
        "from microrl.rewards.answer_checker import AnswerChecker\n"
        "checker = AnswerChecker(deadline_s=60.0, children=1)\n"
        r"print(*checker.check(r'\sum_{n=1}^{\infty} \frac{1}{n^2}', r'\frac{\pi^2}{6}'))"
        "\nchecker.close()"
    )
    done = subprocess.run([tmp_path / "env/bin/python", "-c", code], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.stdout.split() == ["1.0", "False"], done.stderr


@pytest.mark.slow
@pytest.mark.one_of_each
@pytest.mark.skipif(not levels().is_enforced, reason="this kernel lacks Landlock or seccomp")
def test_what_computes_an_answer_is_confined(monkeypatch, tmp_path):
    """With a math-verify that does what a model would like to do when it reads a certain answer."""
    (tmp_path / "math_verify.py").write_text(
        f"""
import importlib, os, sys
from pathlib import Path

sys.path.remove("{tmp_path}")
del sys.modules["math_verify"]
real = importlib.import_module("math_verify")
plain = real.parse

def parse(text, *arguments, **more):
    if "2^{{q}}" in text:
        for attempt in (lambda: Path("{tmp_path}/canary").write_text(""), lambda: Path("/etc/passwd").read_text(), os.fork):
            try:
                attempt()
                return []
            except PermissionError:
                pass
        assert not os.environ
    return plain(text, *arguments, **more)

real.parse = parse
"""
    )
    monkeypatch.syspath_prepend(tmp_path)
    checker = AnswerChecker(deadline_s=20.0, children=1)
    try:
        assert checker.check(GOLD, r"\sum_{q=1}^{9} 2^{q}") == (True, False), "nothing of it has succeeded"
    finally:
        checker.close()
    assert not (tmp_path / "canary").exists()


def completion(text, tokens=3):
    return Completion((5,) * tokens, (-1.0,) * tokens, "stop", 1, text)


def test_the_judge_keeps_the_parts_apart_and_the_order():
    scorer = RewardScorer(RewardConfig(), penalty=lambda length: -0.5 if length > 4 else 0.0)
    prompts = [Prompt("q", gold, "", ()) for gold in ("1", "2")]
    texts = [r"<think>x</think> \boxed{1}", r"\boxed{1}", r"<think>x</think> \boxed{0}", "1"]
    try:
        groups = scorer.score(
            (position, Group(prompts[position], (*tuple(completion(text) for text in texts), completion("", 9))))
            for position in (1, 0)
        )
    finally:
        scorer.close()
    assert [group.prompt.answer for group in groups] == ["1", "2"]
    first = [(score.total, score.format, score.accuracy) for score in groups[0].scores]
    assert first == [pytest.approx(expected) for expected in [(1.2, 1, 1), (1.0, 0, 1), (0.2, 1, 0), (0, 0, 0), (-0.5, 0, 0)]]
    assert [score.accuracy for score in groups[1].scores] == [0] * 5
    assert groups[0].scores[-1].overlong == -0.5


def test_a_template_that_opens_the_thinking_counts():
    scorer = RewardScorer(RewardConfig())
    try:
        group = Group(Prompt("q", "1", "<|Assistant|><think>\n", ()), (completion(r"x</think> \boxed{1}"),))
        score = scorer.score([(0, group)])[0].scores[0]
    finally:
        scorer.close()
    assert (score.format, score.accuracy) == (1, 1)
