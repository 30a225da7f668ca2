"""Adapter and model folders of strangers: no code of theirs runs, and what does not fit to the last tensor is refused."""

import json
import os
import pickle
import shutil
import struct
from pathlib import Path

import peft
import pytest
import torch
from command_line import in_process
from every_adapter import config_of, train
from random_models import small
from safetensors.torch import load_file, save_file

from microrl.adapters import folder
from microrl.adapters.attach import attach
from microrl.errors import UserError

KINDS = ("lora", "dora", "adalora", "miss", "vera", "ia3", "ln", "tinylora")
SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def base():
    return small("qwen2")


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """A trained adapter of every kind as PEFT itself writes it, and its export."""
    made = {}
    for kind in KINDS:
        attached = attach(small("qwen2"), config_of(kind), seed=1)
        train(attached, steps=2)
        made[kind] = tmp_path_factory.mktemp(kind)
        attached.peft_model.save_pretrained(str(made[kind]), save_embedding_layers=False)
    attached = attach(small("qwen2"), config_of("full"), seed=1)
    made["full"] = tmp_path_factory.mktemp("full")
    folder.write(made["full"], attached)
    return made


@pytest.fixture
def copy(originals, tmp_path):
    def make(kind):
        return Path(shutil.copytree(originals[kind], tmp_path / kind, dirs_exist_ok=True))

    return make


def rewrite(path, change):
    """Replace the tensors of a folder's weights by what `change` makes of them."""
    (file,) = path.glob("*model.safetensors")
    save_file({name: tensor.contiguous() for name, tensor in change(load_file(file)).items()}, file, metadata={"format": "pt"})


def refused(path, base):
    """What is said, and what to do: each in one line that a terminal can print."""
    with pytest.raises(UserError) as caught:
        folder.read(path, base)
    message, hint = caught.value.message, caught.value.hint
    assert hint, message
    assert message.isprintable() and hint.isprintable() and len(message) < 1000
    return message


def of_moved_layers(name, tensor):
    """Layer 1 of this model under a number that it does not have."""
    return name.replace("layers.1.", "layers.9.").replace("tinylora_v.", "tinylora_v.9"), tensor


MISFITS = {
    "renamed": lambda tensors: {f"{name}x": tensor for name, tensor in tensors.items()},
    "half renamed": lambda tensors: dict(of_moved_layers(*item) for item in tensors.items()),
    "one missing": lambda tensors: dict(list(tensors.items())[1:]),
    "one more": lambda tensors: {**tensors, "base_model.model.model.layers.0.mlp.down_proj.lora_C.weight": torch.ones(2)},
    "none": lambda tensors: {},
    "flat": lambda tensors: {name: tensor.flatten()[:1] for name, tensor in tensors.items()},
    "turned": lambda tensors: {name: torch.ones(*tensor.shape, 2) for name, tensor in tensors.items()},
    "whole numbers": lambda tensors: {name: tensor.round().to(torch.int32) for name, tensor in tensors.items()},
    "nan": lambda tensors: {**tensors, list(tensors)[-1]: torch.full_like(list(tensors.values())[-1], NAN)},
    "inf": lambda tensors: {**tensors, list(tensors)[-1]: torch.full_like(list(tensors.values())[-1], INF)},
}


@pytest.mark.slow
@pytest.mark.cases(one_of_each=2)
@pytest.mark.parametrize("kind", [*KINDS, "full"])
def test_tensors_that_do_not_fit_to_the_last_are_refused(kind, copy, base, originals):
    before = {name: tensor.clone() for name, tensor in base.named_parameters()}
    snapshot = folder.read(originals[kind], base)
    assert snapshot.pairs or snapshot.merged
    for what, change in MISFITS.items():
        path = copy(kind)
        rewrite(path, change)
        said = refused(path, base)
        if what in ("nan", "inf"):
            assert "not finite" in said and sorted(load_file(originals[kind] / next(path.glob("*.safetensors")).name)), what
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.named_parameters())


def test_the_first_missing_tensor_is_named(copy, base):
    path = copy("ia3")
    rewrite(path, lambda tensors: {name: tensor for name, tensor in tensors.items() if "layers.1" not in name})
    said = refused(path, base)
    assert "3 missing (first: `base_model.model.model.layers.1.self_attn.k_proj.ia3_l`" in said
    path = copy("lora")
    rewrite(path, lambda tensors: {name: tensor for name, tensor in tensors.items() if "layers.1" not in name})
    assert "14 missing (first: `base_model.model.model.layers.1" in refused(path, base)


BAD_SETTINGS = {
    "rank 0": {"r": 0},
    "no rank": {"r": None},
    "a rank of text": {"r": "6"},
    "a huge rank": {"r": 10**6},
    "a rank above all": {"r": 10**30},
    "another rank": {"r": 5},
    "no alpha": {"lora_alpha": None},
    "alpha as text": {"lora_alpha": "12"},
    "alpha nan": {"lora_alpha": NAN},
    "alpha inf": {"lora_alpha": INF},
    "alpha too long": {"lora_alpha": 10**400},
    "alpha too large": {"lora_alpha": 1e39},
    "a list": [1, 2],
    "text": "lora",
    "no kind": {"peft_type": None},
    "a kind of another shape": {"peft_type": ["LORA"]},
    "an unknown kind": {"peft_type": "LORA\x1b[2J"},
    "another kind": {"peft_type": "IA3"},
    "a kind without a form": {"peft_type": "LOHA"},
    "no targets": {"target_modules": None},
    "targets of numbers": {"target_modules": [1, 2]},
    "targets that are not there": {"target_modules": ["query"]},
    "fewer targets": {"target_modules": ["q_proj"]},
    "the embedding": {"target_modules": ["embed_tokens"]},
    "a pattern of targets": {"target_modules": "(a+)+$"},
    "a pattern in the targets": {"target_modules": ["(.*)_proj"]},
    "a pattern of exceptions": {"exclude_modules": "(([a-z._0-9])+)+#"},
    "a bad pattern": {"alpha_pattern": {"(": 3.0}},
    "a pattern for ever": {"alpha_pattern": {"(([a-z._0-9])+)+#": 3.0}},
    "a pattern of ranks for ever": {"rank_pattern": {"(([a-z._0-9])+)+#": 3}},
    "an escape in a pattern": {"alpha_pattern": {"\x1b[2J": 3.0}},
    "alpha of a name as text": {"alpha_pattern": {"q_proj": "3"}},
    "ranks as a list": {"rank_pattern": [1]},
    "a module to import": {"megatron_config": {"x": 1}, "megatron_core": "stranger"},
    "another computation": {"alora_invocation_tokens": [1, 2]},
    "more modules": {"modules_to_save": ["(x+x+)+y"]},
    "a residual base": {"init_lora_weights": "pissa_niter_4"},
    "a start of another shape": {"init_lora_weights": {"a": 1}},
    "a base of another shape": {"base_model_name_or_path": {"a": 1}},
    "a base with an escape": {"base_model_name_or_path": "\x1b[2J"},
}


def with_settings(path, change):
    settings = json.loads((path / SETTINGS).read_text())
    settings = {**settings, **change} if isinstance(change, dict) else change
    (path / SETTINGS).write_text(json.dumps(settings))


@pytest.mark.parametrize("what", BAD_SETTINGS)
def test_settings_of_a_stranger_are_data(what, copy, base, tmp_path, monkeypatch):
    """Patterns are not run, modules are not imported, and numbers are numbers."""
    (tmp_path / "stranger.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    path = copy("lora")
    with_settings(path, BAD_SETTINGS[what])
    refused(path, base)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["lora", "dora", "adalora", "miss", "vera", "tinylora"])
def test_a_rank_that_is_only_claimed_takes_no_memory(kind, copy, base):
    path = copy(kind)
    with_settings(path, {{"adalora": "init_r", "tinylora": "u"}.get(kind, "r"): 10**6 - 1, "target_modules": "all-linear"})
    assert "far more numbers" in refused(path, base)


def test_names_in_patterns_are_names(copy, base):
    """`alpha_pattern` and `rank_pattern` by the end of a name, as PEFT takes them; a point is a point."""
    path = copy("lora")
    with_settings(path, {"alpha_pattern": {"layers.1.mlp.up_proj": 3.0, "q_proj": 24.0, "layers.0.self_attn.v.proj": 99.0}})
    scales = {name: pair.scale for name, pair in folder.read(path, base).pairs.items()}
    assert scales["model.layers.1.mlp.up_proj"] == 0.5 and scales["model.layers.0.mlp.up_proj"] == 2.0
    assert {scales[f"model.layers.{layer}.self_attn.q_proj"] for layer in (0, 1, 2)} == {4.0}
    assert scales["model.layers.0.self_attn.v_proj"] == 2.0


def test_damaged_files_are_said_in_one_line(copy, base, tmp_path):
    """Whatever has become of the two files: links to regular files are read, as in a hub's cache; nothing else is."""

    def damaged(name, content):
        path = copy("lora")
        (path / name).write_bytes(content)
        return refused(path, base)

    weights = (copy("lora") / WEIGHTS).read_bytes()
    header = struct.unpack("<Q", weights[:8])[0]
    huge = json.dumps({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}}).encode()
    for content in (
        b"", weights[:4], weights[:100], weights[:-4], weights + b"x", struct.pack("<Q", 2**63) + weights[8:],
        struct.pack("<Q", header + 10**6) + weights[8:], struct.pack("<Q", header - 5) + weights[8:],
        struct.pack("<Q", len(huge)) + huge + b"1234", struct.pack("<Q", 100_000) + b"[" * 100_000,
        weights.replace(b"F32", b"F33"),
    ):  # fmt: skip
        damaged(WEIGHTS, content)
    for content in (b"", b"\xff\xfe", b'{"a":' * 10_000, b"[" * 10_000, b"{}", b"null", b'{"peft_type": "LORA"'):
        damaged(SETTINGS, content)
    for name in (SETTINGS, WEIGHTS):
        path = copy("lora")
        (path / name).rename(tmp_path / "blob")
        (path / name).symlink_to(tmp_path / "blob")
        assert folder.read(path, base).pairs
        for target in ("/dev/zero", tmp_path / "nowhere", tmp_path):
            (path / name).unlink()
            (path / name).symlink_to(target)
            refused(path, base)
        (path / name).unlink()
        os.mkfifo(path / name)
        refused(path, base)
        shutil.rmtree(path)


class Marker:
    """Pickled, it makes a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (Path(self.path),))


@pytest.mark.parametrize("kind", ["lora", "ia3"])
def test_pickled_weights_are_not_loaded(kind, copy, base, tmp_path):
    path = copy(kind)
    torch.save(load_file(path / WEIGHTS), path / "adapter_model.bin")
    (path / WEIGHTS).unlink()
    assert "pickle" in refused(path, base)
    (path / "adapter_model.bin").write_bytes(pickle.dumps(Marker(tmp_path / "ran")))
    assert "pickle" in refused(path, base) and not (tmp_path / "ran").exists()


def test_peft_reads_the_same_update(originals, base):
    """The other way round: what is read of PEFT's own folders computes what PEFT computes of them."""
    from microrl.adapters.attach import export
    from microrl.models.tensors import weight_sharing_copy

    for kind in KINDS:
        ours = folder.read(originals[kind], base)
        tree = weight_sharing_copy(base)
        peft.PeftModel.from_pretrained(tree, str(originals[kind]))
        theirs = export(tree, 1)
        assert ours.pairs.keys() == theirs.pairs.keys() and ours.merged.keys() == theirs.merged.keys(), kind
        for name, pair in theirs.pairs.items():
            assert torch.equal(ours.pairs[name].A_RI, pair.A_RI) and torch.equal(ours.pairs[name].B_OR, pair.B_OR), (kind, name)
            assert ours.pairs[name].scale == pair.scale
        for name, merge in theirs.merged.items():
            weight = base.get_parameter(name)
            assert torch.equal(ours.merged[name](weight), merge(weight)), (kind, name)


# ---- code


MODELING = """
open({marker!r}, "w").write("it ran")
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
class Evil(PretrainedConfig): model_type = "evil"
class EvilModel(PreTrainedModel): config_class = Evil
class EvilTokenizer(PreTrainedTokenizerFast): pass
"""
AUTO_MAP = {"AutoConfig": "modeling_evil.Evil", "AutoModelForCausalLM": "modeling_evil.EvilModel",
            "AutoTokenizer": ["modeling_evil.EvilTokenizer", "modeling_evil.EvilTokenizer"]}  # fmt: skip


def with_code(path, marker, *, architecture):
    """Give a folder code of its own for everything that transformers would run code for."""
    (path / "modeling_evil.py").write_text(MODELING.format(marker=str(marker)))
    for name in ("config.json", "tokenizer_config.json"):
        settings = json.loads((path / name).read_text()) if (path / name).is_file() else {}
        settings |= {"auto_map": AUTO_MAP}
        if architecture is not None:
            settings |= {"model_type": architecture} if name == "config.json" else {"tokenizer_class": "EvilTokenizer"}
        (path / name).write_text(json.dumps(settings))
    (path / "custom_generate").mkdir(exist_ok=True)
    (path / "custom_generate" / "generate.py").write_text(MODELING.format(marker=str(marker)))
    return path


@pytest.fixture
def yes(monkeypatch):
    """Standard input that says yes to everything, and what it was asked."""
    asked = []
    monkeypatch.setattr("builtins.input", lambda question="": asked.append(question) or "y")
    return asked


@pytest.fixture(scope="module")
def run(model_folder, data_file, tmp_path_factory):
    """A finished run of one step."""
    out = tmp_path_factory.mktemp("run") / "run"
    sets = ["sampling.prompts_per_step=2", "sampling.group_size=2", "sampling.max_completion_tokens=4", "data.system=",
            "data.held_out=0.2", "evaluation.problems=2", "evaluation.samples=1", "evaluation.pass_k=[1]"]  # fmt: skip
    flags = [part for key in sets for part in ("--set", key)]
    words = ["train", "--model", model_folder, "--data", data_file, "--rank", 2, "--steps", 1, "--out", out, *flags]
    assert in_process(*words).returncode == 0
    return out


@pytest.mark.cases(fast=5)
@pytest.mark.parametrize("architecture", ["evil", None])
@pytest.mark.parametrize(
    "command", ["train", "dry-run", "plan", "warmup", "eval", "eval run", "sample", "merge", "merge adapter"]
)
def test_code_in_a_model_folder_never_runs(command, architecture, inside, run, model_folder, data_file, yes, tmp_path):
    """With an architecture of its own it is refused; with one that transformers has, that is used."""
    marker, out = tmp_path / "ran", tmp_path / "out"
    model = with_code(Path(shutil.copytree(model_folder, tmp_path / "model")), marker, architecture=architecture)
    theirs = Path(shutil.copytree(run, tmp_path / "run"))
    settings = json.loads((theirs / "config.json").read_text())
    settings["model"]["name"] = str(model)
    (theirs / "config.json").write_text(json.dumps(settings))
    sets = ["sampling.prompts_per_step=2", "sampling.group_size=2", "sampling.max_completion_tokens=4", "data.held_out=0.2",
            "evaluation.problems=2", "evaluation.samples=1", "evaluation.pass_k=[1]"]  # fmt: skip
    flags = [part for key in sets for part in ("--set", key)]
    source = ["--model", model, "--data", data_file, "--rank", 2]
    traces = tmp_path / "traces.jsonl"
    traces.write_text('{"question": "What is 1 + 1?", "answer": "2", "solution": "2"}\n' * 2)
    arguments = {
        "train": ["train", *source, "--steps", 1, "--out", out, *flags],
        "dry-run": ["train", *source, "--steps", 1, "--dry-run"],
        "plan": ["plan", "--model", model, "--rank", 2, "--hours", 1],
        "warmup": ["warmup", model, "--data", traces, "--rank", 2, "--steps", 1, "--out", out, *flags[:4], *flags[6:],
                   "--set", "sampling.max_completion_tokens=60", "--set", "data.held_out=0", "--set", "data.validation=0"],
        "eval": ["eval", model, "--data", data_file, "--problems", 1, "--samples", 1, *flags[4:6]],
        "eval run": ["eval", theirs],
        "sample": ["sample", theirs, "1 + 1?"],
        "merge": ["merge", theirs, "--as", "full", "--out", out],
        "merge adapter": ["merge", theirs / "final", "--model", model, "--out", out],
    }[command]  # fmt: skip
    done = inside(*arguments)
    assert not yes and not marker.exists()
    if architecture is None or command == "plan":  # which reads sizes alone
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode == 2 and "requires custom code" in done.stderr and "hint: " in done.stderr, done.stderr
    assert not (out / "README.md").exists() and not (out / "summary.json").exists()


def test_code_beside_a_gguf_file_never_runs(inside, data_file, tmp_path, yes):
    from gguf import GGUFWriter

    marker = tmp_path / "ran"
    path = with_code(tmp_path, marker, architecture="evil") / "small.gguf"
    writer = GGUFWriter(path, "llama")
    for name, value in (("embedding_length", 8), ("feed_forward_length", 8), ("block_count", 1)):
        writer.add_uint32(f"llama.{name}", value)
    for name in ("attention.head_count", "attention.head_count_kv", "context_length"):
        writer.add_uint32(f"llama.{name}", 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for arguments in (["eval", path], ["train", "--dry-run", "--steps", 1, "--model", path]):
        done = inside(*arguments, "--data", data_file)
        assert not yes and not marker.exists()
        assert done.returncode == 2 and "requires custom code" in done.stderr and "hint: " in done.stderr, done.stderr
    (tmp_path / SETTINGS).write_text("{}")
    done = inside("eval", path, "--data", data_file)
    assert done.returncode == 2 and "move the .gguf file" in done.stderr and not marker.exists(), done.stderr


def test_an_adapter_in_a_model_folder_and_pickled_weights_are_refused(inside, model_folder, data_file, tmp_path):
    """transformers would load the adapter by PEFT's rules, pickles included."""
    marker = tmp_path / "ran"
    model = Path(shutil.copytree(model_folder, tmp_path / "model"))
    (model / SETTINGS).write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "x", "r": 1, "lora_alpha": 1}))
    (model / "adapter_model.bin").write_bytes(pickle.dumps(Marker(marker)))
    done = inside("eval", model, "--data", data_file)
    assert done.returncode == 2 and "contains an adapter" in done.stderr and "hint: " in done.stderr, done.stderr
    (model / SETTINGS).unlink()
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Marker(marker)))
    done = inside("eval", model, "--data", data_file)
    assert done.returncode == 2 and "only in pytorch_model.bin, which is not read" in done.stderr and "hint: " in done.stderr, (
        done.stderr
    )
    assert not marker.exists()


@pytest.mark.parametrize("content", [b"[1]", b"[" * 10_000, b"\xff", b""])
def test_a_model_without_a_readable_configuration_is_said_in_one_line(content, inside, model_folder, data_file, tmp_path):
    model = Path(shutil.copytree(model_folder, tmp_path / "model"))
    (model / "config.json").write_bytes(content)
    for arguments in (["plan", "--hours", 1], ["train", "--dry-run", "--steps", 1, "--data", data_file]):
        done = inside(*arguments, "--model", model)
        assert done.returncode == 2 and "config.json is damaged" in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.slow
def test_an_adapter_is_not_rounded_to_its_bases_type(originals, base):
    """A base in bfloat16: the pairs are those of the file, and so is what the merged kinds multiply with."""
    narrow = small("qwen2").to(torch.bfloat16)
    for kind in KINDS:
        wide, found = folder.read(originals[kind], base), folder.read(originals[kind], narrow)
        for name, pair in wide.pairs.items():
            assert torch.equal(found.pairs[name].A_RI, pair.A_RI) and torch.equal(found.pairs[name].B_OR, pair.B_OR), (kind, name)
            assert found.pairs[name].scale == pair.scale
        for name, merge in wide.merged.items():
            weight = narrow.get_parameter(name)
            assert found.merged[name](weight).dtype == torch.float32
            assert torch.equal(found.merged[name](weight), merge(weight.float())), (kind, name)
