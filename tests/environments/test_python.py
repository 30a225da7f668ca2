"""The built-in interpreter: state, output and errors as a model reads them, and what confines it."""

from contextlib import closing

import pytest

from microrl.config import resolve
from microrl.environments.builtin.python import LONGEST, Python
from microrl.environments.process import Instances
from microrl.sandbox import levels


@pytest.fixture
def interpreter():
    one = Python()
    one.reset(question="?")
    return one


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("1 + 1", "2"),
        ("print('a')\n'b'", "a\n'b'"),
        ("x = 3", "(no output)"),
        ("None", "(no output)"),
        ("", "(no output)"),
        ("import sys; print('e', file=sys.stderr)", "e"),
        ("def f():\n    return 1 / 0\nf()", "Traceback:\n  <code>, line 3, in <module>\n  <code>, line 2, in f\n"
         "ZeroDivisionError: division by zero"),
        ("x = (", '  File "<code>", line 1\n    x = (\n        ^\nSyntaxError: \'(\' was never closed'),
        ("import sys\nsys.exit(3)", "Traceback:\n  <code>, line 2, in <module>\nSystemExit: 3"),
        ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E", "Traceback:\n  <code>, line 3, in <module>\n"
         "E: <exception str() failed>"),
    ],
)  # fmt: skip
def test_what_a_call_answers(code, answer, interpreter):
    assert interpreter.run(code) == answer


def test_state_stays_within_an_episode(interpreter):
    interpreter.run("import math\ndef area(r):\n    return round(math.pi * r**2, scale)\nscale = 1")
    interpreter.run("1 / 0")
    assert interpreter.run("area(2)") == "12.6"
    interpreter.reset(question="?")
    assert "NameError" in interpreter.run("area(2)")


def test_output_and_tracebacks_are_cut(interpreter):
    assert interpreter.run("for i in range(10_000): print('x' * 100)") == (
        "\n".join(["x" * 100] * 80)[:LONGEST].strip("\n") + f"\n... ({10_000 * 101 - LONGEST:,} more characters)"
    )
    lines = interpreter.run("def f(): f()\nf()").splitlines()
    assert lines[0] == "Traceback:" and len(lines) <= 7 and "more)" in lines[3] and lines[-1].startswith("RecursionError")
    assert len(interpreter.run("raise ValueError('x' * 1_000_000)")) < LONGEST + 100


@pytest.mark.skipif(not levels().is_enforced, reason="this kernel cannot confine")
def test_it_runs_confined():
    with closing(Instances(resolve((), {"env.target": "python"}).env)) as instances:
        assert [tool["function"]["name"] for tool in instances.describe().tools] == ["run"]
        first, second = instances.begin(), instances.begin()
        for one in (first, second):
            one.ask({"reset": {"question": "?"}}, 60.0)

        def run(code, one=first):
            return one.ask({"call": "run", "arguments": {"code": code}}, 60.0)["answer"]

        assert "PermissionError" in run("open('/etc/passwd').read()")
        assert "PermissionError" in run("import socket; socket.socket()")
        assert "RuntimeError" in run("import threading; threading.Thread(target=print).start()")
        assert "MemoryError" in run("x = bytearray(5 * 10**9)")
        assert run("import fractions; fractions.Fraction(1, 3) * 6") == "Fraction(2, 1)"
        assert run("y = 7; y") == "7" and "NameError" in run("y", second)
        instances_of_others = run("import os; os.kill(os.getppid(), 15)")
        assert "PermissionError" in instances_of_others
        first.end()
        second.end()
