"""Compare runs on what they were evaluated on (`microrl compare`): from their folders alone, without torch."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import resources
from math import isinf
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel

from microrl.config import RunConfig, catalogue
from microrl.config.paths import is_data_file
from microrl.errors import UserError
from microrl.evaluation.intervals import Estimate, permutation_p
from microrl.evaluation.result import Result
from microrl.evaluation.seeds import hierarchical, hierarchical_gain
from microrl.files import RESTORE, BadFile, read_json
from microrl.run.folder import RunFolder
from microrl.types import Sampling

HELD_OUT = "held-out"
IGNORED = ("seed", "init", "budget.price", "evaluation.", "validation.", "engine.", "guard.", "data.seed")
"""Keys that make no other method of a run."""
NAMED = ("adapter.kind", "adapter.rank", "loss.kind")
"""Keys that differ, but are in the name of an adapter and a loss already."""
IS_HELD_OUT, PART = re.compile(r"held-out-n\d+-t\d"), re.compile(r"-s\d+(?:-q\d+)?-(best|step-\d{6,15})(?=-|$)")
"""Only the name of an evaluation's file tells whether it is of the held-out part, and of which part of the run."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A run, and the part of it that is compared: None for its final adapter. `method`: what it is called, where a sweep says."""

    run: RunFolder
    config: RunConfig
    part: str | None
    method: str | None = None

    @classmethod
    def of(cls, run: RunFolder, part: str | None, method: str | None = None) -> Entry:
        """Raises UserError for a damaged configuration."""
        return cls(run, run.settings(), part, method)


@dataclass(frozen=True, slots=True)
class Setup:
    """What was asked, and how: the benchmark's name, the sampling, and the hashes of data and prompts, None where not stored."""

    benchmark: str
    sampling: Sampling
    seed: int
    data_sha256: str | None
    prompts_sha256: str | None = None
    in_training: bool = False
    """Whether it is the run's own evaluation, before and after training."""
    is_known: bool = False
    """Whether it is the known benchmark of this name, rather than other data that is called so."""

    def text(self, *, seed: bool, data: bool) -> str:
        """In short; `seed` and `data`: with these, too."""
        drawn = self.sampling
        text = f"n{drawn.group_size} T{drawn.temperature} p{drawn.top_p} {drawn.max_tokens} tok"
        text += f" seed {self.seed}" if seed else ""
        text += f" data {_digits(self.data_sha256) or 'unknown'}" if data else ""
        return text + (" in training" if self.in_training else "")

    def to_json(self) -> dict[str, Any]:
        stored = {name: getattr(self.sampling, name) for name in ("temperature", "top_p", "max_tokens")}
        own = {name: getattr(self, name) for name in ("seed", "data_sha256", "prompts_sha256", "in_training")}
        return {"samples": self.sampling.group_size, **stored, **own}


@dataclass(slots=True)
class Evaluation:
    """An entry's result on a benchmark, and that of other weights on the same questions, whose name is `over`."""

    entry: Entry
    setup: Setup
    result: Result
    base: Result | None
    over: str | None
    adapter_sha256: str | None = None
    is_selected: bool = False

    @property
    def asks(self) -> tuple[Any, ...]:
        """What in the run's configuration decides on its prompts."""
        config, data = self.entry.config, self.entry.config.data
        return config.model.name, data.system, data.system_role, data.max_prompt_tokens, data.long_prompts


Listed: TypeAlias = Sequence[tuple[str, Sequence[Evaluation]]]
"""Methods with their runs, a method for each of its rows."""


@dataclass(slots=True)
class Row:
    """One metric of one method on one benchmark, over seeds. Shares, not percent; `None` where it cannot be told."""

    method: str
    seeds: list[int]
    benchmark: str
    metric: str
    questions: int
    value: Estimate
    setup: Setup | None = None
    """None for a published number."""
    settings: str = ""
    """In short; empty where no other row of the benchmark has others."""
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
        value["settings"] = None if (setup := value.pop("setup")) is None else setup.to_json()
        if self.usd_per_point is not None and isinf(self.usd_per_point.ci95[1]):
            value["usd_per_point"]["ci95"][1] = None
        if self.source is not None:
            value["value"] = {"mean": self.value.mean, "ci95": None}
        return value


class _Summary(BaseModel):
    cost_usd: float | None = None


class _Data(BaseModel):
    name: str
    rows: int
    sha256: str


class _About(BaseModel):
    """What an evaluation's file says beside the result, and `data.json` of a run's data."""

    data: _Data | None = None
    prompts_sha256: str | None = None
    adapter_sha256: str | None = None
    base: dict[str, Any] | None = None


def compare(entries: Sequence[Entry], *, published: bool = True) -> list[Row]:
    """A row for each method, benchmark, settings and metric. Runs that differ in nothing but their seeds are one method; they
    share a row where the hashes of the data and of the prompts agree.

    Raises UserError where a run was not evaluated, where two are one method and one seed, and for damaged files.
    """
    named = zip(entries, _labels([entry.config for entry in entries]), strict=True)
    labels = [(entry.method or label) + (f" ({entry.part})" if entry.part else "") for entry, label in named]
    groups: dict[Setup, dict[tuple[str, str | None], list[Evaluation]]] = {}
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
        for evaluation in found:
            methods = groups.setdefault(replace(evaluation.setup, prompts_sha256=None), {})
            methods.setdefault((label, evaluation.setup.prompts_sha256), []).append(evaluation)
    rows = [row for methods in groups.values() for row in _rows(methods)]
    _tell_apart(rows)
    models = {entry.config.model.name for entry in entries}
    known = {row.benchmark for row in rows if row.setup is not None and row.setup.is_known}
    return [*rows, *(_published(known, models) if published else [])]


def _tell_apart(rows: Sequence[Row]) -> None:
    """Put its settings before what else is in `settings`, and leave them empty where a benchmark has only one set of them."""
    for name in {row.benchmark for row in rows}:
        pairs = [(row, row.setup) for row in rows if row.benchmark == name and row.setup is not None]
        seeds, data = {setup.seed for _, setup in pairs}, {setup.data_sha256 for _, setup in pairs}
        for row, setup in pairs:
            row.settings = f"{setup.text(seed=len(seeds) > 1, data=len(data) > 1)} {row.settings}".rstrip()
        if len({row.settings for row, _ in pairs}) == 1:
            for row, _ in pairs:
                row.settings = ""


def _evaluations(entry: Entry) -> list[Evaluation]:
    """The evaluations of the entry's part; those before and after training as `held-out`. Of several with the same setup and base
    the newest counts, unless one of the same weights has more questions."""
    folder = entry.run.path / "eval"
    stored = [path for path in folder.glob("[!.]*.json") if path.stem not in (f"{HELD_OUT}-before", f"{HELD_OUT}-after")]
    found: dict[tuple[Setup, str | None], Evaluation] = {}
    parts: dict[Setup, set[str | None]] = {}
    for path in sorted(stored, key=lambda path: (path.stat().st_mtime_ns, path.name)):
        part = match[1] if (match := PART.search(path.stem)) else None
        evaluation = _stored(entry, path)
        parts.setdefault(evaluation.setup, set()).add(part)
        old = found.get(key := (evaluation.setup, evaluation.over))
        is_same = old is not None and old.adapter_sha256 == evaluation.adapter_sha256
        if part == entry.part and not (old and is_same and len(old.result.right) > len(evaluation.result.right)):
            found[key] = evaluation
    evaluations = sorted(found.values(), key=lambda one: (one.setup.benchmark, str(one.setup.sampling), one.setup.seed))
    for one in evaluations:
        one.is_selected = entry.part is not None and len(parts[one.setup]) > 1
    if entry.part is None and (folder / f"{HELD_OUT}-after.json").is_file():
        evaluations.append(_in_training(entry))
    return evaluations


def _stored(entry: Entry, path: Path) -> Evaluation:
    """What `microrl eval` has stored."""
    result, about, base = _read(entry, path)
    name, is_known = _benchmark(path.stem, about.data)
    data_sha256 = None if about.data is None else about.data.sha256
    setup = Setup(name, result.sampling, result.seed, data_sha256, about.prompts_sha256, is_known=is_known)
    named = {} if about.base is None else about.base
    over = f"{named.get('model')} {_digits(named.get('adapter_sha256'))}" if named else None
    return Evaluation(entry, setup, result, base, over, about.adapter_sha256)


def _in_training(entry: Entry) -> Evaluation:
    """The run's own evaluations before and after training."""
    before, after = (entry.run.path / "eval" / f"{HELD_OUT}-{when}.json" for when in ("before", "after"))
    result, record = _read(entry, after)[0], entry.run.path / "data.json"
    data = read_json(record, _About).data if record.is_file() else None
    setup = Setup(HELD_OUT, result.sampling, result.seed, None if data is None else data.sha256, in_training=True)
    base = _read(entry, before)[0] if before.is_file() else None
    return Evaluation(entry, setup, result, base, None if base is None else "before")


def _benchmark(stem: str, data: _Data | None) -> tuple[str, bool]:
    """The name of an evaluation's data, and whether it is the known benchmark of this name: its split, whole."""
    if IS_HELD_OUT.match(stem) or data is None:
        return (HELD_OUT if IS_HELD_OUT.match(stem) else stem), False
    if (known := catalogue.find(data.name)) is not None:
        return known.name, data.rows == known.rows.get("test")
    return (Path(data.name).stem if is_data_file(data.name) else Path(data.name).name), False


def _read(entry: Entry, path: Path) -> tuple[Result, _About, Result | None]:
    """The result, what stands beside it, and the result of its base. Raises BadFile."""
    try:
        about: _About = read_json(path, _About)
        return Result.read(path), about, None if about.base is None else Result.of(about.base)
    except ValueError:  # pydantic's are some
        message = f"{path} is damaged: the result of its base model cannot be read"
    except BadFile as error:
        if error.hint != RESTORE:
            raise
        message = error.message
    raise BadFile(message, f"remove {path}, and evaluate again with the same options: microrl eval {entry.run.path}")


def _rows(methods: Mapping[tuple[str, str | None], Sequence[Evaluation]]) -> Iterable[Row]:
    listed = [(label, runs) for (label, _), given in methods.items() for runs in _by_base(given)]
    first = listed[0][1][0].result
    for metric, k in [(f"avg@{first.samples}", None), *((f"pass@{k}", k) for k in first.pass_k if k > 1)]:
        for label, runs in listed:
            row = _row(metric, k, label, runs, _reference(label, runs, listed))
            row.settings = _apart_by(label, runs, listed)
            yield row


def _by_base(given: Sequence[Evaluation]) -> list[list[Evaluation]]:
    """The runs once for each base that all of them were compared with; where there is none, once."""
    every = {one.entry.config.seed: one for one in given}
    by_base: dict[str, dict[int, Evaluation]] = {}
    for one in given:
        if one.over is not None:
            by_base.setdefault(one.over, {})[one.entry.config.seed] = one
    whole = [list(runs.values()) for runs in by_base.values() if runs.keys() == every.keys()]
    return whole or [list(every.values())]


def _reference(label: str, runs: Sequence[Evaluation], listed: Listed) -> Sequence[Evaluation] | None:
    """The first method's runs with the same prompts, or with others where the methods themselves ask differently."""
    first, prompts = listed[0][0], runs[0].setup.prompts_sha256
    theirs = [found for label, found in listed if label == first]
    same = [found for found in theirs if found[0].setup.prompts_sha256 == prompts]
    if not same and len({found[0].setup.prompts_sha256 for found in theirs}) == 1:
        same = [found for found in theirs if found[0].asks != runs[0].asks]
    return same[0] if same and label != first else None


def _apart_by(label: str, runs: Sequence[Evaluation], listed: Listed) -> str:
    """What tells these runs from others that were evaluated with the same settings: the prompts, or the base."""
    prompts = runs[0].setup.prompts_sha256
    several = len({found[0].setup.prompts_sha256 for _, found in listed if found[0].asks == runs[0].asks}) > 1
    parts = [f"prompts {_digits(prompts) or 'unknown'}"] if several else []
    if sum(other == label and found[0].setup.prompts_sha256 == prompts for other, found in listed) > 1:
        parts.append(f"over {runs[0].over}".rstrip())
    return " ".join(parts)


def _row(metric: str, k: int | None, label: str, runs: Sequence[Evaluation], first: Sequence[Evaluation] | None) -> Row:
    samples, setup = runs[0].result.samples, runs[0].setup
    ours = [one.result.by_question(k) for one in runs]
    value = hierarchical(ours, samples=samples, k=k or 1)
    if value is None:
        raise UserError(
            f"the runs of `{label}` have no question of {setup.benchmark} in common",
            "evaluate them on the same data and with the same seed",
        )
    seeds = [one.entry.config.seed for one in runs]
    row = Row(label, seeds, setup.benchmark, metric, len(set.intersection(*map(set, ours))), value, setup)
    bases = [one.base.by_question(k) for one in runs if one.base is not None]
    if len(bases) == len(runs) and len({one.over for one in runs}) == 1:
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


def _digits(sha256: str | None) -> str:
    return "" if sha256 is None else str(sha256)[:6]
