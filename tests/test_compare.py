"""`microrl compare`: one table over runs and seeds, against numbers worked out by hand."""

import csv
import io
import json
import random
import shutil

import pytest

from microrl.commands.compare import Entry, compare
from microrl.config import resolve
from microrl.evaluation.estimators import pass_at_k
from microrl.evaluation.result import Result, gains
from microrl.run.folder import RunFolder
from microrl.types import Sampling

QUESTIONS = [f"question {number}" for number in range(40)]


def result(skills, seed, ks=(8,)):
    draw = random.Random(seed)
    right = {question: sum(draw.random() < skill for _ in range(16)) for question, skill in zip(QUESTIONS, skills, strict=True)}
    return Result(Sampling(16, 64), 0, ks, right)


def made(root, name, *, seed=0, rank=8, lift=0.2, bench="math500", part=None, cost=7.2, model="Qwen2.5-1.5B-Instruct"):
    """A run folder as training and `microrl eval --base` leave it."""
    path = root / name
    config = resolve((), {"model.name": model, "adapter.rank": rank, "seed": seed, "budget.steps": 3})
    folder = RunFolder(path) if path.exists() else RunFolder.create(path, config.model_dump(mode="json"))
    draw = random.Random(4)
    skills = [draw.betavariate(1, 2) for _ in QUESTIONS]
    base, ours = result(skills, 99), result([min(skill + lift, 1.0) for skill in skills], 100 + seed)
    suffix = f"-{part}" if part else ""
    folder.write_json(
        f"eval/{bench}-n16-t1-p1-m64-s0{suffix}.json", {**ours.to_json(), "base": base.to_json(), **gains(base, ours)}
    )
    folder.write_json("summary.json", {"status": "done", "cost_usd": cost})
    return Entry.of(folder, part), base, ours


def test_runs_that_differ_in_their_seeds_alone_are_one_method(tmp_path):
    runs = [made(tmp_path, f"r8-{seed}", seed=seed) for seed in range(3)]
    other = made(tmp_path, "r64", rank=64, lift=0.0)
    rows = compare([entry for entry, _, _ in runs] + [other[0]], published=False)
    assert [(row.method, row.seeds, row.metric) for row in rows] == [
        ("lora rank 8, grpo", [0, 1, 2], "avg@16"), ("lora rank 64, grpo", [0], "avg@16"),
        ("lora rank 8, grpo", [0, 1, 2], "pass@8"), ("lora rank 64, grpo", [0], "pass@8"),
    ]  # fmt: skip
    first, second = rows[0], rows[1]
    mean = sum(sum(ours.right.values()) for _, _, ours in runs) / 3 / 16 / 40
    base = sum(runs[0][1].right.values()) / 16 / 40
    assert first.value.mean == pytest.approx(mean) and first.base == pytest.approx(base)
    assert first.gain.mean == pytest.approx(mean - base) and first.gain.ci95[0] > 0 and first.p < 0.001
    assert first.usd == 7.2 and first.usd_per_point.mean == pytest.approx(7.2 / (100 * (mean - base)))
    assert first.usd_per_point.ci95 == pytest.approx((7.2 / (100 * first.gain.ci95[1]), 7.2 / (100 * first.gain.ci95[0])))
    assert first.against_first is None and second.against_first.mean == pytest.approx(second.value.mean - mean)
    assert second.against_first.ci95[1] < 0
    by_hand = sum(pass_at_k(16, right, 8) for _, _, ours in runs for right in ours.right.values()) / 3 / 40
    assert rows[2].value.mean == pytest.approx(by_hand)


def test_a_gain_that_may_be_none_has_no_upper_price(tmp_path):
    row = compare([made(tmp_path, "run", lift=0.04)[0]], published=False)[0]
    assert row.gain.ci95[0] < 0 < row.gain.mean and row.usd_per_point.ci95[1] == float("inf")
    assert row.to_json()["usd_per_point"]["ci95"][1] is None


def test_what_is_selected_on_its_benchmark_is_flagged(tmp_path):
    best = made(tmp_path, "run", part="best")[0]
    assert not compare([best], published=False)[0].is_selected, "one checkpoint alone was evaluated"
    final = made(tmp_path, "run", seed=0)[0]
    made(tmp_path, "run", part="step-000100")
    assert compare([best], published=False)[0].is_selected and not compare([final], published=False)[0].is_selected


def test_the_papers_numbers_stand_beside_ours_and_are_marked(tmp_path):
    rows = compare([made(tmp_path, "run", model="Qwen/Qwen2.5-3B-Instruct")[0]])
    published = [row for row in rows if row.source]
    assert len(published) == 12 and {row.source for row in published} == {"published: kl, table 2"}
    row = next(row for row in published if row.method == "LoRA without KL rank 4")
    assert (row.value.mean, row.spread, row.seeds) == (pytest.approx(0.676), pytest.approx(0.021), [])
    assert row.to_json()["value"] == {"mean": pytest.approx(0.676), "ci95": None}
    assert [row.source for row in compare([made(tmp_path, "other", model="gpt2")[0]])] == [None, None]


def test_the_forms(inside, tmp_path):
    runs = [made(tmp_path, f"run-{seed}", seed=seed)[0].run.path for seed in range(2)]
    table = inside("compare", *runs).stdout
    assert "lora rank 8, grpo" in table and "math500 (40)" in table and "published: micro" not in table
    rows = list(csv.DictReader(io.StringIO(inside("compare", *runs, "--as", "csv").stdout)))
    assert rows[0]["method"] == "lora rank 8, grpo" and rows[0]["seeds"] == "0, 1"
    value = inside("compare", *runs, "--json").stdout
    assert f"{100 * json.loads(value)['rows'][0]['value']['mean']:.2f}" in rows[0]["value"]
    lines = inside("compare", *runs, "--as", "markdown").stdout.splitlines()
    assert len({line.count("|") for line in lines}) == 1 and len(lines) == 4
    latex = inside("compare", *runs, "--as", "latex").stdout
    assert latex.startswith(r"\begin{tabular}{l") and r"\$ a point" in latex and "lora rank 8, grpo &" in latex


def test_the_evaluations_of_training_are_compared_as_held_out(tmp_path):
    entry, base, ours = made(tmp_path, "run")
    for name, value in (("before", base), ("after", ours)):
        entry.run.write_json(f"eval/held-out-{name}.json", value.to_json())
    (entry.run.path / "eval" / "math500-n16-t1-p1-m64-s0.json").unlink()
    rows = compare([entry])
    assert [(row.benchmark, row.metric) for row in rows] == [("held-out", "avg@16"), ("held-out", "pass@8")]
    assert rows[0].gain.mean == pytest.approx(gains(base, ours)["paired_gain"]["mean"])


@pytest.mark.parametrize(("arguments", "error"), [
    (["nowhere"], "there is no folder nowhere"),
    (["RUN", "--as", "tabel"], "invalid value 'tabel' for --as"),
    (["EMPTY"], "was not evaluated"),
])  # fmt: skip
def test_bad_input_is_told_with_a_hint(inside, tmp_path, arguments, error):
    places = {"RUN": made(tmp_path, "run")[0].run.path, "EMPTY": tmp_path / "empty"}
    RunFolder.create(places["EMPTY"], resolve((), {"budget.steps": 3}).model_dump(mode="json"))
    done = inside("compare", *(places.get(argument, argument) for argument in arguments))
    assert done.returncode == 2 and error in done.stderr and "hint: " in done.stderr


def test_a_copy_of_a_run_is_no_second_seed(inside, tmp_path):
    run = made(tmp_path, "run", seed=1)[0].run.path
    shutil.copytree(run, tmp_path / "copy")
    done = inside("compare", run, tmp_path / "copy")
    assert done.returncode == 2 and "the same settings and the same seed" in done.stderr and "hint:" in done.stderr
