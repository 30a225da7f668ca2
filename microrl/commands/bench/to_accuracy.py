"""Compare the time that microrl and TRL train until an accuracy is reached: the same model, questions and reward, in pairs."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from microrl import clock
from microrl.commands.bench import peer as peers
from microrl.commands.bench.trl_step import reached, recent
from microrl.commands.isolated import last_words
from microrl.config import RunConfig, known_models, resolve
from microrl.data import arithmetic
from microrl.data.gym import own_answer
from microrl.data.load import load_questions, split
from microrl.data.prompts import messages
from microrl.errors import MachineFailure
from microrl.run import names
from microrl.run.follow import JsonlReader

POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Goal:
    """`accuracy` is the mean over the last completions (`trl_step.WINDOW`), in training, of questions that are not repeated.

    `lr`: the rate of both sides, which then also share batch, limits and adapter; None: each side has its own defaults.
    """

    accuracy: float
    minutes: float
    lr: float | None = None


def compare(
    peer: str,
    goal: Goal,
    work: peers.Work,
    *,
    model: str = known_models.QUICKSTART,
    preset: str | None = None,
    pairs: int = 5,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Train `pairs` pairs of processes, one of microrl and one of TRL, until `goal` is reached or its minutes are over.

    The questions are those of `preset`, without its SFT and curriculum; None: addition. Pair n has seed n on both sides; which
    side is first alternates. For each side: `reached`, `steps`, `step_s` (seconds of all steps), `process_s` (with starting and
    loading) and the last `accuracy`. `ratio` is microrl's `step_s` divided by TRL's. Where only microrl reached the goal it is
    an upper bound (`is_bound`); where microrl did not, it is None. The whole's `ratio` is the median over the pairs, with
    `ratio_range`; None if a pair has none.

    Raises UserError and MachineFailure as `peer.compare`.
    """
    interpreter, versions = peers.find_peer(peer)
    presets = (preset,) if preset else ("quickstart",) if model == known_models.QUICKSTART else ()
    compared_pairs: list[dict[str, Any]] = []
    with peers.local_folder(model, say) as folder, tempfile.TemporaryDirectory(prefix="microrl-") as temporary:
        questions, flags = Path(temporary, "questions.json"), _flags(goal, work, model, folder, preset)
        questions.write_text(json.dumps(_questions(presets, flags)))
        for number in range(pairs):
            sides: dict[str, dict[str, Any]] = {}
            for side in ("microrl", "peer") if number % 2 == 0 else ("peer", "microrl"):
                name = "microrl" if side == "microrl" else f"TRL {versions['trl']}"
                say(f"pair {number + 1} of {pairs}: {name} trains, for {goal.minutes:g} minutes at most")
                if side == "microrl":
                    result = _ours(presets, {**flags, "seed": number}, goal, Path(temporary, f"run-{number}"))
                else:
                    words = ["--model", str(folder), *work.options(), "--seed", str(number), "--questions", str(questions)]
                    words += ["--device", "cuda" if torch.cuda.is_available() else "cpu"]
                    words += ["--until", str(goal.accuracy), "--seconds", str(60 * goal.minutes)]
                    words += [] if goal.lr is None else ["--lr", str(goal.lr)]
                    began = clock.now_s()
                    result = peers.peer_result(interpreter, *words)
                    result["process_s"] = clock.now_s() - began
                sides[side] = result
                ended = "reached" if result["reached"] else "not reached"
                say(f"pair {number + 1} of {pairs}: {name} {ended} after {result['steps']} steps, {result['step_s']:.3g} s "
                    f"(the process {result['process_s']:.3g} s), accuracy {result['accuracy']:.3f}")  # fmt: skip
            compared_pairs.append(with_ratio(sides["microrl"], sides["peer"]))
    is_known = all(pair["ratio"] is not None for pair in compared_pairs)
    return {
        "pairs": compared_pairs,
        **(peers.spread("ratio", compared_pairs) if is_known else {"ratio": None, "ratio_range": None}),
        "versions": {"microrl": {name: metadata.version(name) for name in peers.OURS}, "peer": versions},
        "settings": {
            "model": model,
            "preset": preset,
            **asdict(goal),
            **({} if goal.lr is None else asdict(work)),
            "dtype": peers.DTYPE,
        },
    }


def with_ratio(ours: dict[str, Any], peer: dict[str, Any]) -> dict[str, Any]:
    """A pair with its ratio, microrl's seconds of steps divided by the peer's."""
    ratio = ours["step_s"] / peer["step_s"] if ours["reached"] else None
    return {"microrl": ours, "peer": peer, "ratio": ratio, "is_bound": ours["reached"] and not peer["reached"]}


def in_words(result: dict[str, Any]) -> str:
    """The median ratio and its range, and how many pairs give a bound only."""
    if result["ratio"] is None:
        return "no ratio: microrl did not reach the accuracy in every pair"
    low, high = result["ratio_range"]
    bounds = sum(pair["is_bound"] for pair in result["pairs"])
    most = f"; an upper bound in {bounds} of {len(result['pairs'])} pairs, where TRL did not reach the accuracy" if bounds else ""
    ratio = f"{result['ratio']:.3f} ({low:.3f} to {high:.3f})"
    return f"microrl's time to the accuracy divided by TRL's, median and range: {ratio}{most}"


def _flags(goal: Goal, work: peers.Work, model: str, folder: Path, preset: str | None = None) -> dict[str, Any]:
    """What microrl trains with. Nothing is evaluated: the goal is read off the training itself."""
    data = {"data.curriculum": False, "sft.steps": None, "sft.minutes": None} if preset else {"data.name": arithmetic.NAME}
    flags: dict[str, Any] = {
        "model.name": model if model == known_models.QUICKSTART else str(folder), "model.dtype": peers.DTYPE, **data,
        "reward.format_weight": 0.0, "evaluation.problems": 0, "validation.problems": 0,
        "budget.hours": goal.minutes / 60, "budget.steps": None,
    }  # fmt: skip
    if goal.lr is not None:
        flags |= {
            "optim.lr": goal.lr, "optim.step_kl": None, "adapter.kind": "lora", "adapter.rank": work.rank,
            "adapter.alpha": float(work.rank), "sampling.prompts_per_step": work.prompts, "sampling.group_size": work.group,
            "sampling.max_completion_tokens": work.tokens,
        }  # fmt: skip
    return flags


def _questions(presets: tuple[str, ...], flags: dict[str, Any]) -> list[dict[str, Any]]:
    """microrl's training questions, as TRL takes them."""
    data = _config(presets, flags).data
    training = split(load_questions(data), data.held_out, data.validation).training
    return [{"prompt": messages(one.text, data.system, data.system_role), "gold": own_answer(one.answer)} for one in training]


def _sets(flags: dict[str, Any]) -> list[str]:
    """For `--set`, which takes a preset's value away by none."""
    return [f"{name}={'none' if value is None else value}" for name, value in flags.items()]


def _config(presets: tuple[str, ...], flags: dict[str, Any]) -> RunConfig:
    return resolve(presets, {}, _sets(flags))


def _ours(presets: tuple[str, ...], flags: dict[str, Any], goal: Goal, out: Path) -> dict[str, Any]:
    """`microrl train` in a process of its own, which is ended when its metrics show the goal."""
    sets = [word for one in _sets(flags) for word in ("--set", one)]
    command = [sys.executable, "-m", "microrl", "train", *presets, *sets, "--out", str(out)]
    sampling = _config(presets, flags).sampling
    per_step = sampling.prompts_per_step * sampling.group_size
    rows: list[dict[str, Any]] = []
    lines, ended, began = JsonlReader(out / names.METRICS), None, clock.now_s()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            while ended is None:
                ended = process.poll()
                rows += lines.new()
                accuracies = [row["reward/accuracy"] for row in rows]
                if is_reached := reached(accuracies, per_step, goal.accuracy):
                    break
                time.sleep(POLL_S)
            process_s = clock.now_s() - began
        finally:
            process.terminate()
            process.wait()
        output.seek(0)
        done = subprocess.CompletedProcess(command, ended or 0, "", output.read())
    if not rows:
        raise MachineFailure(f"microrl train failed: {last_words(done)}")
    return {
        "reached": is_reached, "steps": len(rows), "step_s": sum(row["time/step"] for row in rows), "process_s": process_s,
        "accuracy": recent(accuracies, per_step),
    }  # fmt: skip
