"""`microrl inspect`: what training has done to the weights, of every adapter, measured on the exported update."""

import json
import math
import shutil

import numpy as np
import pytest
from command_line import in_process
from safetensors.torch import load_file

from microrl.config import check
from microrl.config.adapters import KINDS


@pytest.fixture(scope="module")
def trained(tiny_arguments, tmp_path_factory):
    """Runs of two steps by the kind of their adapter."""

    made = {}

    def run(kind):
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp("inspected") / kind
            sets = ["--set", "optim.lr=0.01", "--set", "checkpoints.keep_every=1", "--set", "evaluation.problems=0",
                    "--set", "reward.overlong.buffer=11"]  # fmt: skip
            arguments = [*tiny_arguments, "--adapter", kind, "--steps", 2, "--out", made[kind], *sets]
            if kind in ("full", "ia3", "ln"):
                at = arguments.index("--rank")
                del arguments[at : at + 2]
            done = in_process("train", *arguments)
            assert done.returncode == 0, done.stderr
        return made[kind]

    return run


def inspected(inside, *arguments):
    done = inside("inspect", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def difference(run, base, module):
    """The change of a module's weight, from the files: the base's, and the adapter's in PEFT's format."""
    tensors = load_file(run / "final" / "adapter_model.safetensors")
    settings = json.loads((run / "final" / "adapter_config.json").read_text())
    name = f"base_model.model.{module}"
    scale = settings["lora_alpha"] / settings["r"]
    weight = load_file(base / "model.safetensors")[f"{module}.weight"].double().numpy()
    return weight, scale * (tensors[f"{name}.lora_B.weight"].double() @ tensors[f"{name}.lora_A.weight"].double()).numpy()


def test_the_numbers_are_numpys(inside, trained, model_folder):
    found = inspected(inside, trained("lora"))
    assert {row["kind"] for row in found["norms"]} >= {"q_proj", "o_proj", "up_proj"} and found["spectra"]
    for row in found["spectra"]:
        weight, update = difference(trained("lora"), model_folder, row["module"])
        left, singular, right = np.linalg.svd(weight, full_matrices=False)
        strength = np.abs(np.einsum("ok,oi,ki->k", left, update, right))
        index = row["index"]
        np.testing.assert_allclose(row["singular"], singular[index], rtol=1e-4)
        np.testing.assert_allclose(row["c"], strength[index], rtol=1e-2, atol=1e-3 * strength.max())
        np.testing.assert_allclose(row["p"], row["c"] / strength.sum(), rtol=1e-2, atol=1e-4)
        np.testing.assert_allclose(row["energy"], (np.cumsum(strength**2) / (strength**2).sum())[index], atol=1e-3)
        (norm,) = (one["norm"] for one in found["norms"] if one["module"] == row["module"])
        assert norm == pytest.approx(np.linalg.norm(update), rel=1e-4)
    assert [row["step"] for row in found["through"]][-2:] == [1, 2] and found["through"][-1]["norm"] > 0
    assert json.loads((trained("lora") / "inspect.json").read_text())["norms"] == found["norms"]


@pytest.mark.slow
@pytest.mark.cases(one_of_each=3)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_adapter_can_be_inspected(inside, trained, kind, tmp_path):
    run = trained(kind)
    done = inside("inspect", run, "--json", "--layers", "0,-1", "--figures", tmp_path / "figures")
    if kind == "ln":  # only the gains of norms are trained
        assert done.returncode == 2 and "changes no weight matrix" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["norms"] and all(math.isfinite(row["norm"]) and row["relative"] >= 0 for row in found["norms"])
    assert sum(row["norm"] for row in found["norms"]) > 0, "the run has changed something"
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".svg", ".png"}
    config = check(json.loads((run / "config.json").read_text()))
    assert config.adapter.kind == kind


@pytest.mark.slow
def test_an_adapter_in_pefts_format(inside, trained, tmp_path):
    done = inside("export", trained("lora"), "--out", tmp_path / "mine")
    assert done.returncode == 0, done.stderr
    found = inspected(inside, tmp_path / "mine", "--projections", "q_proj,down_proj", "--layers", "0")
    assert [row["module"].rpartition(".")[2] for row in found["spectra"]] == ["q_proj", "down_proj"]
    assert found["norms"] == inspected(inside, trained("lora"))["norms"] and found["start"] is None and not found["through"]
    assert not (tmp_path / "mine" / "inspect.json").exists()
    done = inside("inspect", tmp_path / "mine", "--html")
    assert done.returncode == 2 and "--figures" in done.stderr


@pytest.mark.slow
@pytest.mark.one_of_each
def test_the_report_has_the_figures(inside, trained, monkeypatch):
    from microrl.report import figures

    monkeypatch.setattr(figures, "FIGURES", ())
    done = inside("inspect", trained("lora"), "--html")
    assert done.returncode == 0, done.stderr
    text = (trained("lora") / "report.html").read_text()
    for key in ("spectrum", "energy", "singular", "norms", "similarity", "growth", "turning"):
        assert f'data-figure="{key}"' in text, key
    assert "$\\math" not in text, "mathematics is not parsed, and must not be shown as such"


def test_bad_input(inside, trained, tmp_path):
    for arguments, said in (
        (("--layers", "9"), "there is no layer 9"),
        (("--layers", "x"), "whole numbers"),
        (("--projections", "q_prj"), "q_proj"),
        (("--figures", "/proc/no"), "cannot write"),
    ):
        done = inside("inspect", trained("lora"), *arguments)
        assert done.returncode == 2 and said in done.stderr, (arguments, done.stderr)
    assert inside("inspect", tmp_path).returncode == 2
    assert inside("inspect", "kl-bound", "--clip", "valu").returncode == 2
    broken = tmp_path / "broken"
    shutil.copytree(trained("lora"), broken)
    for path in (broken / "checkpoints").glob("*/adapter*"):
        path.write_bytes(b"x")
    assert inspected(inside, broken)["through"] == []


@pytest.mark.slow
def test_the_study_of_the_digits_by_the_command(inside, tmp_path):
    pytest.importorskip("sklearn")
    done = inside("inspect", "kl-bound", "--seeds", 1, "--ranks", "2,4", "--json", "--figures", tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["rank"] for row in found["ranks"]] == [2, 4] and all(row["holds"] == 1 for row in found["ranks"])
    assert (tmp_path / "kl-bound.svg").is_file() and (tmp_path / "kl-bound.png").is_file()
