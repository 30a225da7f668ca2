"""Several runs side by side: what they suffered, counted; how they ended; and in what their configurations differ."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from microrl.config.resolve import leaves
from microrl.evaluation.answer import Answer, Method, answer
from microrl.evaluation.result import Result
from microrl.report.completions import shown_text
from microrl.report.history import History, RunFinding
from microrl.report.updates import FEW_UPDATES, updates
from microrl.report.verdict import Verdict, judge
from microrl.terminal import alike, counted

CUT = ("evaluation cut", "SFT cut")
"""Kinds of findings that are told although they are not serious."""
MAX_KINDS = 3
"""Kinds that are told; of more, their number is."""


def learned_nothing(history: History) -> bool:
    """Whether no step of a run changed a weight; no for a run without steps."""
    return bool(history.rows) and not updates(history)


def told_of(histories: Sequence[History], noun: str) -> list[str]:
    """Sentences such as `In 2 of 4 trials, no update: ...`, the most frequent first. `noun`: what a run is called."""
    of_runs = f"of {counted(len(histories), noun)}"
    by_kind: dict[str, list[RunFinding]] = {}
    for history in histories:
        seen = {one.kind: one for one in reversed(judge(history).findings)}
        for kind, one in seen.items():
            if kind in CUT or (one.is_serious and kind != "few updates"):
                by_kind.setdefault(kind, []).append(one)
    ranked = sorted(by_kind.items(), key=lambda item: -len(item[1]))
    sentences = [f"In {len(findings)} {of_runs}, {_typical(findings).text}" for _, findings in ranked[:MAX_KINDS]]
    if len(ranked) > MAX_KINDS:
        sentences.append(f"{len(ranked) - MAX_KINDS} more kinds of trouble are in the report.")
    few = sum(0 < updates(history) < FEW_UPDATES for history in histories)
    return sentences + (
        [f"{few} {of_runs} made fewer than {FEW_UPDATES} updates: the answer rests on short runs."] if few else []
    )


def _typical(findings: Sequence[RunFinding]) -> RunFinding:
    """A finding of one kind in words: the most frequent of its messages, numbers apart."""
    ways = Counter(alike(one.message) for one in findings)
    way, count = ways.most_common(1)[0]
    first = next(one for one in findings if alike(one.message) == way)
    return replace(first, count=1, steps="", message=first.message if count == len(findings) else f"most often, {first.message}")


def answer_of(
    runs: Sequence[tuple[str, int, Result, History]],
    noun: str,
    *,
    planned: Mapping[str, int] | None = None,
    notes: Sequence[str] = (),
) -> Answer | None:
    """What evaluated runs, each as (method, seed, result, history), say of their methods; None where there are no two.

    `planned`: how many runs each method was to have; `notes`: other sentences of what it rests on.
    """
    results: dict[str, dict[int, Result]] = {name: {} for name in planned or ()}
    for name, seed, result, _ in runs:
        results.setdefault(name, {})[seed] = result
    # What has not learned and started from another run is no untouched model.
    trained = {name for name, _, _, history in runs if not learned_nothing(history) or history.setting("init")}
    methods = [
        Method(name, results_by_seed, (planned or {}).get(name, 0), is_untrained=name not in trained)
        for name, results_by_seed in results.items()
    ]
    histories = {history.path: history for *_, history in runs}
    return answer(methods, notes=[*notes, *told_of(list(histories.values()), noun)])


# ---- on the page


def compared(answer: Answer) -> list[tuple[str, ...]]:
    """(difference of what, its value in points, p, adjusted p, verdict) of each comparison of an answer."""
    return [
        (
            shown_text(f"{one.second} - {one.first}"), "" if one.difference is None else one.difference.text("+.1f", 100),
            *("" if p is None else f"{p:.2g}" for p in (one.p, one.p_adjusted)), "yes" if one.is_told_apart else "no",
        )
        for one in answer.pairs
    ]  # fmt: skip


def outcomes(histories: Sequence[History]) -> list[tuple[str, ...]]:
    """(run, status, updates, accuracy before, after, paired gain, verdict) of each run."""
    rows: list[tuple[str, ...]] = []
    for history in histories:
        verdict = judge(history)
        gain = verdict.gain
        measured = ("", "", "") if gain is None else (
            f"{gain.before:.3f}", f"{gain.after:.3f}", gain.text("+.1f", 100),
        )  # fmt: skip
        rows.append((shown_text(history.name), history.status(), str(verdict.updates), *measured, verdict.outcome))
    return rows


def alike_verdicts(histories: Sequence[History]) -> list[tuple[str, Verdict]]:
    """(runs, verdict) of what was found: runs of which the same is to be said stand together."""
    runs_by_findings: dict[Any, tuple[list[str], Verdict]] = {}
    for history in histories:
        verdict = judge(history)
        names, _ = runs_by_findings.setdefault((verdict.findings, verdict.outcome == "running"), ([], verdict))
        names.append(shown_text(history.name))
    return [(", ".join(names), verdict) for names, verdict in runs_by_findings.values()]


def configurations(histories: Sequence[History]) -> tuple[str, list[str], list[tuple[str, ...]]]:
    """(what all configurations share, as JSON; the other keys; (run, their values) of each run)."""
    flat = [dict(leaves(history.config)) for history in histories]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    said = [{key: json.dumps(one[key]) for key in one} for one in flat]
    differing = [key for key in keys if len({one.get(key) for one in said}) > 1]
    shared = _without(histories[0].config, set(differing))
    names = [shown_text(history.name) for history in histories]
    rows = [(name, *(shown_text(one.get(key, "")) for key in differing)) for name, one in zip(names, said, strict=True)]
    return json.dumps(shared, indent=2), [shown_text(key) for key in differing], rows if differing else []


def _without(tree: Mapping[str, Any], keys: set[str], prefix: str = "") -> dict[str, Any]:
    """The tree without these keys, and without sections of which nothing is left."""
    kept = {}
    for key, value in tree.items():
        inside = _without(value, keys, f"{prefix}{key}.") if isinstance(value, Mapping) and value else value
        if f"{prefix}{key}" not in keys and (inside != {} or value == {}):
            kept[key] = inside
    return kept
