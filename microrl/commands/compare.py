"""Compare runs on what they were evaluated on (`microrl compare`): from their folders alone, without torch."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from math import isinf
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from microrl.config import RunConfig
from microrl.errors import UserError
from microrl.evaluation.intervals import Estimate, permutation_p
from microrl.evaluation.result import Result
from microrl.evaluation.seeds import hierarchical, hierarchical_gain
from microrl.files import BadFile, read_json
from microrl.run.folder import RunFolder

HELD_OUT = "held-out"
IGNORED = ("seed", "init", "budget.price", "evaluation.", "validation.", "engine.", "guard.", "data.seed")
"""Keys that make no other method of a run."""
NAMED = ("adapter.kind", "adapter.rank", "loss.kind")
"""Keys that differ, but are in the name of an adapter and a loss already."""
"""Keys that every method's name tells."""
PART = re.compile(r"-(best|step-\d{6,15})$")


@dataclass(frozen=True, slots=True)
class Entry:
    """A run, and the part of it that is compared: None for its final adapter."""

    run: RunFolder
    config: RunConfig
    part: str | None

    @classmethod
    def of(cls, run: RunFolder, part: str | None) -> Entry:
        """Raises UserError for a damaged configuration."""
        return cls(run, run.settings(), part)


@dataclass(slots=True)
class Evaluation:
    """An entry's result on a benchmark, the untouched model's on the same questions, and what the run has cost."""

    entry: Entry
    result: Result
    base: Result | None
    is_selected: bool


@dataclass(slots=True)
class Row:
    """One metric of one method on one benchmark, over seeds. Shares, not percent; `None` where it cannot be told."""

    method: str
    seeds: list[int]
    benchmark: str
    metric: str
    questions: int
    value: Estimate
    base: float | None = None
    gain: Estimate | None = None
    p: float | None = None
    against_first: Estimate | None = None
    """Difference to the first method that was evaluated on the same benchmark in the same way."""
    usd: float | None = None
    """Dollars of a run, mean over seeds."""
    usd_per_point: Estimate | None = None
    """Dollars for a hundredth more of the metric; its upper end is infinite where the gain may be none."""
    is_selected: bool = False
    source: str | None = None
    """Where a published number stands; None: measured here."""
    spread: float | None = None
    """Of a published number: the standard error or deviation that the paper gives."""

    def to_json(self) -> dict[str, Any]:
        """As JSON; an infinite end is null."""
        value: dict[str, Any] = {}
        for one in fields(self):
            entry = getattr(self, one.name)
            value[one.name] = entry.to_json() if isinstance(entry, Estimate) else entry
        if self.usd_per_point is not None and isinf(self.usd_per_point.ci95[1]):
            value["usd_per_point"]["ci95"][1] = None
        if self.source is not None:
            value["value"] = {"mean": self.value.mean, "ci95": None}
        return value


class _Summary(BaseModel):
    model_config = ConfigDict(extra="ignore")
    cost_usd: float | None = None


def compare(entries: Sequence[Entry], *, published: bool = True) -> list[Row]:
    """A row for each method, benchmark and metric. Runs that differ in nothing but their seeds are one method.

    Raises UserError where a run was not evaluated, where two are one method and one seed, and for damaged files.
    """
    labels = [
        label if entry.part is None else f"{label} ({entry.part})"
        for entry, label in zip(entries, _labels([entry.config for entry in entries]), strict=True)
    ]
    by_benchmark: dict[str, dict[str, list[Evaluation]]] = {}
    given: dict[tuple[str, int], Entry] = {}
    for entry, label in zip(entries, labels, strict=True):
        if (other := given.setdefault((label, entry.config.seed), entry)) is not entry:
            raise UserError(
                f"{entry.run.path} and {other.run.path} have the same settings and the same seed",
                "compare runs of different seeds: one seed would count as two",
            )
        found = _evaluations(entry)
        if not found:
            raise UserError(f"{entry.run.path} was not evaluated", f"microrl eval {entry.run.path}")
        for stem, evaluation in found.items():
            by_benchmark.setdefault(stem, {}).setdefault(label, []).append(evaluation)
    rows = [row for stem, methods in by_benchmark.items() for row in _rows(stem, methods)]
    models = {entry.config.model.name for entry in entries}
    return [*rows, *(_published({row.benchmark for row in rows}, models) if published else [])]


def _evaluations(entry: Entry) -> dict[str, Evaluation]:
    """By NAME-SETTINGS; the evaluations before and after training as `held-out`."""
    folder, found = entry.run.path / "eval", {}
    stored = sorted(path for path in folder.glob("*.json") if not path.name.startswith("."))
    parts: dict[str, set[str]] = {}
    for path in stored:
        part = PART.search(path.stem)
        parts.setdefault(PART.sub("", path.stem), set()).add(part[1] if part else "final")
    for path in stored:
        part = PART.search(path.stem)
        stem = PART.sub("", path.stem)
        if stem in (f"{HELD_OUT}-before", f"{HELD_OUT}-after") or (part[1] if part else None) != entry.part:
            continue
        selected = entry.part is not None and len(parts[stem]) > 1
        found[stem] = Evaluation(entry, Result.read(path), _base(path), selected)
    after = folder / f"{HELD_OUT}-after.json"
    if entry.part is None and after.is_file():
        before = folder / f"{HELD_OUT}-before.json"
        base = Result.read(before) if before.is_file() else None
        found[HELD_OUT] = Evaluation(entry, Result.read(after), base, False)
    return found


def _base(path: Path) -> Result | None:
    value: Any = read_json(path, dict[str, Any]).get("base")
    try:
        return None if value is None else Result.of(value)
    except ValueError:  # pydantic's are some
        raise BadFile(f"{path} is damaged: the result of its base model cannot be read") from None


def _rows(stem: str, methods: Mapping[str, Sequence[Evaluation]]) -> Iterable[Row]:
    first = next(iter(methods.values()))
    samples = min(one.result.samples for runs in methods.values() for one in runs)
    ks = [k for k in first[0].result.pass_k if k <= samples and k > 1]
    for metric, k in [(f"avg@{samples}", None), *((f"pass@{k}", k) for k in ks)]:
        for label, runs in methods.items():
            yield _row(stem, metric, k, label, runs, None if runs is first else first)


def _row(
    stem: str, metric: str, k: int | None, label: str, runs: Sequence[Evaluation], first: Sequence[Evaluation] | None
) -> Row:
    samples = runs[0].result.samples
    ours = [one.result.by_question(k) for one in runs]
    value = hierarchical(ours, samples=samples, k=k or 1)
    if value is None:
        raise UserError(
            f"the runs of `{label}` have no question of {stem} in common", "evaluate them on the same data and with the same seed"
        )
    row = Row(
        label, [one.entry.config.seed for one in runs], stem.split("-n")[0], metric, len(set.intersection(*map(set, ours))), value
    )
    bases = [one.base.by_question(k) for one in runs if one.base is not None]
    if len(bases) == len(runs):
        base = bases[:1] if all(base == bases[0] for base in bases) else bases
        row.gain = hierarchical_gain(base, ours, samples=samples, k=k or 1)
        row.base = sum(sum(one.values()) / len(one) for one in base) / len(base)
        row.p = permutation_p(_mean(base), _mean(ours))
    if first is not None:
        theirs = [one.result.by_question(k) for one in first]
        row.against_first = hierarchical_gain(theirs, ours, samples=samples, k=k or 1)
    costs = [cost for one in runs if (cost := _cost(one.entry.run)) is not None]
    if len(costs) == len(runs):
        row.usd = sum(costs) / len(costs)
        if row.gain is not None and row.gain.mean > 0 and row.usd > 0:
            low, high = row.gain.ci95
            ends = (row.usd / (100 * high), row.usd / (100 * low) if low > 0 else float("inf"))
            row.usd_per_point = Estimate(row.usd / (100 * row.gain.mean), ends)
    row.is_selected = any(one.is_selected for one in runs)
    return row


def _mean(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each question's mean over the runs that answered it."""
    shared = set.intersection(*map(set, runs))
    return {question: sum(run[question] for run in runs) / len(runs) for question in runs[0] if question in shared}


def _cost(run: RunFolder) -> float | None:
    path = run.path / "summary.json"
    return read_json(path, _Summary).cost_usd if path.is_file() else None


def _labels(configs: Sequence[RunConfig]) -> list[str]:
    """What distinguishes each run from the others by its configuration, seeds aside; its adapter where nothing does."""
    flat = [
        {key: value for key, value in _flat(config.model_dump(mode="json")) if not key.startswith(IGNORED)} for config in configs
    ]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    differing = [key for key in keys if len({str(one.get(key, "")) for one in flat}) > 1]
    found = []
    for config, one in zip(configs, flat, strict=True):
        adapter = f"{config.adapter.name}, {config.loss.kind}"
        own = [f"{key}={one[key]}" for key in differing if key in one and key not in NAMED]
        found.append(", ".join([adapter, *own]))
    return found


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _published(benchmarks: set[str], models: set[str]) -> list[Row]:
    """The papers' numbers for these benchmarks and models."""
    names = {_short(model) for model in models}
    rows = []
    text = (resources.files("microrl.commands") / "published.csv").read_text(encoding="utf-8")
    for line in csv.DictReader(text.splitlines()):
        if line["benchmark"] not in benchmarks or _short(line["model"]) not in names:
            continue
        method = line["method"] + (f" rank {line['rank']}" if line["rank"] else "")
        share = float(line["percent"]) / 100
        row = Row(method, [], line["benchmark"], line["metric"], 0, Estimate(share, (share, share)))
        row.source = f"published: {line['paper']}, {line['source']}"
        row.spread = float(line["spread"]) / 100 if line["spread"] else None
        rows.append(row)
    return rows


def _short(model: str) -> str:
    return model.rpartition("/")[2].lower()
