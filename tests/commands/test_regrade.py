"""`microrl regrade`: the rollouts of a run judged again, from the run folder alone."""

import gzip
import json
import math
import shutil
import subprocess
import sys

import pytest
from made_run import rewrite

from microrl.files import BadFile
from microrl.run import rollouts
from microrl.run.folder import RunFolder
from microrl.types import Completion, Group, Prompt, Score

REWARDS = """
def short(prompts, completions, rows):
    return [1.0]

def brevity(prompts, completions, rows):
    return [1 - len(text) / 100 for text in completions]

def level(prompts, completions, rows):
    return [row["level"] for row in rows]

def gold_is_there(prompts, completions, rows):
    return [float(str(row["answer"]) in text) for text, row in zip(completions, rows)]

def asked(prompts, completions, rows):
    return [float("What is" in prompt) for prompt in prompts]

def none_for_wrong(prompts, completions, rows):
    return [1.0 if "boxed{1}" in text else None for text in completions]
"""
TEXTS = {
    "right": "<think>x</think> \\boxed{1}",
    "wrong": "<think>x</think> \\boxed{2}",
    "plain": "\\boxed{1}",
    "silent": "I do not know. \ud800",
}


def scored(name, *, total, form, right, **more):
    text = TEXTS[name]
    return Completion((5,) * len(text), (-1.0,) * len(text), "stop", 0, text), Score(total, form, right, **more)


@pytest.fixture
def run(tmp_path):
    """The folder of a run whose rollouts were written by hand: three steps of one group of two completions."""
    (tmp_path / "own.py").write_text(REWARDS)
    path = tmp_path / "run"
    from microrl.config import resolve

    config = resolve(
        (), {"sampling.group_size": 2, "sampling.prompts_per_step": 1, "budget.steps": 3, "data.answer_kind": "text"}
    )
    folder = RunFolder.create(path, config.model_dump(mode="json"))
    prompt = Prompt("What is 0 + 1?", "1", "user: What is 0 + 1?", (1,), 7, json.dumps({"answer": 1, "level": 3}))
    steps = [
        [scored("right", total=1.2, form=1.0, right=1.0), scored("wrong", total=0.2, form=1.0, right=0.0)],
        [scored("right", total=0.2, form=1.0, right=0.0, killed=True), scored("wrong", total=1.2, form=1.0, right=1.0)],
        [scored("plain", total=1.0, form=0.0, right=1.0), scored("silent", total=0.0, form=0.0, right=0.0)],
    ]
    for number, pairs in enumerate(steps):
        completions, scores = zip(*pairs, strict=True)
        folder.log_rollouts(number, rollouts.lines([Group(prompt, completions, scores)]))
    return path


def regraded(inside, run, *arguments):
    done = inside("regrade", run, "--json", *arguments, cwd=run.parent)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_is_written_is_read_back(run):
    assert [step for step, _ in rollouts.steps(run)] == [0, 1, 2]
    (group,) = rollouts.read(run / "rollouts/step-000001.jsonl.gz", 2)
    assert group.prompt.question == "What is 0 + 1?" and group.prompt.text == "user: What is 0 + 1?" and group.prompt.row == 7
    assert json.loads(group.prompt.raw) == {"answer": 1, "level": 3}
    assert [len(one.token_ids) for one in group.completions] == [len(TEXTS["right"]), len(TEXTS["wrong"])]
    assert group.scores[0] == Score(0.2, 1.0, 0.0, killed=True)
    text = rollouts.read(run / "rollouts/step-000002.jsonl.gz", 2)[0].completions[1].text
    assert text == TEXTS["silent"].replace("\ud800", "?"), "half a character cannot be written"


def test_the_same_reward_changes_what_was_judged_wrong(inside, run):
    """The second step's verdicts are the wrong way round: its check was killed."""
    found = regraded(inside, run)
    first, second, third = found["steps"]
    assert found["reward"] == {"then": "0.2 format + 1 accuracy", "now": "0.2 format + 1 accuracy"}
    assert (first["then"], first["changed_verdicts"]) == (first["now"], 0)
    assert first["now"]["rewards"] == [[1.2, 0.2]] and first["now"]["reward"] == pytest.approx(0.7)
    advantage = 0.5 / (math.sqrt(0.5) + 1e-4)  # 0.5 off the mean, deviation 1 / sqrt(2)
    assert first["now"]["advantages"][0] == pytest.approx([advantage, -advantage])
    assert second["then"]["rewards"] == [[0.2, 1.2]] and second["now"]["rewards"] == [[1.2, 0.2]]
    assert (second["changed_verdicts"], second["changed_signs"], second["then"]["killed"], second["now"]["killed"]) == (
        2,
        2,
        1,
        0,
    )
    assert third["changed_verdicts"] == 0 and third["now"]["useful_groups"] == 1
    assert [(one["step"], one["sample"], one["accuracy"], one["row"]) for one in found["changed"]] == [
        (1, 0, {"then": 0.0, "now": 1.0}, 7),
        (1, 1, {"then": 1.0, "now": 0.0}, 7),
    ]


def test_another_reward(inside, run):
    (run.parent / "elsewhere").mkdir()
    found = regraded(
        inside, run, "--reward", "own:brevity=2", "--set", "reward.format_weight=0", "--set", "reward.accuracy_weight=0"
    )
    lengths = [len(TEXTS[name]) for name in ("right", "wrong")]
    assert found["steps"][0]["now"]["rewards"] == [[pytest.approx(2 - length / 50) for length in lengths]]
    assert found["steps"][0]["now"]["useful_groups"] == 0, "both are as long"
    assert found["steps"][2]["now"]["useful_groups"] == 1
    assert regraded(inside, run, "--reward", "own:level")["steps"][0]["now"]["rewards"] == [[4.2, 3.2]], "the raw row is kept"
    assert regraded(inside, run, "--reward", "own:asked")["steps"][0]["now"]["rewards"] == [[2.2, 1.2]], "and the prompt"


def test_what_gets_no_value_is_left_out(inside, run):
    first, _, third = regraded(inside, run, "--reward", "own:none_for_wrong")["steps"]
    assert first["now"]["left_out"] == 1 and first["now"]["advantages"] == [[0.0, 0.0]] and first["now"]["useful_groups"] == 0
    assert first["now"]["reward"] == pytest.approx(2.2) and third["now"]["left_out"] == 1


def test_parts_normalised_apart(inside, run):
    found = regraded(inside, run, "--reward", "own:brevity", "--set", "reward.normalise=apart")
    third = found["steps"][2]["now"]
    # Format is equal. Accuracy and brevity prefer the first: two values that differ by d become +-(d / 2) / (d / sqrt(2) + 1e-4).
    h = sum(weight * 0.5 * d / (d / math.sqrt(2) + 1e-4) for weight, d in ((1, 1), (1, (len(TEXTS["silent"]) - 9) / 100)))
    advantage = h / (h * math.sqrt(2) + 1e-4)
    assert third["advantages"][0] == pytest.approx([advantage, -advantage])


def test_a_run_without_rows_gives_question_and_answer(inside, run):
    strip(run, "row", "prompt", "parts", "counts", "extracted", "overlong", "killed", "row_number")
    done = inside("regrade", run, "--reward", "own:gold_is_there", cwd=run.parent)
    assert done.returncode == 0, done.stderr
    assert "has not kept the rows of its data" in done.stderr
    assert "step 1  reward 0.700 -> 1.200" in done.stderr and "the verdict changed for 2 of 6 completions" in done.stderr
    assert not done.stdout


def strip(run, *keys):
    rewrite(run, lambda line: {key: value for key, value in line.items() if key not in keys})


def test_bad_input(inside, run, tmp_path):
    assert inside("regrade", tmp_path).returncode == 2
    done = inside("regrade", run, "--reward", "own:nowhere", cwd=run.parent)
    assert done.returncode == 2 and "has no function `nowhere`" in done.stderr
    done = inside("regrade", run, "--reward", "other:fn", cwd=run.parent)
    assert done.returncode == 2 and "no module `other`" in done.stderr
    empty = tmp_path / "empty"
    shutil.copytree(run, empty)
    shutil.rmtree(empty / "rollouts")
    done = inside("regrade", empty)
    assert done.returncode == 2 and "has no rollouts" in done.stderr


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[: len(content) // 2], "is damaged"),
        (lambda content: b"not gzip", "is damaged"),
        (lambda content: gzip.compress(b"{}\n"), "line 1: `question`"),
        (lambda content: gzip.compress(b"[1]\n"), "line 1"),
        (lambda content: gzip.compress(gzip.decompress(content).split(b"\n")[0]), "group 1 is not 2 completions of one question"),
        (lambda content: gzip.compress(gzip.decompress(content).replace(b'"reward": 1.2', b'"reward": NaN')), "`reward`"),
    ],
)
def test_damaged_rollouts_are_named(inside, run, damage, words):
    path = run / "rollouts/step-000001.jsonl.gz"
    path.write_bytes(damage(path.read_bytes()))
    done = inside("regrade", run, cwd=run.parent)
    assert done.returncode == 2 and words in done.stderr and "step-000001" in done.stderr and "Traceback" not in done.stderr
    with pytest.raises(BadFile):
        rollouts.read(path, 2)


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize("reward", ["nowhere", "short"])
def test_nothing_heavy_is_imported_for_bad_input(run, reward):
    code = (
        "import sys; from microrl.cli import app; from microrl.cli.output import guarded\n"
        "status = guarded(lambda: app(['regrade', *sys.argv[1:]], standalone_mode=False))\n"
        "print(status, sorted({'torch', 'sympy', 'math_verify', 'datasets'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, run, "--reward", f"own:{reward}"]
    done = subprocess.run(command, cwd=run.parent, capture_output=True, text=True, timeout=60)
    assert done.stdout == "2 []\n", done.stderr


def test_a_real_run(inside, tiny_arguments, tmp_path, monkeypatch):
    """Judged again with its own reward, every score and advantage of a run is the same."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(REWARDS)
    out, keys = tmp_path / "run", ("--set", "reward.overlong.buffer=4", "--set", "evaluation.problems=0")
    done = inside("train", *tiny_arguments, "--steps", 1, "--out", out, "--reward", "own:brevity", *keys)
    assert done.returncode == 0, done.stderr
    found = regraded(inside, out)
    (step,) = found["steps"]
    assert step["then"] == step["now"] and step["groups"] == 4 and step["completions"] == 16 and not found["changed"]
    (row,) = (json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines())
    assert step["now"]["reward"] == pytest.approx(row["reward/mean"]) and row["reward/overlong"] < 0
    assert step["now"]["useful_groups"] == row["groups/useful"]
