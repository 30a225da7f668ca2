"""`microrl plan --starts`: every figure is the estimator's or a published one."""

import json
import shlex

import pytest
from planned import planned

from microrl.commands import published
from microrl.config import known_models
from microrl.plan.source import CONFIGS
from microrl.plan.starting_models import MIN_STEPS

DAY = ("plan", "--starts", "--gpu", "a40", "--hours", "24")


def test_each_start_is_planned_as_a_run_from_it_would_be(inside):
    listed = json.loads(inside(*DAY, "--json").stdout)
    starts = {one["model"]: one for one in listed["starts"]}
    nemotron = starts["OpenMath-Nemotron-1.5B"]
    assert (nemotron["max_completion_tokens"], nemotron["prompts_per_step"]) == (15_360, 8)
    plan = planned(
        budget__hours=24.0, model__name="OpenMath-Nemotron-1.5B",
        sets=["sampling.max_completion_tokens=15360", "sampling.prompts_per_step=8"],
    )  # fmt: skip
    assert (nemotron["steps"], nemotron["step_s"], nemotron["cost_usd"]) == (plan.steps, plan.step_s, plan.cost_usd)
    assert [line["percent"] for line in nemotron["published"] if line["benchmark"] == "aime24"] == ["58.75"]
    best = [published.best(name, "aime24") for name in starts]
    assert best[:3] == [73.8, 69.69, 58.75] and best == sorted(best, key=lambda one: -(one or -1.0))
    assert starts["Qwen2.5-3B-Instruct"]["limit_source"] is None and starts["Qwen2.5-3B-Instruct"]["published"] == []
    # The largest batch with enough steps: twice the prompts would leave too few.
    math = starts["Qwen2.5-7B-Instruct"]
    twice = planned(budget__hours=24.0, model__name="Qwen2.5-7B-Instruct", sets=["sampling.prompts_per_step=32"])
    assert math["prompts_per_step"] == 16 and math["steps"] >= MIN_STEPS > twice.steps
    assert {*starts, *listed["too_large"], *listed["impossible"]} == set(known_models.MODELS) and listed["unknown_shape"] == []
    hybrid = starts["LFM2.5-1.2B-Instruct"]
    plan = planned(budget__hours=24.0, model__name="LFM2.5-1.2B-Instruct", sets=["sampling.prompts_per_step=64"])
    assert (hybrid["prompts_per_step"], hybrid["steps"], hybrid["step_s"]) == (64, plan.steps, plan.step_s)


@pytest.mark.slow
@pytest.mark.one_of_each
def test_what_is_set_is_kept_and_what_does_not_fit_is_named(inside):
    done = inside("plan", "micro-r256", "--starts", "--gpu", "t4", "--json", "--set", "sampling.max_completion_tokens=1024")
    listed = json.loads(done.stdout)
    assert {one["max_completion_tokens"] for one in listed["starts"]} == {1024}
    assert {one["limit_source"] for one in listed["starts"]} == {None}
    assert (
        "Qwen2.5-7B-Instruct" in listed["too_large"] and "rank 256 is above 192" in listed["impossible"]["SmolLM2-135M-Instruct"]
    )


def test_a_model_that_is_too_short_is_not_called_too_large(inside):
    listed = json.loads(inside("plan", "best-24h", "--starts", "--gpu", "a40", "--json").stdout)
    assert "exceed the model's 4096 positions" in listed["impossible"]["Qwen2.5-Math-1.5B"] and listed["too_large"] == []


def test_a_known_model_without_a_shape_is_named(inside, monkeypatch):
    monkeypatch.delitem(CONFIGS, "gemma-4-E4B-it")
    done = inside("plan", "--starts", "--gpu", "a40")
    assert "Not compared, because their exact shape is not known: gemma-4-E4B-it." in done.stdout


def test_the_page_says_where_each_figure_stands(inside):
    done = inside(*DAY)
    row = next(line for line in done.stdout.splitlines() if line.startswith("OpenMath-Nemotron-1.5B"))
    assert "cc-by-4.0" in row and "58.75 justrl" in row and "15,360  justrl" in row
    assert "aime24, justrl: avg@32, README of github.com/thunlp/JustRL, 31,744 tokens" in done.stdout
    assert "justrl: train/examples/justrl/run_scaling_ssh_distill.sh" in done.stdout and "not measured on this GPU" in done.stdout
    assert (
        "to train the first of these that makes 150 steps: microrl train --model OpenMath-Nemotron-1.5B --hours 24" in done.stderr
    )
    assert "rather results than starts: JustRL-Nemotron-1.5B, JustRL-DeepSeek-1.5B, DeepScaleR-1.5B-Preview." in done.stdout


@pytest.mark.parametrize(
    ("arguments", "is_said"),
    [
        (["micro-r64", "--gpu", "a40"], True),
        (["micro-r64", "--gpu", "a40", "--json"], False),
        (["micro-r64", "--gpu", "a40", "--model", "JustRL-Nemotron-1.5B"], False),
        (["micro-r64", "--gpu", "a40", "--model", "Qwen2.5-3B-Instruct"], False),  # nothing is published of it
        (["micro-r64", "--gpu", "a40", "--hours", "0.5"], False),  # too few steps
        (["ortho-code", "--gpu", "a40", "--hours", "24", "--model", "Qwen2.5-1.5B-Instruct"], False),  # no mathematics
    ],
)
def test_a_better_start_that_fits_is_mentioned(inside, arguments, is_said):
    done = inside("plan", *arguments)
    said = (
        "OpenMath-Nemotron-1.5B fits the same GPU and budget, and has a published accuracy on AIME24 of 58.75 % (avg@32, "
        "justrl); Qwen2.5-1.5B-Instruct has 2.5 % (pass@1, micro)"
    ) in done.stderr
    assert done.returncode == 0 and said is is_said and ("fits the same GPU" in done.stderr) is is_said


def test_a_mean_accuracy_is_no_pass_at_k():
    lines = published.untrained("agentica-org/DeepScaleR-1.5B-Preview")
    assert {line["metric"] for line in published.accuracies(lines, "aime24")} == {"pass@1", "avg@32"}
    assert any(line["metric"] == "pass@8" for line in lines) and published.best("Qwen2.5-7B-Instruct", "aime24") is None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--detect", "0.03"], "--starts and --detect are two different tables"),
        (["--teacher", "Qwen2.5-7B-Instruct"], "--starts compares models without a teacher"),
    ],
)
def test_what_starts_cannot_compare_is_refused(inside, more, said):
    done = inside("plan", "--starts", "--gpu", "a40", *more)
    assert done.returncode == 2 and said in done.stderr


def test_the_command_is_one_that_train_takes(inside):
    """A preset's buffer of the overlong penalty would pass the model's limit, and a model that was set would win."""
    done = inside("plan", "ortho-1.5b", "--starts", "--gpu", "a40", "--hours", "6", "--set", "model.name=Qwen3-1.7B")
    words = shlex.split(done.stderr.rpartition("150 steps: microrl ")[2])
    assert "reward.overlong.buffer=896" in words and "model.name=Qwen3-1.7B" not in words
    tried = inside(*words, "--dry-run", "--engine", "transformers")
    assert "must be below" not in tried.stderr, tried.stderr


def test_a_cache_that_fills_a_card_is_not_called_too_large(inside):
    """The L4's room has more digits than a peak has."""
    listed = json.loads(inside("plan", "best-24h", "--starts", "--gpu", "l4", "--json").stdout)
    assert "exceed the model's 4096 positions" in listed["impossible"]["Qwen2.5-Math-1.5B"]
    assert "Qwen2.5-Math-1.5B" not in listed["too_large"]


def test_a_start_keeps_the_tools_that_were_asked_for(inside):
    done = inside(*DAY, "--env", "calculator")
    assert done.returncode == 0 and "microrl train --env calculator --model" in done.stderr
