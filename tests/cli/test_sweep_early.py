"""`microrl sweep`: what is wrong with a trial is said before the first one begins."""

import subprocess
import sys

import pytest

from microrl.cli import early
from microrl.config import resolve
from microrl.errors import UserError
from microrl.sweep.grid import Grid

REWARDS = """
def fine(prompts, completions, rows):
    return [1.0 for _ in completions]

def broken(prompts, completions, rows):
    raise ValueError("no such thing")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch, data_file):
    """A current folder with good data, data without a question, and reward functions."""
    (tmp_path / "good.jsonl").write_bytes(data_file.read_bytes())
    (tmp_path / "colours.jsonl").write_text('{"colour": "red"}\n')
    (tmp_path / "mine.py").write_text(REWARDS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.cases(fast=5)
@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (["data.name=arithmetic,gone.jsonl"], "trial name-gone.jsonl-seed0: there is no data file", "check the path"),
        (["data.name=good.jsonl,colours.jsonl"], "trial name-colours.jsonl-seed0: cannot tell which column", "name them: "),
        (["data.name=arithmetic,gsm9k"], "trial name-gsm9k-seed0: unknown data set `gsm9k`", "did you mean `gsm8k`?"),
        (["data.question=null,q", "data.name=good.jsonl"], "trial question-q-seed0: the data has no column `q`", "question"),
        (["model.name=quickstart,./gone"], "trial name-gone-seed0: there is no model `./gone`", "a local folder"),
        (["reward.functions=[],['other:f']"], "trial functions-_other_f_-seed0: the reward `other:f` cannot", "reward.path"),
        (["reward.functions=mine:fine,mine:broken"], "trial functions-mine_broken-seed0: ", "for each completion"),
        (["sft.data=arithmetic,gone.csv", "sft.steps=1"], "trial data-gone.csv-seed0: there is no data file", "check the path"),
    ],
)  # fmt: skip
def test_a_trial_that_cannot_begin_is_named_before_the_first_one_begins(inside, folder, words, said, hint, dry_run):
    before = sorted(folder.iterdir())
    done = inside("sweep", "quickstart", *(part for word in words for part in ("--vary", word)), *dry_run)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert hint in done.stderr.partition("hint: ")[2]
    assert [path for path in sorted(folder.iterdir()) if path.name != "__pycache__"] == before, "nothing is left behind"


def test_what_trials_have_in_common_is_checked_once(folder, monkeypatch):
    calls = []
    for name in ("local_model", "check_source", "refuse_unusable", "_try_rewards"):
        monkeypatch.setattr(early, name, lambda *given, name=name: calls.append(name))
    varied = {"data.name": ["arithmetic", "good.jsonl"], "reward.functions": ["mine:fine=1", "mine:fine=2"], "seed": range(20)}
    trials = Grid(["quickstart"], {}, [], varied).trials()
    early.refuse_trials(trials, are_here=True)
    assert len(trials) == 80
    assert sorted(calls) == ["_try_rewards", "_try_rewards", "check_source", "check_source", "local_model", "refuse_unusable"]


def test_on_other_machines_reward_functions_are_looked_for_but_not_called(folder):
    def trials(function):
        return Grid(["quickstart"], {}, ["reward.confine_functions=true"], {"reward.functions": [function]}).trials()

    early.refuse_trials(trials("mine:broken"), are_here=False)
    with pytest.raises(UserError, match="there is no module `other`"):
        early.refuse_trials(trials("other:f"), are_here=False)


@pytest.mark.slow
@pytest.mark.one_of_each
def test_no_heavy_library_is_imported_for_it(folder):
    program = (
        "import sys; from microrl.cli.output import guarded; from microrl.cli import app\n"
        "status = guarded(lambda: app(sys.argv[1:], standalone_mode=False))\n"
        "print(status, sorted({'torch', 'transformers', 'sympy', 'math_verify', 'datasets'} & set(sys.modules)))"
    )
    words = ["sweep", "quickstart", "--vary", "data.name=good.jsonl,arithmetic,colours.jsonl"]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
    assert done.stdout == "2 []\n" and "trial name-colours.jsonl-seed0" in done.stderr


@pytest.mark.parametrize(
    ("sets", "said"),
    [(["init=gone"], "gone is not a run folder"), (["sft.steps=1", "sft.data=gone.jsonl"], "there is no data file")],
)
def test_a_run_is_refused_early_too_unless_it_is_resumed(folder, sets, said):
    config = resolve(["quickstart"], {}, sets)
    with pytest.raises(UserError, match=said):
        early.refuse(config)
    early.refuse(config, is_resumed=True)
    early.refuse(config, loads_model=False)
