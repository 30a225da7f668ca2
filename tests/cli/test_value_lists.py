"""`microrl sweep`: values with commas, in quotes or in brackets."""

import time

import pytest

from microrl.cli import value_lists
from microrl.sweep import table
from microrl.sweep.folder import SweepFolder
from microrl.sweep.grid import Grid


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1e-4, 3e-4", ["1e-4", "3e-4"]),
        ('"gcd,lcm",gcd', ["gcd,lcm", "gcd"]),
        ("'a, b' , c", ["a, b", "c"]),
        (r'"a \"b\", c",\boxed{}', ['a "b", c', r"\boxed{}"]),
        (r"'\boxed{a,b}'", [r"\boxed{a,b}"]),
        ('["q_proj","v_proj"],["k_proj"]', ['["q_proj","v_proj"]', '["k_proj"]']),
        ('[[1, 2], "]"] ,{a = [3, 4]}', ['[[1, 2], "]"]', "{a = [3, 4]}"]),
        ("[INST] solve,x[1,2]", ["[INST] solve", "x[1", "2]"]),
        ('say "a",b', ['say "a"', "b"]),
        ('"",x', ["", "x"]),
    ],
)
def test_commas_in_quotes_and_brackets_belong_to_a_value(text, found):
    assert value_lists.varied([f"data.name={text}"])["data.name"] == found


@pytest.mark.parametrize(
    ("text", "count"), [("1," * 40_000 + "1", 40_001), ("[" + "1," * 40_000 + "1", 40_001), ("[" * 3000 + "]" * 3000, 1)]
)
def test_a_long_list_is_read_at_once(text, count):
    """50 s of processor time, and more, where each value looks at all that follow."""
    began = time.process_time()
    assert len(value_lists.values("--vary seed", text)) == count
    assert time.process_time() - began < 5


def test_a_value_in_quotes_is_a_string_and_one_in_brackets_is_a_list():
    values = value_lists.varied(['data.system="none","[1]",null,"é 😀, 1e3"', "evaluation.pass_k=[1,8],[8]"])
    trials = Grid(["quickstart"], {}, [], values).trials()
    assert [trial.config.data.system for trial in trials[::2]] == ["none", "[1]", None, "é 😀, 1e3"]
    assert [trial.config.evaluation.pass_k for trial in trials[:2]] == [(1, 8), (8,)]


def test_a_value_with_commas_is_named_in_the_plan_and_in_tables(tmp_path):
    values = value_lists.varied(['data.name="reasoning-gym:gcd,lcm",arithmetic', "evaluation.pass_k=[1,8],[8]"])
    made = SweepFolder.create(tmp_path / "sweep", "equal", None, Grid(["quickstart"], {}, [], values).trials())
    again = SweepFolder.open(tmp_path / "sweep")
    assert again.plan == made.plan and again.plan.trials[0].values["data.name"] == "reasoning-gym:gcd,lcm"
    assert again.plan.trials[0].name == "name-reasoning-gym_gcd_lcm-pass_k-_1_8_-seed0"
    assert table.method(again, again.plan.trials[0]) == "lora rank 4, name reasoning-gym:gcd,lcm, pass_k [1,8]"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["quickstart", "--vary", 'data.system="a,b'], '`"a,b` does not begin with a value in quotes'),
        (["quickstart", "--vary", 'data.system="a" b,c'], '`"a" b,c` does not begin with a value in quotes'),
        (["quickstart", "--vary", 'data.system="a"#b,c'], '`"a"#b,c` does not begin with a value in quotes'),
        (["quickstart", "--vary", r'data.system="\d",c'], r'`"\d",c` does not begin with a value in quotes'),
        (
            ["quickstart", "--vary", "evaluation.pass_k=[1,[2]"],
            "invalid value '[1' for `evaluation.pass_k`\nhint: must be a list",
        ),
        (["quickstart", "--vary", "adapter.targets=[q_proj],[v_proj]"], 'a list whose entries are in quotes: ["...", "..."]'),
        (["quickstart", "--vary", 'data.system="a",a'], "data.system a is given twice"),
        (["quickstart", "--steps", "1", "--models", '"./a,b",quickstart'], "there is no model `./a,b`"),
    ],
)
def test_values_that_cannot_be_read_are_refused_with_a_hint(inside, tmp_path, words, said):
    done = inside("sweep", *words, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr and "hint:" in done.stderr
    assert not list(tmp_path.iterdir()), "nothing is left behind"
