"""The judge of a run: what it says of runs that went wrong in one way each, made by writing their folders; and real tiny ones."""

import gzip
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from command_line import in_process
from made_run import make

from microrl.evaluation.result import Result, gains
from microrl.report import figures
from microrl.report.history import History
from microrl.report.page import page
from microrl.report.several import alike_verdicts, configurations, learned_nothing, told_of
from microrl.report.verdict import judge
from microrl.report.words import facts
from microrl.run import locks
from microrl.run.summary import Gain
from microrl.types import Sampling

IDLE = {"policy/grad_norm": None, "update/skipped": 1, "loss": 0.0, "groups/useful": 0.0, "length/truncated": 0.0}
UNCLEAR = {"mean": 0.01, "ci95": [-0.05, 0.07]}


@pytest.fixture(autouse=True)
def few_figures(monkeypatch):
    """Drawing takes most of a page's time."""
    monkeypatch.setattr(figures, "AXES", {"step": "training steps"})
    monkeypatch.setattr(figures, "FIGURES", [spec for spec in figures.FIGURES if spec.key == "kl"])


def history(tmp_path, *, steps=40, rows=None, events=(), config=None, **summary) -> History:
    """A run's history with so many steps, of which every row has `rows`; `config` by key; `summary` with its own keys."""
    folder = make(tmp_path / "run", steps=steps)
    ended = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(ended | {"steps": steps} | summary))
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    found = History.load(folder)
    for row in found.rows:
        row |= {"reward/accuracy": 0.4, "groups/useful": 0.6, "length/truncated": 0.0, **(rows or {})}
    for key, value in (config or {}).items():
        section, name = key.split(".")
        found.config[section][name] = value
    assert not found.notes, found.notes
    return found


def kinds(found: History) -> set[str]:
    return {one.kind for one in judge(found).findings}


def gained(estimate, **sides):
    before, after = ({"accuracy": accuracy, "ci95": [0.2, 0.4], "questions": 64} for accuracy in (0.3, 0.31))
    return {"eval": {"before": before, "after": after, "paired_gain": estimate, **sides}}


def test_a_healthy_run_has_nothing_wrong(tmp_path):
    found = history(tmp_path)
    verdict = judge(found)
    assert verdict.outcome == "helped" and verdict.findings == () and verdict.is_worth_trying and verdict.updates == 40
    assert "No: the run logged no warnings" in page([found])
    assert judge(history(tmp_path / "2", **gained(UNCLEAR))).outcome == "no clear effect"
    worse = judge(history(tmp_path / "3", steps=7, **gained({"mean": -0.2, "ci95": [-0.3, -0.1]})))
    assert (worse.outcome, worse.findings) == ("worse", ()), "no advice to train longer, though there were seven updates"
    assert judge(history(tmp_path / "4", eval={"before": None, "after": None})).outcome == "not measured"


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize(
    ("rows", "said", "advice"),
    [
        ({"length/truncated": 1.0, "reward/accuracy": 0.0}, "100% of the completions are cut", "max_completion_tokens (now 32)"),
        ({"reward/accuracy": 0.0, "reward/format": 1.0}, "0% of the answers are right, so no answer", "easier questions"),
        ({"reward/accuracy": 0.0, "reward/format": 0.0}, "0% of the completions have the format", "SFT first (sft.steps)"),
        ({"reward/accuracy": 1.0}, "100% of the answers are right", "harder questions"),
        ({"reward/accuracy": 0.5}, "same reward", "sampling.group_size, now 8"),
        ({"reward/mean": None, "reward/left_out": 128, "reward/accuracy": 0.0}, "gave no value", "repair the function"),
        ({"loss": None}, "not finite", "optim.step_kl (now 0.0002)"),
    ],
    ids=["truncated", "wrong", "format", "right", "equal", "no reward", "gradient"],
)  # fmt: skip
def test_a_run_without_updates_is_told_its_cause_and_what_to_change(tmp_path, rows, said, advice):
    found = history(tmp_path, rows=IDLE | rows, **gained(UNCLEAR))
    verdict = judge(found)
    assert verdict.outcome == "nothing learned" and not verdict.is_worth_trying and verdict.updates == 0
    (one,) = [one for one in verdict.findings if one.kind == "no update"]
    assert one.is_serious and said in one.message and "any of the 40 steps" in one.message and advice in one.advice
    assert any(advice in line for line in verdict.lines())
    assert said in page([found]) and "No: the run" not in page([found])


def test_a_collapsed_policy_is_not_told_that_its_limit_or_its_questions_are_to_blame(tmp_path):
    for collapsed, advised in ((True, "lower optim.step_kl"), (False, "raise sampling.max_completion_tokens")):
        events = [{"kind": "guard", "message": "", "step": 9, "rule": "useful_groups", "collapsed": collapsed}]
        found = history(tmp_path / str(collapsed), events=events, **gained(UNCLEAR))
        for row in found.rows:
            row |= (IDLE if row is not found.rows[0] else {}) | {"length/truncated": 0.9, "reward/accuracy": 0.0}
        said = {one.kind: one.advice for one in judge(found).findings}
        assert advised in said["no update"] and advised in said["truncated"]
    first, last = found.rows[0], found.rows[-1]
    first["reward/accuracy"] = 0.3
    for name, value in (("policy/entropy", 2.1 * first["policy/entropy"]), ("policy/entropy", 0.1), ("length/truncated", 0.3)):
        before = last[name], first[name]
        (last if name == "policy/entropy" else first)[name] = value
        said = {one.kind: one.advice for one in judge(found).findings}
        assert "lower optim.step_kl" in said["no update"] and said["truncated"] == said["no update"], "unnoticed by the guard"
        last[name], first[name] = before
    assert "raise" in {one.kind: one.advice for one in judge(found).findings}["no update"]


def test_a_few_steps_without_an_update_are_no_finding_but_the_last_ones_are(tmp_path):
    found = history(tmp_path)
    for row in found.rows[5:9]:
        row |= IDLE
    assert "no update" not in kinds(found) and judge(found).updates == 36
    for row in found.rows[-3:]:
        row |= IDLE | {"reward/accuracy": 1.0}
    assert "no update" in kinds(found)


def test_no_answer_right_is_told_though_their_form_was_rewarded(tmp_path):
    found = history(tmp_path, rows={"reward/accuracy": 0.0}, **gained(UNCLEAR))
    assert "few right answers" in kinds(found) and not judge(found).is_worth_trying
    hardly = history(tmp_path / "hardly", rows={"reward/accuracy": 0.004}, **gained(UNCLEAR))
    (one,) = [one for one in judge(hardly).findings if one.kind == "few right answers"]
    assert one.message.startswith("0.4% of the answers were right in 40 steps") and "`" in one.message
    assert "came from other parts" not in one.message, "right answers may have been what the steps learned from"
    (none,) = [one for one in judge(found).findings if one.kind == "few right answers"]
    assert "right in 40 steps: the updates came from other parts of the reward" in none.message
    assert "few right answers" not in kinds(
        history(tmp_path / "own", rows={"reward/accuracy": 0.0}, config={"reward.accuracy_weight": 0.0})
    )


def test_questions_that_were_too_easy_are_named(tmp_path):
    easy = history(tmp_path, rows={"reward/accuracy": 0.97}, **gained(UNCLEAR))
    (one,) = judge(easy).findings
    assert one.kind == "too easy" and "97% of the answers were right from the start" in one.message and one.is_serious
    assert "harder questions" in one.advice
    assert not kinds(history(tmp_path / "2", rows={"reward/accuracy": 0.97})), "it has learned what was left"


def test_a_gain_tells_what_the_run_started_from(tmp_path):
    found = history(tmp_path)
    assert "started" not in " ".join(judge(found).sentences)
    assert "in this run, training helped." in " ".join(judge(found).sentences)
    found.config["init"] = "runs/first"
    assert "in this run or the one it started from, training helped" in " ".join(judge(found).sentences)
    assert judge(found).sentences[-1] == "The gain includes that of runs/first, which the run started from."


def test_the_time_of_a_timed_run_is_nothing_that_went_wrong(tmp_path):
    events = [{"kind": "time is up", "message": "the unfinished work after step 40 was discarded", "step": 40}]
    found = history(tmp_path, events=events, config={"budget.steps": None}, hours_budget=1.0, hours_spent=0.97)
    assert judge(found).findings == () and "No: the run logged no warnings" in page([found])


def test_starvation_is_named(tmp_path):
    unclear = gained(UNCLEAR)
    few = judge(history(tmp_path / "few", steps=5, **unclear))
    assert few.outcome == "too little to tell" and not few.is_worth_trying and "5 updates" in few.sentences[-1]
    (one,) = few.findings
    assert (one.kind, one.advice) == ("few updates", "raise budget.steps (now 5) to 20 or more")
    timed = {"config": {"budget.steps": None}, "hours_budget": 1.0, "hours_spent": 0.97}
    (one,) = judge(history(tmp_path / "timed", steps=5, rows={"time/step": 720.0}, **timed, **unclear)).findings
    smaller = "sampling.prompts_per_step=4 (now 16): about 20 steps in the same time"
    assert one.advice == f"give the run more time: --hours 4 (now 1); or make its steps smaller: {smaller}"
    timed["config"] |= {"sampling.prompts_per_step": 512, "sft.minutes": 0.05, "sft.steps": None}
    sft = {"steps": 6, "seconds": 2.2, "first_loss": 2.0, "last_loss": 1.0}
    starved = history(tmp_path / "starved", steps=3, sft=sft, rows={"time/step": 1200.0}, **timed, **unclear)
    (one,) = judge(starved).findings
    smaller = "sampling.prompts_per_step=109 (now 512): about 14 steps in the same time"
    assert one.advice == (
        f"give the run more time: --hours 4.7 (now 1); or make its steps smaller: {smaller}; "
        "or give SFT more: sft.minutes=0.17 (now 0.05, for 6 steps)"
    )
    none = history(tmp_path / "no SFT", steps=3, sft=sft | {"steps": 0}, rows={"time/step": 1200.0}, **timed, **unclear)
    assert "sft.minutes" not in judge(none).findings[0].advice
    assert dict(facts(starved))["SFT"].startswith("6 steps of 16 solutions in 2 s, loss 2.000 -> 1.000")
    starved.summary.eval.paired_gain = Gain(mean=0.2, ci95=(0.1, 0.3))
    assert judge(starved).sentences[-1].endswith("in this run, training helped; it had 9 updates, 6 of them by SFT.")
    timed["sft"] = sft | {"steps": 77}
    (one,) = judge(history(tmp_path / "mostly SFT", steps=5, rows={"time/step": 720.0}, **timed, **unclear)).findings
    assert one.message == "82 updates, 77 of them by SFT: too few by reinforcement learning for it to have an effect"
    assert "--hours 4 (now 1)" in one.advice and "sft.minutes" not in one.advice
    for count, said in ((3, "only 3 updates, all by SFT: at least"), (1, "only 1 update, by SFT: at least")):
        few = history(tmp_path / f"{count} of SFT", steps=1, sft=sft | {"steps": count}, **unclear)
        few.rows.clear()
        few.config["sft"]["only"] = True
        assert said in {one.kind: one.message for one in judge(few).findings}["few updates"]
        assert "loss" not in dict(facts(few)), "nor a steered rate"
    (one,) = judge(history(tmp_path / "mostly SFT, clear", steps=5, **timed)).findings
    assert "the gain may be SFT's alone" in one.message and not one.is_serious
    stopped = judge(history(tmp_path / "stopped", steps=5, status="stopped", **unclear)).findings
    assert [(one.kind, one.advice) for one in stopped] == [("few updates", "")], "what stopped it says what to change"
    assert judge(history(tmp_path / "helped", steps=5)).outcome == "helped", "however few"

    assert "steps cut" in kinds(history(tmp_path / "steps", config={"budget.steps": 120}, **unclear))
    sft = {"steps": 4, "seconds": 1.0, "first_loss": 2.0, "last_loss": 1.0}
    (clear,) = judge(history(tmp_path / "few, but clear", steps=5)).findings
    assert (clear.kind, clear.is_serious) == ("few updates", False) and "more updates may gain more" in clear.message
    found = judge(history(tmp_path / "sft", config={"sft.steps": 32, "sft.minutes": 2.0}, sft=sft, **unclear))
    (one,) = [one for one in found.findings if one.kind == "SFT cut"]
    assert "only 4 of 32 SFT steps" in one.message and "sft.minutes (now 2)" in one.advice and found.updates == 44

    unused = {"hours_budget": 1.0, "hours_spent": 0.73}
    assert "budget unused" in kinds(history(tmp_path / "unused", config={"budget.steps": None}, **unused, **unclear))
    long = history(tmp_path / "long steps", rows={"time/step": 1000.0}, config={"budget.steps": None}, **unused, **unclear)
    (one,) = [one for one in judge(long).findings if one.kind == "budget unused"]
    assert one.message == "16 minutes of 1 hour were left: too short for a further step of up to 1000 s"
    assert one.advice == "make steps smaller (sampling.prompts_per_step), or raise --hours", "no evaluation takes as long"
    long.evaluations["held-out-after"] = {"seconds": 300.0}
    (one,) = [one for one in judge(long).findings if one.kind == "budget unused"]
    assert one.message.endswith("plus the time kept for the final evaluation") and "evaluation.problems" in one.advice
    assert "budget unused" not in kinds(
        history(tmp_path / "used", config={"budget.steps": None}, hours_budget=1.0, hours_spent=0.97)
    )
    assert "budget unused" not in kinds(history(tmp_path / "bounded", **unused)), "it has made all of its steps"
    alone = {"budget.steps": None, "sft.only": True, "sft.steps": 4}
    assert "budget unused" not in kinds(history(tmp_path / "SFT, bounded", config=alone, sft=sft, **unused, **unclear))
    unbound = judge(history(tmp_path / "SFT", config={**alone, "sft.steps": None}, sft=sft, **unused, **unclear))
    (one,) = [one for one in unbound.findings if one.kind == "budget unused"]
    assert one.advice == "make steps smaller (sft.batch), or raise --hours"

    assert "few useful groups" in kinds(history(tmp_path / "useful", rows={"groups/useful": 0.04}, **unclear))
    cut = [{"kind": "evaluation cut", "message": "time is up: the final evaluation has only 16 of 64 questions"}]
    assert judge(history(tmp_path / "cut", events=cut, **unclear)).outcome == "too little to tell"
    none = judge(history(tmp_path / "none", events=cut, eval={"before": gained(UNCLEAR)["eval"]["before"], "after": None}))
    assert none.outcome == "not measured" and "after training is missing" in none.sentences[0], "40 updates are not too little"
    one = gained({"mean": 0.1, "ci95": [-0.8, 0.8]})
    one["eval"]["before"]["questions"] = one["eval"]["after"]["questions"] = 1
    assert "Accuracy on 1 held-out question" in (said := judge(history(tmp_path / "one", **one)).sentences[0])
    assert "questions" not in said
    assert "truncated" in kinds(history(tmp_path / "long", rows={"length/truncated": 0.7}))


def test_equal_events_are_one_finding_with_their_count(tmp_path):
    said = "`mine` gave no value for {} completions; row {}: it raised"
    events = [{"kind": "reward failed", "message": said.format(100 + step, step), "step": step} for step in range(40)]
    found = history(tmp_path, events=events)
    (one,) = judge(found).findings
    assert (one.count, one.is_serious, one.steps) == (40, True, "steps 1 to 40")
    told = "what went wrong: reward failed (x40), steps 1 to 40: "
    assert str(one).startswith(told + "the first time, `mine` gave no value for 100 completions; row 0")
    same = history(tmp_path / "same", events=[{**event, "message": said.format(1, 1)} for event in events])
    assert str(judge(same).findings[0]).startswith(told + "`mine` gave no value for 1 completions")
    assert page([found]).count("gave no value for") == 1


def test_a_killed_run_and_a_failed_one_are_no_good_ones(tmp_path):
    killed = history(tmp_path / "killed")
    (killed.path / "summary.json").unlink()
    killed.summary = None
    (one,) = judge(killed).findings
    assert judge(killed).sentences[1].startswith("The evaluations before and after training are missing: whether")
    assert one.kind == "killed" and f"--resume {killed.path}" in one.advice and one.is_serious
    event = {"kind": "failed", "message": "OSError: no", "step": 3}
    before = {"accuracy": 0.3, "ci95": [0.2, 0.4], "questions": 64}
    failed = history(tmp_path / "failed", status="failed", events=[event], eval={"before": before, "after": None})
    verdict = judge(failed)
    assert "failed" in kinds(failed) and not verdict.is_worth_trying
    assert verdict.sentences[0] == "The run did not finish: OSError: no."
    assert verdict.sentences[1].startswith("The evaluation after training is missing (accuracy before training: 0.300): whether")
    assert "crash.log, then resume" in verdict.findings[0].advice
    assert "resume the run (it begins anew, since it has no checkpoint): " in verdict.findings[0].advice
    (failed.path / "checkpoints" / "step-000032").mkdir(parents=True)
    (failed.path / "checkpoints" / "step-000032" / "state.json").write_text("{}")
    assert (
        f"resume the run (32 of its 40 steps are saved): microrl train --resume {failed.path}" in judge(failed).findings[0].advice
    )
    for at, accuracy in ((0, 0.25), (39, 0.26)):
        failed.rows[at]["validate/accuracy"] = accuracy
    assert judge(failed).sentences[-1] == "Accuracy on the validation questions was 0.250 after 0 steps and 0.260 after 39 steps."
    failed.rows.clear()
    refused = judge(failed)
    assert refused.sentences[0] == "Nothing was trained: OSError: no." and "--resume" not in refused.findings[0].advice
    over = history(tmp_path / "over", events=[event, {"kind": "resumed", "message": "continuing at step 4", "step": 3}])
    one, _ = judge(over).findings
    assert not one.is_serious and "has been resumed" in one.message and not one.advice and judge(over).outcome == "helped"


HELD = """
import sys, time
from pathlib import Path
from microrl.run.folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
folder.lock()
print("locked", flush=True)
time.sleep(60)
"""


def test_a_killed_run_is_told_what_it_had_done(tmp_path):
    """SFT, and the evaluation before training, though there is no summary."""

    def dead(path):
        return replace(History.load(path), is_running=False)  # without a lock, a fresh folder is taken for that of a live one

    found = history(tmp_path / "1", steps=1)
    (found.path / "summary.json").unlink()
    (found.path / "metrics.jsonl").write_text("")
    (found.path / "sft.jsonl").write_text('{"step": 0}\n' * 100)
    said = " ".join(judge(dead(found.path)).lines())
    assert "ended after 100 SFT steps" in said and "Nothing was trained" not in said and "before its first step" not in said
    found = history(tmp_path / "2")
    (found.path / "summary.json").unlink()
    (found.path / "eval/held-out-before.json").write_text("{}")
    said = " ".join(judge(dead(found.path)).sentences)
    assert "The evaluation after training is missing: whether" in said


def test_what_a_resumed_run_has_made_up_for_is_not_told(tmp_path):
    """Too little time for an evaluation, of which the process that resumed the run made a new one."""
    after = {"kind": "evaluation cut", "message": "only 16 of 64 questions", "side": "after", "questions": 16}
    never = {"kind": "evaluation cut", "message": "there was no time", "side": "before", "questions": 0}
    partly = {"kind": "evaluation cut", "message": "only 20 of 64 questions", "side": "before", "questions": 20}
    events = [after, never, partly, {"kind": "resumed", "message": "continuing at step 20", "step": 20}]
    verdict = judge(history(tmp_path / "1", events=events, **gained(UNCLEAR)))
    assert [one.message for one in verdict.findings if one.kind == "evaluation cut"] == ["only 20 of 64 questions"]
    verdict = judge(history(tmp_path / "2", events=[never, events[-1]], eval={"before": None, "after": None}))
    assert "evaluation cut" in {one.kind for one in verdict.findings}, "no other one was made"
    assert "evaluation cut" in kinds(history(tmp_path / "3", events=[events[-1], after], **gained(UNCLEAR)))


def test_sft_that_was_interrupted_or_had_its_own_minutes_is_not_told_to_take_more_hours(tmp_path):

    def found(number, config, **summary):
        one = history(tmp_path / str(number), steps=1, config={"sft.only": True, **config}, **summary)
        one.rows.clear()
        return kinds(one)

    sft = {"steps": 6, "seconds": 9.0}
    assert "SFT cut" in found(1, {"sft.steps": 100}, sft=sft)
    assert "SFT cut" not in found(2, {"sft.steps": 100}, sft=sft, status="interrupted")
    ended = {"sft": sft, "hours_budget": 1.0, "hours_spent": 0.1}
    assert "budget unused" in found(3, {"sft.steps": None}, **ended)
    assert "budget unused" not in found(4, {"sft.steps": None, "sft.minutes": 5.0}, **ended)


def test_a_killed_run_is_known_at_once_by_its_lock(tmp_path):
    folder = make(tmp_path / "run")
    (folder / "summary.json").unlink()
    (folder / "heartbeat.json").write_text(json.dumps({"elapsed_s": 75.0, "doing": "step 21: update", "silent_s": 0.0}))
    os.utime(folder / "heartbeat.json", (0, 0))  # as of a machine that was suspended for long
    with subprocess.Popen([sys.executable, "-c", HELD, folder], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"locked\n"
        assert judge(History.load(folder)).outcome == "running"
        assert locks.is_held(folder / ".lock"), "looking has not released it"
        process.kill()
    (folder / "heartbeat.json").touch()
    verdict = judge(History.load(folder))
    assert verdict.sentences[0].startswith("The run did not finish: the run's process ended after 20 finished steps")
    assert "Its last sign of life came 0:01:15 into the run" in verdict.findings[0].message


def test_what_the_guard_has_undone_is_said_and_is_no_update(tmp_path):
    def undone(name, *ranges, resumed=None, **more):
        events = [{"kind": "rolled back", "message": "", "step": last, "restored_steps": first} for first, last in ranges]
        events += [{"kind": "resumed", "message": "", "step": resumed}] if resumed is not None else []
        return judge(history(tmp_path / name, events=events, **more))

    stopped = undone("stopped", (12, 39), status="stopped")
    assert stopped.updates == 12
    assert stopped.sentences[-1] == "The guard has undone 28 of the 40 steps: the weights are those after step 12."
    halved = [{"kind": "rolled back", "message": "restored, and halved the learning rate to 0.01", "step": 3}]
    lowered = history(
        tmp_path / "halved", rows={"optim/lr": 0.01}, events=halved, config={"optim.lr": 0.02, "optim.step_kl": None}
    )
    assert dict(facts(lowered))["loss"].endswith("learning rate 0.02, halved 1 time by the guard: last rate 0.01")
    twice = undone("twice", (5, 14), (5, 24)).sentences[-1]
    assert "undone 20 of the 40 steps: the weights are those that reflect only the other 20" in twice
    assert undone("again", (5, 14), resumed=10).updates == 40, "the steps after the checkpoint have been made again"
    assert undone("kept", (5, 14), resumed=15).updates == 30


def test_a_learning_rate_of_0_is_named(tmp_path):
    found = history(tmp_path, rows={"optim/lr": 0.0}, config={"optim.lr": 0.0, "optim.step_kl": None}, **gained(UNCLEAR))
    verdict = judge(found)
    (one,) = verdict.findings
    assert one.text.endswith("not changed in any of the 40 steps: the learning rate is 0. What to do: raise optim.lr (now 0.0).")
    assert (verdict.outcome, verdict.updates, verdict.is_worth_trying) == ("nothing learned", 0, False)


def test_a_teacher_that_is_the_model_itself_is_named(tmp_path):
    found = history(tmp_path, rows={"policy/grad_norm": 0.0, "distill/kl": 0.0}, **gained(UNCLEAR))
    (one,) = judge(found).findings
    assert one.kind == "no update" and one.advice
    assert "the teacher and the model give every token the same probability" in one.message
    assert judge(found).outcome == "nothing learned"
    others = history(tmp_path / "2", rows={"policy/grad_norm": 0.0, "distill/kl": 0.01}, **gained(UNCLEAR))
    assert "no update" not in kinds(others)


def test_a_reward_that_never_differs_is_named(tmp_path):
    rows = IDLE | {"reward/accuracy": 0.3, "reward/part/ones": 1.0}
    found = history(tmp_path, rows=rows, config={"reward.accuracy_weight": 0.0}, **gained(UNCLEAR))
    (one,) = [one for one in judge(found).findings if one.kind == "no update"]
    assert "the same reward (on average `ones` gave 1)" in one.message
    assert one.advice == "make `ones` score a question's completions differently, or raise reward.accuracy_weight (now 0.0)"


def test_where_no_answer_is_right_one_is_shown_beside_the_gold_one(tmp_path):
    found = history(tmp_path, rows=IDLE | {"reward/accuracy": 0.0, "reward/format": 1.0}, **gained(UNCLEAR))
    lines = [
        {"question": f"What is {number // 4} + 2?", "answer": "9", "completion": f"so {number}", "accuracy": 0.0, "prompt": "",
         "extracted": "3" if number in (4, 5, 7) else str(number)} for number in range(8)
    ]  # fmt: skip
    with gzip.open(found.path / "rollouts" / "step-000039.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))
    one = judge(found).findings[0]
    assert "For example, to `What is 1 + 2?` 3 of 4 completions answer `3`, and the data says `9`" in one.message
    assert "in 1 of 2 groups most completions agree" in one.message and f"microrl regrade {found.path}" in one.advice
    with gzip.open(found.path / "rollouts" / "step-000039.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(line | {"extracted": None}) + "\n" for line in lines))
    assert "No answer was found in, for example, `so 0`" in judge(found).findings[0].message


def evaluated(count: int, right: int) -> Result:
    return Result(Sampling(8, 32, 1.0, 1.0), 0, (8,), {f"question {number}": right for number in range(count)})


def test_before_after_and_gain_are_of_the_same_questions(tmp_path):
    """64 questions before, 33 after: those that were left out are all right before."""
    before, after = evaluated(64, 2), evaluated(33, 6)
    before.right |= {f"question {number}": 8 for number in range(33, 64)}
    measured = {"before": before.summary(), "after": after.summary(), **gains(before, after)}
    assert measured["before"]["accuracy"] > 0.6 and measured["after"]["accuracy"] == 0.75, "each on all of its own"
    assert measured["paired_gain"] | {"ci95": 0} == {"mean": 0.5, "ci95": 0, "questions": 33, "before": 0.25, "after": 0.75}
    verdict = judge(history(tmp_path, eval=measured))
    gain = verdict.gain
    assert (gain.questions, gain.before, gain.after, gain.mean, gain.left_out) == (33, 0.25, 0.75, 0.5, 31)
    assert "33 held-out questions: 0.250 before, 0.750 after training. Paired gain +0.500" in verdict.sentences[0]
    assert "31 more" in verdict.sentences[0]
    (at_8,) = verdict.more_gains
    assert at_8.after - at_8.before == pytest.approx(at_8.mean) and at_8.questions == 33 and str(at_8).startswith("pass@8 on 33")


# ---- real runs


@pytest.fixture
def nothing_ends(tiny_arguments):
    """Of a random model all completions are cut, and none is right; 8 evaluated completions are too few to be refused."""
    return [*tiny_arguments, "--steps", 14]


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_run_whose_completions_are_all_cut_is_warned_and_stopped(nothing_ends, tmp_path):
    done = in_process("train", *nothing_ends, "--out", tmp_path / "run")
    assert done.returncode == 3, done.stderr
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(rows) == 10
    assert "3 steps in a row without an update; in the last: " in done.stderr and "% of the completions are cut" in done.stderr
    assert (
        "raise sampling.max_completion_tokens (now 12)" in done.stderr
        and "truncated 1.00" in done.stderr
        and "guard (x" not in done.stderr
    )
    assert "try it" not in done.stderr and "No step changed the weights" in done.stderr and "rolled back" not in done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "stopped" and summary["verdict"]["outcome"] == "nothing learned"
    assert summary["eval"]["after"] is not None and (tmp_path / "run" / "final").is_dir()


def test_a_run_is_refused_where_its_evaluation_already_shows_that_nothing_ends(nothing_ends, tmp_path):
    more = ["--set", "evaluation.problems=8", "--out", tmp_path / "run"]
    done = in_process("train", *nothing_ends, *more)
    assert done.returncode == 2, done.stderr
    *_, error, hint = done.stderr.splitlines()
    assert "100% of the completions reach the limit of 12 tokens" in error and "max_completion_tokens=48" in hint
    assert "guard.truncated=none" in hint and not (tmp_path / "run" / "metrics.jsonl").exists()
    told = in_process("train", *nothing_ends, *more[:2], "--steps", 1, "--set", "guard.truncated=none", "--out", tmp_path / "2")
    assert told.returncode == 0 and "100 % of the completions" in told.stderr.replace("100%", "100 %")


@pytest.mark.slow
def test_a_dead_reward_function_costs_two_steps(tiny_arguments, tmp_path):
    """It works as long as the run's data is tried, and then no more."""
    dying = f"""
import os
def reward(prompts, completions, rows):
    if os.path.exists({str(tmp_path / "run" / "eval")!r}):
        os._exit(1)
    return [1.0] * len(completions)
"""
    (tmp_path / "dying.py").write_text(dying)
    own = ["--set", "reward.functions=dying:reward", "--set", f"reward.path={tmp_path}"]
    done = in_process("train", *tiny_arguments, *own, "--steps", 6, "--out", tmp_path / "run")
    assert done.returncode == 3, done.stderr
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2
    assert done.stderr.count("`reward` gave no value for") <= 2 and "repair the function" in done.stderr


def test_what_several_runs_suffered_is_counted(tmp_path):
    right = {"reward/accuracy": 1.0}
    found = [
        history(tmp_path / "well"),
        history(tmp_path / "few", steps=5),
        history(tmp_path / "dead", rows=IDLE | {"length/truncated": 1.0, "reward/accuracy": 0.0}),
        history(tmp_path / "cut", rows=IDLE | {"length/truncated": 0.98, "reward/accuracy": 0.0}),
        history(tmp_path / "right", rows=IDLE | right, events=[{"kind": "out of memory", "message": "so little", "step": 3}]),
    ]
    idle, few = told_of(found, "trial")
    assert idle.startswith("In 3 of 5 trials, no update: most often, the weights were not changed in any of the 40 steps: ")
    assert "cut at the length limit" in idle and "raise sampling.max_completion_tokens" in idle
    assert few == "1 of 5 trials made fewer than 20 updates: the answer rests on short runs."
    assert [learned_nothing(one) for one in found] == [False, False, True, True, True] and told_of(found[:1], "run") == []


def test_several_runs_say_once_what_they_share(tmp_path):
    runs = [history(tmp_path / str(seed), rows=IDLE | {"reward/accuracy": 1.0}, config={"sampling.group_size": 4 + seed})
            for seed in range(3)]  # fmt: skip
    for number, one in enumerate(runs):
        one.name, one.config["seed"] = f"run-{number}", 0
    runs[0].config["extra"] = {"here": []}
    shared, keys, rows = configurations(runs)
    assert keys == ["sampling.group_size", "extra.here"] and rows[:2] == [("run-0", "4", "[]"), ("run-1", "5", "")]
    assert "group_size" not in shared and '"prompts_per_step"' in shared and '"extra"' not in shared
    ((names, _),) = alike_verdicts(runs)
    assert names == "run-0, run-1, run-2"
    text = page(runs)
    assert text.count("prompts_per_step&#34;") == 1 and text.count("there is nothing left to learn") == 1
    whole, keys, rows = configurations(runs[:1])
    assert json.loads(whole) == runs[0].config and (keys, rows) == ([], [])


def test_a_policy_that_stood_still_is_told_so_and_one_that_moved_is_not(tmp_path):
    """Forty updates in one direction move it 40^2 times as far as one, which is 2e-4 nats a token for 1.25e-7 each."""
    fixed = {"optim.lr": 1e-9, "optim.step_kl": None}
    for number, (size, config, steps, advised) in enumerate([
        (1.2e-7, fixed, 40, "a higher optim.lr (now 1e-09), or with --step-kl 0.001"),
        (1.3e-7, fixed, 40, None),
        (4.9e-7, fixed, 4, "a higher optim.lr"),
        (5.1e-7, fixed, 4, None),  # as few updates as these tell nothing, but twenty of them would
        (1e-9, {"optim.step_kl": 1e-9}, 40, "a higher optim.step_kl (now 1e-09)"),
        (None, fixed, 40, None),
    ]):  # fmt: skip
        found = history(tmp_path / str(number), steps=steps, rows={"policy/step_kl": None}, config=config, **gained(UNCLEAR))
        found.rows[0]["policy/step_kl"], found.rows[1]["policy/step_kl"] = size, size and 0.0
        for row in found.rows:
            row["optim/lr"] = 1e-9
        told = [one for one in judge(found).findings if one.kind == "hardly moved"]
        assert [one.is_serious and str(advised) in one.advice for one in told] == [True] * (advised is not None), (number, told)
    assert "hardly moved" not in kinds(history(tmp_path / "gain", rows={"policy/step_kl": 0.0})), "its gain shows that it moved"
    still = history(tmp_path / "still", rows={"policy/step_kl": 0.0, "optim/lr": 0.0}, config=fixed, **gained(UNCLEAR))
    assert "hardly moved" not in kinds(still), "a rate of 0 is told as such"


@pytest.mark.parametrize(
    ("rates", "config", "is_told"),
    [
        ([1.0] * 40, {"optim.schedule": {"warmup": 0.5}}, True),
        ([0.1, 0.2, 0.3], {"optim.schedule": {"warmup": 0.5}}, False),  # ended while its rate was rising
        ([0.1], {"optim.schedule": {"warmup": 0.5}}, False),
        ([0.01] + [1.0] * 39, {"optim.schedule": {"warmup": 0.02}}, False),  # at the full rate a step is 10^4 times as large
        ([1.0] * 8, {"optim.step_kl": 2e-4}, False),  # the guard says that no rate moves it
        ([1.0] * 8, {"optim.step_kl": 1e-9}, True),
    ],
)
def test_small_steps_of_a_warm_up_or_of_a_steered_rate_are_no_sign_of_a_low_rate(tmp_path, rates, config, is_told):
    found = history(
        tmp_path, steps=len(rates), rows={"policy/step_kl": None}, config={"optim.step_kl": None} | config, **gained(UNCLEAR)
    )
    for row, rate in zip(found.rows, rates, strict=True):
        row["optim/lr"] = rate
    found.rows[0]["policy/step_kl"] = 1e-8
    assert ("hardly moved" in kinds(found)) is is_told
    if len(rates) < 20:
        assert "hardly moved" not in kinds(replace(found, is_running=True)), "it has only begun"


def test_rewards_that_take_most_of_a_step_are_named(tmp_path):
    functions = {"reward.functions": ["mine:slow", "mine:other=0.5"]}
    slow = {"time/step": 7.0, "time/verify": 3.6}
    for number, (rows, config, advice) in enumerate([
        (slow, functions, "make `mine:slow` or `mine:other=0.5` faster"), (slow, {}, "lower reward.deadline_s (now 5.0 s)"),
        (slow | {"time/verify": 3.4}, functions, None),
    ]):  # fmt: skip
        found = history(tmp_path / str(number), rows=rows, config=config)
        told = [one for one in judge(found).findings if one.kind == "slow rewards"]
        assert [advice in one.advice and "3.6 of the 7.0 s" in one.message for one in told] == [True] * (advice is not None)
        assert judge(found).is_worth_trying, "it is no less a good run"
