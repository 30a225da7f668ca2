"""What a run's report says of its gain: which kinds of wrong answers became rarer, and what its control gained."""

import json
from pathlib import Path

import pytest
from made_answers import BOXED, UNBOXED, UNFINISHED, WRONG, store
from made_run import ending, make

from microrl.evaluation.result import gains
from microrl.report import figures
from microrl.report.history import History
from microrl.report.page import page
from microrl.report.transcripts import own_gain_parts
from microrl.report.verdict import control_said, judge
from microrl.report.words import gain_origin
from microrl.run.control import run_of, shuffled


@pytest.fixture(autouse=True)
def one_figure(monkeypatch):
    """Drawing takes most of a page's time."""
    monkeypatch.setattr(figures, "AXES", {"step": "training steps"})
    monkeypatch.setattr(figures, "FIGURES", [spec for spec in figures.FIGURES if spec.key == "gain-parts"])


FORM, LENGTH, CANNOT = ([[one] * 2] * 30 + [[BOXED] * 2] * 10 + [[WRONG] * 2] * 10 for one in (UNBOXED, UNFINISHED, WRONG))
TRAINED = [[BOXED] * 2] * 35 + [[WRONG] * 2] * 15


def answered(folder, base, trained, *, is_stored):
    """The run's own evaluations; without `is_stored` as before the parts of the gain were stored with them."""
    paths = [folder / "eval" / f"held-out-{side}" for side in ("before", "after")]
    results = [store(path.with_suffix(".jsonl.gz"), texts) for path, texts in zip(paths, (base, trained), strict=True)]
    for path, result in zip(paths, results, strict=True):
        path.with_suffix(".json").write_text(json.dumps(result.to_json()))
    ended = json.loads((folder / "summary.json").read_text())
    ended["eval"]["paired_gain"] = gains(*results)["paired_gain"]
    (folder / "summary.json").write_text(json.dumps(ended))
    if is_stored:
        parts = own_gain_parts(folder, None, [])
        after = paths[1].with_suffix(".json")
        after.write_text(json.dumps(json.loads(after.read_text()) | {"gain_parts": parts.model_dump(mode="json")}))
    return History.load(folder)


@pytest.mark.parametrize(
    ("base", "said", "advice"),
    [
        (FORM, "60.0 points fewer are right but not in the asked form, 0.0 points fewer are cut off", "data.system"),
        (LENGTH, "0.0 points fewer are right but not in the asked form, 60.0 points fewer", "--max-tokens 32,128"),
        (CANNOT, None, None),
    ],
)
def test_a_gain_that_is_mostly_form_or_length_is_told(tmp_path, base, said, advice):
    found = answered(make(tmp_path / "run", steps=30), base, TRAINED, is_stored=True)
    told = [one for one in judge(found).findings if one.kind == "mostly form or length"]
    assert len(told) == (said is not None)
    if told:
        assert said in told[0].message and "most of the gain of 50.0 points is form" in told[0].message
        assert "10.0 points more are wrong" in told[0].message
        assert advice in told[0].advice and not told[0].is_serious


@pytest.mark.parametrize("is_stored", [True, False])
def test_the_page_says_where_the_gain_comes_from(tmp_path, monkeypatch, is_stored):
    """Also that of a run that has not stored it."""
    from microrl.report.figures import _gain_parts

    spec = figures.Spec("gain-parts", "Where from", "points", (), draw=_gain_parts, has_own_axis=True)
    monkeypatch.setattr(figures, "FIGURES", [spec])
    text = page([answered(make(tmp_path / "run", steps=30), FORM, TRAINED, is_stored=is_stored)])
    assert "Where does the gain come from?" in text and 'data-figure="gain-parts"' in text
    assert "In any form, the base is right in 80.0 % of its answers; in the asked form, the trained model in 70.0 %" in text
    assert "the base 50.0 % (20 of 40), the trained model 70.0 % (70 of 100)" in text
    assert "<b>mostly form or length</b>" in text


def test_an_extended_run_does_not_show_the_parts_of_its_earlier_gain(tmp_path):
    folder = make(tmp_path / "run", steps=30)
    assert "Where does the gain come from?" in page([answered(folder, FORM, TRAINED, is_stored=True)])
    ended = json.loads((folder / "summary.json").read_text())
    ended["eval"]["paired_gain"]["mean"] += 0.02
    (folder / "summary.json").write_text(json.dumps(ended))
    found = History.load(folder)
    assert found.gain_parts is None and "Where does the gain come from?" not in page([found])
    (folder / "summary.json").unlink()
    found = History.load(folder)
    assert found.gain_parts is None and "Where does the gain come from?" not in page([found])


def test_a_loss_is_told_as_one(tmp_path):
    """Also on the page: answers that lost their box, and others that now run out of tokens."""
    found = answered(make(tmp_path / "run", steps=30), TRAINED, FORM, is_stored=True)
    said = " ".join(gain_origin(found.gain_parts))
    assert said.startswith("Accuracy changed by -50.0 points") and "not in the asked form, 0.0 % before and 60.0 % after" in said
    assert "(-60.0 points" in said and "wrong, 30.0 % before and 20.0 % after training (+10.0 points" in said
    assert "mostly form or length" not in {one.kind for one in judge(found).findings}


def test_the_page_has_the_gains_that_eval_has_stored(tmp_path):
    folder = make(tmp_path / "run", steps=30)
    found = answered(folder, FORM, TRAINED, is_stored=True)
    kept = json.loads((folder / "eval/held-out-after.json").read_text())
    (folder / "eval/held-out-m4096.json").write_text(json.dumps(kept))
    text = page([History.load(folder)])
    assert "<b>run, held-out-m4096</b>" in text and text.count("Accuracy changed by +50.0 points") == 2
    assert "<b>run</b>" not in page([found]), "the only one needs no name"


CONTROL = {"steps": 20, "eval": {"paired_gain": {"mean": 0.01, "ci95": [-0.02, 0.04]}}}


def with_control(tmp_path, *, config=None, budget=None, **changes):
    """What the page of a run says of its control."""
    folder, beside = make(tmp_path / "run"), make(tmp_path / "run-shuffled")
    tree = shuffled(json.loads((folder / "config.json").read_text()))
    tree["budget"] |= budget or {}
    (beside / "config.json").write_text(json.dumps(tree | (config or {})))
    (beside / "summary.json").write_text(json.dumps(ending(**CONTROL) | changes))
    return " ".join(control_said(History.load(folder)))


def test_a_control_is_told_with_the_budget_of_either(tmp_path):
    said = with_control(tmp_path / "1")
    assert "(run-shuffled, 20 steps in 30 minutes; this run made 20 steps in 30 minutes) changed accuracy by +0.010" in said
    assert "no fair comparison" not in said and "SFT" not in said
    longer = with_control(tmp_path / "2", budget={"steps": 40}, status="interrupted", steps=33)
    assert "interrupted after 33 steps in" in longer and "no fair comparison" in longer
    for number, other in enumerate(({"seed": 1}, {"reward": {}}, {"budget": 3})):
        assert with_control(tmp_path / f"other {number}", config=other) == "", "another run that only has such a name"


def test_the_current_folder_has_a_control_too(tmp_path, monkeypatch):
    with_control(tmp_path)
    monkeypatch.chdir(tmp_path / "run")
    assert judge(History.load(Path())).sentences == judge(History.load(tmp_path / "run")).sentences
    assert run_of(tmp_path / "run-shuffled") == tmp_path / "run" and run_of(Path()) is None
    monkeypatch.chdir(tmp_path / "run-shuffled")
    assert run_of(Path()) == tmp_path / "run"


def test_what_a_damaged_folder_says_of_the_gain_changes_nothing(tmp_path):
    folder = make(tmp_path / "run", steps=30)
    answered(folder, FORM, TRAINED, is_stored=True)
    after = folder / "eval/held-out-after.json"
    after.write_text(json.dumps(json.loads(after.read_text()) | {"gain_parts": {"gain": "<b>", "base": 7}}))
    (folder / "eval/held-out-before.json").write_text("{")
    found = History.load(folder)
    assert found.gain_parts is None
    text = page([found])
    assert "Where does the gain come from?" not in text and "held-out-before.json" in text
