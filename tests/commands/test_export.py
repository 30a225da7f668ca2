"""`microrl export`: what it writes computes what was trained, and plain transformers, PEFT and vLLM load it as it is."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from trained import logits, trained_logits
from transformers import AutoModelForCausalLM, AutoTokenizer

LOW_RANK, MERGED = ("lora", "pissa", "miss"), ("dora", "ia3", "ln", "full")
QUESTION = "What is 12 + 15?"


@pytest.fixture(scope="module")
def made():
    """The runs of this file by what they were made with."""
    return {}


@pytest.fixture
def run_of(inside, model_folder, data_file, tmp_path, tmp_path_factory, made):
    """A finished run of three steps that changes a tiny model's answers (it is to be brief), to do with as one likes."""

    def train(kind, *sets, model=model_folder):
        out = tmp_path / f"run-{kind}"
        if (kind, sets, model) not in made:
            made[kind, sets, model] = trained(kind, sets, model, tmp_path_factory.mktemp("made") / "run")
        shutil.copytree(made[kind, sets, model], out)
        return out

    def trained(kind, sets, model, out):
        rank = ["adapter.rank=8"] if kind not in ("ia3", "ln", "full") else []
        rate = 0.002 if kind == "full" else 0.02
        tiny = ["sampling.prompts_per_step=4", "sampling.group_size=8", "sampling.max_completion_tokens=40", "data.system=",
                "reward.overlong.buffer=39", "data.held_out=0.2", "data.validation=0.2", "evaluation.problems=4",
                "evaluation.samples=2", "evaluation.pass_k=[2]", f"optim.lr={rate}", *rank, *sets]  # fmt: skip
        flags = [part for key in tiny for part in ("--set", key)]
        done = inside("train", "--model", model, "--data", data_file, "--adapter", kind, "--steps", 3, "--out", out, *flags)
        assert done.returncode == 0, done.stderr
        return out

    return train


def merged(inside, *arguments):
    done = inside("export", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def prompt(tokenizer):
    chat = [{"role": "user", "content": QUESTION}]
    return tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)["input_ids"]


def greedy(model, ids):
    return model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)[0].tolist()


FORMS = [pytest.param(kind, marks=() if kind in ("lora", "dora") else pytest.mark.slow) for kind in [*LOW_RANK, *MERGED]]


@pytest.mark.slow
@pytest.mark.cases(one_of_each=2)
@pytest.mark.parametrize("kind", FORMS)
def test_both_forms_compute_what_was_trained(kind, inside, run_of, model_folder, tmp_path):
    run = run_of(kind)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    ids = prompt(tokenizer)
    base, trained = trained_logits(run, model_folder, ids)
    assert (trained - base).abs().max() > 0.01, "it has learned something"
    full = tmp_path / "full"
    found = merged(inside, run, "--as", "full", "--out", full)
    assert found["as"] == "full" and found["dtype"] == "float32" and found["files"] == sorted(p.name for p in full.iterdir())
    assert not list(tmp_path.glob(".*")), "nothing is left beside it"
    whole = AutoModelForCausalLM.from_pretrained(full)
    assert type(whole).__name__ == "Qwen2ForCausalLM" and whole.config.tie_word_embeddings
    assert (logits(whole, ids) - trained).abs().max() < 1e-4
    assert AutoTokenizer.from_pretrained(full).chat_template == tokenizer.chat_template
    lora = inside("export", run, "--as", "lora", "--out", tmp_path / "lora")
    if kind in MERGED:
        assert (
            lora.returncode == 2
            and "is not a low-rank update" in lora.stderr
            and "hint: " in lora.stderr
            and "--as full" in lora.stderr
        )
        assert not (tmp_path / "lora").exists()
        assert merged(inside, run, "--out", tmp_path / "default")["as"] == "full"
        return
    assert lora.returncode == 0, lora.stderr
    adapter = AutoModelForCausalLM.from_pretrained(tmp_path / "lora")  # finds its base by itself, and loads by PEFT
    assert adapter._hf_peft_config_loaded
    assert (logits(adapter, ids) - trained).abs().max() < 1e-4
    assert greedy(adapter, ids) == greedy(whole, ids)
    found = merged(inside, run, "--out", tmp_path / "default")
    assert found["as"] == "lora" and found["rank"] == (16 if kind == "pissa" else 8) and found["base"] == str(model_folder)


@pytest.mark.one_of_each
@pytest.mark.slow
def test_the_card_says_what_the_run_says(inside, run_of, tmp_path):
    run = run_of("lora", "data.system=Think.", "loss.kind=dapo")
    summary = json.loads((run / "summary.json").read_text())
    for form, library in (("full", "transformers"), ("lora", "peft")):
        merged(inside, run, "--as", form, "--out", tmp_path / form)
        card = (tmp_path / form / "README.md").read_text()
        front = card.split("---\n")[1]
        assert f"library_name: {library}\n" in front and "- dapo\n" in front and "- rlvr\n" in front
        assert "license" not in front and "base_model" not in front, "a local base has no id on the hub, nor a licence we know"
        assert "| adapter | lora rank 8 |" in card and "| steps | 3 |" in card and "| seed | 0 |" in card
        before, after = summary["eval"]["before"], summary["eval"]["after"]
        assert f"| before | {before['accuracy']:.3f} | [{before['ci95'][0]:.3f}, {before['ci95'][1]:.3f}] |" in card
        assert f"| after | {after['accuracy']:.3f} |" in card and f"{after['questions']} held-out problems" in card
        assert f"torch {torch.__version__}" in card and '"Think."' in card
    assert "--enable-lora --max-lora-rank 8 --lora-modules lora=" in card


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize("form", ["full", "lora"])
def test_the_code_on_the_card_runs(form, inside, run_of, tmp_path, capsys):
    run = run_of("lora")
    merged(inside, run, "--as", form, "--out", tmp_path / form)
    (code,) = re.findall(r"```python\n(.*?)```", (tmp_path / form / "README.md").read_text(), re.DOTALL)
    space = {}
    exec(compile(code, "card", "exec"), space)
    assert space["output"].shape[1] > space["inputs"]["input_ids"].shape[1]
    assert bool(getattr(space["model"], "_hf_peft_config_loaded", False)) == (form == "lora")


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize("kind", ["lora", "full"])
def test_the_best_of_a_run_and_a_folder_of_its_own(kind, inside, run_of, tmp_path, model_folder):
    run = run_of(kind)
    assert (run / "best").is_dir()
    merged(inside, run / "best", "--as", "full", "--out", tmp_path / "best")
    card = (tmp_path / "best" / "README.md").read_text()
    assert "the best on the validation problems" in card and "Held-out accuracy" not in card, "only the end has been evaluated"
    if kind == "full":
        return
    merged(inside, run, "--out", tmp_path / "elsewhere")
    found = merged(inside, tmp_path / "elsewhere", "--as", "full", "--out", tmp_path / "again")
    assert found["base"] == str(model_folder) and "## Training" not in (tmp_path / "again" / "README.md").read_text()
    merged(inside, run, "--as", "full", "--out", tmp_path / "full")
    same = [load_file(tmp_path / name / "model.safetensors") for name in ("full", "again")]
    assert all(torch.equal(tensor, same[1][name]) for name, tensor in same[0].items())


@pytest.mark.slow
def test_the_type_is_the_bases_own_unless_another_is_wanted(inside, run_of, tmp_path, model_folder):
    """A base in bfloat16 is loaded in float32 on a CPU; what is written is in bfloat16 again, rounded once."""
    narrow = tmp_path / "narrow"
    AutoModelForCausalLM.from_pretrained(model_folder).to(torch.bfloat16).save_pretrained(narrow)
    AutoTokenizer.from_pretrained(model_folder).save_pretrained(narrow)
    run = run_of("lora", model=narrow)
    assert merged(inside, run, "--as", "full", "--out", tmp_path / "own")["dtype"] == "bfloat16"
    assert merged(inside, run, "--as", "full", "--dtype", "float32", "--out", tmp_path / "wide")["dtype"] == "float32"
    own, wide = (load_file(tmp_path / name / "model.safetensors") for name in ("own", "wide"))
    assert all(tensor.dtype == torch.bfloat16 and tensor.equal(wide[name].bfloat16()) for name, tensor in own.items())


@pytest.mark.slow
@pytest.mark.one_of_each
def test_what_cannot_be_is_refused_with_a_hint(inside, run_of, tmp_path, tokenizer, model_folder):
    from microrl.models.tiny import build_model

    run = run_of("lora")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    wider = tmp_path / "wider"
    other = build_model(tokenizer, seed=3)
    type(other)(type(other.config)(**{**other.config.to_dict(), "intermediate_size": 96})).save_pretrained(wider)
    tokenizer.save_pretrained(wider)
    out = ("--out", tmp_path / "new")
    cases = [
        ([run, "--out", tmp_path / "taken"], "not empty"),
        ([run, "--out", tmp_path / "taken" / "file"], "is a file"),
        ([run, "--as", "lorra", *out], "did you mean `lora`"),
        ([run, "--as", "full", "--dtype", "int8", *out], "invalid value 'int8' for --dtype"),
        ([run / "final", "--model", wider, *out], "for another model: `model.layers.0.mlp"),
        ([tmp_path / "nowhere", *out], "there is no folder"),
        ([model_folder, *out], "neither a run folder nor an adapter"),
        ([run], "--out"),
    ]
    for arguments, said in cases:
        done = inside("export", *arguments)
        assert done.returncode == 2 and said in done.stderr and "hint:" in done.stderr, (arguments, done.stderr)
    assert not (tmp_path / "new").exists() and not list(tmp_path.glob(".*"))
    assert (tmp_path / "taken" / "file").read_text() == "mine"
    (run / "final").rename(run / "elsewhere")
    done = inside("export", run, *out)
    assert done.returncode == 2 and f"--resume {run}" in done.stderr
    assert json.loads((run / "best" / "state.json").read_text())["version"] == 0 and str(run / "best") not in done.stderr


def test_the_newest_run_and_an_unfinished_one(inside, run_of, tmp_path):
    run = run_of("lora")
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "status": "interrupted"}))
    (tmp_path / "runs").mkdir()
    run.rename(tmp_path / "runs" / "one")
    done = inside("export", "--out", "made", cwd=tmp_path)
    assert done.returncode == 0 and "not finished" in done.stderr and "vllm serve" in done.stderr, done.stderr
    assert "(the run was interrupted)" in (tmp_path / "made" / "README.md").read_text()
    assert json.loads((tmp_path / "made" / "adapter_config.json").read_text())["r"] == 8


VLLM = """
import json, os, shlex, sys
os.environ.update({"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_HOST_IP": "127.0.0.1", "VLLM_LOGGING_LEVEL": "ERROR"})
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
from vllm import LLM, SamplingParams
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser
base, full, lora, rank, ids = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), json.loads(sys.argv[5])
parser = FlexibleArgumentParser()
ServeSubcommand().subparser_init(parser.add_subparsers())
parsed = [vars(parser.parse_args(shlex.split(command)[1:])) for command in sys.argv[6:]]
wanted = SamplingParams(temperature=0, max_tokens=12)
dtype = "float16" if current_platform.is_cuda() else "float32"  # with an adapter, vLLM computes in 16 bits only on a card
options = dict(dtype=dtype, max_model_len=128, max_num_seqs=2, enforce_eager=True, disable_log_stats=True)
options["gpu_memory_utilization"] = 0.3  # of a card: two engines, one after the other
found = {}
llm = LLM(full, **options)
found["full"] = list(llm.generate([{"prompt_token_ids": ids}], wanted)[0].outputs[0].token_ids)
found["template"] = llm.get_tokenizer().apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
del llm
llm = LLM(base, enable_lora=True, max_lora_rank=parsed[1]["max_lora_rank"], **options)
for name, request in (("base", None), ("lora", LoRARequest("lora", 1, lora))):
    out = llm.generate([{"prompt_token_ids": ids}], wanted, lora_request=request)
    found[name] = list(out[0].outputs[0].token_ids)
found["serve"] = [one["model_tag"] for one in parsed] + [parsed[1]["lora_modules"][0].path]
print("FOUND" + json.dumps(found))
"""


@pytest.mark.vllm
def test_vllm_loads_both_forms_and_says_the_same(inside, run_of, model_folder, tmp_path):
    """The real vLLM, started as a user starts it, in a process of its own."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    run = run_of("pissa")
    found = {form: merged(inside, run, "--as", form, "--out", tmp_path / form) for form in ("full", "lora")}
    commands = [found[form]["serve"] for form in ("full", "lora")]
    ids = prompt(AutoTokenizer.from_pretrained(model_folder))
    words = [model_folder, tmp_path / "full", tmp_path / "lora", found["lora"]["rank"], json.dumps(ids[0].tolist()), *commands]
    done = subprocess.run(
        [sys.executable, "-c", VLLM, *map(str, words)], capture_output=True, text=True, timeout=600, cwd=tmp_path
    )
    assert "FOUND" in done.stdout, done.stderr[-4000:]
    said = json.loads(done.stdout.rpartition("FOUND")[2])
    ours = greedy(AutoModelForCausalLM.from_pretrained(tmp_path / "full"), ids)[ids.shape[1] :]
    assert said["full"] == said["lora"] == ours
    assert said["base"] != ours, "the adapter is really there"
    assert said["template"] and said["serve"] == [str(tmp_path / "full"), str(model_folder), str(tmp_path / "lora")]
    assert Path(shlex.split(commands[0])[2]) == tmp_path / "full"
