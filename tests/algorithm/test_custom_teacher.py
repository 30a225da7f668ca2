"""A loss of another package that has a teacher."""

import pytest
from random_models import random_model, with_adapter
from whole_runs import rows

from microrl import algorithm
from microrl.algorithm.batch import Batch, Row
from microrl.config import resolve
from microrl.errors import UserError

TAUGHT = {"distill.teacher": "quickstart"}
SOURCE = """
from microrl.algorithm import grpo
from microrl.algorithm import loss as terms


class Anchored(grpo.Algorithm):
    needs_teacher = True

    def objective(self, tokens):
        surrogate_BT, clipped_BT = super().objective(tokens)
        return surrogate_BT + self.config.options["weight"] * terms.k3(tokens.teacher_BT, tokens.new_BT), clipped_BT


class Alone(grpo.Algorithm):
    pass


class Drawn(grpo.Algorithm):
    def objective(self, tokens):
        surrogate_BT, clipped_BT = super().objective(tokens)
        return surrogate_BT + 0.1 * (tokens.new_BT - tokens.engine_BT) ** 2, clipped_BT
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of a name of its own, in the current folder."""
    name = f"losses_of_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return name


def made(module, kind, **flags):
    return algorithm.make(resolve((), {"loss.kind": f"{module}:{kind}", **flags}))


def test_a_teacher_goes_with_a_class_that_needs_one(module):
    assert made(module, "Anchored", **TAUGHT, **{"distill.top_k": 8}).needs_teacher
    assert not made(module, "Alone").needs_teacher
    with pytest.raises(UserError, match="Anchored` needs a teacher"):
        made(module, "Anchored")
    with pytest.raises(UserError, match=r"--teacher has no effect with `.*:Alone`"):
        made(module, "Alone", **{"distill.teacher": "quickstart"})
    for flags, said in (
        ({"distill.top_k": 8}, "distill.top_k has no effect with --loss custom"),
        ({"distill.teacher": "quickstart", "sft.only": True, "sft.steps": 1}, "no effect in a run of SFT alone"),
    ):
        with pytest.raises(UserError) as caught:
            made(module, "Anchored", **flags)
        assert said in caught.value.message and caught.value.hint


def test_an_objective_from_elsewhere_sees_completions_whose_advantage_is_0(module, monkeypatch):
    """Its terms need not be multiplied with the advantage. Where they are, the class can say so."""
    of = made(module, "Drawn")
    policy = with_adapter(random_model("qwen2"))
    policy._algorithm = of
    written = [(group, (7 + group + number,) * 5) for group in range(2) for number in range(4)]
    all_rows = tuple(Row((5 + group, 6), ids, (-5.0,) * 5, 0.0, True, group) for group, ids in written)
    alone = policy.update(Batch(all_rows, 2, 0), 1e-3)
    assert alone.skipped == 0 and alone.grad_norm > 0
    monkeypatch.setattr(type(of), "every_row_has_gradient", False)
    assert policy.update(Batch(all_rows, 2, 1), 1e-3).skipped == 1
    assert not made(module, "Alone").every_row_has_gradient and made(module, "Anchored", **TAUGHT).every_row_has_gradient


def test_a_run_with_a_custom_loss_and_a_teacher(module, inside, tiny_arguments, wares, tmp_path):
    """With group advantages of 0 its k3 term is the whole loss."""
    out = tmp_path / "run"
    loss = ["--loss", f"{module}:Anchored", "--set", "loss.options.weight=0.5", "--set", f"loss.path={tmp_path}"]
    done = inside("train", *tiny_arguments, "--steps", 2, "--teacher", wares / "done", *loss, "--out", out)
    assert done.returncode == 0, done.stderr
    assert all(row["distill/kl"] is not None and row["update/skipped"] == 0 and row["loss"] > 0 for row in rows(out))
    refused = inside("train", *tiny_arguments, "--steps", 2, "--teacher", wares / "done", "--loss", f"{module}:Alone",
                     "--set", f"loss.path={tmp_path}", "--out", tmp_path / "refused")  # fmt: skip
    assert refused.returncode == 2 and "--teacher has no effect with" in " ".join(refused.stderr.split()), refused.stderr
