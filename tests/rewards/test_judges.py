"""Programs judged through the scorer, and runs on code: what a completion earns, and what is refused before a model is loaded."""

import gzip
import json
import sys

import pytest
import users
import writes_programs
from places import HELPERS

from microrl.config import resolve
from microrl.config.reward import RewardConfig
from microrl.errors import UserError
from microrl.rewards.judges import judge
from microrl.rewards.scorer import RewardScorer, make_scorer
from microrl.sandbox import Levels, folders, levels
from microrl.types import Completion, Group, Prompt

GOLD = json.dumps({"setup": "", "tests": ["assert double(2) == 4", "assert double(3) == 6"], "names": ["double"]})
RIGHT = "def double(x):\n    return 2 * x"
ANSWERS = {
    "right": RIGHT,
    "half right": "def double(x):\n    return 4",
    "wrong": "def double(x):\n    return x",
    "ends the process": "import os\nos._exit(0)",
    "equals everything": "class All(int):\n    def __eq__(self, other): return True\ndef double(x):\n    return All()",
    "does not end": "def double(x):\n    while True: pass",
    "no program": "",
}
needs_sandbox = pytest.mark.skipif(not levels().is_enforced, reason="this kernel lacks Landlock or seccomp")


def completion(source):
    text = f"<think>t</think>\n```python\n{source}\n```" if source else "<think>t</think> I do not know"
    return Completion((1, 2), (-1.0, -1.0), "stop", 0, text)


@pytest.mark.slow
@pytest.mark.parametrize(("credit", "half"), [pytest.param("share", 0.5, marks=pytest.mark.one_of_each), ("all", 0.0)])
@needs_sandbox
def test_what_programs_earn(credit, half):
    scorer = RewardScorer(RewardConfig(code_credit=credit, deadline_s=3.0), answer_kind="code")
    group = Group(Prompt("q", GOLD, "", ()), tuple(map(completion, ANSWERS.values())))
    try:
        (scored,) = scorer.score([(0, group)])
    finally:
        scorer.close()
    earned = dict(zip(ANSWERS, scored.scores, strict=True))
    assert {name: score.accuracy for name, score in earned.items()} == {name: 0.0 for name in ANSWERS} | {
        "right": 1,
        "half right": half,
    }
    assert [name for name, score in earned.items() if score.killed] == ["does not end"]
    assert earned["right"].extracted == RIGHT and earned["no program"].extracted is None
    assert earned["wrong"].format == 1 and earned["no program"].format == 0


def test_programs_are_refused_where_nothing_confines_them(monkeypatch):
    monkeypatch.setattr(judge, "levels", lambda: Levels(files=False, system_calls=True))
    code = resolve((), {"data.name": "problems.jsonl", "data.answer_kind": "code"})
    with pytest.raises(UserError, match="this kernel lacks Landlock") as caught:
        make_scorer(code)
    assert "reward.sandbox=weak" in caught.value.hint
    weak = code.model_copy(update={"reward": code.reward.model_copy(update={"sandbox": "weak"})})
    mathematics = resolve((), {"data.name": "sums.jsonl"})
    for config in (weak, mathematics):
        make_scorer(config).close()
    assert "sandbox of the answer checks is weak" in judge.weakness()
    monkeypatch.setattr(judge, "levels", lambda: Levels(files=True, system_calls=True, landlock=3))
    make_scorer(code).close()
    assert judge.weakness() is None


@pytest.mark.parametrize(("more", "next_module"), [((), "train.loop"), (("--dry-run",), "commands.dry_run")])
def test_a_run_is_refused_before_torch_is_loaded(inside, tmp_path, monkeypatch, more, next_module):
    """torch takes seconds; the scorer, which refuses too, comes after it."""
    monkeypatch.setattr(judge, "levels", lambda: Levels(files=False, system_calls=True))
    monkeypatch.setitem(sys.modules, f"microrl.{next_module}", None)  # importing it fails
    (tmp_path / "problems.jsonl").write_text('{"text": "Double it.", "test_list": ["assert double(2) == 4"]}\n')
    run = ("train", "micro-r8", "--data", "problems.jsonl", "--set", "data.answer_kind=code", "--steps", "1")
    done = inside(*run, *more, cwd=tmp_path)
    assert done.returncode == 2 and "problems.jsonl runs code that the model writes" in done.stderr, done.stderr
    assert "Landlock" in done.stderr and "hint: use a machine with Linux 6.2" in done.stderr


@needs_sandbox
@pytest.mark.slow
@pytest.mark.one_of_each
def test_ten_steps_on_programs(microrl, tiny_arguments, tmp_path):
    rows = [
        {"text": f"Write a function add_{n} that adds {n}.", "test_list": [f"assert add_{n}(1) == {n + 1}"]} for n in range(40)
    ]
    data, out = tmp_path / "programs.jsonl", tmp_path / "run"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["--data", data, "--set", "data.answer_kind=code", "--set", "data.max_prompt_tokens=400", "--steps", 10]
    # None of the programs is right, and the run would stop for it.
    arguments += ["--set", "guard.truncated=none", "--set", "guard.useful_groups=none"]
    done = microrl("train", *tiny_arguments, *arguments, "--out", out)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 10 and all(row["reward/accuracy"] == 0 for row in rows)
    assert "Landlock" in json.loads((out / "environment.json").read_text())["sandbox"]


LEFT_OVER = """
import os, tempfile
from microrl.sandbox import folders
path = tempfile.mkdtemp(prefix=folders.PREFIX)
os.chdir(path)
for _ in range(1100): os.mkdir('d'); os.chdir('d')
os.utime(path, (1, 1))
"""
"""By a process that was killed, long ago: what the next start removes."""


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("user", [users.THIS, users.OTHER])
def test_a_run_whose_programs_leave_a_thousand_folders_in_each_other(user, where):
    _train_on_deep_folders(user, where)


@needs_sandbox
@pytest.mark.slow
def test_a_run_whose_programs_leave_a_thousand_folders_in_each_other_as_in_a_container():
    _train_on_deep_folders(users.OTHER, "disk")


def _train_on_deep_folders(user, where):
    """The model really writes them; in memory or, where no namespaces can be made, on the disk."""
    starts = [HELPERS / "no_namespaces.py", sys.executable] if where == "disk" else []
    keys = {"data.answer_kind": "code", "data.system": "", "data.max_prompt_tokens": 400, "data.held_out": 0.1,
            "sampling.prompts_per_step": 2, "sampling.group_size": 4, "sampling.max_completion_tokens": 100,
            "evaluation.problems": 2, "evaluation.samples": 2, "evaluation.pass_k": "[2]"}  # fmt: skip
    sets = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    with users.own_folder(user) as folder:
        data, out = folder / "problems.jsonl", folder / "run"
        for arguments in (
            [HELPERS / "writes_programs.py", folder],
            ["-c", LEFT_OVER],
            [*starts, "-m", "microrl", "train", "--model", folder / "model", "--data", data, "--rank", 8, *sets, "--steps", 3,
             "--out", out],
        ):  # fmt: skip
            done = users.run(user, folder, *arguments, timeout=300)
            assert done.returncode == 0, done.stderr
        assert not list(folder.glob(f"{folders.PREFIX}*")), "no folder is left, an old one neither"
        assert json.loads((out / "summary.json").read_text())["status"] == "done"
        written = "".join(gzip.decompress(path.read_bytes()).decode() for path in (out / "rollouts").iterdir())
        assert all(json.dumps(program)[1:-1] in written for program in (writes_programs.RIGHT, writes_programs.DEEP))
        assert max(row["reward/accuracy"] for row in map(json.loads, (out / "metrics.jsonl").open())) > 0
