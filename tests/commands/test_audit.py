"""`microrl audit`: it finds the holes planted in rewards made for this, and what is wrong with gold answers."""

import contextlib
import json
import re
import subprocess
import sys
from fractions import Fraction

import pytest

from microrl.answers import has_format, last_boxed
from microrl.commands.cheats.text import ANSWERS, TEXTS, WITHOUT_FORM, case, cheats, honest, same

LEAKY = """
import math, re

def boxes(text):
    return re.findall(r"\\\\boxed\\{([^{}]*)\\}", text)

def last(text):
    found = boxes(text)
    return found[-1] if found else ""

def each(judge):
    def reward(prompts, completions, rows):
        return [float(judge(text, str(row["answer"]), row["question"])) for text, row in zip(completions, rows)]
    return reward

# What is right: the last box behind the thinking, as an integer that is not endless.
def _sound(text, gold, question):
    answer = last(text.rpartition("</think>")[2]).strip()
    return re.fullmatch(r"-?[0-9]{1,99}", answer) is not None and int(answer) == int(gold)
sound = each(_sound)

contains = each(lambda text, gold, question: gold in text)
any_box = each(lambda text, gold, question: gold in boxes(text))
empty_is_in_all = each(lambda text, gold, question: last(text).strip() in gold)
prefix = each(lambda text, gold, question: last(text).startswith(gold))
digits_only = each(lambda text, gold, question: re.sub("[^0-9]", "", last(text)) == gold)
length = each(lambda text, gold, question: min(len(text) / 5000, 1) + 2 * _sound(text, gold, question))
keywords = each(lambda text, gold, question: min(text.lower().count("therefore") / 20, 1) + _sound(text, gold, question))
trusts = each(lambda text, gold, question: "correct" in text.lower() or _sound(text, gold, question))
overlap = each(lambda text, gold, question: question in text or _sound(text, gold, question))
tags = each(lambda text, gold, question: 0.5 * ("<think>" in text) + 0.5 * ("</think>" in text) + _sound(text, gold, question))

@each
def rounds(text, gold, question):
    try:
        return int(float(last(text))) == int(gold)
    except (ValueError, OverflowError):
        return False

@each
def not_a_number(text, gold, question):
    try:
        number = float(last(text))
    except ValueError:
        return False
    return not (number < int(gold) or number > int(gold))

@each
def gives_up_kindly(text, gold, question):
    try:
        return int(last(text)) == int(gold)
    except ValueError:
        return True

@each
def evaluates(text, gold, question):
    try:
        return eval(last(text)) == int(gold)
    except BaseException:
        return False

@each
def absolute(text, gold, question):
    try:
        return abs(int(last(text))) == abs(int(gold))
    except ValueError:
        return False

@each
def chokes(text, gold, question):
    return int(last(text)) == int(gold)

@each
def hangs(text, gold, question):
    if len(text) > 15000:
        while True:
            pass
    return _sound(text, gold, question)
"""
HOLES = {
    "contains": {"several boxes", "near numbers"},
    "any_box": {"several boxes"},
    "empty_is_in_all": {"empty box", "no form"},
    "prefix": {"near numbers", "several answers in a box"},
    "digits_only": {"near numbers"},
    "length": {"stuffing"},
    "keywords": {"stuffing"},
    "trusts": {"speaking to a judge"},
    "overlap": {"question repeated"},
    "tags": {"no form"},
    "rounds": {"near numbers"},
    "not_a_number": {"other types"},
    "gives_up_kindly": {"unknowns", "code"},
    "absolute": {"near numbers"},
}
"""The planted holes, and kinds of cheats that find them."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("leaky")
    (folder / "leaky.py").write_text(LEAKY)
    rows = [{"question": f"How much are {a} and {a + 3} pens?", "answer": 2 * a + 3} for a in range(10, 22)]
    (folder / "pens.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "one.jsonl").write_text(json.dumps(rows[0]) + "\n")
    return folder


ONLY = ("--set", "reward.format_weight=0", "--set", "reward.accuracy_weight=0", "--set", "data.answer_kind=text")
"""The function alone; comparing as text needs no mathematics, whose checks take their time."""


def audited(inside, place, *arguments, status=2):
    done = inside("audit", *arguments, "--json", cwd=place)
    assert done.returncode == status and "Traceback" not in done.stderr, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.slow
@pytest.mark.cases(one_of_each=3)
@pytest.mark.parametrize("name", HOLES)
def test_it_finds_a_planted_hole(inside, place, name):
    found, words = audited(inside, place, "--data", "pens.jsonl", "--reward", f"leaky:{name}", *ONLY)
    assert found["cheats"]["tried"] >= 200 and not found["clean"]
    assert {one["kind"] for one in found["cheats"]["paid"]} >= HOLES[name]
    assert "cheat pays" in words and all(f"  {kind}" in words for kind in HOLES[name])
    assert not found["golds"]["unpaid"], "right answers do pay"


def test_it_is_silent_on_a_sound_reward(inside, place):
    found, words = audited(inside, place, "--data", "pens.jsonl", "--reward", "leaky:sound", *ONLY, status=0)
    assert found["clean"] and found["cheats"]["paid"] == [] and found["cheats"]["tried"] >= 200
    assert len(found["cheats"]["by_kind"]) >= 15 and found["golds"]["tried"] == 12 and found["completions_per_second"] > 0
    assert "no problem found" in words and "0 pay" in words


def test_code_that_runs_is_seen_by_its_file(inside, place):
    found, words = audited(inside, place, "--data", "one.jsonl", "--reward", "leaky:evaluates", *ONLY)
    assert found["code_ran"] and "written in a completion runs where it can create files" in words
    assert not audited(inside, place, "--data", "one.jsonl", "--reward", "leaky:contains", *ONLY)[0]["code_ran"]


def test_a_function_that_raises_is_refused_by_the_probe(inside, place):
    done = inside("audit", "--data", "one.jsonl", "--reward", "leaky:chokes", *ONLY, cwd=place)
    assert done.returncode == 2 and "row 1: the reward `leaky:chokes` gives no value" in done.stderr


def test_a_function_that_hangs_on_a_cheat_is_named(inside, place):
    keys = (*ONLY, "--set", "reward.function_deadline_s=0.1")
    found, words = audited(inside, place, "--data", "one.jsonl", "--reward", "leaky:hangs", *keys)
    assert "it took longer than 0.1 s" in found["failed"]["hangs"]["why"] and "function fails" in words


def test_gold_answers(inside, place):
    golds = ["7", "1" * 600, "a\u0007b", "{", "\\boxed{4}", "x\ue000y", "nothing \\} odd", "seven pens"]
    rows = [{"question": f"{number}?", "answer": gold} for number, gold in enumerate(golds)]
    (place / "golds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = ("--set", "data.answer_kind=text", "--set", "sampling.max_completion_tokens=32")
    found, words = audited(inside, place, "--data", "golds.jsonl", *keys)
    why = {one["row"]: one["why"] for one in found["golds"]["unwritable"]}
    assert set(why) == {2, 3, 4, 6}, why
    assert (
        "600 characters; at most 512" in why[2] and "U+0007" in why[3] and "look at its braces" in why[4] and "U+E000" in why[6]
    )
    assert "gold cannot be written" in words


def test_it_is_silent_on_rows_of_gsm8ks_form(inside, place):
    """Solutions whose last line is the answer, with digit groups, money and negative numbers."""
    golds = ["3 * 5 = <<3*5=15>>15 pens\n#### 15", "She has 1,000 + 234 = <<1000+234=1234>>1,234\n#### 1,234",
             "It costs $2.50 + $1 = $<<2.5+1=3.5>>3.50\n#### 3.50", "It is 5 - 9 = <<5-9=-4>>-4 degrees\n#### -4",
             "#### \\frac{3}{4}", "She does not say.\n#### because it is so"]  # fmt: skip
    rows = [{"question": f"How many are there on day {number}?", "answer": gold} for number, gold in enumerate(golds)]
    (place / "worked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found, _ = audited(inside, place, "--data", "worked.jsonl", status=0)
    assert found["clean"] and found["golds"] == {"tried": 6, "missing": 0, "unpaid": [], "unwritable": []}
    assert found["cheats"]["tried"] >= 450 and found["cheats"]["by_kind"]["near numbers"] > 0


@pytest.mark.one_of_each
@pytest.mark.slow
def test_it_is_silent_on_the_quickstart(inside, place):
    found, _ = audited(inside, place, "quickstart", status=0)
    assert found["clean"] and found["golds"]["tried"] == 1000
    assert found["cheats"]["tried"] >= 300 and found["cheats"]["by_kind"].keys() >= {"near numbers", "several boxes", "hanging"}


def test_a_reward_that_pays_nothing_for_right_answers(inside, place):
    found, words = audited(
        inside, place, "--data", "pens.jsonl", "--set", "reward.accuracy_weight=0", "--set", "data.answer_kind=text"
    )
    assert len(found["golds"]["unpaid"]) == 12 and "gold does not pay" in words


def test_what_is_audited(inside, place):
    done = inside("audit", "quickstrat", cwd=place)
    assert done.returncode == 2 and "did you mean `quickstart`?" in done.stderr
    assert inside("audit", cwd=place).returncode == 2, "there is no run"
    done = inside("audit", "--data", "pens.jsonl", "--reward", "nowhere:fn", cwd=place)
    assert done.returncode == 2 and "there is no module `nowhere`" in done.stderr


# ---- the cheats themselves


@pytest.mark.parametrize("gold", ["42", "-3", "0", "0.5", "\\frac{1}{2}", "east", "(1, 2)", "x^2+1", "7919", "B", "\\infty"])
def test_no_cheat_is_a_right_answer(gold):
    one = case("How many pens are there?", gold, ["17", gold, "1/3"], "/nowhere/canary")
    found = cheats(one)
    assert len(found) >= 130 and len({cheat.text for cheat in found}) == len(found)
    for cheat in found:
        answer = last_boxed(cheat.text)
        if "</think>" in cheat.text and answer is not None and cheat.kind != "answer in the thinking":
            assert not same(answer, gold), cheat
            with contextlib.suppress(ValueError, ZeroDivisionError):  # not two numbers
                assert Fraction(answer) != Fraction(gold), cheat
    assert [cheat.text for cheat in cheats(one)] == [cheat.text for cheat in found], "the same ones every time"


def test_every_kind_has_cheats_and_its_form():
    found = cheats(case("How many?", "42", ["17"], "/nowhere"), hanging=True)
    kinds = {cheat.kind for cheat in found}
    assert kinds == {*ANSWERS, *TEXTS, *WITHOUT_FORM, "hanging"} - {"other words"}
    assert {cheat.kind for cheat in cheats(case("Where?", "east", [], "/nowhere"))} >= {"other words"}
    capitals = {word for cheat in found for word in re.findall("[A-Z]{4,}", cheat.text)}
    assert capitals == {"MMXVII", "PASS", "THINK"}, "every other word of the data file stands for something"
    assert has_format(honest("1")) and last_boxed(honest("1")) == "1"


@pytest.mark.slow
def test_it_needs_no_torch(place):
    code = (
        "import sys; from microrl.cli import app\n"
        "status = app(['audit', '--data', 'one.jsonl', '--reward', 'leaky:sound', *sys.argv[1:]], standalone_mode=False)\n"
        "print(status, sorted({'torch', 'sympy', 'math_verify', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, *ONLY], cwd=place, capture_output=True, text=True, timeout=60)
    assert done.stdout == "0 []\n", done.stderr
