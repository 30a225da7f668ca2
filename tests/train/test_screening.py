"""The first pass over the questions: what it leaves out, what it takes, and that a killed run ends the same."""

import gzip
import json
import math
import signal
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from simulated import Machine
from whole_runs import rows, start

from microrl import clock
from microrl.config import resolve
from microrl.errors import UserError
from microrl.files import BadFile
from microrl.plan import devices, plan
from microrl.plan.source import shape_of
from microrl.rewards.scorer import RewardScorer
from microrl.run.budget import Budget
from microrl.run.checkpoint import State
from microrl.run.folder import RunFolder
from microrl.run.stopwatch import Stopwatch
from microrl.train.screening import screening_phase, uninformative_rows
from microrl.train.setup import make_prompt_sampler
from microrl.types import Completion, Group, Prompt, Sampling, Score

RIGHT, WRONG, PLAIN = r"<think>x</think> \boxed{1}", r"<think>x</think> \boxed{2}", r"\boxed{1}"


def configured(**flags):
    return resolve(
        (), {"data.screen_minutes": 1.0, "budget.steps": 4, **{name.replace("__", "."): flags[name] for name in flags}}
    )


# ---- what is left out, by hand


def scored(row, *accuracies, **more):
    """A group whose rewards are these accuracies; `formats` and other fields of the scores, one value an answer."""
    formats = more.pop("formats", [1.0] * len(accuracies))
    fields = [dict(zip(more, values, strict=True)) for values in zip(*more.values(), strict=True)] or [{}] * len(accuracies)
    scores = [
        Score(accuracy + 0.2 * style, style, accuracy, **field)
        for accuracy, style, field in zip(accuracies, formats, fields, strict=True)
    ]
    return Group(Prompt(f"question {row}", "1", "", (1,), row), (), tuple(scores))


DIFFER = [scored(row, 1.0, 0.0) for row in range(100, 105)]


def test_what_is_always_right_or_never_is_left_out():
    groups = [scored(1, 1.0, 1.0), scored(2, 0.0, 0.0), scored(3, 1.0, 0.0), scored(4, 0.5, 0.5), *DIFFER]
    assert uninformative_rows(configured(), groups) == [1, 2], "half right programs are neither"


def test_a_group_whose_rewards_differ_stays():
    groups = [scored(1, 1.0, 1.0, formats=[1.0, 0.0]), scored(2, 0.0, 0.0, formats=[1.0, 0.0]), *DIFFER]
    assert uninformative_rows(configured(), groups) == []
    assert uninformative_rows(configured(loss__kind="dapo"), groups) == [1, 2], "DAPO would drop them, whatever their format"
    assert uninformative_rows(configured(loss__kind="dapo", loss__dynamic_sampling=False), groups) == []


def test_an_answer_that_was_not_judged_proves_nothing():
    groups = [scored(1, 0.0, 0.0, killed=[True, False]), scored(2, 0.0, 0.0, is_valid=[False, True]), *DIFFER]
    assert uninformative_rows(configured(), groups) == []


def test_parts_that_are_normalised_apart_teach_where_one_of_them_differs():
    twisted = scored(1, 0.0, 0.0, formats=[1.0, 0.0], parts=[{"own": 0.0}, {"own": 0.2}])
    twisted = Group(twisted.prompt, (), tuple(Score(0.2, one.format, 0.0, parts=one.parts) for one in twisted.scores))
    assert uninformative_rows(configured(), [twisted, *DIFFER]) == [1]
    assert uninformative_rows(configured(reward__normalise="apart", reward__functions="own:own"), [twisted, *DIFFER]) == []


def test_at_most_half_are_left_out_and_what_was_never_right_stays_first():
    never, always = [scored(row, 0.0, 0.0) for row in (1, 2, 3)], [scored(row, 1.0, 1.0) for row in (4, 5)]
    assert uninformative_rows(configured(), [*never, *always]) == [4, 5]
    assert uninformative_rows(configured(), [*never, *always, *DIFFER[:1]]) == [4, 5, 1]
    assert uninformative_rows(configured(), never[:1]) == uninformative_rows(configured(), []) == []


# ---- the phase, with a scripted engine


class ScriptedEngine:
    """Answers a prompt with the texts that its question says, a second each; the pace decides how many start."""

    def __init__(self):
        self.asked, self.at_once, self.now = [], 0, 0.0

    @contextmanager
    def awake(self, snapshot):
        yield self

    def groups(self, prompts, sampling, *, stream, pace, environment):
        self.stream, in_flight = stream, []
        for position, prompt in enumerate(prompts):
            while not pace.may_start(len(in_flight)):
                if not in_flight or pace.is_over():
                    return
                yield in_flight.pop(0)
            self.asked.append(prompt.row)
            self.now += 1
            texts = prompt.question.split("|")[1:]
            in_flight.append((position, Group(prompt, tuple(Completion((5,), (-1.0,), "stop", 0, text) for text in texts))))
            self.at_once = max(self.at_once, len(in_flight))
        yield from in_flight


@pytest.fixture
def open_run(tmp_path, monkeypatch):
    """A run with a real folder, budget and scorer, of twelve questions: four always right, four never, four in between."""
    scorers = []

    def make(hours=None, **flags):
        config, engine = configured(sampling__group_size=2, sampling__prompts_per_step=3, **flags), ScriptedEngine()
        monkeypatch.setattr(clock, "now_s", lambda: engine.now)
        texts = [(RIGHT, RIGHT), (WRONG, WRONG), (RIGHT, WRONG)]
        prompts = [Prompt("|".join((str(row), *texts[row % 3])), "1", "", (1,), row) for row in range(1, 13)]
        scorers.append(RewardScorer(config.reward))
        (tmp_path / "run").mkdir(exist_ok=True)
        folder = RunFolder(tmp_path / "run")
        return SimpleNamespace(
            config=config, engine=engine, scorer=scorers[-1], prompts=make_prompt_sampler(config, prompts),
            sampling=Sampling(2, 8), policy=SimpleNamespace(snapshot=lambda: None), watch=Stopwatch(), state=State(),
            folder=folder,
            budget=Budget(hours=hours, steps=4, started=0.0, now=lambda: engine.now),
            console=SimpleNamespace(status=str, count=lambda *counted, **more: None),
            announce=folder.event, with_smaller_cache_if_needed=lambda work: work(), environment=None,
        )  # fmt: skip

    yield make
    for scorer in scorers:
        scorer.close()


def left(run):
    return sorted(prompt.row for prompt in run.prompts.items)


def test_each_question_is_asked_once_and_what_is_settled_is_not_drawn_any_more(open_run):
    run = open_run()
    screening_phase(run)
    record = json.loads((run.folder.path / "screening.json").read_text())
    assert sorted(run.engine.asked) == list(range(1, 13)) != run.engine.asked
    assert run.engine.at_once == 3, "as many groups as in a step"
    assert record["questions"] == 12 and record["seen"]["3"] == [2, 2] and record["seen"]["5"] == [1, 2]
    assert len(record["left_out"]) == 6, "half: all that is always right, and two of the others"
    assert set(record["left_out"]) >= {3, 6, 9, 12} and left(run) == sorted({*range(1, 13)} - {*record["left_out"]})
    assert {prompt.row for prompt in run.prompts.draw(50)} == {*left(run)} and run.state.question_history == {}
    assert run.watch.totals["screen"] == record["seconds"] == 12
    (event,) = [json.loads(line) for line in (run.folder.path / "events.jsonl").read_text().splitlines()]
    assert (event["kind"], event["seen"], event["left_out"]) == ("screened", 12, 6)
    assert event["message"] == ("12 of 12 questions in 12 s, 4 of them always right and 4 never; 6 are left out of training")


def test_the_allowance_ends_it_and_what_was_not_seen_stays(open_run):
    run = open_run(data__screen_minutes=0.1)
    screening_phase(run)
    record = json.loads((run.folder.path / "screening.json").read_text())
    assert len(run.engine.asked) == 6 and len(record["seen"]) == 3, "six seconds; three questions were not finished"
    assert {*map(int, record["seen"])} == {*run.engine.asked[:3]} >= {*record["left_out"]}
    assert {*left(run)} >= {*range(1, 13)} - {*run.engine.asked[:3]}


def test_half_of_the_time_for_training_is_kept(open_run):
    run = open_run(hours=20 / 3600)
    run.budget.step.guess_s = 8.0
    screening_phase(run)
    assert run.engine.now == math.ceil((20 - 8 - run.budget.exit_s()) / 2) == 6
    tight = open_run(hours=5 / 3600)
    tight.budget.step.guess_s = 8.0
    (tight.folder.path / "screening.json").unlink()
    screening_phase(tight)
    assert tight.engine.asked == [] and left(tight) == [*range(1, 13)]


def test_what_was_seen_is_the_curriculums_first_history(open_run):
    run = open_run(data__curriculum=True)
    screening_phase(run)
    known = {prompt.row: run.prompts.history[str(index)] for index, prompt in enumerate(run.prompts.items)}
    assert known == {row: (1.0, 2.0) if row % 3 == 2 else (0.0, 2.0) for row in left(run)}
    assert run.state.question_history == run.prompts.history


def test_a_resumed_run_reads_the_record(open_run):
    first, again, later = open_run(data__curriculum=True), open_run(data__curriculum=True), open_run(data__curriculum=True)
    screening_phase(first)
    screening_phase(again)
    assert again.engine.asked == [] and left(again) == left(first) and again.prompts.history == first.prompts.history
    later.state = State(step=2, sampler_position=6, question_history={"1": (4.0, 6.0)})
    screening_phase(later)
    assert later.prompts.position == 6 and later.prompts.history == {"1": (4.0, 6.0)} and left(later) == left(first)


def test_a_record_that_is_gone_or_of_other_questions_is_refused(open_run):
    run = open_run()
    run.state.step = 1
    with pytest.raises(BadFile, match=r"screening\.json is missing"):
        screening_phase(run)
    screening_phase(open_run())
    path = run.folder.path / "screening.json"
    good = json.loads(path.read_text())
    for bad in ({"left_out": [99]}, {"left_out": [*range(1, 8)]}, {"questions": 13}, {"seen": {"99": [0, 2]}, "left_out": []}):
        path.write_text(json.dumps(good | bad))
        with pytest.raises(BadFile, match="does not fit this run's questions"):
            screening_phase(open_run())
    path.write_text(json.dumps(good | {"seen": {"3": [3, 2]}}))
    with pytest.raises(BadFile, match=r"screening\.json is damaged"):
        screening_phase(open_run())


def test_without_the_key_and_before_supervised_tuning_alone_nothing_is_asked(open_run):
    for run in (open_run(data__screen_minutes=None), open_run(sft__only=True, sft__steps=1)):
        screening_phase(run)
        assert run.engine.asked == [] and not (run.folder.path / "screening.json").exists() and left(run) == [*range(1, 13)]


def test_the_plan_counts_the_minutes_and_they_must_leave_some():
    card, steps = devices.find("a40"), {}
    for minutes in (None, 30.0, 50.0):
        config = resolve((), {"budget.hours": 1.0, "data.screen_minutes": minutes})
        steps[minutes] = plan.make(config, shape_of(config.model.name), card, load_s=0.0).steps
    assert steps[30.0] == pytest.approx(steps[None] - 30 * 60 / (3600 / steps[None]), rel=0.1)
    assert steps[50.0] == steps[None] // 2 > 0, "half of the time for training is kept"
    said = "within 1 hour: the first pass over the questions takes 40 minutes, SFT 20 minutes"
    with pytest.raises(UserError, match=said) as refused:
        resolve((), {"budget.hours": 1.0, "data.screen_minutes": 40.0, "sft.minutes": 20.0})
    assert refused.value.hint == "for example --set data.screen_minutes=6, a tenth of the time"


# ---- whole runs


@pytest.fixture(scope="module")
def screened(tiny_arguments, tmp_path_factory):
    """Rewards by length, some of them equal; the answers themselves are never right."""
    sets = ["sampling.max_completion_tokens=40", "reward.overlong.buffer=4", "optim.lr=0.002", "data.curriculum=true",
            "data.screen_minutes=10", "data.validation=0.2", "validation.fraction=0.5"]  # fmt: skip
    return [*map(str, tiny_arguments), *(part for key in sets for part in ("--set", key))]


@pytest.fixture(scope="module")
def whole(microrl, screened, tmp_path_factory):
    """The run that nobody kills."""
    out = tmp_path_factory.mktemp("screened") / "whole"
    done = microrl("train", *screened, "--steps", 6, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "screened: " in done.stderr
    return out


def trained_on(out):
    files = sorted((out / "rollouts").iterdir())
    return [[json.loads(line)["row_number"] for line in gzip.open(file)] for file in files]


@pytest.mark.slow
def test_what_is_left_out_is_not_trained_on(whole):
    record = json.loads((whole / "screening.json").read_text())
    assert 0 < len(record["left_out"]) < record["questions"] == len(record["seen"])
    drawn = {row for step in trained_on(whole) for row in step}
    assert drawn and not drawn & {*record["left_out"]} and drawn <= {*map(int, record["seen"])}
    assert json.loads((whole / "summary.json").read_text())["seconds_by_phase"]["screen"] > 0


@pytest.mark.cases(one_of_each=1)
@pytest.mark.slow
@pytest.mark.parametrize(("place", "count"), [("generation", 70), ("first pass", 1), ("behind the first pass", 1), ("update", 4)])
def test_a_killed_run_ends_the_same(microrl, screened, whole, tmp_path, place, count):
    out = tmp_path / "killed"
    process = start(["train", *screened, "--steps", "6", "--out", out], place=place, count=count)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert (out / "screening.json").exists() == (place not in ("generation", "first pass"))
    assert (out / "rollouts").exists() == (place == "update")
    done = microrl("train", "--resume", out)
    assert done.returncode == 0, done.stderr
    records = [json.loads((run / "screening.json").read_text()) | {"seconds": 0} for run in (out, whole)]
    assert records[0] == records[1]
    assert rows(out, times=False) == rows(whole, times=False) and trained_on(out) == trained_on(whole)
    events = [json.loads(line)["kind"] for line in (out / "events.jsonl").read_text().splitlines()]
    assert events.count("screened") == 1, "what is recorded is not sampled again"
    assert (out / "final/adapter_model.safetensors").read_bytes() == (whole / "final/adapter_model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("hours", "minutes", "most_s"), [(1.0, 5.0, 300), (0.2, 11.0, 290)])
def test_the_minutes_come_out_of_the_hours(inside, tiny_arguments, tmp_path, monkeypatch, hours, minutes, most_s):
    """An hour of which five minutes are asked for, and a fifth of an hour of which eleven are; in simulated time."""
    out = tmp_path / "run"
    Machine(monkeypatch)
    sets = ["--set", f"data.screen_minutes={minutes}", "--set", "evaluation.problems=2", "--set", "guard.useful_groups=none"]
    done = inside("train", *tiny_arguments, *sets, "--hours", hours, "--out", out)
    assert done.returncode == 0, done.stderr
    summary, record = (json.loads((out / name).read_text()) for name in ("summary.json", "screening.json"))
    assert 0 < len(record["seen"]) < record["questions"]
    assert most_s / 2 < record["seconds"] <= most_s + 2 * Machine.FORWARD_S
    assert summary["seconds_by_phase"]["screen"] == pytest.approx(record["seconds"])
    assert summary["steps"] > 0 and 0.75 < summary["hours_spent"] / hours <= 1.01
