"""Answers whose checks hang: what they cost a step, an evaluation and a run, and that nothing outlives the run."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import processes
import pytest

from microrl.clock import now_s
from microrl.config import resolve
from microrl.config.reward import RewardConfig
from microrl.data.load import Question
from microrl.errors import MachineFailure, UserError
from microrl.evaluation.evaluate import evaluate
from microrl.rewards.answer_checker import AnswerChecker
from microrl.rewards.scorer import RewardScorer
from microrl.run.console import RunConsole
from microrl.sandbox.worker import NoReply, Worker
from microrl.train.questions import check_golds
from microrl.types import Completion, Group, Prompt, Sampling

GOLD, HOSTILE = (
    r"\sum_{n=1}^{9} 2^{n}+\int_0^0 x \, dx",
    r"1022+\int_0^1 \frac{\sqrt{\sin(x^{9}+99)+\ln(x^{7}+3)}}{10^{12}} \, dx",
)
"""A check that only a computer algebra system can make, and it does not end: the values differ by 1e-15, relatively."""
FOREVER_S = 600.0
PATIENCE_S = 20.0
"""How long a test waits for what takes well under a second where nothing hangs and the machine is free."""


def hostile(number):
    return rf"1022+\int_0^1 \frac{{\sqrt{{\sin(x^{{9}}+{number + 1})+\ln(x^{{7}}+3)}}}}{{10^{{12}}}} \, dx"


def right(number):
    """The gold answer in one of many spellings."""
    return rf"\sum_{{n={number}}}^{{{number + 8}}} 2^{{n-{number - 1}}}"


def group(gold, *answers):
    texts = [f"<think>x</think> \\boxed{{{answer}}}" for answer in answers]
    return Group(
        Prompt(f"{gold}: {answers[0]}", gold, "", (1,)), tuple(Completion((5, 6), (-1.0, -1.0), "stop", 0, t) for t in texts)
    )


@pytest.fixture(scope="module")
def running(checkers_at_once):
    """A judge whose children are up."""
    scorer = RewardScorer(RewardConfig())
    checkers_at_once(scorer.checker)
    for number in range(2, 6):
        scorer.checker.check(GOLD, right(number))
    yield scorer
    scorer.close()


@pytest.fixture
def scorer(running):
    """The same, at the start of a step, with half a second for a check."""
    running.checker.deadline_s = 0.5
    running.checker._known.clear()
    running.check_deadline = lambda: None
    running.reset_allowance()
    return running


@pytest.fixture
def checker():
    """A checker with one child, which is up."""
    checker = AnswerChecker(deadline_s=PATIENCE_S, children=1)
    checker.check(GOLD, right(2))
    checker.deadline_s = 0.3
    yield checker
    checker.close()


def in_time(work, seconds=PATIENCE_S):
    """What `work` returns or raises, if that comes in time: a test must fail, and not hang, where the code does."""
    found = []

    def run():
        try:
            found.append((work(), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, f"nothing after {seconds:g} s"
    value, error = found[0]
    if error is not None:
        raise error
    return value


# ---- processes


def all_processes():
    """Process id to (parent, state, seconds of processor time)."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[int(pid)] = (int(fields[1]), fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    return found


def descendants(root):
    """Processes below this one, without those that are dead and not yet taken off the list."""
    table, found = all_processes(), {root}
    while more := {pid for pid, (parent, _, _) in table.items() if parent in found} - found:
        found |= more
    return {pid for pid in found - {root} if table[pid][1] != "Z"}


def alive(pids):
    table = all_processes()
    return {pid for pid in pids if pid in table and table[pid][1] != "Z"}


def spent_s(pids):
    table = all_processes()
    return sum(table[pid][2] for pid in pids if pid in table)


def until(condition, what):
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < PATIENCE_S, what
        time.sleep(0.02)


@pytest.fixture
def checking():
    """Begin a process that is in the middle of a check that hangs, with these options; returns it, and what is below it."""
    code = (
        "import sys; from microrl.rewards.answer_checker import AnswerChecker\n"
        f"checker = AnswerChecker(deadline_s={FOREVER_S}, children=1)\n"
        f"checker.check({GOLD!r}, {right(2)!r}); print('up', flush=True)\n"
        f"checker.check({GOLD!r}, {HOSTILE!r}, **eval(sys.argv[1])); sys.stdin.read()"
    )
    begun, below = [], set()

    def begin(**more):
        process = subprocess.Popen(
            [sys.executable, "-c", code, repr(more)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        begun.append(process)
        assert process.stdout.readline() == "up\n"
        before = spent_s(descendants(process.pid))
        until(lambda: spent_s(descendants(process.pid)) > before + 0.3, "the check does not begin")
        below.update(descendants(process.pid))
        return process, set(below)

    yield begin
    for pid in alive(below):
        os.kill(pid, signal.SIGKILL)
    for process in begun:
        process.kill()
        process.communicate()


@pytest.mark.one_of_each
@pytest.mark.slow
def test_no_checker_outlives_a_run_that_is_killed(checking):
    process, below = checking()
    process.kill()
    process.wait()
    until(lambda: not alive(below), "the checker is still there")


@pytest.mark.slow
def test_no_fork_outlives_its_checker(checking):
    process, below = checking()
    table = all_processes()
    for pid in below:
        if table[pid][0] == process.pid:
            os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(below), "the fork is still there")


@pytest.mark.one_of_each
@pytest.mark.slow
def test_a_check_has_a_limit_of_processor_time_where_nobody_is_left_to_end_it(checking):
    process, below = checking(cpu_s=1.0)
    process.send_signal(signal.SIGSTOP)
    until(lambda: spent_s(below) == (time.sleep(1.0), spent_s(below))[1], "it goes on computing")


@pytest.mark.slow
def test_the_limit_of_processor_time_is_a_checks_and_not_its_processs(checker):
    checker.deadline_s = PATIENCE_S
    child = checker._children[0]._process.pid
    number = 0
    while spent_s(descendants(child)) < 4:
        number += 1
        assert not checker.check(GOLD, rf"{right(number % 80 + 2)} + {number}", cpu_s=1.0).killed
    assert number > 4


# ---- one check


def stop(checker):
    """Stop the child, which waits for a request, and its fork. Returns the child's process id."""
    host = checker._children[0]
    assert host.await_ready()
    for pid in (host._process.pid, *descendants(host._process.pid)):
        os.kill(pid, signal.SIGSTOP)
    return host._process.pid


@pytest.mark.slow
def test_a_killed_verdict_is_not_remembered(checker):
    stop(checker)
    assert checker.check(GOLD, right(4)) == (False, True)
    checker.deadline_s = PATIENCE_S
    assert checker.check(GOLD, right(4)) == (True, False)


@pytest.mark.slow
def test_a_large_request_to_a_stopped_child_keeps_the_deadline(checker):
    child = stop(checker)
    try:
        large = "\N{GRINNING FACE}" * 9000  # 108 kB on the wire, and a pipe holds 64
        assert in_time(lambda: checker._ask({"gold": GOLD, "answer": large}, None, lambda: False)) is None
    finally:
        if alive({child}):
            os.kill(child, signal.SIGKILL)
    checker.deadline_s = PATIENCE_S
    assert checker._ask({"gold": GOLD, "answer": large}, None, lambda: False) == 0.0, "a child that runs takes it"


def test_half_a_line_keeps_the_deadline():
    worker = Worker()
    worker._launch([sys.executable, "-c", "import sys, time; sys.stdout.write('tr'); sys.stdout.flush(); time.sleep(600)"])
    try:
        with pytest.raises(NoReply):
            in_time(lambda: worker._lines.receive(now_s() + 1.0, lambda: False))
    finally:
        worker.kill()


def test_what_is_longer_than_any_answer_is_wrong_and_never_sent():
    checker = AnswerChecker(deadline_s=0.3, children=1)
    assert in_time(lambda: checker.check("1/2", "1" * 10_000_000 + "/2")) == (False, False)
    assert checker._children[0]._process is None
    assert checker.check("1" * 20_000, " " + "1" * 20_000) == (True, False), "what is equal needs no mathematics"
    assert checker.parses("x+" * 20_000 + "x") is False


def test_a_checker_that_cannot_start_says_so(monkeypatch):
    scorer = RewardScorer(RewardConfig())
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(MachineFailure, match="did not start"):
        in_time(lambda: scorer.score([(0, group(GOLD, right(2), right(3), right(4)))]))


@pytest.mark.slow
def test_closing_while_checks_are_running_ends_them():
    checker = AnswerChecker(deadline_s=FOREVER_S)
    for number in (2, 3):
        checker.check(GOLD, right(number))
    before, verdicts = spent_s(descendants(os.getpid())), []
    threads = [
        threading.Thread(target=lambda n=n: verdicts.append(checker.check(GOLD, hostile(n))), daemon=True) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    until(lambda: spent_s(descendants(os.getpid())) > before + 0.3, "the checks do not begin")
    closers = [threading.Thread(target=checker.close, daemon=True) for _ in range(2)]
    for thread in closers:
        thread.start()
    for thread in threads + closers:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert verdicts == [(False, True)] * 4
    assert all(child._process is None for child in checker._children), "none is started anew"
    assert checker.check(GOLD, right(4)) == (False, True), "nor for what comes later"


# ---- one step


@pytest.mark.slow
@pytest.mark.one_of_each
def test_hanging_answers_cost_a_step_three_deadlines_and_quick_ones_nothing(scorer):
    scorer.checker.deadline_s = 3.0  # a first try has a tenth of it: five times what a quick answer takes of a processor
    towers = [group(GOLD, *(hostile(100 * n + k) for k in range(4))) for n in range(4)]
    towers += [group(GOLD, hostile(999))]  # the seventeenth: after it the others are checked in a second round
    quick = [group(GOLD, *(right(10 * n + k) for k in range(2, 6))) for n in range(3)]
    began = time.monotonic()
    scored = scorer.score(enumerate(towers + quick))
    assert time.monotonic() - began < PATIENCE_S
    assert [[score.killed for score in one.scores] for one in scored] == [[True] * 4] * 4 + [[True]] + [[False] * 4] * 3
    assert [score.accuracy for one in scored for score in one.scores] == [0] * 17 + [1] * 12
    allowance = scorer.allowance
    assert len(allowance.put_off) >= 16 and len(allowance.killed) == 2 and len(allowance.refused) == 15
    assert (GOLD, hostile(0)) in allowance.killed, "the first in the step's order"


def never():
    raise AssertionError("it waits")


@pytest.mark.slow
def test_the_same_hanging_answer_is_asked_once_a_step_and_again_in_the_next(scorer):
    same = [(n, group(GOLD, *[HOSTILE] * 8)) for n in range(8)]
    for _ in range(2):
        scorer.reset_allowance()
        assert in_time(lambda: sum(score.killed for one in scorer.score(same) for score in one.scores)) == 64
        assert scorer.allowance.killed == {(GOLD, HOSTILE)}
        scorer.check_deadline = never  # the step knows it: a second round of dynamic sampling does not wait
        scorer.score(same)
        scorer.check_deadline = lambda: None


@pytest.mark.slow
def test_a_whole_step_of_hanging_answers_is_bounded(scorer):
    step = [(n, group(GOLD, *(hostile(100 * n + k) for k in range(8)))) for n in range(16)]
    scored = in_time(lambda: scorer.score(step), seconds=15)
    assert all(score.killed and not score.accuracy for one in scored for score in one.scores)


@pytest.mark.slow
@pytest.mark.one_of_each
def test_slow_but_honest_answers_are_all_checked(scorer):
    """None hangs until the deadline, so none is refused, however many are put off."""
    scorer.checker.deadline_s = PATIENCE_S
    answers = [rf"\sum_{{j=1}}^{{{n}}} j^{{2}}" for n in range(3, 27)]
    golds = [rf"\sum_{{k=1}}^{{{n}}} k^{{2}}" for n in range(3, 27)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("microrl.rewards.allowance.FIRST_TRY", 1e-4)  # 2 ms
        scored = scorer.score(enumerate(group(gold, answer) for gold, answer in zip(golds, answers, strict=True)))
    assert len(scorer.allowance.put_off) >= 16
    assert all(score.accuracy == 1 and not score.killed for one in scored for score in one.scores)


class Stop(Exception):
    pass


@pytest.mark.slow
def test_waiting_for_scores_looks_at_the_clock_and_leaves_at_once(scorer):
    scorer.checker.deadline_s = 2 * PATIENCE_S
    began, looks = time.monotonic(), []

    def check_deadline():
        looks.append(time.monotonic())
        if looks[-1] - began > 0.8:
            raise Stop

    scorer.check_deadline = check_deadline
    with pytest.raises(Stop):
        scorer.score([(0, group(GOLD, *map(hostile, range(6))))])
    assert time.monotonic() - began < PATIENCE_S and len(looks) >= 3
    scorer.check_deadline = lambda: None
    scorer.reset_allowance()
    began = time.monotonic()
    assert scorer.score([(0, group(GOLD, right(7)))])[0].scores[0].accuracy == 1
    assert time.monotonic() - began < PATIENCE_S, "what was given up keeps nothing waiting"


# ---- evaluations


class Scripted:
    """Answers each question with what stands in it."""

    decode_steps = 0

    def groups(self, prompts, sampling, *, stream, positions, pace, environment=None):
        for position, prompt in zip(positions, prompts, strict=True):
            if pace:
                pace.may_start(0)
            yield position, Group(prompt, (Completion((1, 2), (0.0, 0.0), "stop", 0, f"\\boxed{{{prompt.question}}}"),))


@pytest.mark.slow
def test_an_evaluation_keeps_its_deadline_and_leaves_out_what_is_not_scored(scorer):
    scorer.checker.deadline_s = 30.0
    questions = [right(2), right(3), "7", HOSTILE, right(4)]
    prompts = [Prompt(question, GOLD, "", (1,)) for question in questions]
    began = time.monotonic()
    result = evaluate(Scripted(), scorer, prompts, Sampling(1, 8), seed=0, pass_k=(), deadline_s=2.0)
    assert 2 <= time.monotonic() - began < PATIENCE_S
    assert result.right == {right(2): 1, right(3): 1, "7": 0}, "as many as are whole, in the order of the questions"
    assert result.killed == 0
    assert evaluate(Scripted(), scorer, prompts[3:], Sampling(1, 8), seed=0, pass_k=(), deadline_s=1.0) is None


@pytest.mark.slow
def test_an_evaluation_counts_what_it_killed(scorer):
    prompts = [Prompt(question, GOLD, "", (1,)) for question in (right(2), HOSTILE, "7")]
    scorer.checker.deadline_s = 3.0  # of which the right answer takes a tenth, on a quiet machine
    result = evaluate(Scripted(), scorer, prompts, Sampling(1, 8), seed=0, pass_k=())
    assert result.right == {right(2): 1, HOSTILE: 0, "7": 0} and result.killed == 1
    assert result.to_json()["killed"] == 1


# ---- whole runs


@pytest.mark.slow
def test_gold_answers_that_hang_are_refused_before_they_cost_hours(monkeypatch, scorer):
    """No gold answer is known that hangs when it is read; this is for those that are not known."""
    plain = scorer.checker.check
    monkeypatch.setattr(scorer.checker, "parses", lambda gold: None if gold != "1/2" and plain(GOLD, gold).killed else True)
    scorer.checker.deadline_s = 0.2
    config = resolve((), {"data.name": "sums.jsonl", "data.bad_answers": "drop", "reward.deadline_s": 0.2})
    golds = [hostile(n) for n in range(600)]
    questions = [Question(row, f"{gold}?", gold) for row, gold in enumerate(["1/2", *golds], 1)]
    with pytest.raises(UserError, match=r"sums.jsonl, row 2: parsing the gold answer .* and 8 others takes more than 0.2 s each"):
        in_time(lambda: check_golds(questions, scorer, config, None, RunConsole()))
    assert check_golds(questions[:3], scorer, config, None, RunConsole()) == questions[:1]


@pytest.mark.slow
def test_a_policy_that_comes_to_hang_keeps_its_hours(tiny_arguments, tmp_path):
    """After 150 completions every answer is another endless integral: in the middle of training, and in the final evaluation.

    Each check may take 40 s, so that waiting for a single one is seen on a machine that stalls for seconds, too.
    """
    code = (
        "from dataclasses import replace\n"
        "from microrl.rollout import continuous\n"
        "real, made = continuous.Completion, []\n"
        "def tower(**fields):\n"
        "    made.append(real(**fields))\n"
        "    late = len(made) > 150\n"
        "    endless = r'\\boxed{1022+\\int_0^1 \\frac{\\sqrt{\\sin(x^{9}+%d)+\\ln(x^{7}+3)}}{10^{12}} dx}' % len(made)\n"
        "    return replace(made[-1], text=endless) if late else made[-1]\n"
        "continuous.Completion = tower\n"
        "from microrl.cli import main; main()"
    )
    out, budget_s, data = tmp_path / "run", 60, tmp_path / "sums.jsonl"
    data.write_text("".join(json.dumps({"question": f"What is {n} + {n}?", "answer": GOLD}) + "\n" for n in range(200)))
    command = [sys.executable, "-c", code, "train", *tiny_arguments, "--hours", budget_s / 3600, "--out", out, "--data", data,
               "--set", "reward.deadline_s=40"]  # fmt: skip
    began = time.monotonic()
    done = processes.run(command, timeout=600)
    seconds = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    assert seconds <= budget_s + 30, "it waits for no check"
    summary = json.loads((out / "summary.json").read_text())
    assert summary["status"] == "done" and summary["steps"] >= 1 and (out / "final").is_dir()
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    hung = [row["reward/killed"] for row in rows if row["reward/killed"]]
    told = [event["message"] for event in events if event["kind"] == "checks killed"]
    assert len(told) == len(hung) and (hung or any("was discarded" in event["message"] for event in events))
    for killed, message in zip(hung, told, strict=True):
        assert (
            message.startswith(f"{killed} answer{'s' * (killed != 1)} counted as wrong: checking ")
            and "timed out (reward.deadline_s = 40 s)" in message
        )
