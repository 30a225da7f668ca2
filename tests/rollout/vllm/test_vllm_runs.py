"""Whole runs, evaluations and the doctor with the real vLLM, through the command line."""

import gzip
import json
import signal
import sys

import processes
import pytest
from architectures import tiny
from every_adapter import ten_steps
from places import HELPERS
from transformers import CONFIG_MAPPING
from vllm_served import CUDA, make_it_end
from whole_runs import rows

from microrl.config.adapters import KINDS
from microrl.errors import UserError
from microrl.models.tiny import build_model
from microrl.rollout.vllm import launch

pytestmark = pytest.mark.vllm


LFM2 = {"hidden_size": 128, "conv_dim": 128, "block_dim": 128, "block_ff_dim": 96, "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False}  # fmt: skip
"""What vLLM reads of their configurations, which transformers does not write by itself."""
GEMMA4 = {"head_dim": 32, "per_layer_config": {"1": {"head_dim": 64}, "3": {"head_dim": 64}}, "num_experts": None,
          "vocab_size_per_layer_input": 304}  # fmt: skip
DELTA_NET = {"head_dim": 32, "linear_key_head_dim": 64, "linear_value_head_dim": 64}
TODAY = {
    "falcon_h1": ({"head_dim": 32}, []),
    "gemma4_text": (GEMMA4, []),
    "granitemoehybrid": ({"num_local_experts": 0, "hidden_size": 128, "mamba_n_heads": 16}, ["engine.sync=merge"]),
    "qwen3_5_text": (DELTA_NET, ["model.dtype=bfloat16"]),
}
"""Of models with layers that differ, what a tiny one needs in vLLM, and its run."""
REFUSED = {
    "lfm2": (LFM2, [], "engine and trainer are too far apart on the base model"),
    "jamba": ({"hidden_size": 128}, [], "object has no attribute 'selective_scan_fwd'"),
    "qwen3_next": (DELTA_NET, ["model.dtype=bfloat16"], "module 'triton.language' has no attribute 'bfloat16'"),
    "granitemoehybrid": ({"hidden_size": 128, "mamba_n_heads": 16}, [], "KeyError: 'layers.0.block_sparse_moe.router.weight'"),
}
"""What is said of those that vLLM 0.32's build for CPUs cannot run, or runs wrongly: it takes LFM2's heads, which lie apart in
memory, for neighbours when it normalises them."""


@pytest.fixture
def trained_once(microrl, tokenizer, data_file, tmp_path):
    """Two steps with vLLM of a tiny model of an architecture: the finished process, and the rows of its metrics."""

    def train(model_type, fields, sets, bend=1):
        ends = {"vocab_size": 304, "eos_token_id": tokenizer.eos_token_id, "max_position_embeddings": 256}
        model = tiny(model_type, **fields, **ends)
        model.get_output_embeddings().weight.mul_(bend)
        model.save_pretrained(tmp_path / "model")
        tokenizer.save_pretrained(tmp_path / "model")
        (tmp_path / "parity.py").write_text(
            "def even(prompts, completions, rows):\n    return [len(text) % 2 for text in completions]\n"
        )
        sets = ["sampling.max_completion_tokens=24", "data.max_prompt_tokens=100", "data.system=", "evaluation.problems=0",
                "sampling.prompts_per_step=2", "sampling.group_size=4", *sets]  # fmt: skip
        flags = [part for key in sets for part in ("--set", key)]
        done = microrl("train", "--model", tmp_path / "model", "--data", data_file, "--rank", 8, "--steps", 2, *flags,
                       "--engine", "vllm", "--reward", "parity:even", "--out", tmp_path / "run", cwd=tmp_path)  # fmt: skip
        return done, rows(tmp_path / "run") if done.returncode == 0 else []

    return train


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["gemma2", "granite", "cohere"])
def test_logits_are_bent_once(model_type, trained_once):
    """vLLM caps or scales the logits of these itself: trainer and sampler agree where that is worth nats."""
    sizes = {"hidden_size": 128, "head_dim": 32, "query_pre_attn_scalar": 32, "logits_scaling": 8.0}
    known = CONFIG_MAPPING[model_type]().to_dict()
    done, lines = trained_once(model_type, {name: value for name, value in sizes.items() if name in known}, [], bend=4)
    assert done.returncode == 0, done.stderr
    assert max(line["policy/kl_sampler"] for line in lines) < 1e-5


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize("model_type", TODAY)
def test_a_model_of_today_trains_with_it(model_type, trained_once):
    if model_type == "qwen3_5_text":
        pytest.importorskip("torchvision", reason="vLLM's class for Qwen 3.5 imports it")
    fields, sets = TODAY[model_type]
    done, lines = trained_once(model_type, fields, sets)
    assert done.returncode == 0, done.stderr
    assert all(line["update/skipped"] == 0 and line["sync/probe_gap"] is not None for line in lines) and len(lines) == 2
    assert max(line["policy/kl_sampler"] for line in lines) < (1e-3 if "model.dtype=bfloat16" in sets or CUDA else 1e-5)


@pytest.mark.slow
@pytest.mark.skipif(CUDA, reason="of vLLM's build for CPUs")
@pytest.mark.parametrize("model_type", REFUSED)
def test_what_it_cannot_run_is_said_in_a_line(model_type, trained_once):
    fields, sets, said = REFUSED[model_type]
    done, _ = trained_once(model_type, fields, sets)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode in (1, 4) and len(errors) == 1 and said in errors[0] and "Traceback" not in done.stderr, done.stderr
    assert "--engine transformers" in done.stderr.partition("hint: ")[2]


def test_a_class_that_cannot_be_imported_is_named():
    from vllm import ModelRegistry

    ModelRegistry.register_model("NothingForCausalLM", "nothing_of_this_name:NothingForCausalLM")
    with pytest.raises(UserError, match="cannot load its NothingForCausalLM: No module named 'nothing_of_this_name'") as error:
        launch.register_loaded("NothingForCausalLM")
    assert "--engine transformers" in error.value.hint


@pytest.fixture
def arguments(tiny_arguments, tokenizer, tmp_path):
    """The smallest run whose groups differ: completions end at different lengths, and length costs."""
    folder = tmp_path / "model"
    model = build_model(tokenizer, seed=3).requires_grad_(False)
    make_it_end(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    more = ("engine.kind=vllm", "reward.overlong.buffer=10", "optim.lr=1e-3")
    return [*tiny_arguments, "--model", folder, *(part for key in more for part in ("--set", key))]


def test_a_whole_run(microrl, arguments, tmp_path):
    out = tmp_path / "run"
    done = microrl("train", *arguments, "--steps", 5, "--out", out)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 5
    for number, line in enumerate(lines):
        assert line["groups/useful"] > 0 and line["update/skipped"] == 0
        assert line["sync/probe_gap"] is not None and line["policy/kl_sampler"] < (1e-3 if CUDA else 1e-6)
        assert CUDA or (line["sync/slope"] is None) == (number == 0), (
            "step 0 samples from the base: there is no change to compare"
        )
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    # Step 0 samples from the base, where there is nothing to see; step 1 from an update that is seen.
    events = [event for event in events if "probe" in event["kind"]]
    assert [event["kind"] for event in events] == ["probe calibrated", "probe", "probe"]
    assert "the bit-by-bit comparison alone decides" in events[-2]["message"]
    slope = float(events[-1]["message"].rpartition("slope on it is ")[2])
    assert slope == pytest.approx(1, abs=0.05 if CUDA else 5e-4)
    assert json.loads((out / "environment.json").read_text())["engine"] == "vllm"
    # Resumed, it measures both modes, stores its choice, and another process takes that up.
    for steps in (12, 13):
        resumed = microrl("train", "--resume", out, "--steps", steps)
        assert resumed.returncode == 0, resumed.stderr
    stored = json.loads((out / "sync.json").read_text())
    assert stored["mode"] in ("swap", "merge") and len(stored["table"]) == 6
    events = [json.loads(line)["kind"] for line in (out / "events.jsonl").read_text().splitlines()]
    assert events.count("sync chosen") == 1 and events.count("resumed") == 2


@pytest.mark.slow
def test_a_killed_evaluation_goes_on_where_it_died(microrl, arguments, tmp_path):
    """The same completions and verdicts; the last bits of a log-probability follow from what else is in the batch."""
    run = tmp_path / "run"
    options = ["--samples", 4, "--problems", 6, "--set", "data.held_out=0.3", "--engine", "vllm"]
    done = microrl("train", *arguments, "--steps", 1, "--out", run)
    assert done.returncode == 0, done.stderr

    def evaluated():
        done = microrl("eval", run, *options)
        assert done.returncode == 0, done.stderr
        (path,) = (run / "eval").glob("held-out-n4*.jsonl.gz")
        lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        result = json.loads(path.with_name(path.name.replace("jsonl.gz", "json")).read_text())
        assert result["engine"].startswith("vllm")
        path.unlink()
        return done.stderr, lines, result

    _, whole, result = evaluated()
    killed = processes.run([sys.executable, HELPERS / "killed.py", "journal", 3, "eval", run, *options], timeout=600)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    said, resumed, again = evaluated()
    assert "after 3 of 6 problems" in said and len(whole) == 24
    for ours, theirs in zip(resumed, whole, strict=True):
        assert ours == {
            key: pytest.approx(value, abs=1e-4) if isinstance(value, float) else value for key, value in theirs.items()
        }
    measured = ("seconds", "decode_steps", "entropy")
    assert result.keys() == again.keys() >= {*measured}
    assert all(again[key] == value for key, value in result.items() if key not in measured)


@pytest.mark.slow
def test_a_student_learns_from_a_teacher_in_memory_and_from_one_that_has_answered(microrl, arguments, tmp_path):
    teacher, student, answers = (tmp_path / name for name in ("teacher", "student", "answers"))
    done = microrl("train", *arguments, "--steps", 3, "--set", "engine.kind=transformers", "--out", teacher)
    assert done.returncode == 0, done.stderr
    done = microrl("train", *arguments, "--steps", 3, "--teacher", teacher, "--out", student)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (student / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 3 and all(row["update/skipped"] == 0 and row["distill/kl"] is not None for row in rows)
    assert max(row["policy/kl_sampler"] for row in rows) < (1e-3 if CUDA else 1e-6), "the teacher's update is not in the engine"
    done = microrl("teach", "--teacher", teacher, "--problems", 4, "--samples", 2, "--engine", "vllm", "--out", answers)
    assert done.returncode == 0, done.stderr
    record = json.loads((answers / "teach.json").read_text())
    assert record["sampling"]["engine"].startswith("vllm") and sum(part["kept"] for part in record["parts"]) == 8
    done = microrl("train", *arguments, "--steps", 2, "--teacher", answers, "--out", tmp_path / "offline")
    assert done.returncode == 0, done.stderr
    (first, _) = [json.loads(line) for line in (tmp_path / "offline" / "sft.jsonl").read_text().splitlines()]
    assert first["kl"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ten_steps_of_every_kind(microrl, arguments, tmp_path, kind):
    ten_steps(microrl, arguments, tmp_path, kind, "vllm")


@pytest.mark.cases(vllm=1)
@pytest.mark.parametrize(
    ("dtype", "mode"),
    [("bfloat16", "swap"), ("bfloat16", "merge"), pytest.param("float16", "merge", marks=pytest.mark.slow)],
)
def test_narrow_types(microrl, arguments, tmp_path, dtype, mode):
    out = tmp_path / "run"
    done = microrl("train", *arguments, "--steps", 2, "--out", out, "--set", f"model.dtype={dtype}",
                   "--set", "model.head_dtype=float32", "--set", f"engine.sync={mode}")  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert all(line["update/skipped"] == 0 and line["sync/probe_gap"] is not None for line in lines)
    assert all(line["policy/kl_sampler"] < 1e-3 for line in lines)


@pytest.mark.slow
def test_doctor(microrl):
    done = microrl("doctor", "--json")
    found = {finding["about"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert done.returncode == 0, found
    assert found["vLLM"]["status"] == "ok" and found["self-test"]["says"].startswith("vllm on ")
    assert "weight sync verified" in found["self-test"]["says"]
