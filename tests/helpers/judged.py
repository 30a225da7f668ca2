"""A process that has hostile completions judged: `python judged.py SEED COUNT CANARY`.

It judges them through the real scorer, group by group, and prints what that cost as one JSON line. It is a process of its own so
that its memory is its own, and so that it can be killed.
"""

import json
import os
import random
import resource
import sys
from pathlib import Path

from hostile_answers import ALGEBRA_GOLDS, GOLDS, NEAR, completion, near

from microrl.config.reward import RewardConfig
from microrl.rewards.scorer import RewardScorer
from microrl.types import Completion, Group, Prompt

GROUP = 8
DEADLINE_S = 0.5
ALGEBRA_EVERY = 4
"""Every such group has a gold answer that only a computer algebra system can judge; `for_algebra` counts the answers for it."""
TEXT_EVERY = 19
"""Every such group is compared as text."""


def spent_s(pid="self"):
    """Seconds of processor time of a process and those of its children that have ended."""
    return sum(map(int, fields(pid)[11:15])) / os.sysconf("SC_CLK_TCK")


def fields(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["Z", *["0"] * 20]


def below(pid):
    """The processes below this one."""
    found = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            found |= {int(child), *below(int(child))}
    return found


def number_of(pid, name):
    """One of the numbers in /proc/PID/status: kilobytes where it is memory. 0 where the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def sockets(pid):
    """How many it has open, as far as can be seen from outside."""
    try:
        return sum(os.readlink(f"/proc/{pid}/fd/{each}").startswith("socket:") for each in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def main():
    seed, count, canary = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    rng = random.Random(seed)
    scorers = {kind: RewardScorer(RewardConfig(deadline_s=DEADLINE_S), answer_kind=kind) for kind in ("math", "text")}
    checker = scorers["math"].checker
    checker.deadline_s = 60.0
    assert list(scorers["math"].parse(ALGEBRA_GOLDS)) == [True] * len(ALGEBRA_GOLDS)  # the children are up
    checker.deadline_s = DEADLINE_S
    kinds = {"plain": 0.0, "algebra": 0.0}
    report = {"completions": 0, "killed": 0, "accepted": [], "sockets": -sockets("self"), "workers": 0, "unconfined": 0}
    report |= {"for_algebra": 0, "slowest_s": kinds, "began_mb": number_of("self", "VmRSS") / 1024, "slow": []}
    own_s = 0.0
    began_s = spent_s() + sum(map(spent_s, below("self")))
    for number in range(count // GROUP):
        is_algebra = number % ALGEBRA_EVERY == 0
        gold = rng.choice(ALGEBRA_GOLDS if is_algebra else GOLDS)
        texts = [completion(rng, number * GROUP + place, canary) for place in range(GROUP)]
        if gold in NEAR:
            texts[0] = f"<think>x</think> \\boxed{{{near(rng, gold)}}}"
        group = Group(Prompt("?", gold, "", (1,)), tuple(Completion((5, 6), (-1.0, -1.0), "stop", 0, text) for text in texts))
        scorer = scorers["text" if number % TEXT_EVERY == 1 and not is_algebra else "math"]
        scorer.reset_allowance()
        if is_algebra:
            answers = [scorer.extracted(group.prompt, completion) for completion in group.completions]
            report["for_algebra"] += sum(checker.at_once(gold, answer) is None for answer in answers)
        before = spent_s() + sum(map(spent_s, below("self")))
        (scored,) = scorer.score([(0, group)])
        children = below("self")
        took = spent_s() + sum(map(spent_s, children)) - before
        own_s += took
        kind = "algebra" if is_algebra else "plain"
        if took > kinds[kind]:
            kinds[kind] = took
            report["slow"] = [kind, gold, [text[:2100] for text in texts]] if kind == "plain" else report["slow"]
        for text, score in zip(texts, scored.scores, strict=True):
            report["completions"] += 1
            report["killed"] += score.killed
            if score.accuracy:
                report["accepted"].append((gold, text[:500]))
        for pid in children:
            report["sockets"] += sockets(pid)
            if number_of(pid, "PPid") not in (0, os.getpid()):  # what computes, and not what waits for it
                report["workers"] += 1
                report["unconfined"] += number_of(pid, "Seccomp") != 2
        if number == 0:
            print("begun", flush=True)
    report["sockets"] += sockets("self")
    report |= {"scoring_s": own_s, "whole_s": spent_s() + sum(map(spent_s, below("self"))) - began_s}
    report |= {"ended_mb": number_of("self", "VmRSS") / 1024, "peak_mb": number_of("self", "VmHWM") / 1024}
    for scorer in scorers.values():
        scorer.close()
    # The largest of all that have ended: also of those that were killed in the middle of a check.
    report["child_mb"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
