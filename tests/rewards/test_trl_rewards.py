"""Reward functions that people have for TRL: called by name, with columns, on conversations or on text; async ones too."""

import importlib.util

import pytest

from microrl.algorithm.advantages import of_groups
from microrl.cli import early
from microrl.config import resolve
from microrl.config.reward import RewardConfig
from microrl.errors import UserError
from microrl.rewards.custom.functions import Asked, CustomRewards
from microrl.rewards.custom.probe import probe
from microrl.rewards.scorer import RewardScorer
from microrl.sandbox import levels
from microrl.types import Completion, Group, Prompt

FUNCTIONS = r"""
import asyncio, functools, math, re

# as in tutorials on GSM8K: conversations, the answer between tags
def tagged(text):
    return text.split("<answer>")[-1].split("</answer>")[0].strip()

def is_correct(prompts, completions, answer, **kwargs) -> list[float]:
    assert prompts[0][-1]["content"] == "What is 6 * 7?" and prompts[0][-1]["role"] == "user"
    found = [tagged(completion[0]["content"]) for completion in completions]
    return [2.0 if one == gold else 0.0 for one, gold in zip(found, answer)]

def is_whole(completions, **kwargs) -> list[float]:
    return [0.5 if tagged(completion[0]["content"]).isdigit() else 0.0 for completion in completions]

def has_layout(completions, **kwargs) -> list[float]:
    pattern = r"<think>.*?</think>\s*<answer>.*?</answer>"
    return [0.5 if re.search(pattern, one[-1].get("content"), re.DOTALL) else 0.0 for one in completions]

# as in reproductions of R1: a quarter for each tag that is there once
def tag_share(completions, **kwargs):
    tags = ("<think>", "</think>", "<answer>", "</answer>")
    return [sum(one[0]["content"].count(tag) == 1 for tag in tags) / 4 for one in completions]

# the length by a cosine, with a column of the data and the tokens
def by_cosine(completions, completion_ids, longest, *, best=1.0, **kwargs):
    return [best * 0.5 * (1 + math.cos(math.pi * min(1, len(ids) / limit))) for ids, limit in zip(completion_ids, longest)]

# on text, as for a data set whose prompts are text
def shortness(completions, **kwargs):
    return [-float(len(text)) for text in completions]

def starts_upper(prompts, completions):
    assert prompts[0] == "<user>What is 6 * 7?"
    return [float(bool(re.match("[A-Z]", text))) for text in completions]

def reads_both(completions: list, **kwargs):
    return [float("42" in (one if isinstance(one, str) else one[0]["content"])) for one in completions]

# its annotation tells; on text it would give 0 and say nothing
def swallows(completions: list[list[dict[str, str]]], **kwargs):
    def one(completion):
        try:
            return float(len(completion[0]["content"]))
        except Exception:
            return 0.0
    return [one(completion) for completion in completions]

async def asked_elsewhere(completions, **kwargs):
    await asyncio.sleep(0)
    return await asyncio.gather(*(length(one) for one in completions))

async def length(completion):
    await asyncio.sleep(0)
    return len(completion[0]["content"])

async def own_async(prompts, completions, rows):
    return [row["longest"] for row in rows]

def only_of_code(completions, kind, **kwargs):
    return [1.0 if one == "code" else None for one in kind]

def logs(completions, log_extra=None, log_metric=None, **kwargs):
    log_extra("text", [one[0]["content"] for one in completions])
    log_metric("count", len(completions))
    return [1.0] * len(completions)

def needs_more(completions, difficulty, trainer_state, **kwargs):
    return [1.0] * len(completions)

def wrong_itself(completions, **kwargs):
    return [len(one) + one.upper() for one in completions]

def fails_later(completions, **kwargs):
    return [one.size if "!" in one else 1.0 for one in completions]

def loops(completions, **kwargs):
    return [sum(len(message["content"]) for message in one) for one in completions]

def as_number(completions, answer, **kwargs):
    return [float(one) for one in answer]

def fails_on_both(completions, **kwargs):
    return [one[0]["text"] for one in completions]

class Scaled:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, completion_ids, **kwargs):
        return [self.factor * len(ids) for ids in completion_ids]

scaled = Scaled(3)
part = functools.partial(by_cosine, best=2.0)

def factory(max_length, share):
    return None
"""
RIGHT = "<think>6 * 7</think> <answer>42</answer>"
ROW = '{"question": "What is 6 * 7?", "answer": "6 * 7 = 42 #### 42", "longest": 4, "kind": "maths"}'


@pytest.fixture
def make(tmp_path):
    """Make one reward function of a module; its process is ended in the end."""
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    made = []

    def of(name, **more):
        target = name if ":" in name else f"mine:{name}"
        made.append(CustomRewards(RewardConfig(functions=(target,), path=str(tmp_path), **more)))
        return made[-1]

    yield of
    for one in made:
        one.close()


def values(rewards, *texts, ids=(0, 0), row=ROW, gold="42"):
    asked = [Asked("What is 6 * 7?", gold, ids)] * len(texts)
    ((_, found, failures),) = rewards.values_of(["<user>What is 6 * 7?"] * len(texts), texts, [row] * len(texts), asked)
    return found, [failure.why for failure in failures]


@pytest.mark.parametrize(
    ("name", "texts", "wanted"),
    [
        ("is_correct", [RIGHT, "41"], [2, 0]),
        ("is_whole", [RIGHT, "<answer>no</answer>"], [0.5, 0]),
        ("has_layout", [RIGHT, "42"], [0.5, 0]),
        ("tag_share", [RIGHT, "<think>", ""], [1, 0.25, 0]),
        ("by_cosine", ["x"], [0.5]),
        ("part", ["x"], [1]),
        ("shortness", ["four", ""], [-4, 0]),
        ("starts_upper", ["Yes", "no"], [1, 0]),
        ("reads_both", ["42", "41"], [1, 0]),
        ("swallows", ["four"], [4]),
        ("asked_elsewhere", ["four", "x"], [4, 1]),
        ("own_async", ["x"], [4]),
        ("only_of_code", ["x"], [None]),
        ("logs", ["x"], [1]),
        ("scaled", ["x"], [6]),
    ],
)
def test_each_signature_and_form_works(make, name, texts, wanted):
    assert values(make(name), *texts) == (wanted, [])


def test_the_form_is_found_whatever_comes_first(make):
    rewards = make("tag_share")
    assert values(rewards, "", RIGHT) == ([0, 1], []) == values(rewards, "", RIGHT), "an empty text has no first character"
    text = make("shortness")
    assert values(text, "", "") == ([0, 0], [])
    assert values(text, "abc") == ([-3], []), "and not -1, the number of its messages"
    loops = make("loops")
    assert values(loops, "", "") == ([0, 0], []) and values(loops, "four") == ([4], []), "nothing was indexed at first"
    later = make("fails_later")
    assert values(later, "a") == ([1], []) and "'str' object has no attribute 'size'" in values(later, "a!")[1][0]


def test_the_answer_is_the_gold_one_and_a_solution_where_there_is_no_such_column(make, tmp_path):
    (tmp_path / "more.py").write_text(
        "def fn(completions, answer, solution, **kwargs):\n"
        "    assert 'question' in kwargs and 'rows' not in kwargs\n"
        "    return [float(a == '42') + 2 * float(s == '42') + 4 * float(s == 'by heart') for a, s in zip(answer, solution)]\n"
    )
    assert values(make("more:fn"), "x") == ([3], [])
    assert values(make("more:fn"), "x", row='{"question": "?", "solution": "by heart"}') == ([5], [])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "needs_more",
            "it needs `difficulty`, `trainer_state`, and the columns of the data are: question, answer, longest, kind",
        ),
        ("wrong_itself", "TypeError: unsupported operand type(s) for +: 'int' and 'str' (mine.py, line"),
        ("fails_on_both", "KeyError: 'text' (mine.py, line"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(make, name, words):
    found, why = values(make(name), "abc")
    assert found == [None] and words in why[0]


def test_a_factory_is_no_reward(make):
    with pytest.raises(UserError) as caught:
        make("factory").import_all()
    assert "`mine:factory` cannot be used: its parameters are (max_length, share)" in caught.value.message
    assert "def NAME(completions, **kwargs)" in caught.value.hint


def test_none_leaves_out_its_part_alone_and_a_failure_the_completion(tmp_path):
    (tmp_path / "mine.py").write_text(
        FUNCTIONS + "\ndef picky(completions, **kwargs):\n    return [float(one[0]['content'] + '.5') for one in completions]\n"
    )
    config = RewardConfig(functions=("mine:only_of_code", "mine:picky=2"), path=str(tmp_path), format_weight=0.0)
    scorer = RewardScorer(config)
    try:
        texts = ("7", "\\boxed{42}", "9")
        completions = tuple(Completion((1, 2), (-0.5, -0.5), "stop", 0, text) for text in texts)
        (scored,) = scorer.score([(0, Group(Prompt("What is 6 * 7?", "42", "<user>", (1,), 1, ROW), completions))])
    finally:
        scorer.close()
    first, second, third = scored.scores
    assert (first.is_valid, first.total, dict(first.parts)) == (True, 15.0, {"picky": 7.5})
    assert (second.is_valid, dict(second.parts)) == (False, {"picky": None}), "it failed"
    assert (third.total, first.part("only_of_code")) == (19.0, None)
    for weights in (None, {"accuracy": 1.0, "only_of_code": 1.0, "picky": 2.0}):
        (given,) = of_groups([scored], scale_by_std=True, weights=weights)
        assert given[0] < 0 < given[2] and given[1] == 0


def test_what_none_leaves_out_is_said_of_each_kind_of_function(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def named(completions, **kwargs):\n    return [None] * len(completions)\n"
        "def whole(prompts, completions, rows):\n    return [None] * len(completions)\n"
        "def logged(prompts, completions, rows):\n    return [None] * len(completions)\n"
    )
    config = RewardConfig(functions=("mine:named", "mine:whole", "mine:logged=0"), path=str(tmp_path))
    rewards = CustomRewards(config)
    try:
        warnings = probe(rewards, [Prompt("What is 6 * 7?", "42", "<user>", (1,), 1, ROW)], "data")
    finally:
        rewards.close()
    own, whole = "leaves its own part out, and nothing else", "leaves them out of the update"
    assert [warning.partition("which ")[2] for warning in warnings] == [own, whole, own]


@pytest.mark.skipif(not levels().is_enforced, reason="this kernel lacks Landlock or seccomp")
def test_they_work_confined_but_for_async_ones(make):
    assert values(make("tag_share", confine_functions=True), RIGHT) == ([1], [])
    with pytest.raises(UserError, match="it is async, and its event loop needs a socket"):
        make("asked_elsewhere", confine_functions=True).import_all()


def test_they_are_tried_before_a_model_is_loaded(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    (tmp_path / "data.jsonl").write_text('{"question": "6 * 7", "answer": "42", "longest": 5}\n' * 40)
    monkeypatch.chdir(tmp_path)

    def refuse(name):
        config = resolve(
            ["quickstart"],
            {"data.name": "data.jsonl", "reward.functions": (f"mine:{name}",), "reward.path": "."},
            ["data.held_out=0.2"],
        )
        early.refuse(config)

    refuse("tag_share")
    refuse("by_cosine")
    refuse("as_number")
    with pytest.raises(UserError, match="it needs `kind`, and the columns of the data are: question, answer, longest"):
        refuse("only_of_code")


# ---- TRL's own


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "texts", "wanted"),
    [
        ("trl.rewards:think_format_reward", ["<think>\n6 * 7\n</think>\n42", "42"], [1, 0]),
        ("trl.rewards:accuracy_reward", ["\\boxed{42}", "\\boxed{41}"], [1, 0]),
        ("trl.rewards:reasoning_accuracy_reward", ["<think>6 * 7</think> \\boxed{42}", "\\boxed{42}"], [1, 0]),
        ("made:soft", ["x"], [-0.5]),
        ("made:cosine", ["\\boxed{42}", "\\boxed{41}"], [0.75, -0.75]),
        ("made:repetition", ["x"], [-0.5]),
    ],
)
def test_the_functions_of_trl_run_unchanged(make, tmp_path, target, texts, wanted):
    if "accuracy" in target or "cosine" in target:
        pytest.importorskip("math_verify")
    (tmp_path / "made.py").write_text(
        "from trl.rewards import get_cosine_scaled_reward, get_repetition_penalty_reward, get_soft_overlong_punishment\n"
        "soft = get_soft_overlong_punishment(max_completion_len=6, soft_punish_cache=4)\n"
        "cosine = get_cosine_scaled_reward(max_len=8)\n"
        "repetition = get_repetition_penalty_reward(ngram_size=3, max_penalty=-1.0)\n"
    )
    assert values(make(target), *texts, ids=(5, 5, 5, 5)) == (wanted, [])
