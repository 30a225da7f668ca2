"""The guard: each rule at its limit, what follows from a verdict, recorded runs replayed, and runs that really collapse."""

import json
import random
from pathlib import Path

import pytest
from places import FIXTURES

from microrl.config.oversight import GuardConfig
from microrl.report.updates import advise
from microrl.run import metrics
from microrl.train.guard import Guard, GuardVerdict
from microrl.train.guard_rules import RULES, SCHEDULED

HEALTHY = {
    "reward/accuracy": 0.5, "groups/useful": 0.75, "length/mean": 100.0, "length/truncated": 0.1, "policy/entropy": 0.3,
    "policy/kl_sampler": 1e-3, "policy/grad_norm": 0.1, "update/skipped": 0, "loss": -0.01,
    "optim/lr": 1e-3, "policy/step_kl": 2e-4,
}  # fmt: skip
AT_THE_LIMIT = [
    ("entropy_low", {"policy/entropy": 0.0029}, {"policy/entropy": 0.0031}, "rollback", 8),
    ("entropy_drop", {"policy/entropy": 0.0149}, {"policy/entropy": 0.0151}, "warn", 8),
    ("entropy_rise", {"policy/entropy": 0.91}, {"policy/entropy": 0.89}, "rollback", 8),
    (
        "entropy_teacher",
        {"policy/entropy": 0.029, "distill/teacher_entropy": 0.3},
        {"policy/entropy": 0.031, "distill/teacher_entropy": 0.3},
        "rollback",
        8,
    ),
    ("useful_groups", {"groups/useful": 0.009}, {"groups/useful": 0.011}, "stop", 30),
    ("truncated", {"length/truncated": 0.41}, {"length/truncated": 0.39}, "rollback", 8),
    ("length_drift", {"length/mean": 601.0}, {"length/mean": 599.0}, "warn", 8),
    ("length_drift", {"length/mean": 16.6}, {"length/mean": 16.7}, "warn", 8),
    ("kl_sampler", {"policy/kl_sampler": 0.101}, {"policy/kl_sampler": 0.099}, "rollback", 4),
    ("rate", {"optim/lr": 0.091, "policy/step_kl": 1e-9}, {"optim/lr": 0.089, "policy/step_kl": 1e-9}, "stop", 2),
    ("rate", {"optim/lr": 0.2, "policy/step_kl": 9e-7}, {"optim/lr": 0.2, "policy/step_kl": 2e-6}, "stop", 2),
    ("grad_norm", {"policy/grad_norm": 1.2}, {"policy/grad_norm": 0.99}, "rollback", 4),
    ("grad_norm", {"policy/grad_norm": None, "update/skipped": 1, "loss": None}, {}, "rollback", 4),
]
COLLAPSING = ["--rank", 64, "--set", "adapter.alpha=64", "--set", "optim.lr=1.3e-2"]
FIXTURE = json.loads((FIXTURES / "guard_runs.json").read_text())


def row(**changes) -> dict:
    return metrics.row(HEALTHY | changes)


def feed(guard: Guard, count: int = 1, **changes) -> list[GuardVerdict | None]:
    return [guard.check(row(**changes)) for _ in range(count)]


def started(**rules) -> Guard:
    """A guard that has seen a hundred healthy steps."""
    guard = Guard(GuardConfig(**rules))
    assert feed(guard, 100) == [None] * 100
    return guard


def recorded(name: str) -> list[dict]:
    run = FIXTURE[name]
    return [metrics.row(dict(zip(run, values, strict=True))) for values in zip(*run.values(), strict=True)]


def test_a_rate_that_climbs_is_seen_after_rollbacks_have_lowered_it():
    guard = started(useful_groups=None)
    for rollback in (1, 2):
        assert feed(guard, 4, **{"policy/kl_sampler": 0.2})[-1].action == "rollback", rollback
    assert feed(guard, 2, **{"optim/lr": 0.2 / 4, "policy/step_kl": 9e-7}) == [None, None], "16 times as much at the full rate"
    found = feed(guard, 2, **{"optim/lr": 0.2 / 4, "policy/step_kl": 1e-9})
    assert found[0] is None and (found[1].rule, found[1].action) == ("rate", "stop")


@pytest.mark.parametrize(
    ("lr", "moved", "scheduled", "is_seen"),
    [(0.2 / 4, 1e-9, 0.25, True), (0.2 / 4, 1e-9, 1.0, False), (0.2 / 4, 9e-7, 0.25, False), (0.0, 0.0, 0.0, False)],
    ids=["peak too high", "peak in bounds", "moves at the peak", "rate of 0"],
)
def test_a_rate_that_climbs_is_seen_when_the_schedule_has_lowered_it(lr, moved, scheduled, is_seen):
    guard = started(useful_groups=None)
    seen = [guard.check(row(**{"optim/lr": lr, "policy/step_kl": moved}) | {SCHEDULED: scheduled}) for _ in range(2)]
    assert [verdict.rule for verdict in seen if verdict] == ["rate"] * is_seen


@pytest.mark.parametrize("rule, past, short_of, action, patience", AT_THE_LIMIT)
def test_a_rule_triggers_when_its_patience_is_spent_and_not_before(rule, past, short_of, action, patience):
    guard = started(**({} if rule == "useful_groups" else {"useful_groups": None}))
    assert feed(guard, patience - 1, **past) == [None] * (patience - 1)
    feed(guard, **short_of)  # one good step, and the count starts again
    assert feed(guard, patience - 1, **past) == [None] * (patience - 1)
    verdict = guard.check(row(**past))
    assert (verdict.rule, verdict.action) == (rule, action)
    assert str(patience) in verdict.message

    off = started(**{rule: None})
    silent = [*feed(started(), 3 * patience, **short_of), *feed(off, 3 * patience, **past)]
    assert rule not in {verdict.rule for verdict in silent if verdict}


def test_every_rule_of_the_configuration_is_judged():
    assert GuardConfig.model_fields.keys() - {"patience", "action"} == RULES.keys()


def test_one_factor_scales_every_patience_and_one_key_overrides_every_action():
    slow, eager, only_warns = started(patience=2.0), started(patience=0.25, action="stop"), started(action="warn")
    drifted, truncated = {"length/mean": 900.0}, {"length/truncated": 0.9}
    assert [number for number, verdict in enumerate(feed(slow, 16, **truncated), 1) if verdict] == [16]
    assert [verdict and verdict.action for verdict in feed(eager, 2, **drifted)] == [None, "stop"]
    assert [verdict and verdict.action for verdict in feed(only_warns, 9, **truncated)] == [None] * 7 + ["warn", None]


def test_accuracy_is_averaged_and_measured_against_its_best_average():
    def validate(*accuracies: float) -> list[str | None]:
        guard, found = started(), []
        for accuracy in accuracies:
            found += feed(guard, 1, **{"validate/accuracy": accuracy})
            assert feed(guard, 9) == [None] * 9
        return [verdict and verdict.action for verdict in found]

    assert validate(0.1, 0.6, 0.6, 0.41, 0.41, 0.41) == [None] * 6
    assert validate(0.6, 0.6, 0.39, 0.39) == [None, None, None, "rollback"]
    assert validate(0.6, 0.6, 0.1, 0.55) == [None, None, "rollback", None]  # 0.35 on average: deep enough for one to do
    assert validate(0.9, 0.3, 0.4) == [None, "rollback", None]  # 0.6 on average, after a start of 0.9
    assert validate(0.31, 0.0, 0.0) == [None, None, "rollback"]  # 0.155, then 0: it has fallen at once
    assert validate(0.6, 0.6, 0.1, 0.1, 0.1) == [None, None, "rollback", None, "rollback"]  # an average is of two again


@pytest.mark.slow
def test_a_policy_that_stands_still_is_hardly_ever_rolled_back_for_noise():
    """200 runs of 50 validations of 64 problems x 2 answers: of spread difficulty, and at the worst, all right half the time."""
    draw = random.Random(0)

    def rolled_back(problems: list[float]) -> int:
        count = 0
        for _ in range(200):
            guard = Guard(GuardConfig())
            right = (sum((draw.random() < p) + (draw.random() < p) for p in problems) for _ in range(50))
            count += any([guard.check(row(**{"validate/accuracy": number / 128})) for number in right])
        return count

    assert rolled_back([(number + 0.5) / 64 for number in range(64)]) == 0
    assert rolled_back([0.5] * 64) <= 4


def test_what_a_row_does_not_say_counts_neither_way():
    guard = started()
    idle = {"policy/grad_norm": None, "update/skipped": 1, "groups/useful": 0.0, "loss": 0.0}
    feed(guard, 3, **{"policy/grad_norm": 5.0})
    assert feed(guard, 2, **idle) == [None] * 2
    assert guard.check(row(**{"policy/grad_norm": 5.0})).rule == "grad_norm"


@pytest.mark.parametrize("useful", [0.0, 0.1])
def test_a_batch_without_a_lesson_is_no_explosion(useful):
    """Dynamic sampling may leave out the groups that differ: the update is skipped with useful groups, and the loss is 0."""
    idle = {"policy/grad_norm": None, "update/skipped": 1, "groups/useful": useful, "loss": 0.0}
    found = [(number, one.rule, one.action) for number, one in enumerate(feed(started(), 10, **idle), 1) if one]
    assert found == [(3, "useful_groups", "warn"), (10, "useful_groups", "stop")]


def test_a_teacher_teaches_groups_of_equal_rewards():
    """Steps without an update still count."""
    equal = {"groups/useful": 0.0, "distill/kl": 0.3}
    assert not any(feed(started(), 90, **equal))
    assert acted(feed(started(), 10, **IDLE | equal)) == [(3, "warn"), (10, "stop")]


def test_a_student_may_be_as_sure_as_its_teacher():
    """An entropy that would be a collapse by itself is none where the teacher's is at most twice it."""
    low = {"policy/entropy": 0.002, "distill/kl": 0.01}
    assert not any(feed(started(), 90, **low, **{"distill/teacher_entropy": 0.004}))
    rules = {verdict.rule for verdict in feed(started(), 8, **low, **{"distill/teacher_entropy": 0.005}) if verdict}
    assert rules == {"entropy_low"}


def test_a_gradient_that_is_not_finite_is_told_from_a_large_one():
    broken = {"policy/grad_norm": None, "update/skipped": 1, "loss": float("nan"), "policy/entropy": float("nan")}
    verdict = feed(started(), 4, **broken)[-1]
    assert verdict.value is None and "not finite" in verdict.message
    verdict = feed(started(), 4, **{"policy/grad_norm": 1.2})[-1]
    assert 10 < verdict.value <= 12 and "times its usual size" in verdict.message


IDLE = {"policy/grad_norm": None, "update/skipped": 1, "groups/useful": 0.0, "loss": 0.0}
CAUSES = {
    "truncated": ({"reward/accuracy": 0.0, "length/truncated": 1.0}, "100% of the completions are cut"),
    "wrong": ({"reward/accuracy": 0.0, "reward/format": 1.0}, "0% of the answers are right, so no answer"),
    "format": ({"reward/accuracy": 0.0, "reward/format": 0.0}, "0% of the completions have the format"),
    "right": ({"reward/accuracy": 1.0}, "100% of the answers are right"),
    "equal": ({"reward/accuracy": 0.5}, "the same reward"),
    "no reward": ({"reward/mean": None, "reward/left_out": 128}, "gave no value"),
    "gradient": ({"loss": None, "groups/useful": 0.8}, "the gradient is not finite"),
}


def acted(found: list[GuardVerdict | None]) -> list[tuple[int, str]]:
    """(step from 1, action) of every verdict about steps without an update."""
    return [(number, verdict.action) for number, verdict in enumerate(found, 1) if verdict and verdict.rule == "useful_groups"]


@pytest.mark.parametrize("cause", CAUSES)
def test_a_run_that_makes_no_update_is_warned_at_3_and_stopped_at_10(cause):
    changes, words = CAUSES[cause]
    found = feed(Guard(GuardConfig(grad_norm=None)), 10, **IDLE | changes)
    assert acted(found) == [(3, "warn"), (10, "stop")]
    assert {verdict.cause for verdict in found if verdict} == {cause}
    assert words in found[2].message and "3 steps in a row" in found[2].message and "10 steps" in found[9].message
    with_all_rules = feed(Guard(GuardConfig()), 10, **IDLE | changes)
    assert with_all_rules[9].action == "stop" and with_all_rules[9].cause == cause


def test_what_a_run_without_updates_may_be_told():
    wrong = IDLE | CAUSES["wrong"][0]
    assert acted(feed(Guard(GuardConfig(action="warn")), 40, **wrong)) == [(3, "warn")]
    assert acted(feed(Guard(GuardConfig(patience=2.0)), 40, **wrong))[:2] == [(6, "warn"), (20, "stop")]
    assert feed(Guard(GuardConfig(useful_groups=None)), 40, **wrong) == [None] * 40
    dead = IDLE | CAUSES["no reward"][0]
    guard = Guard(GuardConfig())
    assert acted([guard.check(row(**dead), has_failed=True) for _ in range(2)]) == [(2, "stop")]


def test_a_run_without_updates_goes_on_counting_when_it_is_resumed():
    first, second = Guard(GuardConfig()), Guard(GuardConfig())
    feed(first, 7, **IDLE)
    second.restore(json.loads(json.dumps(first.state())))
    assert acted(feed(second, 3, **IDLE)) == [(3, "stop")]


def test_one_update_ends_the_count():
    guard = Guard(GuardConfig())
    for _ in range(5):
        assert all(verdict is None or verdict.action == "warn" for verdict in feed(guard, 9, **IDLE))
        assert feed(guard) == [None]


def test_a_rate_of_0_and_equal_rewards_with_a_kl_term_are_updates():
    """A control run at learning rate 0 has gradients; a KL term has one without differing rewards."""
    assert feed(Guard(GuardConfig()), 20, **{"groups/useful": 0.5, "optim/lr": 0.0}) == [None] * 20
    assert feed(Guard(GuardConfig()), 20, **{"groups/useful": 0.0, "policy/grad_norm": 0.01}) == [None] * 20


def test_where_right_answers_earn_nothing_they_are_no_cause():
    guard = Guard(GuardConfig())
    guard.counts_accuracy = False
    assert feed(guard, 3, **IDLE | CAUSES["wrong"][0])[2].cause == "equal"


@pytest.mark.parametrize(("cause", "then"), [("right", "stop"), ("wrong", "rollback"), ("truncated", "rollback")])
def test_a_run_that_has_learned_is_stopped_when_it_has_solved_its_data_and_rolled_back_when_it_has_collapsed(cause, then):
    found = acted(feed(started(truncated=None, entropy_low=None), 20, **IDLE | CAUSES[cause][0]))
    assert found[:2] == [(3, "warn"), (10, then)]
    if then == "rollback":
        assert found[2:] == [(20, "stop")], "the best weights have not helped"


@pytest.mark.parametrize(("useful", "then"), [((1.0, 0.1), "rollback"), ((0.125,), "stop"), ((0.06,) * 30, "stop")])
def test_a_policy_that_has_collapsed_at_once_is_told_from_one_that_never_could(useful, then):
    """However many steps without an update have passed since."""
    guard = Guard(GuardConfig(grad_norm=None))
    for fraction in useful:
        feed(guard, 1, **{"groups/useful": fraction, "reward/accuracy": 0.1})
    *_, last = filter(None, feed(guard, 10, **IDLE | CAUSES["wrong"][0]))
    assert (last.action, last.has_collapsed) == (then, then == "rollback")


def test_a_longer_limit_is_no_advice_for_a_policy_that_has_become_random():
    cut = {"length/truncated": 0.9}
    (calm,) = filter(None, feed(started(), 8, **cut, **{"policy/entropy": 0.3}))
    (random_,) = filter(None, feed(started(), 8, **cut, **{"policy/entropy": 0.8}))
    assert (calm.rule, calm.has_collapsed, random_.rule, random_.has_collapsed) == ("truncated", False, "truncated", True)
    said = [advise("truncated", lambda key: 32, has_collapsed=one.has_collapsed) for one in (calm, random_)]
    assert "max_completion_tokens (now 32)" in said[0] and "max_completion_tokens" not in said[1]


def test_what_never_could_be_learned_from_is_only_warned_of():
    found = feed(Guard(GuardConfig()), 100, **{"groups/useful": 0.0, "reward/accuracy": 0.0})
    assert [(number, verdict.action) for number, verdict in enumerate(found, 1) if verdict] == [(30, "warn")]


def test_a_solved_model_may_be_sure_of_itself():
    assert feed(started(), 50, **{"policy/entropy": 1e-4, "reward/accuracy": 0.95}) == [None] * 50
    assert any(feed(started(), 50, **{"policy/entropy": 1e-4, "reward/accuracy": 0.85}))


def test_entropy_that_starts_at_almost_nothing_may_rise_to_a_little():
    guard = Guard(GuardConfig())
    assert feed(guard, 30, **{"policy/entropy": 0.01}) == [None] * 30
    assert feed(guard, 30, **{"policy/entropy": 0.29}) == [None] * 30
    assert feed(guard, 8, **{"policy/entropy": 0.31})[-1].rule == "entropy_rise"


def test_a_truncated_start_is_not_held_against_a_run():
    guard = Guard(GuardConfig())
    assert feed(guard, 50, **{"length/truncated": 0.8}) == [None] * 50


def test_the_strongest_action_is_taken():
    past = {"length/mean": 601.0, "length/truncated": 0.9}
    assert [verdict and verdict.rule for verdict in feed(started(), 8, **past)] == [None] * 7 + ["truncated"]


def test_interventions_halve_the_rate_until_they_are_spent():
    guard = started()
    collapsed = {"length/truncated": 0.9}
    for number, factor in enumerate((0.5, 0.25, 0.125)):
        assert guard.lr_factor == 0.5**number
        *silent, verdict = feed(guard, 8, **collapsed)
        assert silent == [None] * 7 and verdict.action == "rollback"
        assert guard.lr_factor == factor
        assert feed(guard, 5) == [None] * 5
    *silent, verdict = feed(guard, 8, **collapsed)
    assert silent == [None] * 7 and verdict.action == "stop" and "3 times" in verdict.message
    assert guard.lr_factor == 0.125


def test_a_warning_is_given_once_until_it_has_passed():
    guard = started()
    found = feed(guard, 40, **{"length/mean": 900.0}) + feed(guard) + feed(guard, 8, **{"length/mean": 900.0})
    assert [number for number, verdict in enumerate(found, 1) if verdict] == [8, 49]
    assert guard.lr_factor == 1.0


def verdicts(rows: list[dict], cut: int | None = None) -> list[tuple[int, GuardVerdict]]:
    """What a guard says to these rows; with `cut` another guard goes on from there with the first one's saved state."""
    guard, found = Guard(GuardConfig()), []
    for number, values in enumerate(rows):
        if number == cut:
            saved, guard = json.dumps(guard.state()), Guard(GuardConfig())
            guard.restore(json.loads(saved))
        if verdict := guard.check(values):
            found.append((number, verdict))
    return found


# Steps from recorded quickstarts at 100 and 300 times their rate. 300: no answer is right from step 5, no gradient from step 7.
# 100, seed 1: accuracy falls from 0.6 to 0.1 at step 105. 100, seed 2: it stops ending its answers at step 51.
@pytest.mark.parametrize(
    "name, step, rule", [("lr300-s0", 13, "truncated"), ("lr100-s1", 109, "accuracy"), ("lr100-s2", 58, "truncated")]
)
def test_recorded_collapses_are_seen(name, step, rule):
    number, verdict = next(found for found in verdicts(recorded(name)) if found[1].action != "warn")
    assert (number, verdict.rule, verdict.action) == (step, rule, "rollback")


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in ("lr300-s0", "lr100-s1") else pytest.mark.slow) for name in sorted(set(FIXTURE))],
)
def test_a_restored_guard_goes_on_as_if_never_interrupted(name):
    rows = recorded(name)
    whole = verdicts(rows)
    assert all(verdicts(rows, cut) == whole for cut in range(len(rows)))


def test_a_recorded_healthy_run_is_left_alone():
    assert verdicts(recorded("lr1-s0")) == []


def guarded_run(microrl, out: Path, *arguments: object) -> tuple[list[dict], list[dict]]:
    """The guard's events and the metrics of a quickstart, which must have ended as the guard's last word demands."""
    # On a busy machine the preset's three minutes would end a run before its steps.
    done = microrl(
        "train", "quickstart", "--out", out, "--steps", 120, "--hours", 1, "--set", "evaluation.problems=0", *arguments
    )
    summary = json.loads((out / "summary.json").read_text())
    rows, events = (
        [json.loads(line) for line in (out / name).read_text().splitlines()] if (out / name).exists() else []
        for name in ("metrics.jsonl", "events.jsonl")
    )
    verdicts = [event for event in events if event["kind"] == "guard" and event["action"] != "warn"]
    print([(event["step"], event["rule"], event["action"], event["value"], event["limit"]) for event in verdicts])
    if any(event["action"] == "stop" for event in verdicts):
        assert (done.returncode, summary["status"]) == (3, "stopped"), done.stderr
        assert verdicts[-1]["action"] == "stop" and verdicts[-1]["step"] == rows[-1]["step"]
    else:
        assert (done.returncode, summary["status"]) == (0, "done"), done.stderr
    return verdicts, rows


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_collapse_is_stopped_and_its_hours_are_given_back(microrl, tmp_path):
    """At 100 times the rate a LoRA of rank 64 is right no more after four steps. With no intervention allowed, the run ends."""
    out, bounds = tmp_path / "run", ["--steps", 120, "--hours", 0.1]
    verdicts, rows = guarded_run(microrl, out, *bounds, *COLLAPSING, "--set", "guard.action=stop")
    assert [verdict["action"] for verdict in verdicts] == ["stop"] and verdicts[0]["collapsed"]
    assert len(rows) <= 40
    summary = json.loads((out / "summary.json").read_text())
    assert summary["hours_given_back"] == pytest.approx(0.1 - summary["hours_spent"], abs=0.001) and summary["hours_spent"] < 0.05


@pytest.mark.slow
def test_a_collapse_is_rolled_back_and_the_run_goes_on(microrl, tmp_path):
    """From the best weights and at a lower rate it learns."""
    verdicts, rows = guarded_run(microrl, tmp_path / "run", "--steps", 120, *COLLAPSING)
    first = verdicts[0]
    assert first["action"] == "rollback" and first["step"] <= 40
    before, after = rows[first["step"] : first["step"] + 2]
    assert before["reward/accuracy"] < 0.05 and after["reward/accuracy"] > 0.15  # the restored weights
    assert after["optim/lr"] == pytest.approx(before["optim/lr"] / 2)


@pytest.mark.slow
def test_a_steered_run_goes_back_to_the_rate_of_the_restored_weights(microrl, tmp_path):
    """To half of it: what steering has learned of the weights that are gone says nothing of the restored ones."""
    verdicts, rows = guarded_run(microrl, tmp_path / "run", "--steps", 12, "--set", "guard.grad_norm=1e-3")
    first, rates = verdicts[0]["step"], [row["optim/lr"] for row in rows]
    assert verdicts[0]["rule"] == "grad_norm" and not 0.9 < rates[first] / rates[0] < 1.1, "steering has changed it"
    assert rates[first + 1] == pytest.approx(rates[0] / 2) and rows[first + 1]["policy/step_kl"] is not None
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    said = next(event["message"] for event in events if event["kind"] == "rolled back")
    assert said == f"restored the weights from before the first step and halved the learning rate to {rates[0] / 2:g}"


@pytest.mark.slow
@pytest.mark.parametrize("rate", ["3.9e-2", "0.13"])
def test_a_rate_far_too_high_is_seen_at_rank_4_too(microrl, tmp_path, rate):
    """At 300 and 1000 times the rate nothing is right soon.

    At 100 and 150 times it wavers, and whether it ever falls differs with the seed and the processor: nothing to be tested.
    """
    verdicts, rows = guarded_run(microrl, tmp_path / "run", "--steps", 80, "--set", f"optim.lr={rate}")
    assert min(row["reward/accuracy"] for row in rows[:40]) < 0.05
    assert verdicts and verdicts[0]["action"] == "rollback" and verdicts[0]["step"] <= 45


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_student_that_runs_to_the_length_limit_is_rolled_back(microrl, tmp_path):
    """7000 times the rate, towards a teacher of a few steps: the rule about truncated completions needs no teacher's.

    How long they stay truncated differs with the processor, so the limit is near and the patience short. So does which rule is
    the first: the others are off.
    """
    teacher, bounds = tmp_path / "teacher", ("--steps", 5, "--hours", 1, "--set", "evaluation.problems=0")
    assert microrl("train", "quickstart", *bounds, "--out", teacher).returncode == 0
    off = [f"guard.{rule}=none" for rule in ("grad_norm", "entropy_rise", "entropy_low", "entropy_teacher", "kl_sampler")]
    sets = [f"--set={one}" for one in ("sampling.max_completion_tokens=24", "guard.patience=0.5", *off)]
    verdicts, rows = guarded_run(microrl, tmp_path / "run", "--steps", 8, "--teacher", teacher, "--lr", 1.0, *sets)
    first = verdicts[0]
    assert (first["rule"], first["action"]) == ("truncated", "rollback")
    before = rows[: first["step"] + 1]
    assert before[-1]["length/truncated"] > 0.5 and before[-1]["distill/kl"] > 5 * before[0]["distill/kl"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_start_at_the_largest_singular_values_collapses_and_is_seen(microrl, tmp_path, seed):
    """PiSSA at 100 times the rate, as the papers saw it: right no more within ten steps, where LoRA lasts for 150."""
    flags = ("--adapter", "pissa", "--seed", seed, "--set", "optim.lr=1.3e-2")
    verdicts, rows = guarded_run(microrl, tmp_path / "run", "--steps", 80, *flags)
    assert min(row["reward/accuracy"] for row in rows[:30]) < 0.02
    assert verdicts and verdicts[0]["action"] == "rollback" and verdicts[0]["step"] <= 40


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_healthy_run_is_left_alone(microrl, tmp_path, seed):
    verdicts, rows = guarded_run(microrl, tmp_path / "run", "--seed", seed)
    assert verdicts == [] and len(rows) == 120


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("questions", [3, 8, 16, 64])
def test_accuracy_of_few_problems_may_waver(questions):
    """A policy that stands still, every problem right half the time: forty validations of the same size, independently drawn."""
    alarms = 0
    for seed in range(200):
        draw, guard = random.Random(seed), Guard(GuardConfig(learning=None))  # it does learn nothing
        guard.completions = 2 * questions
        for _ in range(40):
            right = sum(draw.random() < 0.5 for _ in range(2 * questions))
            alarms += guard.check(row(**{"validate/accuracy": right / (2 * questions)})) is not None
    assert alarms <= 4, "of 200 runs"


CURVES = {
    "flat": lambda x: 0.0,
    "rising": lambda x: 0.3 * x,
    "rising late": lambda x: 0.3 * max(2 * x - 1, 0.0),
    "plateau": lambda x: 0.3 * min(3 * x, 1.0),
    "early": lambda x: 0.3 * min(10 * x, 1.0),
    "slow": lambda x: 0.15 * x,
    "collapse": lambda x: 0.3 * min(3 * x, 1.0) - 0.5 * (x > 0.7),
}
"""Accuracy above its start's at a fraction of the run."""


def validated(
    curve: str, seed: int, *, questions: int = 64, looks: int = 20, base: float = 0.3, **rules
) -> tuple[int, GuardVerdict] | None:
    """(validation, verdict) of the first verdict on a simulated run: fixed problems of spread difficulty, 2 answers each."""
    draw, guard = random.Random(f"{curve} {seed}"), Guard(GuardConfig(**rules))
    guard.completions = 2 * questions
    difficulties = [draw.betavariate(2 * base, 2 * (1 - base)) for _ in range(questions)]
    for look in range(looks):
        rates = [min(max(rate + CURVES[curve](look / (looks - 1)), 0.0), 1.0) for rate in difficulties]
        right = sum((draw.random() < rate) + (draw.random() < rate) for rate in rates)
        if verdict := guard.check(row(**{"validate/accuracy": right / (2 * questions)})):
            return look + 1, verdict
    return None


def stopped(curve: str, runs: int, **more) -> list[tuple[int, GuardVerdict]]:
    """The first verdicts of those of `runs` simulated runs that got one."""
    return [found for seed in range(runs) if (found := validated(curve, seed, **more))]


HEALTHY_CELLS = [
    (curve, questions, looks, base)
    for curve in ("flat", "rising", "rising late", "plateau", "slow")
    for questions, looks, base in ((64, 20, 0.3), (64, 100, 0.5), (16, 40, 0.5), (4, 100, 0.3), (64, 20, 0.05))
]


@pytest.mark.slow
@pytest.mark.parametrize(("curve", "questions", "looks", "base"), HEALTHY_CELLS)
def test_looking_after_every_validation_keeps_the_level(curve, questions, looks, base):
    """At most 5 % of 400 healthy runs are rolled back by chance, with a limit of 0 so that only chance is allowed for."""
    falls = stopped(curve, 400, questions=questions, looks=looks, base=base, accuracy=0.0, learning=None)
    print(curve, questions, looks, base, len(falls))
    assert len(falls) <= 20


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize("curve", ["flat", "plateau"])
def test_looking_after_every_validation_keeps_the_level_of_two(curve):
    assert len(stopped(curve, 400, looks=40, accuracy=0.0, learning=None)) <= 20


@pytest.mark.slow
@pytest.mark.parametrize("curve", ["rising", "rising late", "plateau", "slow"])
def test_a_run_that_learns_is_hardly_ever_told_that_it_does_not(curve):
    told = stopped(curve, 400, accuracy=None)
    print(curve, len(told))
    assert len(told) <= 20


def test_a_run_that_learns_nothing_is_told_so_and_goes_on():
    """Within the twenty validations that a run has; it is stopped only where the configuration says so."""
    told = stopped("flat", 20)
    assert len(told) >= 18 and all(look >= 16 and verdict.rule == "learning" for look, verdict in told)
    assert {verdict.action for _, verdict in told} == {"warn"} and "nothing is being learned" in told[0][1].message
    assert {verdict.action for _, verdict in stopped("flat", 5, action="stop")} == {"stop"}
    assert stopped("flat", 20, learning=None) == [] and stopped("plateau", 20) == stopped("early", 10, looks=60) == []
    guard = Guard(GuardConfig())
    verdicts = feed(guard, 40, **{"validate/accuracy": 0.3})
    assert verdicts == [None] * 40, "without a known number of answers nobody knows what chance does"


@pytest.mark.parametrize(("looks", "late"), [(20, 2), (60, 3)])
def test_a_collapse_of_accuracy_is_seen_by_the_sequence_too(looks, late):
    seen = stopped("collapse", 20, looks=looks, learning=None)
    began = int(0.7 * (looks - 1)) + 2
    assert len(seen) == 20 and all(began <= look <= began + late and verdict.action == "rollback" for look, verdict in seen)


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_run_in_which_nothing_moves_the_policy_stops_and_says_what_to_do(inside, tiny_arguments, tmp_path):
    (tmp_path / "letters.py").write_text(
        "def count(prompts, completions, rows):\n    return [text.count('e') for text in completions]\n"
    )
    sets = ("--reward", "letters:count", "--set", "adapter.alpha=1e-6", "--steps", 40)
    done = inside("train", *tiny_arguments, *sets, "--out", tmp_path / "run", cwd=tmp_path)
    assert done.returncode == 3 and "raise adapter.alpha, or choose another adapter" in done.stderr, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) < 20 and max(row["optim/lr"] for row in rows) <= 0.2


def test_a_fixed_rate_is_not_taken_for_one_that_steering_has_raised():
    guard = started()
    guard.is_steered = False
    assert feed(guard, 4, **{"optim/lr": 0.2, "policy/step_kl": 1e-9}) == [None] * 4


@pytest.mark.parametrize("taught", [{"distill/kl": 0.1}, {}])
def test_groups_of_equal_rewards_are_useful_where_a_teacher_teaches(taught):
    """Such a run is not stopped for its rewards, and one that has learned is rolled back where it breaks down."""
    guard = Guard(GuardConfig())
    found = feed(guard, 60, **{"groups/useful": 0.0}, **taught)
    assert {verdict and verdict.rule for verdict in found} == ({None} if taught else {None, "useful_groups"})
    broken = feed(guard, 10, **{"policy/grad_norm": None, "update/skipped": 1, "loss": None, "groups/useful": 0.0}, **taught)
    assert any(verdict and verdict.has_collapsed for verdict in broken if verdict and verdict.rule == "useful_groups") == bool(
        taught
    )
