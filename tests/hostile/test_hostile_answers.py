"""100,000 hostile completions, judged by the real scorer: none hangs, crashes, fills the memory, gets out, or is right."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import judged
import pytest
from hostile_answers import ALGEBRA_GOLDS, GOLDS

from microrl.config.reward import RewardConfig
from microrl.rewards.scorer import RewardScorer
from microrl.sandbox import levels
from microrl.types import Completion, Group, Prompt

JUDGED = Path(judged.__file__)
PLAIN_S = 2.0
"""Seconds of processor time of one group of 8, where no computer algebra system is asked."""
ALGEBRA_S = 3 * judged.DEADLINE_S + 3
"""And where one is: three deadlines, as for a step, and the start of both children anew."""
PARENT_MB = 300
CHILD_MB = 1000
"""100,000 have taken 92 of the parent and 109 of a child."""
PATIENCE_S = 30.0
ENDLESS = 10**9


def alive(pids):
    return {pid for pid in pids if judged.fields(pid)[0] != "Z"}


@pytest.mark.slow
@pytest.mark.parametrize("count", [pytest.param(1_000, marks=pytest.mark.one_of_each), 100_000])
def test_hostile_completions(count, tmp_path, capsys):
    canary = tmp_path / "canary"
    seed = os.environ.get("MICRORL_FUZZ_SEED", "0")
    done = subprocess.run(
        [sys.executable, JUDGED, seed, str(count), canary], capture_output=True, text=True, timeout=60 + count / 20, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    told = {name: value for name, value in report.items() if name not in ("accepted", "slow")}
    with capsys.disabled():
        print(f"\n{report['completions'] / report['scoring_s']:.0f} completions a second of processor time: {told}")
    assert report["completions"] == count
    assert report["accepted"] == []
    assert report["for_algebra"] > count / 50, "the computer algebra system is tried, too"
    assert report["slowest_s"]["plain"] < PLAIN_S and report["slowest_s"]["algebra"] < ALGEBRA_S, report["slow"]
    assert report["peak_mb"] < PARENT_MB and report["child_mb"] < CHILD_MB
    assert report["ended_mb"] - report["began_mb"] < 100
    assert not canary.exists() and list(tmp_path.iterdir()) == []
    assert report["sockets"] == 0 and report["workers"] > 0
    assert report["unconfined"] == 0 or not levels().system_calls


@pytest.mark.slow
@pytest.mark.one_of_each
def test_none_of_its_processes_is_left_when_it_is_killed(tmp_path):
    process = subprocess.Popen(
        [sys.executable, JUDGED, "3", str(ENDLESS), tmp_path / "canary"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "begun\n"
        until = time.monotonic() + PATIENCE_S
        while len(below := judged.below(process.pid)) < 3 and time.monotonic() < until:
            time.sleep(0.01)
        assert len(below) >= 3, "two children, and a worker of one of them"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    until = time.monotonic() + PATIENCE_S
    while alive(below) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(below)


ABSURD = [
    r"\binom{10^9}{10^8}", "99999!!", "(((((2^2)^2)^2)^2)^2)^2", r"\prod_{n=1}^{9999} n^n", r"\sin(\exp(\exp(\exp(99))))",
    "9^{9^{9^9}}", "((9!)!)!", r"\sqrt[99]{\sqrt[98]{7^{9999}}}", r"\sum_{n=1}^{9999} \frac{1}{n^{99}}", r"\tan(10^{999})",
    r"\log(\log(\log(10^{9999})))", r"2^{9999}\cdot 3^{9999}\cdot 5^{9999}", r"\int_0^{1} x^{x^{x}} dx", r"\frac{999!}{998!}",
    "+".join(rf"\sin{{x^{{{number}}}}}" for number in range(99)), r"\binom{\binom{99}{9}}{\binom{99}{8}}",
    r"\frac{n}{n+" * 12 + "1" + "}" * 12, r"\begin{vmatrix} (x+7)^{99} & 9^{9999} \\ (y+z)^{97} & 1 \end{vmatrix}^{99}",
    r"\prod_{n=1}^{\infty} \cos(\frac{n}{9})", r"\lim_{x \to 0} ((x+9)^{x})^{(9x)^3}", r"\gcd(999!, 997^{999})",
]  # fmt: skip
"""Most pass a look: what they cost shows only when they are read."""
MORE_S = 2.0


@pytest.mark.slow
@pytest.mark.one_of_each
def test_128_absurd_answers_cost_a_step_at_most_two_seconds_more():
    """Of processor time, the checkers' too: what else the machine does takes none of it. A quarter of the gold answers need a
    computer algebra system: for the others a bound in the arithmetic would do, and no look at the text would be missed."""
    golds = [*GOLDS[:12], *ALGEBRA_GOLDS[:2], *ALGEBRA_GOLDS[4:6]]
    wrong = [[str(100 * number + place) for place in range(8)] for number in range(len(golds))]
    absurd = [[f"{ABSURD[(8 * number + place) % len(ABSURD)]}+{number}" for place in range(8)] for number in range(len(golds))]
    assert more_than(wrong, absurd, golds) <= MORE_S


UNENDING = {
    "integrals": (2, r"\int_0^1 \sqrt{\sin(x^{9}+%d)+\ln(x^{7}+3)} \, dx"),
    "oscillating": (2, r"\int_0^{\infty} \sin(x^{7}+%d) \ln(x^{5}+x+1) \, dx"),
    "indefinite": (4, r"\int \sqrt{\sin(x^{9}+%d)+\ln(x^{7}+3)} \, dx"),
    "limits": (3, r"\lim_{x \to 0} \frac{\sin(\tan(x))-\tan(\sin(x))}{x^{7}+%dx^{8}}"),
    "roots": (7, r"\max(\sqrt{%d+\sqrt{2}}-\sqrt[3]{5+\sqrt{7}}, \sin(\sqrt{3}))"),
    "products": (5, r"\prod_{n=1}^{20} \sqrt{n+\sqrt{n+%d}}"),
    "determinants": (
        6,
        r"\begin{vmatrix} " + r" \\ ".join([r"\sqrt{2} & \sqrt[3]{3} & \sqrt{5+\sqrt{%d}}"] * 3) + r" \end{vmatrix}",
    ),
}
"""The place of a gold answer among ALGEBRA_GOLDS, from 1, and what takes a computer algebra system seconds each time."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.one_of_each] * (kind == "roots")) for kind in UNENDING])
def test_nor_do_answers_that_take_for_ever_to_work_out(kind):
    """Of 128, 16 are for gold answers that have one of their kind."""
    place, form = UNENDING[kind]
    golds = [*GOLDS[:14], *[ALGEBRA_GOLDS[place - 1]] * 2]
    texts = [[form.replace("%d", str(9 + 8 * number + k)) for k in range(8)] for number in range(len(golds))]
    wrong = [[str(100 * number + k) for k in range(8)] for number in range(len(golds))]
    assert more_than(wrong, texts, golds) <= 2 * MORE_S, "two children share it"


def more_than(some, others, golds):
    """Seconds of processor time that a step with the second answers takes more than one with the first."""
    spent = []
    for answers in (some, others):
        scorer = RewardScorer(RewardConfig())
        step = [Group(Prompt("?", gold, "", (1,)), tuple(map(completion, texts))) for gold, texts in zip(golds, answers)]
        try:
            assert all(scorer.parse(ALGEBRA_GOLDS[:4]))  # the children are up
            before = judged.spent_s() + sum(map(judged.spent_s, judged.below("self")))
            scored = scorer.score(enumerate(step))
            spent.append(judged.spent_s() + sum(map(judged.spent_s, judged.below("self"))) - before)
        finally:
            scorer.close()
        assert sum(len(one.scores) for one in scored) == 128
        assert not any(score.accuracy or score.killed for one in scored for score in one.scores)
    return spent[1] - spent[0]


def completion(answer):
    return Completion((5, 6), (-1.0, -1.0), "stop", 0, f"<think>x</think> \\boxed{{{answer}}}")
