"""Custom reward functions: tried before a model is loaded, called in processes that may hang, and normalised apart."""

import gzip
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from algorithms import APART, GRPO

from microrl.algorithm.advantages import advantages, gdpo_advantages
from microrl.algorithm.batch import assemble
from microrl.cli import early
from microrl.config import resolve
from microrl.config.data import DataConfig
from microrl.config.environment import BUILT_IN
from microrl.config.reward import RewardConfig, parse_functions
from microrl.data.load import load_questions
from microrl.errors import UserError
from microrl.rewards.custom.functions import KILLS, CustomRewards
from microrl.rewards.custom.probe import probe
from microrl.rewards.custom.process import HOST
from microrl.rewards.scorer import RewardScorer
from microrl.run import metrics
from microrl.train import setup
from microrl.types import Completion, Group, Prompt, Score

REWARDS = """
import os, sys, time

def brevity(prompts, completions, rows):
    return [1 - len(text) / 100 for text in completions]

def level(prompts, completions, rows):
    return [row["level"] for row in rows]

def none(prompts, completions, rows):
    return [None] * len(completions)

def no_a(prompts, completions, rows):
    return [None if "a" in text else 1 for text in completions]

def reads_json(prompts, completions, rows):
    import json
    return [json.loads(text) for text in completions]

def infinite(prompts, completions, rows):
    return [float("inf") if "!" in text else 0.5 for text in completions]

def short(prompts, completions, rows):
    return [1.0]

def words(prompts, completions, rows):
    return ["1.0" for text in completions]

def nothing(prompts, completions, rows):
    pass

def generator(prompts, completions, rows):
    return (1.0 for text in completions)

def hangs(prompts, completions, rows):
    if any("hang" in text for text in completions):
        time.sleep(3600)
    return [1.0] * len(completions)

def never_ends(prompts, completions, rows):
    while True:
        pass

def leaves(prompts, completions, rows):
    if any("leave" in text for text in completions):
        os._exit(3)
    return [1.0] * len(completions)

def exits(prompts, completions, rows):
    sys.exit("no more")

def noisy(prompts, completions, rows):
    print("score: 1", flush=True)
    sys.stdin.read()
    os.system("echo more; echo more >&2")
    return [2.0] * len(completions)

def array(prompts, completions, rows):
    import numpy
    return numpy.array([len(text) for text in completions], dtype=numpy.float32)

def echo(prompts, completions, rows):
    assert prompts == ["the prompt"] * len(completions)
    return [len(text.encode("utf-8", "surrogatepass")) for text in completions]

class Scorer:
    def __call__(self, prompts, completions, rows):
        return [7] * len(completions)

    def method(self, prompts, completions, rows):
        return [8] * len(completions)

scorer = Scorer()
number = 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with modules of rewards."""
    path = tmp_path_factory.mktemp("rewards")
    (path / "own.py").write_text(REWARDS)
    (path / "broken.py").write_text("def fn(:\n")
    (path / "raises.py").write_text("raise RuntimeError('no card')\n")
    (path / "leaves.py").write_text("import os; os._exit(0)\n")
    (path / "pack").mkdir()
    (path / "pack" / "inner.py").write_text("def fn(prompts, completions, rows):\n    return [4] * len(completions)\n")
    return path


@pytest.fixture
def own(folder):
    """Make the functions of `own.py`; they are closed in the end."""
    made = []

    def make(*names, **keys):
        functions = tuple(name if ":" in name else f"own:{name}" for name in names)
        made.append(CustomRewards(RewardConfig(functions=functions, path=str(folder), **keys)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def values(rewards, *texts, row='{"level": 3}'):
    ((_, found, failures),) = rewards.values_of(["the prompt"] * len(texts), texts, [row] * len(texts))
    return found, {failure.completion: failure.why for failure in failures}


# ---- names and weights


def test_names_and_weights():
    found = parse_functions(["my.module:brevity=0.5", "other:brevity", "other:accuracy=-2", "entry-point", "m:Class.method=1e3"])
    assert [(one.target, one.weight, one.name) for one in found] == [
        ("my.module:brevity", 0.5, "my.module:brevity"),
        ("other:brevity", 1.0, "other:brevity"),
        ("other:accuracy", -2.0, "other:accuracy"),  # a built-in part has that name
        ("entry-point", 1.0, "entry-point"),
        ("m:Class.method", 1000.0, "method"),
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["rewards/own.py:fn"], "name the module and not the file"),
        (["own.py:fn"], "--reward own:fn"),
        (["own:fn=much"], "not `much`"),
        (["own:fn=nan"], "not `nan`"),
        (["own:fn=1e13"], "not `1e13`"),
        (["own:fn=1=2"], "must be a number"),
        (["own:"], "is not a reward function"),
        ([""], "is not a reward function"),
        (["own:fn", "own:fn=2"], "is given 2 times"),
        ([3], "reward.functions"),
    ],
)
def test_a_name_that_cannot_be_is_refused(given, words):
    with pytest.raises(UserError) as error:
        resolve((), {"reward.functions": given})
    assert words in f"{error.value.message} {error.value.hint}" and error.value.hint


def test_a_single_function_needs_no_list_and_its_folder_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = resolve((), {}, ["reward.functions=own:fn=0.5"])
    assert config.reward.functions == ("own:fn=0.5",) and config.reward.path == str(tmp_path)
    assert resolve().reward.path is None


def test_normalising_apart_needs_the_deviation():
    with pytest.raises(UserError, match="scale_by_std=false forbids"):
        resolve((), {"loss.kind": "dr_grpo", "reward.normalise": "apart"})
    with pytest.raises(UserError, match="--loss maxrl never divides by it"):
        resolve((), {"loss.kind": "maxrl", "reward.normalise": "apart"})


# ---- advantages


def test_completions_that_do_not_count_are_left_out_of_their_group():
    rewards = torch.tensor([[1.0, 0.0, 9.0, 1.0], [1.0, 5.0, 9.0, 2.0], [1.0, 5.0, 9.0, 2.0]], dtype=torch.float64)
    counts = torch.tensor([[True, True, False, True], [False, False, False, True], [False] * 4])
    found = advantages(rewards, scale_by_std=True, counts_PG=counts)
    # Of 1, 0, 1: mean 2/3, deviation sqrt((1/9 + 4/9 + 1/9) / 2).
    deviation = math.sqrt(1 / 3) + 1e-4
    assert found[0].tolist() == pytest.approx([1 / 3 / deviation, -2 / 3 / deviation, 0, 1 / 3 / deviation])
    assert found[1:].tolist() == [[0.0] * 4] * 2, "fewer than two are left"
    assert advantages(rewards, scale_by_std=False, counts_PG=counts)[0].tolist() == pytest.approx([1 / 3, -2 / 3, 0, 1 / 3])
    everyone = torch.ones(3, 4, dtype=torch.bool)
    assert advantages(rewards, scale_by_std=True, counts_PG=everyone).equal(advantages(rewards, scale_by_std=True))


def test_parts_apart_keep_what_their_sum_loses():
    """The two-rollout example of the GDPO paper: (0, 1) and (0, 2) have the same advantages under GRPO."""
    first, second = torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    together = advantages(first + second, scale_by_std=True)
    assert together[0].tolist() == pytest.approx(together[1].tolist(), rel=1e-3)
    apart = gdpo_advantages(torch.stack([first, second]).double(), [1.0, 1.0])
    assert apart[1].tolist() == pytest.approx([2 * value for value in apart[0].tolist()])
    # A is (-h, h, -2h, 2h): its unbiased deviation is h * sqrt(10 / 3), with h close to 1 / sqrt(2).
    h = 0.5 / (math.sqrt(0.5) + 1e-4)
    assert apart[0, 1].item() == pytest.approx(h / (h * math.sqrt(10 / 3) + 1e-4))


def test_apart_by_hand_with_weights_and_a_completion_left_out():
    form, right = [[1.0, 1.0, 0.0, 0.0, 7.0]], [[1.0, 0.0, 0.0, 0.0, 7.0]]
    counts = torch.tensor([[True] * 4 + [False]])
    found = gdpo_advantages(torch.tensor([form, right]).double(), [0.2, 1.0], counts_PG=counts)[0].tolist()
    a = 0.5 / (math.sqrt(1 / 3) + 1e-4)  # format: +-0.5 around the mean, deviation sqrt(1/3)
    b = 1 / (0.5 + 1e-4)  # accuracy: 0.75 and -0.25 around the mean, deviation 1/2
    sums = [0.2 * a + 0.75 * b, 0.2 * a - 0.25 * b, -0.2 * a - 0.25 * b, -0.2 * a - 0.25 * b]
    deviation = math.sqrt(sum(value**2 for value in sums) / 3) + 1e-4
    assert found == pytest.approx([*(value / deviation for value in sums), 0.0])


def test_apart_agrees_with_trl_on_random_rewards():
    """TRL 1.16's `normalize_then_sum`, written out: it subtracts the batch's mean, which is 0."""
    torch.manual_seed(0)
    parts, weights = torch.rand(3, 5, 4, dtype=torch.float64), torch.tensor([0.2, 1.0, -0.5], dtype=torch.float64)
    normal = (parts - parts.mean(2, keepdim=True)) / (parts.std(2, keepdim=True) + 1e-4)
    total = (normal * weights[:, None, None]).sum(0)
    expected = (total - total.mean()) / (total.std() + 1e-4)
    assert gdpo_advantages(parts, weights.tolist()).allclose(expected, atol=1e-12)


def group(*scores, answer="1"):
    completions = tuple(Completion((5, 6), (-1.0, -2.0), "stop", 0, "text") for _ in scores)
    return Group(Prompt("q", answer, "", (1,)), completions, scores)


def test_a_batch_leaves_out_what_does_not_count_and_takes_parts_apart():
    scores = [Score(1.2, 1.0, 1.0, parts={"x": 0.0}), Score(0.2, 1.0, 0.0, parts={"x": 0.0}),
              Score(0.0, 0.0, 0.0, parts={"x": None}, is_valid=False), Score(0.2, 0.0, 0.0, parts={"x": 0.2})]  # fmt: skip
    groups = [group(*scores), group(*[Score(0.2, 1.0, 0.0, parts={"x": 0.0})] * 4)]
    batch = assemble(groups, GRPO)
    assert [row.counts for row in batch.rows] == [True, True, False, True] + [True] * 4
    assert batch.rows[2].advantage == 0 and batch.rows[1].advantage == batch.rows[3].advantage < 0 < batch.rows[0].advantage
    apart = assemble(groups, APART)
    assert apart.rows[2].advantage == 0 and apart.rows[1].advantage < apart.rows[3].advantage < apart.rows[0].advantage
    assert all(row.advantage == 0 for row in apart.rows[4:]), "equal parts have exactly no advantage"


def test_metrics_leave_out_what_has_no_reward():
    groups = [group(Score(1.0, 1.0, 1.0, parts={"x": 4.0}), Score(9.0, 0.0, 0.0, parts={"x": None}, is_valid=False)),
              group(Score(0.5, 1.0, 0.0, parts={"x": 1.0}), Score(0.5, 0.0, 0.0, parts={"x": 2.0}))]  # fmt: skip
    found = metrics.of_groups(groups)
    assert found["reward/mean"] == pytest.approx(2 / 3) and found["reward/left_out"] == 1
    assert (found["reward/accuracy"], found["reward/format"]) == (0.25, 0.5), "every completion has these"
    assert found["reward/part/x"] == pytest.approx(7 / 3)
    assert found["groups/useful"] == 0 and found["reward/std"] == 0
    assert metrics.of_groups(groups, {"format": 1.0, "x": 0.0})["groups/useful"] == 0.5
    row = metrics.row(found, ["x", "y"])
    assert list(row)[-2:] == ["reward/part/x", "reward/part/y"] and row["reward/part/y"] is None
    nobody = metrics.of_groups([group(Score(9.0, 0.0, 0.0, is_valid=False))])
    assert nobody["reward/mean"] is None


# ---- the process


def test_values_and_what_is_none(own):
    assert values(own("brevity"), "a" * 10, "") == ([0.9, 1.0], {})
    assert values(own("no_a"), "a", "b") == ([None, 1.0], {}), "None is a value of the function, and no failure"
    assert values(own("level"), "a", "b") == ([3.0, 3.0], {})
    assert values(own("array"), "ab", "") == ([2.0, 0.0], {})
    assert values(own("scorer"), "a") == ([7.0], {}) and values(own("scorer.method"), "a") == ([8.0], {})
    assert values(own("pack.inner:fn"), "a") == ([4.0], {}), "a folder without __init__.py is a package too"


def test_any_text_reaches_the_function(own):
    texts = ["", "\0", "\ud800", "\n\r\u2028", "é😀", "x" * 300_000, '"}\\']
    assert values(own("echo"), *texts) == ([0, 1, 3, 5, 6, 300_000, 3], {})


def test_what_it_prints_and_reads_does_not_disturb(own):
    rewards = own("noisy")
    assert values(rewards, "a", "b") == ([2.0, 2.0], {}) == values(rewards, "a", "b")


def test_one_completion_that_fails_costs_the_others_nothing(own):
    found, why = values(own("reads_json"), "1", "no json", "2.5", "null", '"x"', "[1]")
    assert found == [1.0, None, 2.5, None, None, None]
    assert why[1].startswith("JSONDecodeError: Expecting value") and "own.py" not in why[1]
    assert why[4] == "it returned an object of type str instead of a number" and 3 not in why and "list" in why[5]
    found, why = values(own("infinite"), "a", "!", "b")
    assert found == [0.5, None, 0.5] and why == {1: "it returned inf, which is not finite"}


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("short", "it returned a list of 1 for 2 completions"),
        ("nothing", "it returned None instead of a list of 2 numbers"),
        ("generator", "it returned an object of type generator"),
        ("words", "it returned an object of type str instead of a number"),
        ("exits", "SystemExit: no more (own.py, line"),
    ],
)
def test_a_wrong_result_is_said_and_leaves_all_out(own, name, words):
    found, why = values(own(name), "a", "b")
    assert found == [None, None] and words in why[0] and words in why[1]


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_call_that_hangs_is_killed_and_after_two_no_more_are_made(own):
    rewards = own("hangs", function_deadline_s=0.5)
    rewards.import_all()
    began = time.monotonic()
    for _ in range(KILLS):
        found, why = values(rewards, "hang", "b")
        assert found == [None, None] and why[1] == "it took longer than 0.5 s (reward.function_deadline_s)"
    assert values(rewards, "b") == ([None], {0: "it was not called: 2 calls in this step have been killed"})
    rewards.reset()
    assert values(rewards, "b") == ([1.0], {}), "the next step starts it again"
    assert time.monotonic() - began < 30


def test_a_function_that_ends_its_process_is_started_again(own):
    rewards = own("leaves")
    assert values(rewards, "leave") == ([None], {0: "its process ended (exit status 3)"})
    assert values(rewards, "stay") == ([1.0], {})


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("own:brevty", "did you mean `brevity`?"),
        ("own:number", "it is not a function, but of type int"),
        ("own:Scorer", "it is a class, not a function"),
        ("broken:fn", "SyntaxError: invalid syntax (broken.py, line 1)"),
        ("raises:fn", "RuntimeError: no card (raises.py, line 1)"),
        ("leaves:fn", "its process ended (exit status "),
    ],
)
def test_a_function_that_cannot_be_imported_is_named(own, target, words):
    with pytest.raises(UserError) as error:
        own(target).import_all()
    assert words in f"{error.value.message} {error.value.hint}"
    assert f"`{target}` cannot be {'used' if target == 'own:Scorer' else 'imported'}" in error.value.message


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


def until_gone(pid):
    until = time.monotonic() + 20
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not is_alive(pid)


@pytest.mark.parametrize(
    ("target", "server", "by_name"),
    [("own:brevity", "", {"by_name": False}), (BUILT_IN["calculator"], "microrl.environments.forks", {})],
)
def test_its_process_needs_the_standard_library_alone(folder, target, server, by_name):
    """And this package from where it lies: it is not installed where a checkout is used."""
    words = [target, "" if server else str(folder), str(os.getpid()), "microrl.rewards", "", server]
    done = subprocess.run([sys.executable, "-I", "-S", HOST, *words], input="", capture_output=True, text=True, cwd=folder)
    assert done.stderr == "" and json.loads(done.stdout) == {"ready": True, **by_name}


@pytest.mark.slow
@pytest.mark.one_of_each
def test_no_process_is_left_behind(folder):
    """Not when it is closed in the middle of a call, and not when the parent is killed."""
    code = textwrap.dedent(f"""
        import sys, threading, time
        from microrl.config.reward import RewardConfig
        from microrl.rewards.custom.functions import CustomRewards
        rewards = CustomRewards(RewardConfig(functions=("own:never_ends",), path={str(folder)!r}))
        rewards.import_all()
        print(rewards._rewards[0]._process.pid, flush=True)
        threading.Thread(target=lambda: list(rewards.values_of(["p"], ["c"], [""])), daemon=True).start()
        time.sleep(0.3)
        if sys.argv[1] == "close":
            began = time.monotonic()
            rewards.close()
            print(time.monotonic() - began, flush=True)
        time.sleep(60)
    """)
    for how in ("close", "kill"):
        process = subprocess.Popen([sys.executable, "-c", code, how], stdout=subprocess.PIPE, text=True)
        try:
            pid = int(process.stdout.readline())
            assert is_alive(pid)
            if how == "close":
                assert float(process.stdout.readline()) < 5
            else:
                time.sleep(0.5)
                process.send_signal(signal.SIGKILL)
            assert until_gone(pid)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


# ---- scoring


def completion(text):
    return Completion((5,) * 3, (-1.0,) * 3, "stop", 1, text)


def test_the_row_that_is_named_is_one_whose_call_failed(own):
    """Several groups are scored at once: the first of them may not have been called, since later ones were killed before."""
    rewards = own("leaves")
    rewards.reset()
    for row, kills in ((7, KILLS), (8, 0)):
        rewards._rewards[0].kills = kills
        with rewards.calls(lambda: None) as calls:
            calls.ask(0, Group(Prompt("q", "1", "", (), row, ""), (completion("leave"),)))
            calls.settle()
    found = rewards.missing["leaves"]
    assert (found.row, found.why) == (8, "its process ended (exit status 3)")


def test_the_parts_of_a_score_and_its_total(folder):
    config = RewardConfig(functions=("own:no_a=2", "own:brevity=0", "own:reads_json=0.5"), path=str(folder))
    scorer = RewardScorer(config)
    prompt = Prompt("q", "1", "", (), 12, '{"answer": "1"}')
    try:
        texts = ("1", "<think>x</think> \\boxed{1}", "a", "3")
        (found,) = scorer.score([(0, Group(prompt, tuple(map(completion, texts))))])
        (plain,) = scorer.score([(0, Group(prompt, tuple(map(completion, texts))))], accuracy_only=True)
        missing = dict(scorer.custom.missing)
        scorer.reset_allowance()
        assert not scorer.custom.missing
    finally:
        scorer.close()
        scorer.close()
    one, boxed, a, three = found.scores
    assert one.parts == {"no_a": 1.0, "brevity": 0.99, "reads_json": 1.0} and one.total == 2.5 and one.is_valid
    assert boxed.parts["reads_json"] is None and not boxed.is_valid and boxed.extracted == "1" and boxed.accuracy == 1
    assert a.parts["no_a"] is None and not a.is_valid and a.extracted is None
    assert three.total == 2 + 1.5 and three.is_valid
    assert [score.total for score in plain.scores] == [0, 1.2, 0, 0] and all(score.is_valid for score in plain.scores)
    assert set(missing) == {"reads_json"}, "its own None is no failure"
    assert (missing["reads_json"].count, missing["reads_json"].row) == (2, 12)


def test_a_function_without_weight_leaves_nobody_out(folder):
    scorer = RewardScorer(RewardConfig(functions=("own:none=0",), path=str(folder)))
    try:
        (found,) = scorer.score([(0, Group(Prompt("q", "1", "", ()), (completion("\\boxed{1}"),)))])
    finally:
        scorer.close()
    assert found.scores[0].is_valid and found.scores[0].total == 1 and found.scores[0].parts == {"none": None}


def test_dynamic_sampling_follows_the_reward_where_accuracy_has_no_weight():
    from microrl import algorithm

    differ = group(Score(0.1, 0.0, 0.0), Score(0.9, 0.0, 0.0))
    left = group(Score(0.1, 0.0, 0.0), Score(0.9, 0.0, 1.0, is_valid=False))
    by_reward = algorithm.make(resolve((), {"reward.accuracy_weight": 0.0})).is_mixed
    by_accuracy = algorithm.make(resolve()).is_mixed
    assert by_reward(differ) and not by_reward(left) and not by_accuracy(differ) and not by_accuracy(left)


# ---- rows


def test_rows_keep_their_columns_and_types(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "1+1?", "answer": 2, "level": 3.5, "deep": {"a": [1, true, null, 1e400]}, "n": "text"}\n')
    (found,) = load_questions(DataConfig(name=str(path)), raw=True)
    assert json.loads(found.raw) == {
        "question": "1+1?", "answer": 2, "level": 3.5, "deep": {"a": [1, True, None, "1e400"]}, "n": "text",
    }  # fmt: skip
    assert found.answer == "2" and load_questions(DataConfig(name=str(path)))[0].raw == ""
    assert json.loads(load_questions(DataConfig(name="arithmetic"), raw=True)[0].raw) == {
        "question": "What is 10 + 10?",
        "answer": "20",
    }


def test_what_json_cannot_hold_becomes_null(tmp_path):
    import datetime

    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "rows.parquet"
    table = {
        "question": ["q"],
        "answer": ["1"],
        "image": [b"\x89PNG"],
        "at": [datetime.datetime(2026, 1, 8)],
        "x": [math.nan],
        "y": [[1.5]],
    }
    parquet.write_table(pyarrow.table(table), path)
    (found,) = load_questions(DataConfig(name=str(path)), raw=True)
    assert json.loads(found.raw) == {
        "question": "q",
        "answer": "1",
        "image": None,
        "at": "2026-01-08T00:00:00",
        "x": None,
        "y": [1.5],
    }


# ---- before a model is loaded


def test_the_probe_names_the_row_and_the_completion(own):
    rows = [Prompt(f"q{row}", str(row), "p", (), row, json.dumps({"level": 1} if row < 40 else {})) for row in range(1, 41)]
    with pytest.raises(UserError, match=r"sums\.jsonl, row 40: the reward `own:level` gives no value for .* KeyError: 'level'"):
        probe(own("level"), rows, "sums.jsonl")
    (warning,) = probe(own("level", "none"), rows[:39], "sums.jsonl")
    assert warning.startswith("the reward `none` gave None for every completion")


BAD = {
    "no module": ("nowhere:fn", "there is no module `nowhere`"),
    "no submodule": ("pack.outer:fn", "there is no module `pack.outer`"),
    "no entry point": ("nowhere", "there is no reward `nowhere`"),
    "no function": ("own:brevty", "did you mean `brevity`?"),
    "syntax": ("broken:fn", "SyntaxError"),
    "raises at import": ("raises:fn", "RuntimeError: no card"),
    "wrong length": ("own:short", "row 3: the reward `own:short` gives no value for the completion"),
    "exception": ("own:reads_json", "JSONDecodeError"),
    "missing column": ("own:level", "KeyError: 'level' (own.py, line 8)"),
    "not a number": ("own:words", "it returned an object of type str"),
    "too slow": ("own:never_ends", "it took longer than 0.4 s"),
    "ends": ("own:exits", "SystemExit"),
}


@pytest.mark.cases(fast=4)
@pytest.mark.parametrize("case", BAD)
def test_a_bad_reward_ends_with_status_2_before_a_model_is_loaded(inside, tiny_arguments, folder, tmp_path, monkeypatch, case):
    target, words = BAD[case]
    monkeypatch.setattr(setup, "load_model", lambda *rest: pytest.fail("the model was loaded"))
    monkeypatch.chdir(folder)
    out = tmp_path / "run"
    keys = ["--set", "reward.function_deadline_s=0.4"]
    done = inside("train", *tiny_arguments, "--steps", 1, "--reward", target, *keys, "--out", out)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert [line.split(":")[0] for line in done.stderr.splitlines() if line.startswith(("error: ", "hint: "))] == [
        "error",
        "hint",
    ]
    assert not out.exists(), "its name is free again"


@pytest.mark.slow
@pytest.mark.parametrize("command", [pytest.param("train", marks=pytest.mark.one_of_each), "train --dry-run", "audit"])
def test_it_is_told_before_torch_is_imported(folder, data_file, tmp_path, command):
    code = (
        "import sys; from microrl.cli import app; from microrl.cli.output import guarded\n"
        "status = guarded(lambda: app(sys.argv[1:], standalone_mode=False))\n"
        "print(status, sorted({'torch', 'sympy', 'math_verify', 'datasets'} & set(sys.modules)))"
    )
    budget = [] if command == "audit" else ["--steps", "1", "--out", tmp_path / "run"][: 2 if "dry" in command else 4]
    arguments = [*command.split(), "quickstart", "--data", data_file, "--reward", "own:short", *budget]
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.stdout == "2 []\n" and "it returned a list of 1 for 3 completions" in done.stderr, done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_module_that_loads_something_large_is_tried_later(inside, tiny_arguments, tmp_path, monkeypatch):
    (tmp_path / "large.py").write_text("import time; time.sleep(1)\ndef fn(*rest):\n    return [1.0]\n")
    monkeypatch.setattr(early, "IMPORT_S", 0.2)
    monkeypatch.setattr(setup, "load_model", lambda *rest: pytest.fail("the model was loaded"))
    tried = []
    monkeypatch.setattr(early, "probe", lambda *rest: tried.append(rest))
    done = inside("train", *tiny_arguments, "--steps", 1, "--reward", "large:fn", "--out", tmp_path / "run", cwd=tmp_path)
    assert done.returncode == 2 and "it returned a list of 1 for 3 completions" in done.stderr and not tried


def test_an_entry_point(inside, folder, tmp_path, monkeypatch, data_file):
    info = tmp_path / "pkg-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pkg\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[microrl.rewards]\nshortness = own:brevity\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(folder), os.environ.get("PYTHONPATH", "")]))
    rewards = CustomRewards(RewardConfig(functions=("shortness=0.5",)))
    try:
        assert values(rewards, "a" * 10) == ([0.9], {}) and rewards.functions[0].name == "shortness"
    finally:
        rewards.close()
    done = inside("train", "quickstart", "--data", data_file, "--reward", "shortnes", "--steps", 1, "--out", tmp_path / "run")
    assert done.returncode == 2 and "did you mean `shortness`?" in done.stderr


# ---- runs


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def rollouts(out, step):
    with gzip.open(out / f"rollouts/step-{step:06d}.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("steps", [1, pytest.param(10, marks=[pytest.mark.slow, pytest.mark.one_of_each])])
def test_a_run_with_rewards_of_ones_own(steps, inside, tiny_arguments, folder, tmp_path, monkeypatch):
    """Their parts are metrics and in the rollouts; a resumed run finds their module from another folder, and repeats."""
    monkeypatch.chdir(folder)
    out, cut = tmp_path / "whole", tmp_path / "cut"
    rewards = [
        "--reward",
        "own:brevity=0.5",
        "--reward",
        "own:no_a",
        "--set",
        "reward.normalise=apart",
        "--set",
        "evaluation.problems=0",
    ]
    done = inside("train", *tiny_arguments, "--steps", steps, "--out", out, *rewards)
    assert done.returncode == 0, done.stderr
    assert "reward: 0.2 format + 1 accuracy + 0.5 brevity + 1 no_a, normalised apart" in done.stderr
    rows = lines(out / "metrics.jsonl")
    assert len(rows) == steps and all(list(row)[-2:] == ["reward/part/brevity", "reward/part/no_a"] for row in rows)
    first = rollouts(out, 0)
    assert len(first) == 16
    for line in first:
        assert line["parts"]["brevity"] == pytest.approx(1 - len(line["completion"]) / 100)
        assert line["counts"] is ("a" not in line["completion"]) and (line["parts"]["no_a"] is None) is not line["counts"]
        assert line["row_number"] == int(line["question"].split()[2]) - 9
    for line in first[::8]:  # the first of each group
        assert line["row"] == {"question": line["question"], "answer": line["answer"]} and line["question"] in line["prompt"]
    brevity = [line["parts"]["brevity"] for line in first]
    assert rows[0]["reward/part/brevity"] == pytest.approx(sum(brevity) / 16)
    assert rows[0]["reward/left_out"] == sum(not line["counts"] for line in first)
    assert 0 < rows[0]["reward/left_out"] < 16, "a test without one would show nothing"
    if steps == 1:
        return
    assert inside("train", *tiny_arguments, "--steps", 9, "--out", cut, *rewards).returncode == 0
    monkeypatch.chdir(tmp_path)
    assert inside("train", "--resume", cut, "--steps", 10).returncode == 0
    assert rollouts(cut, 9) == rollouts(out, 9)


def test_a_reward_that_fails_in_a_step_is_an_event(inside, tiny_arguments, folder, tmp_path, monkeypatch):
    """The probe's completions have no exclamation mark; those of a random model have."""
    (tmp_path / "later.py").write_text(
        "def fn(prompts, completions, rows):\n"
        "    if any('made up' in text or not text for text in completions):\n        return [0.0] * len(completions)\n"
        "    return [float('nan')] * len(completions)\n"
    )
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    done = inside("train", *tiny_arguments, "--steps", 1, "--out", out, "--reward", "later:fn", "--set", "evaluation.problems=0")
    assert done.returncode == 0, done.stderr
    (event,) = [event for event in lines(out / "events.jsonl") if event["kind"] == "reward failed"]
    assert event["function"] == "fn" and event["count"] >= 8 and "it returned nan, which is not finite" in event["message"]
    (row,) = lines(out / "metrics.jsonl")
    assert row["reward/left_out"] == event["count"]
