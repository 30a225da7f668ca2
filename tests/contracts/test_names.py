"""Which run a command takes, what a run is called, and names that are too long."""

import json
import os
import re
import time
from pathlib import Path

import pytest
from command_line import in_process
from guide_pages import COMMANDS

from microrl import cli
from microrl.cli import options
from microrl.cli.benchmarks import benchmark_name
from microrl.run.folder import RunFolder

LONG = "n" * 300


@pytest.fixture(scope="module")
def run(tiny_arguments, tmp_path_factory):
    """The only run in its `runs/`, under its default name."""
    place = tmp_path_factory.mktemp("names")
    before = Path.cwd()
    os.chdir(place)
    try:
        done = in_process("train", *tiny_arguments, "--steps", 1, "--set", "model.name=" + json.dumps(str(tiny_arguments[1])))
    finally:
        os.chdir(before)
    assert done.returncode == 0, done.stderr
    (run,) = (place / "runs").iterdir()
    return run


@pytest.fixture
def place(run):
    return run.parents[1]


def test_without_a_name_every_command_takes_the_newest_run(inside, place, run):
    """The README's own commands."""
    sampled = inside("sample", "What is 47 + 38?", "--json", cwd=place)
    assert sampled.returncode == 0 and run.name in sampled.stderr, sampled.stderr
    assert json.loads(sampled.stdout)["question"] == "What is 47 + 38?"
    named = inside("sample", run, "What is 47 + 38?", "--json")
    assert named.stdout == sampled.stdout
    merged = inside("export", "--out", "my-adapter", cwd=place)
    assert merged.returncode == 0 and run.name in merged.stderr, merged.stderr
    assert (place / "my-adapter" / "adapter_config.json").is_file()
    assert inside("eval", "--pass-k", 2, "--problems", 2, cwd=place).returncode == 0


def test_the_newest_run_is_a_run(inside, place, run, model_folder):
    """A model's folder has a config.json, too."""
    (place / "runs" / "model").symlink_to(model_folder)
    try:
        os.utime(model_folder / "config.json", (time.time() + 60,) * 2)
        assert RunFolder.newest(place / "runs").path.name != "model"
    finally:
        (place / "runs" / "model").unlink()


@pytest.mark.parametrize(("words", "said"), [
    ((), "Missing argument"),
    (("What", "is", "47 + 38?"), "put the question in quotes"),
    (("RUN",), "the question is missing"),
    (("runs/quickstart-1",), "there is no run at runs/quickstart-1"),
    (("runs/quickstart-1", "What is 47 + 38?"), "there is no run at runs/quickstart-1"),
    (("MODEL", "What is 47 + 38?"), "is not a run folder"),
])  # fmt: skip
def test_sample_says_what_it_misses(inside, place, run, model_folder, words, said):
    filled = [{"RUN": run, "MODEL": model_folder}.get(word, word) for word in words]
    done = inside("sample", *filled, cwd=place)
    assert done.returncode == 2 and said in done.stderr and "hint: " in done.stderr and "Traceback" not in done.stderr, (
        done.stderr
    )


@pytest.mark.parametrize(("presets", "model", "name"), [
    (None, "Qwen2.5-1.5B-Instruct", "Qwen2.5-1.5B-Instruct"),
    (None, "Qwen/Qwen2.5-1.5B", "Qwen2.5-1.5B"),
    (None, "models/Qwen2.5-1.5B/", "Qwen2.5-1.5B"),
    (None, "~/models/smollm2-135m.q8.gguf", "smollm2-135m.q8"),
    (["peft-1.5b"], "x", "peft-1.5b"),
    (["micro-r64", "budget-6h"], "x", "micro-r64-budget-6h"),
    (["configs/my.preset.toml"], "x", "my.preset"),
    (None, "/", "run"),
    (None, "ü" * 300, "ü" * 60),
])  # fmt: skip
def test_what_a_run_is_called(presets, model, name):
    assert options.run_name(presets, model) == name


def test_a_model_in_the_current_folder_gives_the_folders_name(tmp_path, monkeypatch):
    (tmp_path / "Qwen2.5").mkdir()
    monkeypatch.chdir(tmp_path / "Qwen2.5")
    assert options.run_name(None, ".") == "Qwen2.5"


@pytest.mark.parametrize(("data", "name"), [("a/b.v1.jsonl", "b.v1"), ("sums.CSV", "sums"), ("owner/maths-1.5", "maths-1.5")])
def test_what_an_evaluation_is_called(data, name):
    assert benchmark_name(data) == name


@pytest.mark.parametrize("arguments", [
    ("train", "--model", LONG, "--steps", 1),
    ("train", "--model", f"./{LONG}.gguf", "--steps", 1),
    ("train", "--model", "MODEL", "--steps", 1, "--data", f"{LONG}.jsonl"),
    ("train", "--model", "MODEL", "--steps", 1, "--data", f"{LONG}/{LONG}"),
    ("train", "--model", "MODEL", "--steps", 1, "--out", LONG),
    ("train", "--model", "MODEL", "--steps", 1, "--out", LONG, "--resume", "auto"),
    ("train", "--model", "MODEL", "--steps", 1, "--init", LONG),
    ("train", "--model", "MODEL", "--steps", 1, "--dry-run", "--data", f"{LONG}.csv"),
    ("train", LONG, "--steps", 1),
    ("train", f"{LONG}.toml", "--steps", 1),
    ("train", "--resume", LONG),
    ("warmup", LONG, "--data", "x.jsonl", "--steps", 1),
    ("plan", "--model", LONG),
    ("plan", "--model", f"/{LONG}"),
    ("eval", LONG),
    ("eval", f"runs/{LONG}"),
    ("eval", "RUN", "--base", LONG),
    ("sample", f"runs/{LONG}", "What?"),
    ("sample", f"runs/{LONG}"),
    ("merge", LONG, "--out", "x"),
    ("merge", "RUN", "--out", LONG),
    ("presets", "show", LONG),
    ("presets", "adapters", "--model", LONG),
    ("bench", "step", "--model", LONG),
    ("bench", "peer", "--peer", "python", "--model", LONG),
    ("bench", "peer", "--peer", LONG, "--model", "MODEL"),
    ("bench", "sync", "--adapters", LONG),
], ids=lambda arguments: " ".join(str(word).replace(LONG, "LONG") for word in arguments))  # fmt: skip
def test_a_name_of_300_characters_is_one_line(inside, place, run, model_folder, data_file, arguments):
    places = {"RUN": str(run), "MODEL": str(model_folder)}
    words = [places.get(word, word) for word in arguments]
    if words[0] == "train" and "--data" not in words and words[1] != "--resume":
        words += ["--data", data_file]
    before = sorted(place.rglob("*"))
    done = inside(*words, cwd=place)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert sum(line.startswith("error: ") for line in done.stderr.splitlines()) == 1
    assert len(done.stderr) < 3000
    assert sorted(place.rglob("*")) == before, "nothing is left"


def test_no_command_that_is_shown_names_a_run_that_nothing_has_made():
    """Runs are called NAME-TIME: an example with a fixed name has given it with --out, or takes the newest run."""
    epilogs = [path.read_text() for path in Path(cli.__file__).parent.glob("*.py")]
    shown = [command for _, command in COMMANDS]
    shown += [line.strip() for text in epilogs for line in text.splitlines() if line.strip().startswith("microrl ")]
    made = {found for command in shown for found in re.findall(r"--out (runs/[\w.-]+)", command)}
    made |= {
        f"{run}-shuffled" for command in shown if "--control" in command for run in re.findall(r"--out (runs/[\w.-]+)", command)
    }
    named = {found for command in shown for found in re.findall(r"runs/[\w.-]+(?![\w.*-])", command)}  # not what has a `*`
    assert len(shown) > 30 and named <= made, named - made
