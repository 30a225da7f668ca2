"""A hash of a model's weights on the disk."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from microrl.models import fingerprint
from microrl.models.fingerprint import BLOCK, SPREAD, weights_sha256

WEIGHTS = "model.safetensors"


def test_a_copy_has_the_same_hash_and_each_tensor_counts(model_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprint, "SPREAD", 1)
    folder, own = shutil.copytree(model_folder, tmp_path / "copy"), weights_sha256(str(model_folder))
    assert weights_sha256(str(folder)) == own
    (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
    assert weights_sha256(str(folder)) == own, "of the weights alone"
    tensors = load_file(model_folder / WEIGHTS)
    assert len(tensors) > 20
    for name, tensor in tensors.items():
        first = tensor.clone()
        first.view(-1)[0] += 1
        save_file({**tensors, name: first}, folder / WEIGHTS, metadata={"format": "pt"})
        assert weights_sha256(str(folder)) != own, name
    save_file({**tensors, "more": torch.zeros(1)}, folder / WEIGHTS, metadata={"format": "pt"})
    assert weights_sha256(str(folder)) != own


def test_a_second_copy_of_the_weights_beside_those_that_are_read_counts_for_nothing(tmp_path):
    """Such as Mistral's `consolidated.safetensors`: it may be downloaded later."""
    (tmp_path / "config.json").write_text("{}")
    for name in ("model-00001-of-00002", "model-00002-of-00002"):
        save_file({name: torch.ones(3)}, tmp_path / f"{name}.safetensors")
    files = {f"model-0000{part}-of-00002": f"model-0000{part}-of-00002.safetensors" for part in (1, 2)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    hashes = [weights_sha256(str(tmp_path))]
    save_file({"again": torch.ones(6)}, tmp_path / "consolidated.safetensors")
    hashes.append(weights_sha256(str(tmp_path)))
    save_file({"model-00002-of-00002": torch.zeros(3)}, tmp_path / "model-00002-of-00002.safetensors")
    hashes.append(weights_sha256(str(tmp_path)))
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("size", [100, BLOCK * SPREAD, 2**36])
def test_of_other_files_the_size_and_blocks_all_over_them_count(tmp_path, size):
    """The largest would take a minute to be read."""
    path = tmp_path / "model.gguf"
    with path.open("wb") as file:
        file.truncate(size)
    hashes = {weights_sha256(str(path))}
    for place in (0, size // 2, size - 1 if size <= BLOCK * SPREAD else size - size // SPREAD):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"1")
        hashes.add(weights_sha256(str(path)))
    with path.open("ab") as file:
        file.write(b"1")
    assert len(hashes | {weights_sha256(str(path))}) == 5


def test_of_the_hub_the_newest_commit_counts_by_its_weights(model_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    cache = tmp_path / "models--somebody--tiny"
    (cache / "refs").mkdir(parents=True)
    hashes = []
    for commit, last in (("a" * 40, b"1"), ("b" * 40, b"1"), ("c" * 40, b"2")):
        folder = cache / "snapshots" / commit
        folder.mkdir(parents=True)
        blob = tmp_path / commit
        blob.write_bytes((model_folder / WEIGHTS).read_bytes()[:-1] + last)
        (folder / WEIGHTS).symlink_to(blob)
        shutil.copy(model_folder / "config.json", folder)
        (cache / "refs" / "main").write_text(commit)
        hashes.append(weights_sha256("somebody/tiny"))
    assert hashes[0] == hashes[1] != hashes[2]
