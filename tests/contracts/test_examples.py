"""The worked examples in docstrings, and those of the guide's page: its files and commands, with few steps and a random model."""

import doctest
import re
import runpy
import shlex
from contextlib import contextmanager
from pathlib import Path

import pytest
from guide_pages import TEXTS, commands

from microrl import environments
from microrl.algorithm import grpo
from microrl.errors import MachineFailure
from microrl.rewards.custom import functions
from microrl.rollout import engine
from microrl.types import BASE

SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXTS["examples"], re.DOTALL | re.MULTILINE))
"""The page's examples by their question."""
VERDICT = "`lora rank 4, learns` is better than `lora rank 4, frozen` by"


@pytest.mark.parametrize("module", [engine, grpo, functions, environments], ids=lambda module: module.__name__)
def test_the_examples_in_docstrings(module):
    done = doctest.testmod(module, extraglobs={"BASE": BASE, "MachineFailure": MachineFailure, "contextmanager": contextmanager})
    assert done.attempted and not done.failed


def blocks(section: str, *languages: str) -> list[str]:
    """The code blocks in these languages."""
    return re.findall(rf"```(?:{'|'.join(languages)})\n(.*?)```", section, re.DOTALL)


def shapes(line: str) -> list[str]:
    """A printed line without its numbers, and what is around each `...` of it."""
    return [" ".join(re.sub(r"[-+]?\d[\d,.]*", "N", part).split()) for part in line.split("...")]


def is_shown(line: str, printed: str) -> bool:
    """Whether a line of the page, whatever its numbers, is printed."""
    pattern = ".*".join(map(re.escape, shapes(line)))
    return any(re.search(pattern, shapes(one)[0]) for one in printed.splitlines())


@pytest.fixture(scope="module")
def tool_folder(tmp_path_factory) -> Path:
    """A random tiny model that knows of a calculator."""
    from microrl.models.tiny import build_model, build_tokenizer

    folder, tokenizer = tmp_path_factory.mktemp("tool-model"), build_tokenizer(calls=True)
    build_model(tokenizer, seed=3).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_lines_are_compared_without_their_numbers():
    printed = "step 2/2  reward 0.500  accuracy 0.1\ngain +0.1 [-0.2, +0.3]\n"
    assert is_shown("step 15/15  reward 0.908  ...", printed) and is_shown("gain -3 [0, 1]", printed)
    assert not is_shown("step 15/15  accuracy 0.908  ...", printed) and not is_shown("gain 3 [0, 1] done", printed)


@pytest.mark.slow
@pytest.mark.one_of_each
@pytest.mark.parametrize("question", SECTIONS)
def test_the_examples_of_the_guide(question, inside, model_folder, tool_folder, tmp_path, monkeypatch):
    section = SECTIONS[question]
    monkeypatch.chdir(tmp_path)
    for block in blocks(section, "python", "toml"):
        Path(re.match(r"# (\S+)\n", block)[1]).write_text(block)
    for line in blocks(section, "sh")[0].splitlines():
        if line.startswith("python "):
            runpy.run_path(line.removeprefix("python "))
    (command,) = commands(section)
    _, name, *arguments = shlex.split(command)
    model = tool_folder if arguments[0] == "quickstart-tools" else model_folder
    few = ["evaluation.problems=2", "evaluation.samples=8", f"model.name={model}", "data.max_prompt_tokens=512"]
    few += ["sft.steps=2"] * bool(re.search(r"sft\.steps=\d", command))
    done = inside(name, *arguments, "--steps", "1", *(part for key in few for part in ("--set", key)), "--out", "runs/shown")
    assert done.returncode == 0, done.stderr
    shown = blocks(section, "text")[0].splitlines()
    assert len(shown) >= 2
    printed = done.stdout + done.stderr
    for line in shown:
        if not line.startswith(VERDICT):
            assert is_shown(line, printed), f"{line}\n{printed}"
    if any(line.startswith(VERDICT) for line in shown):  # a single step makes no difference
        assert re.search("`lora rank 4, learns` and `lora rank 4, frozen` cannot be", printed), printed
    if (tools := Path("my_tools.py")).exists():  # which a random model does not call
        adder = runpy.run_path(str(tools))["Adder"]()
        adder.reset(question="What is 47 + 38?")
        assert adder.calculate("47+38") == "85" and adder.get_reward() == 0.5
