"""What people type who come from another tool, or forget a part: each is answered by a hint that leads to a working command."""

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import torch
from command_line import in_process, without_heavy_libraries
from guide_pages import TEXTS
from made_run import make
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from microrl.cli import sample
from microrl.cli.options import FLAGS
from microrl.config import resolve
from microrl.config.other_names import INSTEAD, OURS, TRL_DEFAULTS, ours
from microrl.errors import UserError
from microrl.types import Completion


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder as a newcomer has it: a run, an empty folder, data whose columns have other names, and half a line of JSON."""
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "runs" / "quick-20260101", steps=1)
    (tmp_path / "emptydir").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "broken.jsonl").write_text('{"question": "1 + 1", "ans')
    (tmp_path / "columns.jsonl").write_text('{"ask": "1 + 1", "reply": "2"}\n' * 40)
    return tmp_path


SLIPS = {
    "--learning-rate": ("plan quickstart --learning-rate 1e-4", "did you mean `--lr`?", "plan quickstart --lr 1e-4 --gpu cpu"),
    "--batch-size": (
        "plan quickstart --batch-size 4",
        "did you mean `--set sampling.prompts_per_step=VALUE`?",
        "plan quickstart --set sampling.prompts_per_step=4 --gpu cpu",
    ),
    "--num-generations": (
        "train quickstart --num-generations 4",
        "did you mean `--set sampling.group_size=VALUE`?",
        "plan quickstart --set sampling.group_size=4 --gpu cpu",
    ),
    "--load-in-4bit": ("train --load-in-4bit", "did you mean `--set model.quant=nf4`?", "plan --set model.quant=nf4 --gpu a40"),
    "a key": (
        "plan quickstart --set optim.learning_rate=1e-4",
        "did you mean `optim.lr`?",
        "plan quickstart --set optim.lr=1e-4 --gpu cpu",
    ),
    "a key of verl": (
        "plan quickstart --set actor_rollout_ref.rollout.n=4",
        "did you mean `sampling.group_size`?",
        "plan quickstart --set sampling.group_size=4 --gpu cpu",
    ),
    "a key of another loss": (
        "plan quickstart --set loss.epsilon=0.1",
        "did you mean `loss.clip_low`?",
        "plan quickstart --set loss.clip_low=0.1 --gpu cpu",
    ),
    "qlora": ("plan --adapter qlora", "did you mean `--set model.quant=nf4`?", "plan --set model.quant=nf4 --gpu a40"),
    "--model of what is evaluated": ("eval --model runs/x", "it is given without an option: `", "guide evaluation"),
    "--gpu": ("train quickstart --gpu 0", "to use another, put CUDA_VISIBLE_DEVICES=1 before `microrl`", "guide quickstart"),
    "--num-train-epochs": (
        "train quickstart --num-train-epochs 3",
        "a run ends by --steps N or --hours H",
        "plan quickstart --steps 3 --gpu cpu",
    ),
    "a run without runs/": (
        "eval quick-20260101",
        "did you mean `runs/quick-20260101`?",
        "report runs/quick-20260101 --out page.html",
    ),
    "a report without runs/": ("report quick-20260101", "did you mean `runs/quick-20260101`?", None),
    "an adapter without runs/": ("merge quick-20260101 --out new", "did you mean `runs/quick-20260101`?", None),
    "an empty folder": ("eval emptydir", "pass a run (`ls runs` lists yours), a model's folder", None),
    "train alone": ("train", "microrl train quickstart", "plan quickstart --gpu cpu"),
    "a folder that is no run": ("train quickstart --out full", "hint: choose another folder: --out DIR", None),
    "both columns": (
        "train quickstart --data columns.jsonl",
        "name them: --set data.question=COLUMN --set data.answer=COLUMN",
        "train quickstart --data columns.jsonl --set data.question=ask --set data.answer=reply --dry-run",
    ),
    "a model of another size": (
        "plan --model Qwen3-8B --gpu a40",
        "--model Qwen/Qwen3-8B",
        "plan --model Qwen3-1.7B --gpu a40",
    ),
}  # fmt: skip


@pytest.mark.parametrize("slip", SLIPS)
def test_each_slip_has_a_hint_that_works(place, slip):
    typed, hint, then = SLIPS[slip]
    done = in_process(*shlex.split(typed))
    assert done.returncode == 2 and hint in done.stderr and "Possible options" not in done.stderr, done.stderr
    assert then is None or in_process(*shlex.split(then)).returncode == 0


def test_a_preset_is_shown_by_its_name():
    assert in_process("presets", "quickstart").stdout == in_process("presets", "show", "quickstart").stdout != ""
    both = json.loads(in_process("presets", "micro-r64", "budget-6h", "--json").stdout)
    assert (both["adapter"]["rank"], both["budget"]["hours"]) == (64, 6)
    assert "Did you mean 'models'?" in in_process("presets", "model").stderr
    assert "unknown preset `nonsense`" in in_process("presets", "nonsense").stderr
    assert "micro-r64" in in_process("presets").stdout and in_process("presets", "--help").returncode == 0


@pytest.mark.cases(fast=3)
@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("train quickstart --data broken.jsonl", "broken.jsonl, line 1 is not JSON"),
        pytest.param(
            "train quickstart --engine vllm",
            "vLLM is not installed",
            marks=pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed"),
        ),
        (
            "train quickstart --data columns.jsonl",
            "which column is the question, and which the answer; the columns are: ask, reply",
        ),
        ("train --model pickled --data arithmetic --steps 1", "only in pytorch_model.bin, which is not read"),
    ],
)
def test_it_is_said_before_torch_is_imported(place, typed, words):
    (place / "pickled").mkdir()
    (place / "pickled" / "config.json").write_text("{}")
    (place / "pickled" / "pytorch_model.bin").write_bytes(b"")
    done = without_heavy_libraries(shlex.split(typed), cwd=place)
    assert done.returncode == 2 and words in done.stderr


@pytest.mark.slow
def test_weights_in_a_pickle_are_converted_by_the_command_of_the_hint(model_folder, tmp_path):
    folder = tmp_path / "my model"
    folder.mkdir()
    (folder / "config.json").write_bytes((model_folder / "config.json").read_bytes())
    weights = AutoModelForCausalLM.from_pretrained(model_folder).state_dict()
    torch.save(weights, folder / "pytorch_model.bin")
    done = in_process("eval", folder, "--data", "arithmetic")
    assert done.returncode == 2 and "only in pytorch_model.bin, which is not read: such a file can run code" in done.stderr
    command = re.findall(r"\(cd .*\)$", done.stderr, re.MULTILINE)[0].replace("python", sys.executable, 1)
    subprocess.run(command, shell=True, check=True, capture_output=True)
    saved = load_file(folder / "model.safetensors")
    assert saved and all(torch.equal(weights[name], tensor) for name, tensor in saved.items())


def test_a_card_that_is_too_small_is_told_of_4_bits_and_rank():
    typed = "plan --model Qwen2.5-7B-Instruct --rank 64 --gpu 4090"
    page = " ".join(in_process(*typed.split()).stdout.split())
    found = re.search(
        r"--engine transformers: .*; or (--set model\.quant=nf4 --rank \d+), with which a step takes about ([\d,]+) s", page
    )
    assert found and int(found[2].replace(",", "")) < 1_900
    again = in_process(*typed.replace("--rank 64", found[1]).split()).stdout
    assert "DOES NOT FIT" not in again and "fits:" in again


@pytest.mark.slow
@pytest.mark.one_of_each
def test_too_short_a_time_for_long_completions_is_told_of_shorter_ones(microrl, model_folder, tmp_path):
    """Of 100,000 tokens each, which even a tiny model needs a while for."""
    shutil.copytree(model_folder, tmp_path / "model")
    settings = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 200_000}))
    typed = ["train", "--model", tmp_path / "model", "--data", "arithmetic", "--out", tmp_path / "run", "--set", "data.system="]
    done = microrl(*typed, "--hours", "0.01", "--set", "sampling.max_completion_tokens=100000")
    found = re.search(r"which may have 100,000 tokens: (--set sampling\.max_completion_tokens=256 --hours \S+);", done.stderr)
    assert done.returncode == 2 and found and "or else pass at least --hours" in done.stderr, done.stderr
    assert microrl(*typed, *found[1].split(), "--steps", 1).returncode == 0


def completion(text):
    return Completion((1,), (0.0,), "stop", 0, text)


@pytest.mark.parametrize(
    ("base", "trained", "same"),
    [
        ("<think>a</think> \\boxed{4}", "<think>b</think> \\boxed{4}", True),
        ("a</think> \\boxed{4}", "b</think> \\boxed{4}", True),
        ("\\boxed{4}", "so \\boxed{4}", True),
        ("<think>a</think> \\boxed{4}", "<think>a</think> \\boxed{5}", False),
        ("hello", "hello", True),
        ("hello", "good day", False),
    ],
)
def test_the_same_answers_are_recognised(base, trained, same):
    assert sample._agree(resolve(["quickstart"]), {"base": [completion(base)], "trained": [completion(trained)]}) is same


# ---- the names of other trainers


def is_key(name):
    """Whether some run has this key, with this value where it has one."""
    for base in ([], ["loss.kind=dapo"], ["optim.schedule.kind=cosine"]):
        try:
            resolve((), {}, [*base, name if "=" in name else f"{name}=no such value"])
        except UserError as error:
            if "unknown key" not in error.message and "=" not in name:
                return True
        else:
            return True
    return False


def test_every_name_leads_to_a_key_that_exists_and_is_in_the_guide():
    assert not is_key("optim.learning_rate") and not is_key("adapter.kind=qlora")
    assert not [(name, key) for name, key in OURS.items() if not is_key(key)]
    assert ours("actor_rollout_ref.rollout.n") == "sampling.group_size" and ours("--Learning-Rate") == "optim.lr"
    assert ours("n") is None and not OURS.keys() & INSTEAD.keys()
    page = TEXTS["coming-from"]
    told = {key.partition("=")[0] for key in OURS.values()} - {"evaluation.top_p"}
    assert not [key for key in told if f"`{key}" not in page]


def test_trls_table_in_the_guide_is_that_of_the_hints():
    """Each name of a row leads to a key of the row; each default is the one from which a preset is made."""
    table = TEXTS["coming-from"].partition("## What are TRL's")[2].partition("## What are Unsloth's")[0]
    rows = [row.split("|")[1:3] for row in table.splitlines() if row.startswith("| `")]
    wrong, defaults = [], {}
    for theirs, keys in rows:
        for name in re.findall(r"`(\w+)", theirs):
            said = ours(name) or INSTEAD.get(name, "")
            allowed = re.findall(r"`([\w.]+)", keys)
            if not said or (allowed and not any(key in said or FLAGS.get(key, "none") in said for key in allowed)):
                wrong.append((name, said, allowed))
        defaults |= re.findall(r"`(\w+)` \(([^)]+)\)", theirs)
    assert not wrong and len(rows) > 30
    told = {name: str(value) for name, value in TRL_DEFAULTS.items() if name in defaults}
    assert {name: defaults[name].replace("1e-6", "1e-06") for name in told} == told and len(told) > 8


def test_the_names_of_the_guide_are_those_of_the_installed_trl():
    pytest.importorskip("trl")
    from peft import LoraConfig
    from trl import GRPOConfig, ModelConfig, ScriptArguments

    rows = TEXTS["coming-from"].partition("## What are TRL's")[2].partition("## What are Unsloth's")[0].splitlines()
    names = {name for row in rows if row.startswith("| `") for name in re.findall(r"`(\w+)", row.split("|")[1])}
    known = {name for one in (GRPOConfig, ModelConfig, ScriptArguments, LoraConfig) for name in one.__dataclass_fields__}
    assert len(names) > 40 and names - known == {"reward_funcs"}
