"""A tiny random model with a real tokenizer, small data files, and fixtures that run the command line as a user does."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the hub's library is imported: no test needs a network
os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is, which the process that only hands out the tests never does

import processes
import pytest

pytest.register_assert_rewrite(
    "command_line", "every_adapter", "failing_runs", "whole_runs"
)  # what fails in them shows its values, too

from command_line import in_process  # noqa: E402

gc.set_threshold(700, 10, 100)  # as `microrl.cli.main` does, while torch is imported and the tests are collected

TINY_RUN = """\
seed = 3
[sft]
steps = 2
batch = 4
solution = "solution"
[validation]
fraction = 0.5
[evaluation]
problems = 2
samples = 2
pass_k = [2]
[model]
name = "{model}"
dtype = "float32"
[data]
name = "{data}"
held_out = 0.2
validation = 0.2
system = ""
[adapter]
kind = "lora"
rank = 8
[optim]
lr = 1e-4
betas = [0.9, 0.99]
[optim.schedule]
kind = "cosine"
warmup = 0.1
[sampling]
prompts_per_step = 2
group_size = 2
max_completion_tokens = 6
[budget]
steps = 4
"""


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem():
    """Of the cases of a test with `cases(fast=2)` or `cases(vllm=2)`, all but two become slow; with `cases(one_of_each=2)`, two
    of a slow test are run before a change lands. They lie evenly in the list of those whose own marks say nothing of it."""
    made = yield
    cases = made if isinstance(made, list) else []
    for item in cases[:1]:
        for mark in item.iter_markers("cases"):
            ((chosen_are, number),) = mark.kwargs.items()
            elsewhere = {"fast": {"slow", "vllm", "network"}, "vllm": {"slow"}, "one_of_each": {"one_of_each"}}[chosen_are]
            free = [case for case in cases if not elsewhere & {own.name for own in case.iter_markers()}]
            chosen = {at * len(free) // number for at in range(number)}
            assert len(chosen) == number, f"{item.nodeid}: of {len(free)} cases {number} are asked for"
            for at, case in enumerate(free):
                if chosen_are == "one_of_each" and at in chosen:
                    case.add_marker("one_of_each")
                elif chosen_are != "one_of_each" and at not in chosen:
                    case.add_marker("slow")
    return made


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What needs vLLM's one engine of a process stays on one worker; its other tests, in processes of their own, do not wait.

    Long tests begin first, so that none of them is left to one worker at the end.
    """
    for item in items:
        if "served" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("engine"))
    items.sort(key=_minutes, reverse=True)


def _minutes(item) -> float:
    """How long a test takes, roughly: what its marks say, a little if they only say `slow`."""
    return max((mark.kwargs.get("minutes", 0.1) for mark in item.iter_markers("slow")), default=0)


def pytest_collection_finish():
    """What has been imported stays: collecting garbage, as microrl does after each update, need not look through it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path_factory, request):
    """Tests leave the user's cache alone; the slow ones of all workers share one for the quickstart's warm start."""
    base = tmp_path_factory.getbasetemp()
    if request.node.get_closest_marker("slow") and "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    monkeypatch.setenv("XDG_CACHE_HOME", str(base / "cache"))


@pytest.fixture(scope="session")
def tokenizer():
    from microrl.models.tiny import build_tokenizer

    return build_tokenizer()


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """The folder of this name, which the first worker that needs it makes, and all of them share: nothing writes into it."""
    from microrl.files import one_at_a_time

    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def made(name: str, make: Callable[[Path], None]) -> Path:
        folder, whole = base / name, base / f"{name}.whole"
        with one_at_a_time(folder):
            if not whole.exists():
                shutil.rmtree(folder, ignore_errors=True)
                make(folder)
                whole.touch()
        return folder

    return made


@pytest.fixture
def model(tokenizer):
    """A fresh random model in float32, frozen. Its weights are large enough to make the next token matter."""
    from microrl.models.tiny import build_model

    return build_model(tokenizer, seed=3).eval().requires_grad_(False)


def saved(tokenizer, folder, seed) -> Path:
    from microrl.models.tiny import build_model

    build_model(tokenizer, seed=seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model_folder(tokenizer, tmp_path_factory) -> Path:
    """The same random model as a local folder."""
    return saved(tokenizer, tmp_path_factory.mktemp("model"), 3)


@pytest.fixture(scope="session")
def other_model(tokenizer, tmp_path_factory) -> Path:
    """Another random model with the same tokenizer."""
    return saved(tokenizer, tmp_path_factory.mktemp("other"), 4)


@pytest.fixture(scope="session")
def data_file(tmp_path_factory) -> Path:
    """Forty sums as JSON lines."""
    path = tmp_path_factory.mktemp("data") / "sums.jsonl"
    rows = [{"question": f"What is {a} + {a + 3}?", "answer": str(2 * a + 3)} for a in range(10, 50)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def microrl():
    """Run the command line in a process of its own; returns the finished process with its output as text."""
    processes.start()

    def run(*arguments: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        return processes.run([sys.executable, "-m", "microrl", *arguments], cwd=cwd, env=environment, timeout=900)

    return run


@pytest.fixture(scope="session")
def inside():
    """Run the command line in this process: the same, but for the seconds of importing torch."""
    return in_process


@pytest.fixture(autouse=True, scope="session")
def checkers_at_once():
    """The maths checker's processes start when they are asked for, and not beforehand: integers need none, and each takes more
    than a second of a processor. What is yielded is how they are started beforehand."""
    from microrl.rewards.answer_checker import AnswerChecker

    with pytest.MonkeyPatch.context() as patch:
        start = AnswerChecker.start
        patch.setattr(AnswerChecker, "start", lambda self: None)
        yield start


@pytest.fixture(autouse=True, scope="session")
def checked_once():
    """A model's code paths are compared with its own logits the first time that its files are loaded: some twenty passes.

    Whoever calls `architecture.check` or `load_checked` itself has them each time.
    """
    from microrl.models.load import load
    from microrl.models.ways import Ways
    from microrl.train import setup

    passed, check = {}, setup.load_checked

    def load_checked(config, progress):
        files = sorted(Path(config.name).iterdir()) if Path(config.name).is_dir() else []
        key = config.model_dump_json(), *((str(file), file.stat().st_mtime_ns) for file in files)
        loaded = (load if key in passed else check)(config, progress)
        passed.setdefault(key, Ways.of(loaded.model)).keep(loaded.model)
        return loaded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setup, "load_checked", load_checked)
        yield


@pytest.fixture(scope="session")
def tiny_arguments(model_folder, data_file):
    """Arguments of the smallest real run."""
    sets = ["sampling.prompts_per_step=4", "sampling.group_size=4", "sampling.max_completion_tokens=12", "data.system=",
            "data.held_out=0.2", "evaluation.problems=4", "evaluation.samples=2", "evaluation.pass_k=[2]"]  # fmt: skip
    flags = [part for key in sets for part in ("--set", key)]
    return ["--model", model_folder, "--data", data_file, "--rank", 8, *flags]


@pytest.fixture(scope="session")
def wares(model_folder, tmp_path_factory):
    """A finished run, one that was killed, an adapter, a preset, and data files, all of them good."""
    folder = tmp_path_factory.mktemp("wares")
    data = folder / "sums.jsonl"
    rows = [
        {"question": f"What is {a} + {a + 3}?", "answer": str(2 * a + 3), "solution": f"\\boxed{{{2 * a + 3}}}"}
        for a in range(10, 50)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "sums.json").write_text(json.dumps(rows))
    (folder / "sums.csv").write_text("question,answer\n" + "".join(f'"{row["question"]}",{row["answer"]}\n' for row in rows))
    (folder / "preset.toml").write_text(TINY_RUN.format(model=model_folder, data=data))
    done = folder / "done"
    ended = in_process("train", folder / "preset.toml", "--out", done)
    assert ended.returncode == 0, ended.stderr
    killed = folder / "killed"  # in its last step
    shutil.copytree(done, killed)
    for name in ("final", "checkpoints/step-000004"):
        shutil.rmtree(killed / name)
    (killed / "summary.json").unlink()
    shutil.copytree(done / "final", folder / "adapter")
    return folder
