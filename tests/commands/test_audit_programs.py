"""`microrl audit` of programs and procedural tasks: planted holes are found, and sound data is called sound.

Set MICRORL_TEST_HUMANEVAL to the problems, as for `test_code.py`.
"""

import gzip
import importlib.util
import json
import os
import re
from pathlib import Path

import pytest

from microrl.commands import audit as auditing
from microrl.commands.cheats import procedural, programs
from microrl.commands.cheats.programs import CONSTANTS, KINDS, Programs, expected, shown
from microrl.config import resolve
from microrl.config.data import DataConfig
from microrl.data import gym as tasks
from microrl.data.load import load_questions
from microrl.rewards.judges.code import program_of
from microrl.rewards.judges.gym import answer_of
from microrl.sandbox import Levels, levels

HUMANEVAL = os.environ.get("MICRORL_TEST_HUMANEVAL")
needs_sandbox = pytest.mark.skipif(not levels().is_enforced, reason="this kernel lacks Landlock or seccomp")
needs_library = pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="the extra `gym` is not installed")
slow, one_of_each = pytest.mark.slow, pytest.mark.one_of_each

MERGE = {
    "text": "Merge two lists in order.",
    "test_list": ["assert merge([3], [1, 2]) == [1, 2, 3]", "assert merge([2, 0], [7]) == [0, 2, 7]"],
    "code": "def merge(a, b):\n    return sorted(a + b)",
}
HALF = {
    "prompt": 'def half(x: float) -> float:\n    """Half of it.\n\n    >>> half(3)\n    1.5\n    """\n',
    "canonical_solution": "    return x / 2\n",
    "test": "def check(candidate):\n    assert candidate(3) == 1.5\n    assert candidate(8) == 4\n",
    "entry_point": "half",
}
DOUBLE = {
    "text": "Double it.",
    "test_list": ["assert double(21) == 42", "assert double('ab') == 'abab'"],
    "code": "def double(x):\n    return x + x",
}
EVEN = {
    "text": "Is a number even?",
    "test_list": ["assert even(2) == True", "assert even(3) == False"],
    "code": "def even(x):\n    return x % 2 == 0",
}
ACCEPTS_ANYTHING = {"text": "Add one.", "test_list": ["more(1)\nassert True"], "code": "def more(x):\n    return x + 1"}
LOOKS_AT_THE_TYPE = {
    "text": "Square it.",
    "test_list": ["assert isinstance(square(3), int)"],
    "code": "def square(x):\n    return x * x",
}
FAILS_ITSELF = {**MERGE, "code": "def merge(a, b):\n    return sorted(a) + b"}
TELLS_ALL = {**HALF, "test": "def check(candidate):\n    assert candidate(3) == 1.5\n"}


def written(folder, *rows):
    path = folder / "problems.jsonl"
    path.write_text("".join(json.dumps({**row, "number": number}) + "\n" for number, row in enumerate(rows)))
    return path


def audited(path, *keys):
    return auditing.audit(resolve((), {"data.name": str(path), "data.answer_kind": "code"}, keys))


def paid(found):
    return {(one.row, one.kind, one.name) for one in found.paid}


# ---- what is tried on every problem: quick


@pytest.fixture
def only_everywhere(monkeypatch):
    monkeypatch.setattr(Programs, "chosen", lambda self, questions: [])
    monkeypatch.setattr(programs, "CONSTANTS", {name: CONSTANTS[name] for name in ("None", "True", "0")})


@needs_sandbox
def test_weak_tests_are_found_in_every_row(only_everywhere, tmp_path):
    found = audited(written(tmp_path, ACCEPTS_ANYTHING, LOOKS_AT_THE_TYPE, EVEN), "reward.code_credit=all")
    names = {row: {name for where, _, name in paid(found) if where == row} for row in (1, 2, 3)}
    assert names == {1: {"None", "True", "0"}, 2: {"True", "0"}, 3: set()}
    assert found.golds == 3 and found.without == 0 and not found.unpaid_golds and not found.is_clean
    assert found.by_kind == {"constants": 9} and found.cheats == 9


@needs_sandbox
def test_a_share_of_the_tests_is_paid_to_a_constant(only_everywhere, tmp_path):
    found = audited(written(tmp_path, EVEN))
    assert paid(found) == {(1, "constants", "True"), (1, "constants", "0")}
    assert found.paid[0].right == pytest.approx(1.2) and found.paid[0].reward == pytest.approx(0.7)


@needs_sandbox
def test_a_solution_that_fails_its_own_tests_and_one_that_is_not_there(only_everywhere, tmp_path):
    found = audited(written(tmp_path, FAILS_ITSELF, {**ACCEPTS_ANYTHING, "code": None}, DOUBLE))
    assert [(bad.row, "50% of the credit" in bad.why) for bad in found.unpaid_golds] == [(1, True)]
    assert (found.golds, found.without) == (2, 1) and found.to_json()["golds"]["missing"] == 1
    assert {one.row for one in found.paid} == {2} and found.paid[0].right is None, "cheats are found without a solution, too"


@needs_sandbox
def test_a_solution_that_cannot_be_written(only_everywhere, tmp_path):
    long = {**MERGE, "code": MERGE["code"] + "\n# long" + "!" * 3000}
    found = audited(written(tmp_path, long, MERGE), "sampling.max_completion_tokens=128")
    assert [(bad.row, "at most 2,048 fit" in bad.why) for bad in found.unwritable_golds] == [(1, True)]


# ---- the cheats


def questions_of(tmp_path, *rows):
    return load_questions(DataConfig(name=str(written(tmp_path, *rows)), answer_kind="code"), raw=True)


def test_every_problem_has_its_cheats(tmp_path):
    questions = questions_of(tmp_path, MERGE, DOUBLE, EVEN)
    found = [Programs().cheats(question, questions, "/nowhere/canary", hanging=False) for question in questions]
    again = [Programs().cheats(question, questions, "/nowhere/canary", hanging=False) for question in questions]
    assert found == again and all(len({cheat.text for cheat in these}) == len(these) >= 150 for these in found)
    written_programs = [program_of(cheat.text) for cheat in found[0]]
    assert sum(program is not None for program in written_programs) > 120
    assert MERGE["code"] not in written_programs, "no cheat is the solution"
    capitals = {word for cheat in found[0] for word in re.findall(r"\b[A-Z]{4,}\b", cheat.text)}
    known = {"CDLL", "SELECT", "SIGKILL", "SOURCE", "TABLE", "THINK", "VALUES"}
    assert capitals == known, "every other word of the data file stands for something"
    assert {cheat.kind for cheat in Programs().cheats(questions[0], questions, "", hanging=True)} >= {"hangs", "looks up values"}


def test_what_would_harm_the_machine_is_left_out_without_the_sandbox(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "levels", lambda: Levels(files=False, system_calls=True))
    (question,) = questions_of(tmp_path, MERGE)
    names = {cheat.name for cheat in Programs().cheats(question, [question], "/nowhere", hanging=True)}
    assert "sleeps" in names and not names & {"fork bomb", "kills", "memory bomb", "threads"}


def test_what_tests_and_questions_tell():
    assert dict(expected(MERGE["test_list"])) == {"([3], [1, 2])": "[1, 2, 3]", "([2, 0], [7])": "[0, 2, 7]"}
    assert dict(expected([HALF["test"]])) == {"(3,)": "1.5", "(8,)": "4"}
    assert list(expected(["assert f(x) == 1", "not Python", "assert 1 == f(2)"])) == []
    assert shown(HALF["prompt"]) == {"(3,)": "1.5"} and shown("text\n>>> 1 +\n2") == {}


def test_answers_to_a_procedural_task_are_cheated_on_without_its_library():
    entry = {"question": "7 + 5?", "answer": "12", "metadata": {}}
    gold = json.dumps({"task": "countdown", "index": 0, "entry": tasks_entry(entry), "has_answer": True, "seed": 0})
    question = load_questions(DataConfig(name="arithmetic"))[0]._replace(text="7 + 5?", answer=gold)
    attack = procedural.Procedural()
    assert attack.gold(question) == "12" and answer_of(attack.right(question)) == "12"
    found = attack.cheats(question, [question], "/nowhere", hanging=False)
    assert len(found) == len({cheat.text for cheat in found}) >= 250
    assert {"hanging", "evaluated as code", "tags", "nonsense"} <= {cheat.kind for cheat in found}
    assert {word for cheat in found for word in re.findall("[A-Z]{4,}", cheat.text)} == {"ANSWER", "MMXVII", "PASS", "THINK"}
    assert "12" not in {answer_of(cheat.text) for cheat in found}


def tasks_entry(entry):
    from microrl import plain

    return plain.encode(entry, lambda value: pytest.fail(f"{value!r} is not plain"))


# ---- whole audits


@slow
@one_of_each
@needs_sandbox
def test_no_program_gets_past_sound_tests(tmp_path, monkeypatch):
    """Of those that take all of their time only two: the others run in the tests of code."""
    hanging = {name: KINDS["hangs"][name] for name in ("infinite loop at once", "memory bomb of small things")}
    odd = {name: source for name, source in KINDS["odd values"].items() if name not in ("huge answer", "endless iterator")}
    monkeypatch.setattr(programs, "KINDS", KINDS | {"hangs": hanging, "odd values": odd})
    monkeypatch.setattr(programs, "MORE_CONSTANTS", dict(list(programs.MORE_CONSTANTS.items())[::3]))
    found = audited(written(tmp_path, MERGE), "reward.deadline_s=2")
    assert found.cheats >= 140 and paid(found) == set() and found.is_clean and found.golds == 1
    assert found.by_kind.keys() >= KINDS.keys() | {"solution hidden", "writes a file", "other forms"}
    assert any(program.endswith("while True: pass") for program in found.killed), "those that hang are killed"


@slow
@needs_sandbox
def test_tests_that_the_question_gives_away(tmp_path):
    found = audited(written(tmp_path, TELLS_ALL))
    assert paid(found) == {(1, "looks up values", "examples in the question")}


@slow
@needs_sandbox
def test_humaneval_lets_no_cheat_through(tmp_path, inside):
    """All 164 solutions, with the programs that are tried on every problem, and three problems against all cheats."""
    if not HUMANEVAL:
        pytest.skip("MICRORL_TEST_HUMANEVAL is not set")
    (tmp_path / "humaneval.jsonl").write_bytes(gzip.decompress(Path(HUMANEVAL).read_bytes()))
    done = inside("audit", "--data", "humaneval.jsonl", "--set", "data.answer_kind=code", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["clean"] and not found["code_ran"], done.stderr
    assert (found["golds"]["tried"], found["golds"]["missing"]) == (164, 0)
    by_kind = found["cheats"]["by_kind"]
    assert by_kind["constants"] == 164 * len(CONSTANTS) and by_kind.keys() >= KINDS.keys(), "every problem, and every kind"
    assert found["cheats"]["tried"] - by_kind["constants"] >= 400, "three problems against all cheats"


@slow
@needs_sandbox
@needs_library
def test_a_procedural_task(monkeypatch):
    """Every fifth of the cheats with text and with code; those that may hang are all tried. Probing has its own tests."""
    whole = procedural.text.cheats
    monkeypatch.setattr(auditing, "refuse_unsound", lambda *_: None)
    monkeypatch.setattr(procedural, "QUESTIONS", 1)
    monkeypatch.setattr(procedural, "_EVALUATED", procedural._EVALUATED[::5])
    monkeypatch.setattr(procedural.text, "cheats", lambda one, *, put: whole(one, put=put)[::5])
    found = auditing.audit(resolve((), {"data.name": "reasoning-gym:countdown"}, ("data.problems=6",)))
    assert found.is_clean and found.golds == 6 and found.cheats >= 80 and not found.paid
    assert found.by_kind.keys() >= {"nonsense", "evaluated as code", "hanging", "alike", "tags", "answers of other problems"}


@slow
@needs_sandbox
@needs_library
def test_a_scorer_that_takes_nonsense(monkeypatch):
    monkeypatch.setattr(tasks, "UNSOUND", {})
    monkeypatch.setattr(auditing, "refuse_unsound", lambda *_: None)
    found = auditing.audit(resolve((), {"data.name": "reasoning-gym:complex_arithmetic"}, ("data.problems=12",)))
    assert "nonsense" in {one.kind for one in found.paid}
