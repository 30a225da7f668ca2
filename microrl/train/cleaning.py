"""What is left out of the questions before the first step, and what is said about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from microrl.config import RunConfig, catalogue
from microrl.data.contamination import overlaps
from microrl.data.load import Question, Reading, load_questions
from microrl.run import contamination, names
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder

REPEATED, BAD_GOLD = "repeated", "without a usable gold answer"
"""Why a question is left out, besides its length."""


def report_reading(config: RunConfig, reading: Reading, folder: RunFolder | None, console: RunConsole) -> None:
    """Say which columns were guessed, and that a benchmark is trained on; in a run's events, too."""
    if reading.guessed:
        shown = ", ".join(f"{role} from `{name}`" for role, name in reading.guessed.items())
        hint = " ".join(f"--set data.{role}=COLUMN" for role in reading.guessed)
        if folder is not None:
            folder.event("columns guessed", shown, columns=reading.guessed)
        console.note(f"columns, guessed from their names: {shown} (to choose others: {hint})")
    known = catalogue.find(config.data.name)
    if known is not None and known.measures(config.data.split):
        why = f"{known.name} is a benchmark: a model that was trained on it cannot be compared on it with others"
        if folder is not None:
            folder.event("warning", why)
        console.note(f"warning: {why}")


def distinct(questions: Iterable[Question]) -> list[Question]:
    """The first of all questions with the same text, white space aside."""
    kept: dict[str, Question] = {}
    for question in questions:
        kept.setdefault(_text(question), question)
    return list(kept.values())


def without_repeats(questions: Sequence[Question], folder: RunFolder, console: RunConsole) -> list[Question]:
    """The distinct questions; a warning if the gold answers of repeated ones differ."""
    kept = distinct(questions)
    golds = {_text(question): question.answer for question in kept}
    if differing := sum(golds[_text(question)] != question.answer for question in questions):
        are = "question is" if differing == 1 else "questions are"
        why = f"{differing} {are} repeated with a different gold answer; the first one is used"
        folder.event("warning", why)
        console.note(f"warning: {why}")
    return kept


def _text(question: Question) -> str:
    return " ".join(question.text.split())


def named_benchmarks(config: RunConfig) -> dict[str, list[Question]]:
    """The questions of the benchmarks in `data.decontaminate`. Raises UserError for one that is not there."""
    return {catalogue.benchmark(name).name: load_questions(config.data.for_benchmark(name)) for name in config.data.decontaminate}


def nearly_the_same(texts: Iterable[str], benchmarks: Mapping[str, Sequence[Question]]) -> dict[str, str]:
    """Of these questions, those that are near-duplicates of a benchmark's, and why they are left out."""
    unique = list(dict.fromkeys(texts)) if benchmarks else []
    pairs_by_name = overlaps(unique, {name: [question.text for question in questions] for name, questions in benchmarks.items()})
    near = [(unique[pair.training], name) for name, pairs in pairs_by_name.items() for pair in pairs if pair.is_near]
    return {text: f"near-duplicates of {name}" for text, name in reversed(near)}  # the first benchmark names it


def without_contamination(
    training: Sequence[Question],
    named: Mapping[str, Sequence[Question]],
    parts: Mapping[str, Sequence[Question]],
    folder: RunFolder,
    console: RunConsole,
) -> tuple[list[Question], Counter[str]]:
    """The training questions without near-duplicates of the `named` benchmarks, and how many were left out for each. Overlaps
    with them and with `parts`, the run's own evaluations, are kept in the run folder."""
    console.status("comparing the training questions with the evaluations")
    benchmarks = {**parts, **named}
    overlaps_by_benchmark = overlaps(
        [question.text for question in training],
        {name: [question.text for question in questions] for name, questions in benchmarks.items()},
    )
    drops: dict[int, str] = {}
    for name in named:
        for pair in overlaps_by_benchmark[name]:
            if pair.is_near:
                drops.setdefault(pair.training, name)
    record = contamination.record(training, benchmarks, overlaps_by_benchmark, Counter(drops.values()))
    with folder.tolerate_write_errors(names.CONTAMINATION):
        folder.write_json(names.CONTAMINATION, record.model_dump())
    for name, benchmark in record.benchmarks.items():
        if benchmark.near or name in named:
            warns = "warning: " if benchmark.near > 0 and name not in named else ""
            folder.event("contamination", f"{name}: {benchmark}", benchmark=name, near=benchmark.near, removed=benchmark.removed)
            console.note(f"{warns}{name}: {benchmark} ({names.CONTAMINATION})")
    left_out = Counter(f"near-duplicates of {name}" for name in drops.values())
    return [question for index, question in enumerate(training) if index not in drops], left_out


def report_left_out(left_out: Mapping[str, Mapping[str, int]], folder: RunFolder, console: RunConsole) -> None:
    """Say how many questions were left out of each part, and why; nothing if there are none."""
    counts = {part: {why: count for why, count in reasons.items() if count} for part, reasons in left_out.items()}
    counts = {part: reasons for part, reasons in counts.items() if reasons}
    if counts:
        said = "; ".join(
            f"{part}: " + ", ".join(f"{count:,} {why}" for why, count in reasons.items()) for part, reasons in counts.items()
        )
        folder.event("questions left out", said, counts=counts)
        console.note(f"questions left out: {said}")
