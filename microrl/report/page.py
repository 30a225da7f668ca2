"""The page: one self-contained HTML file of one or several runs. Nothing in it is loaded from elsewhere.

Every text of a run, of its data and of its model goes through the template engine's escaping, or is put into the page as text by
the script of the browser of completions. A content security policy admits that script alone.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from microrl import __version__
from microrl.evaluation.answer import Answer
from microrl.evaluation.gain_parts import KEY, GainParts
from microrl.evaluation.intervals import Estimate
from microrl.files import written_whole
from microrl.report import figures, inspected, places, settings, several, transcripts
from microrl.report.completions import sample, shown_text, spread
from microrl.report.history import History
from microrl.report.transcripts import Pair
from microrl.report.verdict import judge
from microrl.report.words import entropies, evaluations, facts, gain_origin

RUNS_WITH_COMPLETIONS = 6
"""Of more runs, only so many have their completions in the page."""
COMPLETIONS_BYTES = 1_200_000
PAIRS = 6
"""Answers that became right, and as many that became wrong, that are shown of a run."""


def page(
    histories: Sequence[History],
    by_setting: Sequence[tuple[str, Estimate]] = (),
    *,
    title: str = "",
    answer: Answer | None = None,
) -> str:
    """The report of these runs as HTML; `by_setting`: the accuracy of a sweep's settings; `title` and `answer`: of a sweep."""
    from jinja2 import Environment, PackageLoader
    from jinja2.utils import htmlsafe_json_dumps
    from markupsafe import Markup

    for history in histories:
        if history.evaluated.paired_gain is not None:
            history.gain_parts = history.checked(transcripts.own_gain_parts(history.path, history.gain_parts, history.notes))
    template = Environment(loader=PackageLoader("microrl.report", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    style, script = (resources.files("microrl.report").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    detailed = histories[:RUNS_WITH_COMPLETIONS]
    samples = [(history, sample(history, COMPLETIONS_BYTES // len(detailed))) for history in detailed]
    is_priced = any(row.get("budget/cost_usd") for history in histories for row in history.rows)
    axes = [by for by in figures.AXES if by != "dollars" or is_priced]
    names = [shown_text(history.name) for history in histories]
    return template.get_template("page.html").render(
        version=__version__,
        style=Markup(style),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        title=shown_text(title) or ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else ""),
        answer="" if answer is None else shown_text(answer.text),
        pairs=[] if answer is None else several.compared(answer),
        trials=several.outcomes(histories) if title else [],
        by_setting=[(shown_text(name), f"{one.mean:.3f}", "[{:.3f}, {:.3f}]".format(*one.ci95)) for name, one in by_setting],
        runs=[
            (name, judge(history).sentences, known)
            for name, history, known in zip(names, histories, _side_by_side([facts(one) for one in histories]), strict=True)
        ],
        figures=_drawn(histories, axes, by_setting),
        axes=[(by, figures.AXES[by]) for by in axes],
        own_axis=figures.OWN_AXIS,
        legend=[(shown_text(history.name), *look) for history, *look in figures.styled(histories)],
        marks=[places.mark_of(event) for event in places.marks(histories[0])] if len(histories) == 1 else [],
        turned=[(shown_text(history.name), *turned) for history in detailed if (turned := _turned(history)) is not None],
        early_and_late=[(shown_text(history.name), _early_and_late(run_sample.shown)) for history, run_sample in samples],
        origins=[named for history in histories for named in _origins(history)],
        evaluations=evaluations(histories),
        entropies=entropies(histories),
        inspections=_inspected(detailed),
        samples=[(shown_text(history.name), run_sample) for history, run_sample in samples],
        data=htmlsafe_json_dumps(
            [{"name": shown_text(run.name), "completions": run_sample.shown} for run, run_sample in samples],
            ensure_ascii=False,
            separators=(",", ":"),
            allow_nan=False,
        ),
        config=several.configurations(histories),
        verdicts=several.alike_verdicts(histories),  # reading has added notes
    )


def write(histories: Sequence[History], target: Path, by_setting: Sequence[tuple[str, Estimate]] = (), **of_sweep: Any) -> int:
    """Write the page, with what `page` takes; returns its bytes. Raises OSError."""
    text = page(histories, by_setting, **of_sweep).encode("utf-8", "replace")
    target.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(target) as temporary:
        temporary.write_bytes(text)
    return len(text)


def _side_by_side(of_runs: Sequence[Sequence[tuple[str, str]]]) -> list[list[tuple[str, str]]]:
    """The facts of each run, all with the same names in the same order; empty where a run has no such fact."""
    by_length = sorted(of_runs, key=len, reverse=True)
    names = dict.fromkeys(name for known in by_length for name, _ in known)
    return [[(name, dict(known).get(name, "")) for name in names] for known in of_runs]


def _origins(history: History) -> list[tuple[str, list[str]]]:
    """(name, sentences) of the run's own gain, and of those that `microrl eval --base` has stored."""
    stored = {name: GainParts.read(tree.get(KEY)) for name, tree in history.evaluations.items() if name not in transcripts.OWN}
    of_all = {history.name: history.gain_parts} | {f"{history.name}, {name}": parts for name, parts in stored.items()}
    return [(shown_text(name), gain_origin(parts)) for name, parts in of_all.items() if parts is not None]


def _inspected(histories: Sequence[History]) -> list[tuple[str, str, list[tuple[str, str]], list[tuple[str, Any]]]]:
    """(run, folder that was inspected, what its start was, figures) of the runs that were."""
    from markupsafe import Markup

    rows = []
    for history in histories:
        if history.inspection:
            with figures.style():
                drawn = [(key, Markup(figures.svg(figure, in_page=True))) for key, figure in inspected.drawn(history.inspection)]
            folder = shown_text(Path(str(history.inspection.get("folder", ""))).name)
            rows.append((shown_text(history.name), folder, inspected.starts(history), drawn))
    return rows


def _turned(history: History) -> tuple[list[tuple[str, list[Pair], int]], int] | None:
    """([(kind, shown pairs, number of all of them)], number of answers) of the answers that became right or wrong; None where the
    run has not kept what both models answered."""
    for base, trained in transcripts.evaluations(history.path).values():
        pairs = list(transcripts.pairs(base, trained, history.notes))
        if pairs:
            kinds = {kind: [pair for pair in pairs if pair.kind == kind] for kind in (transcripts.RIGHT, transcripts.WRONG)}
            return [(kind, [pair.shown() for pair in spread(some, PAIRS)], len(some)) for kind, some in kinds.items()], len(pairs)
    return None


def _drawn(
    histories: Sequence[History], axes: Sequence[str], by_setting: Sequence[tuple[str, Estimate]]
) -> list[tuple[str, str, Any]]:
    """(axis, key, SVG) of every figure."""
    from markupsafe import Markup

    with figures.style():
        drawn = [settings.figure(by_setting)] if by_setting else []
        first = [(figures.OWN_AXIS, settings.KEY, Markup(figures.svg(one, in_page=True))) for one in drawn]
        return first + [
            (by, key, Markup(figures.svg(figures.figure(spec, histories, by if by in axes else "step"), in_page=True)))
            for by in (*axes, figures.OWN_AXIS)
            for key, spec in figures.drawable(histories).items()
            if spec.has_own_axis is (by == figures.OWN_AXIS)
        ]


def _early_and_late(shown: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """A completion of the first shown step and of the last, right ones if there are any."""
    steps = dict.fromkeys(entry["step"] for entry in (*shown[:1], *shown[-1:]))
    given = {step: [entry for entry in shown if entry["step"] == step] for step in steps}
    return [(f"step {step}", max(given[step], key=lambda entry: entry.get("accuracy") or 0)) for step in steps]
