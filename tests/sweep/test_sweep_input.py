"""`microrl sweep` and `compare`: studies that say something wrong, and folders of sweeps that are damaged."""

import json
from pathlib import Path

import pytest

from microrl.errors import UserError
from microrl.files import BadFile
from microrl.sweep import contrast, schedule, table
from microrl.sweep.folder import SweepFolder
from microrl.sweep.grid import Grid, Study


def study(folder, *texts):
    """The study of preset files with these sections `sweep`."""
    names = []
    for number, text in enumerate(texts):
        path = folder / f"study-{number}.toml"
        path.write_text(f"[sweep]\n{text}\n")
        names.append(str(path))
    return names, Study.of(names)


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("ranks = 4", "ranks in the section `sweep` is not a list", "ranks = [...]"),
        ("ranks = [1.5]", "invalid value '1.5' for `sweep.ranks`", "valid integer"),
        ("[sweep.settings]\none = 3", "invalid value '3' for `sweep.settings`", "a table, such as plain = {}"),
        ("ranks = [true]", "invalid value 'True' for `sweep.ranks`", "valid integer"),
        ("seed = [1]", "unknown key `sweep.seed`", "seeds"),
        ("[sweep.vary]\nseed = [1, 2]", "`sweep.vary`: seed: not a full key", "`seeds`"),
        ("[sweep.vary]\n'optim.lr' = 1e-4", '"optim.lr" in the section `sweep.vary` is not a list', "brackets"),
        ("[sweep.vary]\noptim.lr = [1e-4]", "`optim` in the section `sweep.vary` is a table", '"optim.lr" = [...]'),
    ],
)
def test_a_study_that_says_something_wrong_is_refused_by_its_key(tmp_path, text, said, hint):
    with pytest.raises(UserError) as raised:
        study(tmp_path, text)
    assert said in raised.value.message and hint in raised.value.hint


def test_two_studies_vary_the_keys_of_both(tmp_path):
    _, both = study(
        tmp_path, "ranks = [2]\n[sweep.vary]\n'optim.lr' = [1e-4]\n'loss.beta' = [0.0]", "[sweep.vary]\n'loss.beta' = [0.1]"
    )
    assert both.ranks == (2,) and both.vary == {"optim.lr": (1e-4,), "loss.beta": (0.1,)}


def test_a_study_that_is_the_base_of_another_is_varied_as_it_says(tmp_path):
    (tmp_path / "below.toml").write_text("[sweep]\nbase = ['quickstart']\nseeds = [0, 1]\nranks = [1]\n")
    names, above = study(tmp_path, f"base = ['{tmp_path / 'below.toml'}']\nranks = [2]")
    trials = Grid(names, {}, [], above.axes()).trials()
    assert [trial.name for trial in trials] == ["seed0", "seed1"]
    assert {(trial.config.model.name, trial.config.adapter.rank) for trial in trials} == {("quickstart", 2)}


def test_an_empty_list_cancels_what_a_preset_below_varies(tmp_path):
    _, both = study(
        tmp_path, "ranks = [2]\nseeds = [0, 1]\n[sweep.vary]\n'optim.lr' = [1e-4]", "ranks = []\n[sweep.vary]\n'optim.lr' = []"
    )
    assert both.axes() == {"seed": (0, 1)}


def test_tables_can_be_varied_by_a_preset(tmp_path):
    names, found = study(tmp_path, '[sweep.vary]\n"optim.schedule" = [{kind = "cosine"}, {kind = "constant"}]')
    trials = Grid(["quickstart", *names], {}, [], found.axes()).trials()
    assert [trial.config.optim.schedule.kind for trial in trials] == ["cosine", "constant"]


def test_a_table_that_leaves_the_varied_key_alone_is_set():
    trials = Grid(["quickstart"], {}, ["adapter={alpha=8}"], {"rank": [2, 4]}).trials()
    assert [trial.config.adapter.scale for trial in trials] == [4.0, 2.0]


def test_a_study_that_is_its_own_base_is_refused(tmp_path):
    with pytest.raises(UserError, match="leads back to"):
        study(tmp_path, f"base = ['{tmp_path / 'study-0.toml'}']")


def test_a_date_among_the_values_is_refused_as_any_other(tmp_path):
    names, found = study(tmp_path, "[sweep.vary]\n'optim.lr' = [1e-4, 2024-01-01]")
    with pytest.raises(UserError, match="invalid value '2024-01-01' for"):
        Grid(["quickstart", *names], {}, [], found.axes()).trials()


@pytest.mark.parametrize("given", [{"sets": ["adapter.kind=lora"]}, {"axes": {"adapter.kind": ["lora"]}}])
def test_the_rule_rslora_holds_however_the_adapter_was_given(given):
    axes = {**given.get("axes", {}), "alpha": ["fixed", "rslora"]}
    trials = Grid(["quickstart"], {}, given.get("sets", []), axes).trials()
    assert [trial.config.adapter.kind for trial in trials] == ["lora", "rslora"]


def test_many_long_values_make_a_name_that_a_file_can_have(tmp_path):
    keys = ("data.name", "data.system", "data.question", "data.answer", "model.name")
    axes = {key: ["a" * 80, "b" * 80] for key in keys}
    trials = Grid(["quickstart"], {}, [], axes).trials()
    assert len({trial.name for trial in trials}) == len(trials) == 32
    SweepFolder.create(tmp_path / "sweep", "equal", None, trials)


@pytest.fixture
def made(tmp_path):
    return SweepFolder.create(tmp_path / "sweep", "halving", 1.0, Grid(["quickstart"], {}, [], {"rank": [2, 4]}).trials())


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (("trials", 0, "config"), {}, "has no `seed`"),
        (("trials", 0, "config", "budget"), {}, "has no `budget.hours`"),
        (("trials", 0, "config", "adapter"), {"kind": "lora"}, "has no `adapter.targets`"),
        (("trials", 0, "name"), "logs", "a file of the sweep itself"),
        (("trials", 0, "values"), {"rank": 2}, "it has no seed"),
        (("trials", 0, "values"), {"rank": 2, "seed": [0]}, "it has no seed"),
        (("hours",), float("inf"), "`hours`"),
        (("hours",), "1", "`hours`"),
        (("format",), 2, "`format`"),
    ],
)
def test_a_plan_that_lacks_something_is_damaged(made, where, value, said):
    plan = json.loads((made.path / "sweep.json").read_text())
    *path, last = where
    node = plan
    for part in path:
        node = node[part]
    node[last] = value
    (made.path / "sweep.json").write_text(json.dumps(plan))
    with pytest.raises(BadFile) as raised:
        folder = SweepFolder.open(made.path)
        folder.config(folder.plan.trials[0])
    assert said in raised.value.message and "--out DIR" in raised.value.hint


def test_a_sweep_of_an_older_version_can_be_compared_but_not_continued(made):
    """A key that has been added since."""
    plan = json.loads((made.path / "sweep.json").read_text())
    for trial in plan["trials"]:
        del trial["config"]["distill"]
    (made.path / "sweep.json").write_text(json.dumps(plan))
    folder = SweepFolder.open(made.path)
    assert [line.trial.name for line in table.lines(folder)] == ["r2-seed0", "r4-seed0"]
    with pytest.raises(BadFile, match="has no `distill`: another version of microrl wrote it"):
        folder.config(folder.plan.trials[0])


@pytest.mark.parametrize(
    "line",
    [
        {"trial": "", "kind": "rung", "rung": 0},
        {"trial": "", "kind": "rung", "rung": 0, "kept": 3},
        *({"trial": "r2-seed0", "kind": "started", "rung": 0, "hours": hours} for hours in ("x", [1], float("nan"), -5)),
    ],
)
def test_a_damaged_line_of_what_happened_is_left_out(made, line):
    fresh = schedule.next_trial(SweepFolder.open(made.path), 0.0)
    (made.path / "trials.jsonl").write_text(json.dumps(line) + "\n")
    assert schedule.next_trial(SweepFolder.open(made.path), 0.0) == fresh


ENDED = {"status": "done", "steps": 3, "hours_spent": 0.1, "cost_usd": 0.0, "trainable_params": 9, "hours_budget": 0.1}


def with_result(made):
    """The run of a trial that has ended, with an evaluation."""
    run = made.trial("r2-seed0")
    (run / "eval").mkdir(parents=True)
    (run / "eval" / "held-out-after.json").write_text("{}")
    (run / "summary.json").write_text(json.dumps(ENDED))
    return run


@pytest.mark.parametrize(
    "change", [{"hours_spent": float("nan")}, {"cost_usd": float("inf")}, {"steps": 10**400}, {"steps": -1}, {"eval": []}]
)
def test_a_trial_whose_summary_is_damaged_has_no_result(made, change):
    run = with_result(made)
    assert [path for _, path in table.ended(made)] == [run]
    assert table.lines(made)[0].summary.steps == 3
    (run / "summary.json").write_text(json.dumps(ENDED | change))
    assert not table.ended(made) and "summary.json is damaged; to repeat the trial" in table.left_out(made)[0]


def test_a_trial_whose_evaluation_is_damaged_is_to_be_made_again(made):
    run = with_result(made)
    with pytest.raises(BadFile, match=r"held-out-after\.json is damaged") as raised:
        contrast.accuracies(made)
    assert raised.value.hint == f"delete {run}, then: microrl sweep --resume {made.path}"


def test_a_trial_without_an_evaluation_is_left_out_and_named(made):
    (made.trial("r2-seed0") / "final").mkdir(parents=True)
    (made.trial("r2-seed0") / "summary.json").write_text(json.dumps(ENDED))
    # That of the base model is shared among the trials.
    (made.trial("r2-seed0") / "eval").mkdir()
    (made.trial("r2-seed0") / "eval" / "held-out-before.json").write_text("{}")
    said, hint = table.left_out(made)
    assert not table.ended(made) and "r2-seed0 (not evaluated)" in said and "microrl eval" in hint


SETTINGS = """
seeds = [3, 4]
[sweep.settings]
plain = {}
steered = { optim.step_kl = 1e-4, loss.kind = "dapo" }
[sweep.settings.other]
data.name = "numbers-{seed}.jsonl"
"adapter.rank" = 2
"""


def test_a_named_setting_sets_several_keys_at_once(tmp_path):
    names, found = study(tmp_path, f"base = ['quickstart']\n{SETTINGS}")
    trials = {trial.name: trial.config for trial in Grid(names, {}, [], found.axes()).trials()}
    plain, steered, other = (trials[f"{name}-seed4"] for name in ("plain", "steered", "other"))
    assert [*trials] == [f"{name}-seed{seed}" for seed in (3, 4) for name in ("plain", "steered", "other")]
    assert (steered.loss.kind, steered.optim.step_kl, steered.adapter) == ("dapo", 1e-4, plain.adapter)
    assert (Path(other.data.name).name, other.adapter.rank, other.loss) == ("numbers-4.jsonl", 2, plain.loss)
    assert Path(trials["other-seed3"].data.name).name == "numbers-3.jsonl" and plain.loss.kind == "grpo"


def test_a_key_without_an_effect_is_refused_as_by_train(tmp_path):
    names, found = study(tmp_path, "base = ['quickstart']\nseeds = [0]\n[sweep.settings]\nmine = { loss.scale_by_std = false }")
    with pytest.raises(UserError, match="scale_by_std has no effect while"):
        Grid(names, {"distill.teacher": "quickstart"}, [], found.axes()).trials()


def test_a_named_setting_can_say_none(tmp_path):
    (tmp_path / "tools.toml").write_text('env.target = "calculator"\n')
    names, found = study(tmp_path, "[sweep.settings]\ntools = {}\nplain = { env.target = 'none', loss.importance_cap = 'none' }")
    trials = Grid(["quickstart", str(tmp_path / "tools.toml"), *names], {}, [], found.axes()).trials()
    assert [trial.config.env.target for trial in trials] == ["calculator", None]
    assert trials[0].config.loss.importance_cap is not None and trials[1].config.loss.importance_cap is None


@pytest.mark.parametrize(
    ("text", "sets", "said"),
    [
        ("one = { optim.lr = 1e-4 }", ["optim.lr=1e-3"], "optim.lr is both set and varied"),
        (
            "one = { adapter.rank = 2 }\n[sweep.vary]\n'adapter.rank' = [4, 8]",
            [],
            "adapter.rank is varied, and set in [sweep.settings]",
        ),
        ("one = { seed = 3 }", [], "seed is varied, and set in [sweep.settings]"),
        ("one = { optim.rate = 1e-4 }", [], "trial seed0: unknown key `optim.rate`"),
    ],
)
def test_a_setting_that_contradicts_the_rest_is_refused(tmp_path, text, sets, said):
    names, found = study(tmp_path, f"base = ['quickstart']\n[sweep.settings]\n{text}")
    with pytest.raises(UserError) as raised:
        Grid(names, {}, sets, found.axes()).trials()
    assert said in raised.value.message


def test_a_single_seed_can_be_set_for_all_trials(tmp_path):
    names, found = study(tmp_path, "base = ['quickstart']\nranks = [1, 2]")
    assert [trial.config.seed for trial in Grid(names, {}, ["seed=3"], found.axes()).trials()] == [3, 3]
