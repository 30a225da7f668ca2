"""Whole runs of the command line on a tiny random model: what they leave behind, repeat, resume, and refuse."""

import io
import itertools
import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import processes
import pytest
from bench_labels import unlabelled
from command_line import in_process
from losses import LOSSES
from rich.console import Console
from whole_runs import rows

from microrl.commands.bench.page import STEP, text
from microrl.config import presets
from microrl.rewards.answer_checker import AnswerChecker
from microrl.run.console import RunConsole
from microrl.run.metrics import METRICS
from microrl.train import setup


@pytest.fixture(scope="module")
def finished(tiny_arguments, tmp_path_factory):
    """A run of six steps."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    done = in_process("train", *tiny_arguments, "--steps", 6, "--out", out, "--price", "3600")
    assert done.returncode == 0, done.stderr
    return out, done


def test_the_run_folder(finished):
    out, done = finished
    present = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert present >= {
        ".gitignore", "config.json", "environment.json", "metrics.jsonl", "summary.json", "eval/held-out-before.json",
        "eval/held-out-after.json", "final/adapter_model.safetensors", "final/adapter_config.json",
        "rollouts/step-000000.jsonl.gz", "rollouts/step-000005.jsonl.gz",
    }  # fmt: skip
    assert (out / ".gitignore").read_text() == "*\n"
    assert json.loads((out / "config.json").read_text())["adapter"]["rank"] == 8
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr
    assert done.stdout == "", "words go to standard error"


def test_metrics_rows(finished):
    lines = rows(finished[0])
    assert [line["step"] for line in lines] == list(range(6))
    for line in lines:
        assert list(line) == list(METRICS)
        assert line["policy/kl_sampler"] < 1e-6 and line["policy/outside_share"] == 0
        assert 0 < line["policy/entropy"] < 6 and line["length/max"] <= 12
        assert line["tokens/generated"] == pytest.approx(line["length/mean"] * 16)
        parts = sum(line[f"time/{part}"] for part in ("generate", "verify", "update", "sync", "sleep_wake"))
        assert parts <= line["time/step"] * 1.01
    assert lines[0]["policy/entropy_change_pct"] == 0
    for line, following in itertools.pairwise(lines):  # a dollar a second; the clock is read for each of the two
        assert line["budget/elapsed_s"] <= line["budget/cost_usd"] < following["budget/elapsed_s"]


def test_the_live_view_shows_no_markup_beside_a_note(finished):
    """A note is printed without markup, and what is live is drawn anew with the note's settings."""
    console, paper = RunConsole(title="runs/[x]", total_steps=6), Console(file=io.StringIO(), width=120)
    console.step(rows(finished[0])[1], progress=0.25)
    paper.print(console._live.get_renderable(), markup=False)
    shown = paper.file.getvalue()
    assert "step 2/6" in shown and "runs/[x]" in shown and "25%" in shown and "[bold" not in shown


def test_summary(finished):
    summary = json.loads((finished[0] / "summary.json").read_text())
    assert (summary["status"], summary["steps"], summary["hours_budget"]) == ("done", 6, None)
    assert summary["trainable_params"] == json.loads((finished[0] / "environment.json").read_text())["trainable_params"]
    assert set(summary["eval"]) == {"before", "after", "paired_gain", "paired_gain_pass@2"}
    assert set(summary["eval"]["before"]) == {"accuracy", "ci95", "pass@2", "questions"}
    assert summary["seconds_by_phase"]["idle"] < 0.05 * summary["hours_spent"] * 3600 + 0.5


def test_the_final_adapter_is_pefts_own_format(finished, model_folder):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from microrl.adapters.attach import export
    from microrl.adapters.folder import read

    base = AutoModelForCausalLM.from_pretrained(model_folder)
    ours = read(finished[0] / "final", base)
    theirs = export(PeftModel.from_pretrained(base, finished[0] / "final"), 1)
    theirs = replace(theirs, pairs={name.removeprefix("base_model.model."): pair for name, pair in theirs.pairs.items()})
    assert theirs.pairs.keys() == ours.pairs.keys() and len(ours.pairs) == 14
    for name, pair in ours.pairs.items():
        assert pair.scale == theirs.pairs[name].scale == 8.0
        assert pair.A_RI.equal(theirs.pairs[name].A_RI) and pair.B_OR.equal(theirs.pairs[name].B_OR)


@pytest.mark.slow
@pytest.mark.one_of_each
def test_the_same_seed_gives_the_same_run(microrl, tiny_arguments, finished, tmp_path):
    again = tmp_path / "again"
    done = microrl("train", *tiny_arguments, "--steps", 6, "--out", again)
    assert done.returncode == 0 and done.stdout == "" and "Warning" not in done.stderr, done.stderr
    assert rows(again, times=False) == rows(finished[0], times=False)
    for path in (finished[0] / "final").iterdir():  # in the settings are names that PEFT writes in hash order
        assert (again / "final" / path.name).read_bytes() == path.read_bytes(), path.name
    assert (again / "rollouts/step-000005.jsonl.gz").read_bytes() == (finished[0] / "rollouts/step-000005.jsonl.gz").read_bytes()


@pytest.mark.slow
def test_another_seed_gives_another_run(inside, tiny_arguments, finished, tmp_path):
    other = tmp_path / "other"
    assert inside("train", *tiny_arguments, "--steps", 2, "--out", other, "--seed", 1).returncode == 0
    assert rows(other, times=False)[1] != rows(finished[0], times=False)[1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.one_of_each), signal.SIGTERM])
def test_an_interrupted_run_saves_and_resumes_to_the_same_end(microrl, tiny_arguments, finished, tmp_path, number):
    out = tmp_path / "cut"
    command = [sys.executable, "-m", "microrl", "train", *tiny_arguments, "--steps", 6, "--out", out]
    process = processes.popen(command, stderr=processes.PIPE)
    metrics = out / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") >= 2):
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors and f"microrl train --resume {out}" in errors
    assert json.loads((out / "summary.json").read_text())["status"] == "interrupted"
    assert 2 <= len(rows(out)) < 6
    done = microrl("train", "--resume", out)
    assert done.returncode == 0, done.stderr
    assert rows(out, times=False) == rows(finished[0], times=False)
    final = "final/adapter_model.safetensors"
    assert (out / final).read_bytes() == (finished[0] / final).read_bytes()


def test_a_finished_run_can_be_given_more_steps(inside, finished, tmp_path):
    out = tmp_path / "more"
    shutil.copytree(finished[0], out)
    done = inside("train", "--resume", out, "--steps", 7)
    assert done.returncode == 0, done.stderr
    assert [line["step"] for line in rows(out)] == list(range(7))
    assert rows(out, times=False)[:6] == rows(finished[0], times=False)
    assert inside("train", "--resume", out, "--dry-run").returncode == 2


@pytest.mark.slow
def test_an_interrupt_while_loading_is_clean(tiny_arguments, tmp_path):
    out = tmp_path / "early"
    command = [sys.executable, "-m", "microrl", "train", *map(str, tiny_arguments), "--steps", "6", "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not (out / "config.json").exists():
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors


def test_the_maths_checkers_are_started_before_the_model_is_loaded(inside, tiny_arguments, tmp_path, monkeypatch):
    done = []
    load = setup.load_model
    monkeypatch.setattr(AnswerChecker, "start", lambda self: done.append("checkers"))
    monkeypatch.setattr(setup, "load_model", lambda *rest, **named: (done.append("model"), load(*rest, **named))[1])
    assert inside("train", *tiny_arguments, "--steps", 1, "--out", tmp_path / "run").returncode == 0
    assert done == ["checkers", "model"]


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("loss", LOSSES[1:])
def test_every_loss_trains(inside, tiny_arguments, tmp_path, loss):
    out = tmp_path / loss
    sets = ["--set", "loss.beta=0.05", "--set", "optim.prompts_per_update=2", "--set", "reward.overlong.buffer=4"]
    done = inside("train", *tiny_arguments, "--steps", 2, "--loss", loss, "--out", out, *sets, "--set", "evaluation.problems=0")
    assert done.returncode == 0, done.stderr
    lines = rows(out)
    assert all(line["policy/kl_ref"] is not None and line["reward/overlong"] < 0 for line in lines)
    log = out / "events.jsonl"
    events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    lacking = [event["missing"] for event in events if event["kind"] == "batch not full"]
    # A random model is never right: no group is mixed, and the step says so.
    assert lacking == ([4, 4] if loss == "dapo" else [])
    assert [line["groups/missing"] for line in lines] == ([4, 4] if loss == "dapo" else [None, None])
    assert json.loads((out / "summary.json").read_text())["eval"] == {"before": None, "after": None, "paired_gain": None}


def test_eval_and_sample(inside, finished, data_file, model_folder):
    out, _ = finished
    done = inside("eval", out, "--pass-k", "1,4", "--json", "--base", model_folder)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["benchmarks"]["held-out"]
    assert result["samples"] == 4 and set(result["pass@4"]) == {"mean", "ci95"}
    assert result["avg@4"]["mean"] == pytest.approx(result["pass@1"]["mean"])
    assert result["paired_gain"] and result["base"]["questions"] == result["questions"]
    (stored,) = (out / "eval").glob("held-out-n4-*.json")
    assert json.loads(stored.read_text())["pass@4"] == result["pass@4"]
    model = inside("eval", model_folder, "--data", data_file, "--samples", 2, "--pass-k", 2, "--problems", 5, "--json",
                    "--set", "sampling.max_completion_tokens=8")  # fmt: skip
    assert json.loads(model.stdout)["benchmarks"]["sums"]["questions"] == 5, model.stderr
    sampled = inside("sample", out, "What is 12 + 13?", "--samples", 2, "--json")
    answers = json.loads(sampled.stdout)
    assert len(answers["base"]) == len(answers["trained"]) == 2
    shown = inside("sample", out, "What is 12 + 13?")
    assert "base" in shown.stdout and "trained" in shown.stdout and "Traceback" not in shown.stderr


@pytest.mark.slow
def test_eval_without_argument_takes_the_newest_run(inside, tiny_arguments, tmp_path):
    assert inside("eval", cwd=tmp_path).returncode == 2
    inside("train", *tiny_arguments, "--steps", 1, cwd=tmp_path)
    done = inside("eval", "--json", cwd=tmp_path)
    assert done.returncode == 0 and "held-out" in json.loads(done.stdout)["benchmarks"], done.stderr


@pytest.mark.cases(fast=4)
@pytest.mark.parametrize("preset", [name for name in presets.available() if not presets.sweep(name) and name != "laptop"])
def test_every_preset_dry_runs_without_a_network(inside, preset):
    done = inside("train", preset, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(", gold answer ") == 3 and "s per step" in done.stdout and "DOES NOT PARSE" not in done.stdout


def test_bench_step(inside, model_folder):
    done = inside("bench", "step", "--model", model_folder, "--prompts", 2, "--group", 4, "--tokens", 8, "--rank", 8, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["tokens_per_step"] == 64 and result["step_s_median"] > 0 and result["peak_rss_gb"] > 0.1
    assert {"generate", "verify", "update", "sync"} <= set(result["seconds_by_phase"]) and not unlabelled(result, STEP)
    assert f"time of a step, median: {result['step_s_median']:.4g} s\n" in text(result, STEP)


def test_bench_step_takes_the_quickstarts_model(inside, model_folder, monkeypatch):
    monkeypatch.setattr("microrl.quickstart.model.ensure_model", lambda name, console: model_folder)
    done = inside("bench", "step", "--model", "quickstart", "--prompts", 1, "--group", 2, "--tokens", 4, "--steps", 1)
    assert done.returncode == 0 and "and 1 timed step\n" in done.stderr and "tokens per step: 8\n" in done.stdout, done.stderr


BAD = {
    "unknown preset": (["nonsense"], "unknown preset `nonsense`"),
    "unknown model": (["--model", "Qwen2.5-1.5B-Instuct", "--steps", 1], "did you mean `Qwen2.5-1.5B-Instruct`"),
    "hub out of reach": (["--model", "Qwen2.5-1.5B-Instruct", "--steps", 1], "hub cannot be reached"),
    "gated model": (
        ["--model", "Llama-3.2-1B-Instruct", "--steps", 1],
        "https://huggingface.co/meta-llama/Llama-3.2-1B-Instruct",
    ),
    "not a model": (["--model", "{tmp}", "--steps", 1], "no config.json"),
    "no end": (["--model", "{model}"], "--hours"),
    "hours of zero": (["--model", "{model}", "--hours", 0], "error: invalid value '0.0' for --hours"),
    "rank of zero": (["--model", "{model}", "--rank", 0, "--steps", 1], "error: invalid value '0' for --rank"),
    "rank of zero by --set": (
        ["--model", "{model}", "--rank", 4, "--set", "adapter.rank=0", "--steps", 1],
        "error: invalid value '0' for `adapter.rank`",
    ),
    "rank too large": (["--model", "{model}", "--rank", 65, "--steps", 1], "rank 65 is above 64"),
    "unknown loss": (["--model", "{model}", "--loss", "ppo", "--steps", 1], "error: invalid value 'ppo' for --loss"),
    "unknown option": (["--modle", "x"], "hint: `microrl train --help` lists its options; `microrl --help` lists the commands"),
    "no data": (["--model", "{model}", "--data", "none.jsonl", "--steps", 1], "no data file"),
    "unreadable gold": (["--model", "{model}", "--data", "{gold}", "--steps", 1], "row 2: the gold answer `no idea at all`"),
    "long prompt": (["--model", "{model}", "--set", "data.max_prompt_tokens=5", "--steps", 1], "the limit is 5"),
    "existing run": (["--model", "{model}", "--out", "{tmp}", "--steps", 1], "already exists"),
    "unwritable": (["--model", "{model}", "--out", "/proc/nowhere/run", "--steps", 1], "cannot create the run folder"),
    "resume what is no run": (["--resume", "{tmp}"], "not a run folder"),
    "resume a model": (["--resume", "{model}"], "not a run folder"),
    "data is a folder without data": (
        ["--model", "{model}", "--data", "/dev", "--steps", 1],
        "/dev is a folder without data files",
    ),
    "no targets": (["--model", "{model}", "--set", "adapter.targets=[]", "--steps", 1], "nothing to attach to"),
    "resume with other settings": (["--resume", "{tmp}", "--rank", 8], "--resume uses the settings of the run"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_a_hint(inside, model_folder, data_file, tmp_path, case):
    arguments, words = BAD[case]
    gold = tmp_path / "gold.jsonl"
    lines = [{"question": "a", "answer": "1"}, {"question": "b", "answer": "no idea at all"}]
    gold.write_text("".join(json.dumps(line) + "\n" for line in lines))
    places = {"tmp": str(tmp_path), "model": str(model_folder), "gold": str(gold)}
    filled = [str(argument).format(**places) for argument in arguments]
    if "--data" not in filled and "nonsense" not in filled and "--resume" not in filled:
        filled += ["--data", str(data_file)]
    done = inside("train", *filled, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr and "Traceback" not in done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith(("error: ", "hint: "))]
    assert [line.split(":")[0] for line in told] == ["error", "hint"], done.stderr
