"""Compare runs on what they were evaluated on (`microrl compare`): from their folders alone, without torch."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import isinf
from os.path import abspath, commonpath, dirname, relpath
from statistics import fmean
from typing import Any, TypeAlias

from microrl.commands.published import published as published_of
from microrl.commands.stored import Entry, Evaluation, Setup, digits, evaluations
from microrl.config import RunConfig
from microrl.config.resolve import as_set, leaves
from microrl.errors import UserError
from microrl.evaluation.answer import ONE_WAY, Answer
from microrl.evaluation.gain_parts import PARTS, GainParts
from microrl.evaluation.intervals import Estimate, named
from microrl.evaluation.result import Result, clusters
from microrl.evaluation.seeds import accuracy_of, difference, holm, over_runs
from microrl.report.history import History
from microrl.report.several import answer_of
from microrl.run import summary
from microrl.run.remedies import to_evaluate

IGNORED = ("seed", "init", "budget.price", "evaluation.", "validation.", "engine.", "guard.", "data.seed")
"""Keys that make no other method of a run. Of `init` it counts whether there is one: each seed may start from its own run. Only
where two runs of one seed differ in nothing else, its path counts, with `{seed}` in place of the seed."""
NAMED = ("adapter.kind", "adapter.rank", "loss.kind")
"""Keys that differ, but are in the name of an adapter and a loss already."""
SAME = 1e-9
"""Difference of two shares that are equal but for rounding."""
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
    clusters: int = 0
    """As many as questions, where they are independent."""
    sampling_seeds: tuple[int, ...] = ()
    """Of the evaluations, in which samples differ but not questions."""
    settings: str = ""
    """In short; empty where no other row of the benchmark has others."""
    base: float | None = None
    gain: Estimate | None = None
    gain_parts: dict[str, Estimate] | None = None
    """The parts of the gain in accuracy (`microrl.evaluation.gain_parts`): `form` where it is known, `length` and `answer`; means
    over runs, which add up to the gain."""
    base_lenient: float | None = None
    """The base's accuracy where answers that are right but not in the asked form count."""
    p: float | None = None
    """Of no gain, two-sided: below 0.05 exactly where the interval of the gain leaves out 0."""
    p_adjusted: float | None = None
    """For the number of gains of the same benchmark and metric, by Holm's method."""
    against_first: Estimate | None = None
    """Difference to the first method that was evaluated on the same benchmark in the same way."""
    p_first: float | None = None
    """Of no such difference."""
    p_first_adjusted: float | None = None
    paired: int = 0
    """Questions of that difference."""
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
            if one.name == "gain_parts":
                value["gain_parts"] = entry and {name: part.mean for name, part in entry.items()}
                value["gain_parts_ci95"] = entry and {name: part.ci95 for name, part in entry.items()}
        value["settings"] = None if (setup := value.pop("setup")) is None else setup.to_json()
        if self.usd_per_point is not None and isinf(self.usd_per_point.ci95[1]):
            value["usd_per_point"]["ci95"][1] = None
        if self.source is not None:
            value["value"] = {"mean": self.value.mean, "ci95": None}
        return value


def compare(entries: Sequence[Entry], *, published: bool = True) -> list[Row]:
    """A row for each method, benchmark, settings and metric. Runs that differ in nothing but their seeds are one method; they
    share a row where the hashes of the data and of the prompts agree, unless one was evaluated with several sampling seeds.

    Raises UserError where a run was not evaluated, where two are one method and one seed, and for damaged files.
    """
    groups: dict[Setup, dict[tuple[str, str | None, int], list[Evaluation]]] = {}
    given: dict[tuple[str, int], Entry] = {}
    for entry, label in zip(entries, names_of(entries), strict=True):
        if (other := given.setdefault((label, entry.config.seed), entry)) is not entry:
            raise UserError(
                f"{entry.run.path} and {other.run.path} have the same settings and the same seed",
                "compare runs of different seeds: one seed would count as two",
            )
        entry_evaluations = evaluations(entry)
        if not entry_evaluations:
            raise UserError(f"{entry.run.path} was not evaluated", to_evaluate(entry.run.path, entry.config, entry.part))
        for evaluation in entry_evaluations:
            methods = groups.setdefault(evaluation.setup.shared(), {})
            asked = evaluation.setup.prompts_sha256, evaluation.setup.question_seed
            methods.setdefault((label, *asked), []).append(evaluation)
    rows = [row for methods in groups.values() for row in _rows(methods)]
    for family in dict.fromkeys((row.benchmark, row.metric) for row in rows):
        alike = [row for row in rows if (row.benchmark, row.metric) == family]
        gains, firsts = holm([row.p for row in alike]), holm([row.p_first for row in alike])
        for row, gain, first in zip(alike, gains, firsts, strict=True):
            row.p_adjusted, row.p_first_adjusted = gain, first
    _tell_apart(rows)
    models = {entry.config.model.name for entry in entries}
    known = {row.benchmark for row in rows if row.setup is not None and row.setup.is_known}
    return [*rows, *(_published(known, models) if published else [])]


def varied(rows: Sequence[Row]) -> list[str]:
    """Which seeds of evaluation differ within a benchmark, and what that does to its differences."""
    sentences = []
    for name in dict.fromkeys(row.benchmark for row in rows):
        pairs = [(row, row.setup) for row in rows if row.benchmark == name and row.setup is not None]
        drawn = sorted({seed for row, _ in pairs for seed in row.sampling_seeds})
        chosen = sorted({setup.question_seed for _, setup in pairs})
        if len(drawn) > 1:
            sentences.append(f"{name}: the sampling seed varies ({', '.join(map(str, drawn))}), which changes no problem")
        if len(chosen) > 1:
            seeds = ", ".join(map(str, chosen))
            sentences.append(f"{name}: the question seed varies ({seeds}): differences use the shared problems")
    return sentences


def _tell_apart(rows: Sequence[Row]) -> None:
    """Put its settings before what else is in `settings`, and leave them empty where a benchmark has only one set of them."""
    for name in {row.benchmark for row in rows}:
        pairs = [(row, row.setup) for row in rows if row.benchmark == name and row.setup is not None]
        data, seeds = {setup.data_sha256 for _, setup in pairs}, {row.sampling_seeds for row, _ in pairs}
        questions = {setup.question_seed for _, setup in pairs}
        for row, setup in pairs:
            text = setup.text(data=len(data) > 1)
            text += f" seed {', '.join(map(str, row.sampling_seeds))}" if len(seeds) > 1 or len(row.sampling_seeds) > 1 else ""
            text += f" problem seed {setup.question_seed}" if len(questions) > 1 else ""
            row.settings = f"{text} {row.settings}".rstrip()
        if len({row.settings for row, _ in pairs}) == 1:
            for row, _ in pairs:
                row.settings = ""


def _rows(methods: Mapping[tuple[str, str | None, int], Sequence[Evaluation]]) -> Iterable[Row]:
    listed = [
        (label, runs) for (label, *_), given in methods.items() for part in _by_sampling_seed(given) for runs in _by_base(part)
    ]
    first = listed[0][1][0].result
    for metric, k in [(f"avg@{first.samples}", None), *((f"pass@{k}", k) for k in first.pass_k if k > 1)]:
        for label, runs in listed:
            row = _row(metric, k, label, runs, _reference(label, runs, listed))
            row.settings = _apart_by(label, runs, listed)
            yield row


def _by_sampling_seed(given: Sequence[Evaluation]) -> list[list[Evaluation]]:
    """All together where no run was evaluated with several of them, else each apart: a run must not count twice."""
    if len({(one.entry.config.seed, one.setup.seed) for one in given}) == len({one.entry.config.seed for one in given}):
        return [list(given)]
    return [[one for one in given if one.setup.seed == seed] for seed in dict.fromkeys(one.setup.seed for one in given)]


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
    """The first method's runs with the same prompts, the same sampling seeds if there are such; or those with others where the
    methods themselves ask differently, or other questions were chosen. For the first method itself, its first sampling seeds."""
    (first, firsts), prompts = listed[0], runs[0].setup.prompts_sha256
    theirs = [others for label, others in listed if label == first]
    same = [others for others in theirs if others[0].setup.prompts_sha256 == prompts]
    if not same and len({others[0].setup.prompts_sha256 for others in theirs}) == 1:
        same = [others for others in theirs if others[0].asks != runs[0].asks]
    same = same or [others for others in theirs if others[0].setup.question_seed != runs[0].setup.question_seed]
    if label == first:
        same = [firsts] if firsts in same and _sampling_seeds(firsts) != _sampling_seeds(runs) else []
    return min(same, key=lambda others: _sampling_seeds(others) != _sampling_seeds(runs), default=None)


def _sampling_seeds(runs: Sequence[Evaluation]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(one.setup.seed for one in runs))


def _apart_by(label: str, runs: Sequence[Evaluation], listed: Listed) -> str:
    """What tells these runs from others that were evaluated with the same settings: the prompts, or the base."""
    prompts = runs[0].setup.prompts_sha256
    alike = [others for _, others in listed if others[0].setup.question_seed == runs[0].setup.question_seed]
    several = len({others[0].setup.prompts_sha256 for others in alike if others[0].asks == runs[0].asks}) > 1
    parts = [f"prompts {digits(prompts) or 'unknown'}"] if several else []
    own = (label, prompts, _sampling_seeds(runs))
    if sum((name, others[0].setup.prompts_sha256, _sampling_seeds(others)) == own for name, others in listed) > 1:
        parts.append(f"over {runs[0].over}".rstrip())
    return " ".join(parts)


def _row(metric: str, k: int | None, label: str, runs: Sequence[Evaluation], first: Sequence[Evaluation] | None) -> Row:
    setup, ours = runs[0].setup, [one.result for one in runs]
    value = accuracy_of(ours, k)
    if value is None:
        raise UserError(
            f"the runs of `{label}` have no question of {setup.benchmark} in common",
            "evaluate them on the same data and with the same --question-seed",
        )
    seeds = [one.entry.config.seed for one in runs]
    shared = set.intersection(*(set(one.right) for one in ours))
    alike = set(named(list(shared), clusters(ours)) or shared)
    row = Row(label, seeds, setup.benchmark, metric, len(shared), value, setup, len(alike))
    row.sampling_seeds = _sampling_seeds(runs)
    bases = [one.base for one in runs if one.base is not None]
    if len(bases) == len(runs) and len({one.over for one in runs}) == 1:
        base = bases[:1] if all(one.right == bases[0].right for one in bases) else bases
        row.gain, row.p = difference(base, ours, k, is_fixed=len(base) == 1) or (None, None)
        row.base = _base_mean(base, shared, k)
        _add_parts(row, k, [one.parts for one in runs if one.parts is not None])
    if first is not None:
        theirs = [one.result for one in first]
        row.against_first, row.p_first = difference(theirs, ours, k) or (None, None)
        row.paired = len(shared.intersection(*(one.right for one in theirs)))
    costs = [ended.cost_usd for one in runs if (ended := summary.read_if_there(one.entry.run.path)) is not None]
    if len(costs) == len(runs):
        row.usd = sum(costs) / len(costs)
        if row.gain is not None and row.gain.mean > 0 and row.usd > 0:
            low, high = row.gain.ci95
            ends = (row.usd / (100 * high), row.usd / (100 * low) if low > 0 else float("inf"))
            row.usd_per_point = Estimate(row.usd / (100 * row.gain.mean), ends)
    row.is_selected = any(one.is_selected for one in runs)
    return row


def _base_mean(bases: Sequence[Result], shared: Container[str], k: int | None) -> float | None:
    """The base's accuracy on the questions that the value and the gain are of."""
    values = [[value for question, value in one.by_question(k).items() if question in shared] for one in bases]
    return fmean(map(fmean, values)) if all(values) else None


def _add_parts(row: Row, k: int | None, parts: Sequence[GainParts]) -> None:
    """The parts of the gain in accuracy, where all runs have them, and of the questions that the gain is of."""
    if k is not None or row.gain is None or len(parts) < len(row.seeds):
        return
    names = [name for name in PARTS if all(getattr(one, name) is not None for one in parts)]
    over = {str(name): over_runs([getattr(one, name) for one in parts]) for name in names}
    if abs(sum(part.mean for part in over.values()) - row.gain.mean) < SAME:
        row.gain_parts = over
        lenient = [one.base.lenient.mean for one in parts if one.base.lenient is not None]
        row.base_lenient = fmean(lenient) if len(lenient) == len(parts) else None


def answer_to(entries: Sequence[Entry]) -> Answer | None:
    """What these runs say of their methods, on the first benchmark that all were evaluated on with the same settings.

    None where there is one method only. Raises BadFile.
    """
    if len(set(names_of(entries))) < 2:
        return None
    stored = [{one.setup.shared(): one.result for one in evaluations(entry)} for entry in entries]
    shared = [setup for setup in stored[0] if all(setup in one for one in stored)]
    if not shared:
        return Answer(f"These runs were not all evaluated on the same data with the same settings. {ONE_WAY}.", (), None)
    runs = [
        (name, entry.config.seed, one[shared[0]], History.load(entry.run.path))
        for entry, name, one in zip(entries, names_of(entries), stored, strict=True)
    ]
    notes = [f"This is of {shared[0].benchmark}, the first of their evaluations."] if len(shared) > 1 else []
    return answer_of(runs, "run", notes=notes)


def names_of(entries: Sequence[Entry]) -> list[str]:
    """What the method of each entry is called. Settings of several sweeps that have one name and differ otherwise are told apart
    by their sweeps."""
    labels = labels_of([entry.config for entry in entries])
    of_sweeps: dict[str, dict[str, set[str]]] = {}
    for entry, label in zip(entries, labels, strict=True):
        if entry.method:
            of_sweeps.setdefault(entry.method, {}).setdefault(entry.run.path.parent.name, set()).add(label)
    names = []
    for entry, label in zip(entries, labels, strict=True):
        alike = of_sweeps.get(entry.method or "", {})
        differs = len({frozenset(one) for one in alike.values()}) > 1
        name = f"{entry.method} ({entry.run.path.parent.name})" if differs else entry.method or label
        names.append(name + (f" ({entry.part})" if entry.part else ""))
    return names


def labels_of(configs: Sequence[RunConfig]) -> list[str]:
    """What distinguishes each run from the others by its configuration, seeds aside; its adapter where nothing does."""
    flat = [
        {key: value for key, value in leaves(config.model_dump(mode="json")) if not key.startswith(IGNORED)}
        | {"init": "none" if config.init is None else "RUN"}
        for config in configs
    ]
    inits: dict[tuple[str, int], set[str | None]] = {}
    for config, one in zip(configs, flat, strict=True):
        inits.setdefault((str(one), config.seed), set()).add(config.init)
    is_twice = {settings for (settings, _), different in inits.items() if len(different) > 1}
    pairs = [(one, config.seed, abspath(config.init)) for config, one in zip(configs, flat, strict=True) if config.init]
    pairs = [pair for pair in pairs if str(pair[0]) in is_twice]
    for one, seed, path in pairs:
        name = relpath(path, commonpath(dirname(other) for *_, other in pairs))
        one["init"] = re.sub(rf"(?<!\d){seed}(?!\d)", "{seed}", name)
    keys = list(dict.fromkeys(key for one in flat for key in one))
    differing = [key for key in keys if len({str(one.get(key, "")) for one in flat}) > 1]
    labels = []
    for config, one in zip(configs, flat, strict=True):
        adapter = f"{config.adapter.name}, {config.loss.kind}"
        told = [key for key in differing if key in one and key not in NAMED and not _is_of_kind(config, key, configs)]
        own = [f"{key}={as_set(one[key])}" for key in told]
        labels.append(", ".join([adapter, *own]))
    return labels


def _is_of_kind(config: RunConfig, key: str, configs: Sequence[RunConfig]) -> bool:
    """Whether a setting of the loss or adapter has the default of its kind, where there are several kinds: a label names it."""
    name, field, *_ = [*key.split("."), ""]
    if name not in ("loss", "adapter") or len({type(getattr(one, name)) for one in configs}) == 1:
        return False
    section = getattr(config, name)
    return bool(getattr(section, field) == type(section).model_fields[field].get_default(call_default_factory=True))


def _published(benchmarks: set[str], models: set[str]) -> list[Row]:
    """The papers' numbers for these benchmarks and models."""
    rows = []
    for line in published_of(models):
        if line["benchmark"] not in benchmarks:
            continue
        method = line["method"] + (f" rank {line['rank']}" if line["rank"] else "")
        share = float(line["percent"]) / 100
        row = Row(method, [], line["benchmark"], line["metric"], 0, Estimate(share, (share, share)))
        row.source = f"published: {line['paper']}, {line['source']}"
        row.spread = float(line["spread"]) / 100 if line["spread"] else None
        rows.append(row)
    return rows
