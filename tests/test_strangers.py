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
from safetensors.torch import load_file, save_file
from test_adapters import config_of, small, train

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
    assert "3 are missing, the first `base_model.model.model.layers.1.self_attn.k_proj.ia3_l`" in said
    path = copy("lora")
    rewrite(path, lambda tensors: {name: tensor for name, tensor in tensors.items() if "layers.1" not in name})
    assert "14 are missing, the first `base_model.model.model.layers.1" in refused(path, base)


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
        struct.pack("<Q", len(huge)) + huge + b"1234", struct.pack("<Q", 100_000) + b"[" * 100_000, weights.replace(b"F32", b"F33"),
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
    from microrl.adapters.export import export
    from microrl.parameters import twin

    for kind in KINDS:
        ours = folder.read(originals[kind], base)
        tree = twin(base)
        peft.PeftModel.from_pretrained(tree, str(originals[kind]))
        theirs = export(tree, 1)
        assert ours.pairs.keys() == theirs.pairs.keys() and ours.merged.keys() == theirs.merged.keys(), kind
        for name, pair in theirs.pairs.items():
            assert torch.equal(ours.pairs[name].A_RI, pair.A_RI) and torch.equal(ours.pairs[name].B_OR, pair.B_OR), (kind, name)
            assert ours.pairs[name].scale == pair.scale
        for name, merge in theirs.merged.items():
            weight = base.get_parameter(name)
            assert torch.equal(ours.merged[name](weight), merge(weight)), (kind, name)
