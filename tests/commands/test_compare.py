"""`microrl compare`: one table over runs and seeds, against numbers worked out by hand."""

import csv
import io
import json
import random
import shutil

import pytest
from made_answers import BOXED, UNBOXED, UNFINISHED, WRONG, store
from made_run import ending

from microrl.commands.compare import Entry, compare, labels_of, names_of
from microrl.config import RunConfig, catalogue, resolve
from microrl.evaluation.estimators import pass_at_k
from microrl.evaluation.result import Result, gains
from microrl.evaluation.seeds import holm
from microrl.run.folder import RunFolder
from microrl.types import Sampling

QUESTIONS = [f"question {number}" for number in range(40)]
SAMPLING = Sampling(16, 64)


def result(skills, seed, ks=(8,), sampling=SAMPLING):
    draw = random.Random(seed)
    right = {question: sum(draw.random() < skill for _ in range(16)) for question, skill in zip(QUESTIONS, skills, strict=True)}
    return Result(sampling, 0, ks, right)


def made(
    root, name, *, seed=0, rank=8, lift=0.2, bench="math500", part=None, cost=7.2, model="Qwen2.5-1.5B-Instruct",
    sampling=SAMPLING, prompts="a" * 64, sha256="d" * 64, data=None, end="", base_model="Qwen2.5-1.5B-Instruct",
    drawn=0, chosen=0, asked=slice(None), clusters=None, deviation=0.0,
):  # fmt: skip
    """A run folder as training and `microrl eval --base` leave it. `data` is a file's name, `end` that of the result's; `drawn`
    and `chosen` are the seeds of the samples and of the questions, of which `asked` were."""
    path = root / name
    config = resolve((), {"model.name": model, "adapter.rank": rank, "seed": seed, "budget.steps": 3})
    folder = RunFolder(path) if path.exists() else RunFolder.create(path, config.model_dump(mode="json"))
    draw = random.Random(4)
    skills = [draw.betavariate(1, 2) for _ in QUESTIONS]
    base = result(skills, 99 + 7 * drawn, sampling=sampling)
    moved = lift + deviation * random.Random(seed).gauss(0, 1)
    ours = result([min(max(skill + moved, 0.0), 1.0) for skill in skills], 100 + seed + 7 * drawn, sampling=sampling)
    for one in (base, ours):
        one.seed, one.question_seed, one.clusters = drawn, chosen, clusters or {}
        one.right = dict(list(one.right.items())[asked])
    about = {
        "data": {"name": data or bench, "rows": 40 if data else catalogue.benchmark(bench).rows["test"], "sha256": sha256},
        "prompts_sha256": prompts,
    }
    suffix = (f"-{part}" if part else "") + end
    stem = f"{bench}-n16-t{sampling.temperature:g}-p{sampling.top_p:g}-m64-s{drawn}{f'-qs{chosen}' if chosen else ''}{suffix}"
    other = {**base.to_json(), "model": base_model, "adapter_sha256": None}
    folder.write_json(f"eval/{stem}.json", {**ours.to_json(), **about, "base": other, **gains(base, ours)})
    folder.write_json("summary.json", ending(cost_usd=cost))
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
    assert first.gain.mean == pytest.approx(mean - base) and first.gain.ci95[0] > 0 and first.p < 0.05
    assert first.usd == 7.2 and first.usd_per_point.mean == pytest.approx(7.2 / (100 * (mean - base)))
    assert first.usd_per_point.ci95 == pytest.approx((7.2 / (100 * first.gain.ci95[1]), 7.2 / (100 * first.gain.ci95[0])))
    assert first.against_first is None and second.against_first.mean == pytest.approx(second.value.mean - mean)
    assert second.against_first.ci95[1] < 0
    by_hand = sum(pass_at_k(16, right, 8) for _, _, ours in runs for right in ours.right.values()) / 3 / 40
    assert rows[2].value.mean == pytest.approx(by_hand)


def test_a_run_that_started_from_another_one_is_another_method(tmp_path):
    entries = []
    for name, start, seed in (("first", None, 0), ("from-a", "runs/a", 0), ("from-b", "runs/b", 1)):
        entry = made(tmp_path, name, seed=seed)[0]
        tree = entry.run.config() | {"init": start}
        entry.run.write_json("config.json", tree)
        entries.append(Entry.of(entry.run, None))
    methods = {row.method: row.seeds for row in compare(entries, published=False)}
    assert methods == {"lora rank 8, grpo, init=none": [0], "lora rank 8, grpo, init=RUN": [0, 1]}


def test_a_method_is_named_by_what_set_would_be_given(tmp_path):
    entries = []
    for name, optim in (("steered", {"step_kl": 1e-3}), ("fixed", {"step_kl": None, "lr": 1e-5})):
        run = made(tmp_path, name)[0].run
        run.write_json("config.json", run.config() | {"optim": run.config()["optim"] | optim})
        entries.append(Entry.of(run, None))
    _, fixed = labels_of([RunConfig.model_validate(entry.run.config()) for entry in entries])
    assert "optim.step_kl=none" in fixed


def test_a_label_names_a_kind_and_not_its_defaults():
    """What was set for one of them is there, beside it the kind."""
    wanted = ("grpo", {}), ("dapo", {}), ("gspo", {"loss.clip_low": 0.1}), ("grpo", {"loss.clip_high": 0.3})
    labels = labels_of([resolve(("quickstart",), {"loss.kind": kind, **given}) for kind, given in wanted])
    ends = [label.partition(", ")[2] for label in labels]
    assert ends == ["grpo", "dapo", "gspo, loss.clip_low=0.1", "grpo, loss.clip_high=0.3"]


def test_two_runs_of_one_seed_that_started_from_different_runs_are_two_methods(tmp_path):
    entries = []
    for start, seed in (("a-0", 0), ("a-1", 1), ("c/b-0", 0), ("c/b-1", 1)):
        run = made(tmp_path, f"of-{seed}-from-{start.replace('/', '-')}", seed=seed)[0].run
        run.write_json("config.json", run.config() | {"init": f"runs/{start}"})
        entries.append(Entry.of(run, None))
    methods = {row.method: row.seeds for row in compare(entries, published=False)}
    assert methods == {"lora rank 8, grpo, init=a-{seed}": [0, 1], "lora rank 8, grpo, init=c/b-{seed}": [0, 1]}


def test_runs_without_a_problem_in_common_are_told_what_to_do(inside, tmp_path):
    one, other = (made(tmp_path, name, rank=rank)[0].run.path for name, rank in (("one", 8), ("other", 64)))
    elsewhere = made(tmp_path, "elsewhere", rank=64, bench="aime24", sha256="e" * 64)[0].run.path
    half = made(tmp_path, "half", rank=64, asked=slice(20), chosen=1)[0].run.path
    rest = made(tmp_path, "rest", asked=slice(20, None))[0].run.path
    what_to_do = "To compare them, evaluate each on the same unseen problems: microrl eval RUN --data FILE."
    done = inside("compare", one, elsewhere)
    assert f"on the same data with the same settings. {what_to_do}" in done.stderr and done.returncode == 0
    assert json.loads(inside("compare", one, elsewhere, "--json").stdout)["answer"]["pairs"] == []
    assert f"have no problem in common. {what_to_do}" in inside("compare", rest, half).stderr
    assert what_to_do not in inside("compare", one, other).stderr + inside("compare", one).stderr


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
    value = json.loads(inside("compare", *runs, "--json").stdout)["rows"][0]
    for name, estimate in (("value", value["value"]), ("gain", value["gain"])):
        ends = ("low", "high") if name == "value" else ("gain_low", "gain_high")
        found = [float(rows[0][column]) for column in (name, *ends)]
        assert found == pytest.approx([100 * number for number in (estimate["mean"], *estimate["ci95"])], rel=1e-4)
    assert rows[0]["benchmark"] == "math500" and rows[0]["questions"] == "40" and rows[0]["against_first_high"] == ""
    assert float(rows[0]["usd_per_point_low"]) < float(rows[0]["usd_per_point"]) and float(rows[0]["p"]) < 0.05
    assert "settings" not in rows[0] and value["settings"]["samples"] == 16
    lines = inside("compare", *runs, "--as", "markdown").stdout.splitlines()
    assert len({line.count("|") for line in lines}) == 1 and len(lines) == 4
    latex = inside("compare", *runs, "--as", "latex").stdout
    assert latex.startswith(r"\begin{tabular}{l") and r"\$ a point" in latex and "lora rank 8, grpo &" in latex


def test_a_benchmark_with_several_settings_names_them_in_every_form(inside, tmp_path):
    run = made(tmp_path, "run")[0].run.path
    made(tmp_path, "run", sampling=Sampling(16, 64, 0.6, 0.95))
    made(tmp_path, "run", bench="aime24")
    texts = ["n16 T1.0 p1.0 64 tok", "n16 T0.6 p0.95 64 tok"]
    for form in ("table", "markdown", "csv", "latex"):
        text = inside("compare", run, "--as", form, "--no-published").stdout
        assert "settings" in text and all(text.count(one) == 2 for one in texts), form
    rows = csv.DictReader(io.StringIO(inside("compare", run, "--as", "csv").stdout))
    assert {row["benchmark"]: row["settings"] == "" for row in rows} == {"math500": False, "aime24": True}
    stored = json.loads(inside("compare", run, "--json", "--no-published").stdout)["rows"]
    found = {(row["benchmark"], row["settings"]["temperature"], row["settings"]["seed"]) for row in stored}
    assert found == {("math500", 1.0, 0), ("math500", 0.6, 0), ("aime24", 1.0, 0)}


@pytest.mark.parametrize(("asked", "told"), [({"prompts": "b" * 64}, "prompts aaaaaa"), ({"sha256": "e" * 64}, "data dddddd")])
def test_seeds_that_were_asked_differently_are_not_averaged(tmp_path, asked, told):
    """The file's name is the same, and so are the questions' texts."""
    first, _, ours = made(tmp_path, "seed-0")
    second = made(tmp_path, "seed-1", seed=1, **asked)[0]
    other = made(tmp_path, "r64", rank=64)[0]
    rows = [row for row in compare([first, second, other], published=False) if row.metric == "avg@16"]
    assert sorted((row.method, row.seeds) for row in rows) == [
        ("lora rank 64, grpo", [0]), ("lora rank 8, grpo", [0]), ("lora rank 8, grpo", [1]),
    ]  # fmt: skip
    one = next(row for row in rows if row.seeds == [0] and "rank 8" in row.method)
    assert one.value.mean == pytest.approx(sum(ours.right.values()) / 16 / 40)
    assert len({row.settings for row in rows}) == 2 and one.settings.endswith(told)
    assert next(row for row in rows if "64" in row.method).against_first.mean == 0, "seed 0 gave the same answers"


def test_methods_are_paired_if_they_were_asked_the_same_or_render_prompts_themselves(tmp_path):
    first = made(tmp_path, "first")[0]
    for name, options, is_paired in (
        ("other prompts", {"rank": 64, "prompts": "b" * 64}, False),
        ("other model", {"model": "gpt2", "prompts": "b" * 64}, True),
    ):
        second = made(tmp_path, name, **options)[0]
        row = compare([first, second], published=False)[1]
        assert (row.against_first is not None, row.settings == "") == (is_paired, is_paired), name


def test_of_one_evaluation_the_longest_counts_once_and_each_base_has_its_row(tmp_path):
    """The names of their files differ."""
    entry, _, ours = made(tmp_path, "run")
    path = next((entry.run.path / "eval").glob("*.json"))
    cut = json.loads(path.read_text())
    cut["right"] = dict(list(cut["right"].items())[:20])
    cut["questions"] = 20
    path.with_name(f"{path.stem}-cut.json").write_text(json.dumps(cut))
    row = compare([entry], published=False)[0]
    assert (row.questions, row.seeds) == (40, [0]) and row.value.mean == pytest.approx(sum(ours.right.values()) / 16 / 40)
    made(tmp_path, "run", end="-vs-other-best", base_model="other")
    rows = compare([entry], published=False)
    assert [row.settings.partition(" over ")[2].strip() for row in rows[:2]] == ["Qwen2.5-1.5B-Instruct", "other"]


@pytest.mark.parametrize(("data", "shown"), [
    ("/data/gsm8k-new.jsonl", "gsm8k-new"), ("/data/gsm8k.jsonl", "gsm8k"), ("me/gsm8k", "gsm8k"), ("/data/a.5", "a.5"),
])  # fmt: skip
def test_a_file_has_its_own_name_and_no_papers_numbers(tmp_path, data, shown):
    model = "Qwen/Qwen2.5-3B-Instruct"
    rows = compare([made(tmp_path, "run", bench=shown, data=data, model=model)[0]])
    assert {(row.benchmark, row.source) for row in rows} == {(shown, None)}
    rows = compare([made(tmp_path, "real", bench="gsm8k", model=model)[0]])
    assert any(row.source for row in rows), "the benchmark itself has them"


def test_the_training_split_of_a_benchmark_has_no_papers_numbers(tmp_path):
    entry = made(tmp_path, "run", bench="gsm8k", data="gsm8k", model="Qwen/Qwen2.5-3B-Instruct")[0]
    assert {row.source for row in compare([entry])} == {None}


@pytest.mark.parametrize("spoil", [
    lambda text: text[:100],
    lambda text: text.replace('"samples": 16', '"samples": 1'),
    lambda text: json.dumps(json.loads(text) | {"base": {"right": {}}}),
])  # fmt: skip
def test_a_damaged_evaluation_is_to_be_made_again(inside, tmp_path, spoil):
    run = made(tmp_path, "run")[0].run.path
    path = next((run / "eval").glob("*.json"))
    path.write_text(spoil(path.read_text()))
    done = inside("compare", run)
    assert done.returncode == 2 and f"{path} is damaged" in done.stderr
    hint = done.stderr.partition("hint: ")[2]
    assert path.name in hint and f"microrl eval {run}" in hint and "download" not in hint


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


def test_the_p_value_is_that_of_the_interval(tmp_path):
    """Seeds that vary by much: the questions alone would be sure of a gain of nothing."""
    seen = set()
    for number in range(12):
        group = [made(tmp_path / str(number), f"{seed}", seed=10 * number + seed, lift=0.0, deviation=0.15) for seed in range(3)]
        for row in compare([entry for entry, _, _ in group], published=False):
            low, high = row.gain.ci95
            assert (row.p < 0.05) == (low > 0 or high < 0)
            seen.add(row.p < 0.05)
    assert False in seen


def test_several_comparisons_are_adjusted_for_their_number(inside, tmp_path):
    entries = [made(tmp_path, str(rank), rank=rank, lift=lift)[0] for rank, lift in ((2, 0.0), (4, 0.04), (8, 0.05), (16, 0.3))]
    rows = [row for row in compare(entries, published=False) if row.metric.startswith("avg@")]
    firsts = [row.p_first for row in rows]
    assert firsts[0] is None and all((p < 0.05) != (row.against_first.ci95[0] <= 0 <= row.against_first.ci95[1])
                                     for p, row in zip(firsts[1:], rows[1:], strict=True))  # fmt: skip
    assert [row.p_first_adjusted for row in rows] == holm(firsts) and [row.p_adjusted for row in rows] == holm(
        [row.p for row in rows]
    )
    assert rows[3].p_first_adjusted == pytest.approx(3 * firsts[3]) and rows[2].p_first_adjusted > firsts[2]
    paths = [entry.run.path for entry in entries]
    table = inside("compare", *paths, "--no-published").stdout
    assert "p first" in table and f"{firsts[2]:.2g} ({rows[2].p_first_adjusted:.2g})" in table
    (line, *_) = csv.DictReader(io.StringIO(inside("compare", *paths[2:], "--as", "csv", "--no-published").stdout))
    assert line["p_adjusted"] and line["p_first_adjusted"] == ""


def test_clusters_widen_every_interval_and_are_told(inside, tmp_path):
    clusters = {question: str(place // 4) for place, question in enumerate(QUESTIONS)}
    entry = made(tmp_path, "run", clusters=clusters)[0]
    other = made(tmp_path, "independent")[0]
    row, alone = (compare([one], published=False)[0] for one in (entry, other))
    assert (row.questions, row.clusters, alone.clusters) == (40, 10, 40)
    assert row.value.mean == alone.value.mean and row.p != alone.p
    assert row.value.ci95 != alone.value.ci95 and row.gain.ci95 != alone.gain.ci95
    done = inside("compare", entry.run.path)
    assert "math500 (40 in 10 clusters)" in done.stdout
    assert json.loads(inside("compare", entry.run.path, "--json").stdout)["rows"][0]["clusters"] == 10


def test_two_sampling_seeds_of_one_run_are_paired_and_told(inside, tmp_path):
    entry = made(tmp_path, "run")[0]
    made(tmp_path, "run", drawn=1)
    rows = [row for row in compare([entry], published=False) if row.metric == "avg@16"]
    assert [row.sampling_seeds for row in rows] == [(0,), (1,)] and [row.settings[-6:] for row in rows] == ["seed 0", "seed 1"]
    assert rows[0].against_first is None and rows[1].paired == 40
    assert rows[1].against_first.ci95[0] < 0 < rows[1].against_first.ci95[1]
    done = inside("compare", entry.run.path)
    assert "math500: the sampling seed varies (0, 1), which changes no problem" in done.stderr


def test_runs_that_were_sampled_with_a_seed_each_are_one_method(tmp_path):
    """And another method is paired with that of the same sampling seeds, if there is one."""
    runs = [made(tmp_path, f"run-{seed}", seed=seed, drawn=seed)[0] for seed in range(2)]
    (row, _) = compare(runs, published=False)
    assert (row.seeds, row.sampling_seeds, row.settings) == ([0, 1], (0, 1), "")
    other = made(tmp_path, "r64", rank=64, drawn=1)[0]
    row = next(row for row in compare([*runs, other], published=False) if row.metric == "avg@16" and "64" in row.method)
    assert row.against_first is not None and row.paired == 40


def test_other_questions_are_paired_where_they_are_shared(inside, tmp_path):
    first = made(tmp_path, "first", asked=slice(0, 25))[0]
    second = made(tmp_path, "second", rank=64, chosen=3, prompts="b" * 64, asked=slice(15, 40))[0]
    row = next(row for row in compare([first, second], published=False) if "64" in row.method)
    assert (row.questions, row.paired) == (25, 10) and row.settings.endswith("problem seed 3")
    done = inside("compare", first.run.path, second.run.path)
    assert "the question seed varies (0, 3): differences use the shared problems" in done.stderr
    assert "| difference over 10 problems |" in inside("compare", first.run.path, second.run.path, "--as", "markdown").stdout


def test_the_parts_of_the_gain_have_columns(tmp_path, inside):
    """Of 4 questions with one answer each: a box was learned, an answer to its end, and in one of two runs a right answer."""
    runs = []
    for seed, last in enumerate((BOXED, WRONG)):
        runs.append(tmp_path / f"run-{seed}")
        config = resolve((), {"seed": seed, "budget.steps": 3})
        folder = RunFolder.create(runs[-1], config.model_dump(mode="json"))
        sides = {"before": [[UNBOXED], [UNFINISHED], [WRONG], [BOXED]], "after": [[BOXED], [BOXED], [last], [BOXED]]}
        for side, texts in sides.items():
            folder.write_json(f"eval/held-out-{side}.json", store(runs[-1] / f"eval/held-out-{side}.jsonl.gz", texts).to_json())
        folder.write_json("summary.json", ending())
    done = inside("compare", *runs, "--as", "csv")
    (row,) = csv.DictReader(io.StringIO(done.stdout))
    assert {name: float(row[f"gain_{name}"]) for name in ("form", "length", "answer")} == {
        "form": 25, "length": 25, "answer": 12.5,
    }  # fmt: skip
    assert (float(row["gain"]), float(row["base"]), float(row["base_lenient"])) == (62.5, 25, 50)
    (row,) = json.loads(inside("compare", *runs, "--json").stdout)["rows"]
    assert row["gain_parts"] == {"form": 0.25, "length": 0.25, "answer": 0.125} and row["base_lenient"] == 0.5
    ends = row["gain_parts_ci95"]
    assert all(low < mean < high for mean, (low, high) in zip(row["gain_parts"].values(), ends.values(), strict=True))
    cells = [(100 * mean, *(100 * end for end in ends[name])) for name, mean in row["gain_parts"].items()]
    texts = [f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]" for mean, low, high in cells]
    assert " | ".join(texts) in inside("compare", *runs, "--as", "markdown").stdout
    assert "  ".join(texts) in inside("compare", *runs).stdout, "the second table"


def test_settings_of_two_sweeps_with_one_name_are_one_method_only_if_they_are_equal(tmp_path):
    """A sweep names its settings by what it varies, and not by what its presets or --set fix."""
    for sweep in ("first", "second"):
        (tmp_path / sweep).mkdir()
    ends = [(sweep, seed, rank) for sweep, seeds in (("first", (0, 1)), ("second", (2, 3))) for seed in seeds for rank in (4, 8)]
    same, other = [], []
    for sweep, seed, rank in ends:
        entry = made(tmp_path / sweep, f"r{rank}-seed{seed}", seed=seed, rank=rank)[0]
        same.append(Entry.of(entry.run, None, f"lora rank {rank}"))
        if sweep == "second":
            tree = entry.run.config()
            entry.run.write_config(tree | {"loss": resolve((), {"loss.kind": "dapo"}).loss.model_dump(mode="json")})
        other.append(Entry.of(entry.run, None, f"lora rank {rank}"))
    assert set(names_of(same)) == {"lora rank 4", "lora rank 8"}
    assert set(names_of(other)) == {f"lora rank {rank} ({sweep})" for rank in (4, 8) for sweep in ("first", "second")}
    assert [row.seeds for row in compare(other, published=False) if row.metric == "avg@16"] == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_the_base_is_of_the_questions_that_the_value_is_of(tmp_path):
    entry, base, ours = made(tmp_path, "one")
    path = next((tmp_path / "one" / "eval").glob("*.json"))
    tree = json.loads(path.read_text())
    ours.right = dict(list(ours.right.items())[:10])
    path.write_text(json.dumps({**tree, **ours.to_json()}))
    row = compare([entry], published=False)[0]
    assert row.questions == 10 and row.base == pytest.approx(sum(list(base.right.values())[:10]) / 160)
    assert row.value.mean - row.base == pytest.approx(row.gain.mean)
