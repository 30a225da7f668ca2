"""Procedural tasks: their names and answers; and with reasoning-gym installed (extra `gym`), its real generators and scorers."""

import importlib.util
import json
import time

import pytest

from microrl.config import resolve
from microrl.config.data import DataConfig
from microrl.data import gym as problems
from microrl.data.load import check_source, load_questions, split
from microrl.data.sft_examples import load_solutions, to_sft_examples
from microrl.errors import UserError
from microrl.rewards.judges import gym
from microrl.sandbox.host import Host

needs_library = pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="the extra `gym` is not installed")
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("completion", "opened", "answer"),
    [
        ("<think>a</think> <answer>42</answer>", False, "42"),
        ("<think>a</think> <answer> 1 2\n3 4 </answer>", False, "1 2\n3 4"),
        ("<answer>1</answer> no, <answer>2</answer>", False, "2"),
        ("<think><answer>42</answer></think> I give up", False, None),
        ("<think>a <answer>42</answer>", False, None),
        ("<think>a</think> <answer>42</answer> <think>or", False, None),
        ("<answer>42</answer>", True, None),
        ("so</think><answer>42</answer>", True, "42"),
        ("</answer>", False, None),
        ("<answer>42", False, None),
        (r"<think>a</think> \boxed{42}", False, "42"),
        (r"<think>\boxed{41}</think> \boxed{42} <answer>43</answer>", False, "43"),
        ("42", False, None),
    ],
)
def test_answer_of(completion, opened, answer):
    assert gym.answer_of(completion, opened) == answer


@pytest.mark.parametrize(
    ("task", "answer", "refused"),
    [
        ("countdown", "94*4 - 61 - 6", False),
        ("countdown", "(1.5 + 2)/3", False),
        ("countdown", "9**9**9**9", True),
        ("countdown", "9**(9**9)", True),
        ("countdown", "10**9999", True),
        ("countdown", "__import__('os')", True),
        ("countdown", "int('24')", True),
        ("chain_sum", "1e99999", True),
        ("chain_sum", "x" * (gym.LONGEST + 1), True),
        ("word_sorting", "eval, import, lambda", False),
        ("n_queens", "_ Q _\nQ _ _", False),
        ("n_queens", "entry['answer']", True),
        ("spiral_matrix", "[1, 2]\n[3]", False),
        ("spiral_matrix", "[x for x in y]", True),
        ("string_insertion", "['A', 'B']", False),
        ("string_insertion", "eval(entry['answer'])", True),
        ("polynomial_multiplication", "2240*x**4 - 3*x*y + 1.5", False),
        ("polynomial_multiplication", "expand((x + 1)*(x + 2))", True),
        ("polynomial_multiplication", "x.__class__", True),
        ("simple_integration", "-34*x**8/15 + sin(2*x)*exp(x) + pi + C", False),
        ("simple_integration", "Integral(x**2, x) + C", True),
        ("simple_integration", "integrate(x**2, x)", True),
        ("simple_integration", "S('x')", True),
    ],
)  # fmt: skip
def test_code_and_towers_are_wrong_without_being_scored(task, answer, refused):
    assert gym.is_refused(task, answer) is refused


@pytest.mark.parametrize("text", ["9**" * 3000, "((((" * 2500, "x" * 10_000, "[" * 10_000, "1 " * 5000, "sin" * 3000 + "("])
def test_the_look_at_an_answer_is_quick(text):
    began = time.process_time()
    for task in gym.EVALUATED:
        gym.is_refused(task, text)
    assert time.process_time() - began < 0.5


def test_names():
    assert len(problems.NAMES) == 106
    with pytest.raises(UserError, match="no task `chain_summ`") as caught:
        check_source(DataConfig(name="reasoning-gym:gcd,chain_summ"))
    assert caught.value.hint == "did you mean `chain_sum`?", "without a hundred others"
    with pytest.raises(UserError, match="no task `qqqq`") as caught:
        check_source(DataConfig(name="reasoning-gym:qqqq"))
    assert "one of: ab, acre," in caught.value.hint and "boxnet" not in caught.value.hint, "those that can be used"
    with pytest.raises(UserError, match="`gcd` is listed twice"):
        check_source(DataConfig(name="reasoning-gym:gcd, gcd"))
    with pytest.raises(UserError, match="lacks the name of a task"):
        check_source(DataConfig(name="reasoning-gym:"))
    with pytest.raises(UserError, match="`game_of_life_halting` of reasoning-gym cannot be used: its scorer takes"):
        check_source(DataConfig(name="reasoning-gym:gcd,game_of_life_halting"))
    every = "reasoning-gym:" + ",".join(problems.NAMES)
    data = resolve((), {"data.name": every}).data
    assert (data.name, data.answer_kind) == (every, "gym") and "<answer>" in (data.system or "")


@pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is not None, reason="the extra `gym` is installed")
def test_without_the_library():
    with pytest.raises(UserError, match="need reasoning-gym") as caught:
        check_source(DataConfig(name="reasoning-gym:gcd"))
    assert "'.[gym]'" in caught.value.hint


# ---- with the library


@pytest.fixture(scope="module")
def ask():
    """What `handle` says in the sandbox; None where it says nothing in time. Its process is not a fork of this one: a limit on
    the address space would count what this one holds, and a scorer that runs out of memory says "wrong"."""
    host = Host("microrl.rewards.judges.gym")
    yield lambda request, limit_s=30.0: host.ask(request, deadline_s=2 * limit_s, cpu_s=limit_s)
    host.close()


@slow
@pytest.mark.one_of_each
@needs_library
def test_problems_by_seed_and_index(ask):
    config = DataConfig(name="reasoning-gym:chain_sum,gcd", problems=100, seed=5)
    questions = load_questions(config)
    assert len(questions) == 200 and questions == load_questions(config)
    assert load_questions(config.model_copy(update={"seed": 6}))[0] != questions[0]
    parts = split(questions, 0.2, 0.1)
    assert [question.row for question in split(load_questions(config.model_copy(update={"seed": 6})), 0.2, 0.1).held_out] == [
        question.row for question in parts.held_out
    ], "the index decides, whatever the seed"
    assert 20 < len(parts.held_out) < 60 and 5 < len(parts.validation) < 40
    texts = [{question.text for question in part} for part in parts]
    assert not texts[0] & texts[1] and not texts[0] & texts[2] and not texts[1] & texts[2]
    gold = questions[0].answer
    own = json.loads(gold)["entry"]
    right = own[own.index("answer") + 1]
    assert ask({"gold": gold, "answer": right}) is True and ask({"gold": gold, "answer": right + "1"}) is False
    assert gym.refusal("chain_sum", [question.answer for question in questions[: gym.PROBED]], ask) is None


@slow
@pytest.mark.cases(one_of_each=1)
@needs_library
@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("game_of_life_halting", "takes .* for right"),
        ("complex_arithmetic", "'nan' for right"),
        ("coin_flip", "'0' for right"),
        ("rush_hour", "no gold answer"),
    ],
)
def test_a_probe_finds_what_is_wrong_with_a_task(task, why, monkeypatch, ask):
    import re

    monkeypatch.setattr(problems, "UNSOUND", {})
    questions = load_questions(DataConfig(name=f"reasoning-gym:{task}", problems=gym.PROBED))
    found = gym.refusal(task, [question.answer for question in questions], ask)
    assert found and re.search(why, found)


@slow
@needs_library
def test_every_task_that_is_not_refused_is_sound(ask):
    sound = [name for name in problems.NAMES if name not in problems.UNSOUND]
    questions = load_questions(DataConfig(name="reasoning-gym:" + ",".join(sound), problems=gym.PROBED))
    found = {}
    for number, task in enumerate(sound):
        golds = [question.answer for question in questions[number * gym.PROBED : (number + 1) * gym.PROBED]]
        assert {json.loads(gold)["task"] for gold in golds} == {task}
        found[task] = gym.refusal(task, golds, ask)
    assert {task: why for task, why in found.items() if why} == {}


@slow
@needs_library
@pytest.mark.parametrize(
    "answer", ["9+9**9+9**(9)**9**9", "(" * 4000 + "1" + ")" * 4000, "\0", "\ud800", "9" * 9999, "-" * 9999 + "1"]
)
def test_hostile_answers_are_wrong_or_killed(answer, ask):
    for task in ("countdown", "polynomial_multiplication", "simple_integration", "spiral_matrix"):
        gold = load_questions(DataConfig(name=f"reasoning-gym:{task}", problems=1))[0].answer
        assert ask({"gold": gold, "answer": answer}, 2.0) in (False, None)


@needs_library
@pytest.mark.slow
@pytest.mark.one_of_each
def test_sft_trains_on_the_tasks_own_answers_but_not_on_those_of_held_out_problems(tokenizer):
    config = resolve((), {"data.name": "reasoning-gym:chain_sum,gcd", "data.problems": 60, "data.held_out": 0.2})
    questions = load_questions(config.data)
    for question in questions[::20]:
        answer = gym.answer_of(problems.solution(question.answer))
        assert problems.own_answer(question.answer) == answer
        assert answer and gym.handle({"gold": question.answer, "answer": answer})
    solutions = load_solutions(config)
    assert len(solutions) == 120 and all(one.text.startswith("<answer>") for one in solutions)
    found = to_sft_examples(solutions, tokenizer, config)
    trained = {one.prompt.question for one in found.examples}
    held = {question.text for question in split(questions, 0.2, config.data.validation).held_out}
    assert held and trained and not held & trained and found.left_out["held out"] >= len(held)


@slow
@needs_library
def test_ten_steps_on_procedural_tasks(microrl, tiny_arguments, tmp_path):
    out = tmp_path / "run"
    task = ["--data", "reasoning-gym:chain_sum,gcd", "--set", "data.problems=60", "--set", "data.max_prompt_tokens=600"]
    task += ["--set", "guard.truncated=none", "--set", "guard.useful_groups=none"]  # a random model is never right
    done = microrl("train", *tiny_arguments, *task, "--steps", 10, "--out", out)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 10 and all(0 <= row["reward/accuracy"] <= 1 for row in rows)
    assert json.loads((out / "config.json").read_text())["data"]["answer_kind"] == "gym"
