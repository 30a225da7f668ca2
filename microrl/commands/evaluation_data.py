"""What an evaluation says and records of its data: what was left out, where it comes from, and what training has in common."""

from __future__ import annotations

from typing import Any

from microrl.config import RunConfig, catalogue
from microrl.data.contamination import overlaps
from microrl.data.load import Question, Reading, load_questions, split
from microrl.data.sources import provenance
from microrl.errors import UserError
from microrl.evaluation.benchmark import Benchmark
from microrl.run import contamination, data_record, names
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.terminal import counted


def about_data(
    benchmark: Benchmark, questions: list[Question], reading: Reading, run: RunFolder | None, console: RunConsole
) -> dict[str, Any]:
    """The part `data` of an evaluation's record. `questions` are all of the data set's; what a reader should know is said."""
    _report_reading(benchmark, len(questions), reading, console)
    return {
        **_data(benchmark.config, run, questions, console),
        "contamination": None if run is None else _contamination(benchmark, questions, run, console),
    }


def _report_reading(benchmark: Benchmark, count: int, reading: Reading, console: RunConsole) -> None:
    """Say how many rows were left out, and whether a benchmark is not complete."""
    data, name = benchmark.config.data, benchmark.name
    for reason, number in reading.left_out.items():
        console.note(f"warning: {name}: {counted(number, 'row')} left out: {reason}")
    known = catalogue.find(data.name)
    rows = None if known is None or not known.measures(data.split) or data.subset else known.rows.get("test")
    if rows is not None and count + reading.left_out.total() != rows:
        console.note(f"warning: {name} has {rows:,} problems, and {count:,} were read: do not compare the result with others")


def _data(config: RunConfig, run: RunFolder | None, questions: list[Question], console: RunConsole) -> dict[str, Any]:
    """The data's fingerprint, and whether it is the same as in training; None if it is other data on purpose."""
    fingerprint, is_same = data_record.of_questions(config.data, questions), None
    if run is not None and (record := run.read_if_there(names.DATA, data_record.Record)) is not None:
        own, is_equal = run.settings().data, fingerprint.sha256 == record.data.sha256
        if all(getattr(own, key) == getattr(config.data, key) for key in data_record.CHOICE):
            is_same = is_equal
        if is_same is False:
            console.note(
                f"warning: {data_record.changed(record.data, fingerprint)}. Do not compare this result with the run's own "
                "evaluations: the problems differ"
            )
        if is_equal and config.data.held_out == 1 > own.held_out:
            console.note(
                f"warning: {fingerprint.name} is the data that {run.path} was trained on, so this does not measure how it "
                "generalises; leave --data out for the held-out part"
            )
    return {**fingerprint.model_dump(), "source": provenance(config.data), "same_as_in_training": is_same}


def _contamination(benchmark: Benchmark, questions: list[Question], run: RunFolder, console: RunConsole) -> dict[str, int] | None:
    """What these questions have in common with the run's training questions, as found before training or, for a benchmark that
    was not compared then, now; None where the training data is not at hand."""
    record, asked = run.read_if_there(names.CONTAMINATION, contamination.Record), benchmark.config.data
    is_whole = asked.held_out == 1  # otherwise it is the held-out part
    is_recorded = record is not None and (not is_whole or catalogue.find(asked.name) is not None)
    overlap = record.of(benchmark.name) if record is not None and is_recorded else None
    if overlap is None and not is_whole:
        return None
    if overlap is None:
        config = run.settings().data
        try:
            training = split(load_questions(config), config.held_out, config.validation).training
        except UserError as error:
            console.note(f"{benchmark.name}: not compared with the training questions: {error.message}")
            return None
        console.status(f"comparing {benchmark.name} with the training questions")
        shared = overlaps([one.text for one in training], {benchmark.name: [one.text for one in questions]})
        overlap = contamination.record(training, {benchmark.name: questions}, shared, {}).benchmarks[benchmark.name]
    console.note(f"{'warning: ' if overlap.overlapping else ''}{benchmark.name}: {overlap}")
    return {"questions": overlap.questions, "overlapping": overlap.overlapping, "near": overlap.near, "removed": overlap.removed}
