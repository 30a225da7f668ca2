"""`microrl doctor --measure`: is everything right on this machine, and how fast is it? One JSON file, one page, one calibration.

Correctness comes first, then rates. Every stage is a process of its own with a deadline (`stages.py`).
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from microrl import clock
from microrl.commands import isolated
from microrl.errors import UserError
from microrl.models import driver, gpu
from microrl.plan import calibration, here
from microrl.plan.calibration import Calibration, Point
from microrl.rollout.preflight import installed
from microrl.run import environment
from microrl.train.planning import this_device

OTHERS_SHARE = 0.1
"""Fraction of the card's memory that other processes may hold: more, and they compute on it too."""
BUSY = 0.7
"""Average load per core from which others are said to be busy."""
DEADLINE_S = 600.0
"""For one stage: vLLM's first start on a new machine reads it from a cold disk and compiles kernels."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One measurement: a function of `stages.STAGES`, its keyword arguments, and environment variables."""

    title: str
    kind: Literal["rates", "cycles", "decode", "update"]
    options: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a stage measured, or its error."""

    stage: Stage
    seconds: float
    measured: dict[str, Any] | None
    error: str | None = None
    hint: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON's types."""
        stage = {"title": self.stage.title, "kind": self.stage.kind, "options": self.stage.options}
        return {**stage, "seconds": self.seconds, "found": self.measured, "error": self.error, "hint": self.hint}


def stages(shape: str | None, rank: int | None) -> list[Stage]:
    """What is measured on this machine, in order. `shape` and `rank` replace the usual ones.

    Raises UserError where another process uses the GPU.
    """
    vllm = installed()
    if torch.cuda.is_available():
        _refuse_others()
        has_vllm = vllm is not None and vllm.is_for_gpus
        return [Stage("rates", "rates"), *_on_a_gpu(shape or "1.5b", rank or 256, has_vllm=has_vllm)]
    planned = [Stage("rates", "rates")]
    if vllm is not None and vllm.is_supported and vllm.is_for_cpu:
        sizes = {"shape": "tiny", "rank": rank or 8, "prompts": 4, "group": 4, "tokens": 16, "cycles": 2, "pairs": 1}
        planned += [Stage(f"weight sync by {sync}", "cycles", {**sizes, "sync": sync}) for sync in ("swap", "merge")]
    for name in [shape] if shape else ["tiny", "135m"]:
        prompts, group, tokens = (8, 8, 24) if name == "tiny" else (2, 4, 32)
        work = {"shape": name, "rank": rank or (4 if name == "tiny" else 64), "group": group, "tokens": tokens}
        planned.append(Stage(f"sampling, {name}", "decode", {**work, "sync": "shared", "prompts": [1, prompts]}))
        planned.append(Stage(f"update, {name}", "update", {**work, "prompts": prompts, "recompute": False}))
    return planned


def _on_a_gpu(shape: str, rank: int, *, has_vllm: bool) -> Iterator[Stage]:
    at = {"shape": shape, "rank": rank}
    if has_vllm:
        for level in ("kv", "1", "2"):
            sizes = {"prompts": 4, "group": 8, "tokens": 64, "cycles": 3, "pairs": 3 if level == "kv" else 1}
            yield Stage(f"sleep {level}, weight sync by swap", "cycles", {**at, **sizes, "sync": "swap", "sleep": level})
        small = {"shape": "tiny", "rank": 16, "prompts": 4, "group": 4, "tokens": 16, "cycles": 2, "pairs": 1}
        yield Stage("weight sync by merge", "cycles", {**small, "sync": "merge", "sleep": "2"})
        for version in ("0", "1"):
            runner = {"VLLM_USE_V2_MODEL_RUNNER": version}
            yield Stage(f"model runner V{int(version) + 1}", "cycles", {**small, "sync": "swap", "sleep": "kv"}, runner)
    batch = {"group": 8, "tokens": 256}
    for sync in ("swap", "merge") if has_vllm else ("shared",):
        counts = [1, 4, 16] if has_vllm else [1, 4]
        yield Stage(f"sampling, {sync}", "decode", {**at, **batch, "sync": sync, "prompts": counts})
    for recompute in (False, True):
        label = "update with activation recomputation" if recompute else "update"
        yield Stage(label, "update", {**at, "prompts": 2, **batch, "recompute": recompute})


def warning() -> str | None:
    """Why measurements may be too slow here; None: nothing is known that would slow them down."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < BUSY * cores:
        return None
    return f"other processes are busy on this machine (load {load:.1f} on {cores} cores), so its calibration may be too slow"


def _refuse_others() -> None:
    others = gpu.others_on_card()
    held, total = sum(other.bytes for other in others), torch.cuda.mem_get_info()[1]
    if held > OTHERS_SHARE * total:
        names = ", ".join(f"{other.name or 'process'} {other.pid} ({other.bytes / 1e9:.1f} GB)" for other in others)
        raise UserError(f"other processes use this GPU, so measurements would be wrong: {names}", "stop them, or wait")


def run(stage: Stage, deadline_s: float = DEADLINE_S) -> Outcome:
    """Carry out one stage in a process of its own."""
    began = clock.now_s()
    answer = isolated.run(
        "microrl.commands.bench.stages", stage.kind, json.dumps(stage.options), deadline_s=deadline_s, variables=stage.variables
    )
    return Outcome(stage, clock.now_s() - began, answer.get("found"), answer.get("error"), answer.get("hint"))


def calibration_of(outcomes: list[Outcome]) -> Calibration | None:
    """The calibration that the stages amount to; None if sampling or update failed."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for outcome in outcomes:
        if outcome.measured is not None:
            kinds.setdefault(outcome.stage.kind, []).append(outcome.measured)
    if not {"decode", "update"} <= kinds.keys():
        return None
    points = []
    for shape in dict.fromkeys(update["shape"] for update in kinds["update"]):
        updates = [update for update in kinds["update"] if update["shape"] == shape and not update["recompute"]]
        decodes = {decode["sync"]: decode["factor"] for decode in kinds["decode"] if decode["shape"] == shape}
        if not updates or not decodes:
            continue
        parameters, rank = updates[0]["parameters"], updates[0]["rank"]
        points.append(Point(shape=shape, parameters=parameters, rank=rank, decode=decodes, update=updates[0]["factor"]))
    if not points:
        return None
    device = this_device()
    starts = [decode["started_s"] for decode in kinds["decode"] if decode["sync"] != "shared"]
    return Calibration(
        device=here.calibration_name(device),
        memory_gb=device.memory_gb,
        versions=calibration.versions(),
        source=calibration.HERE,
        date=datetime.date.today().isoformat(),
        start_s=min(starts, default=None),
        points=points,
    )


def report(outcomes: list[Outcome], new_calibration: Calibration | None, peer: dict[str, Any] | None = None) -> dict[str, Any]:
    """Everything measured, as JSON's types."""
    return {
        "device": this_device().label,
        "driver": driver.version(),
        "environment": environment.describe(),
        "stages": [outcome.to_json() for outcome in outcomes],
        "peer": peer,
        "calibration": None if new_calibration is None else new_calibration.model_dump(),
    }


def write(folder: Path, value: dict[str, Any], page: str) -> tuple[Path, Path]:
    """Write `measured.json` and `measured.md` into a folder; returns both paths. Raises UserError."""
    paths = folder / "measured.json", folder / "measured.md"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths[0].write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        paths[1].write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror}", "choose another folder: --out DIR") from None
    return paths
