"""The data that a run began with, by its hash in `data.json`: it is not to change while the run is under way."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from microrl.config import RunConfig, check
from microrl.config.paths import is_data_file
from microrl.config.schema import DataConfig
from microrl.data.fingerprint import Fingerprint, fingerprint
from microrl.data.load import Question, load_questions
from microrl.data.sft_examples import Solution
from microrl.errors import UserError
from microrl.files import read_json
from microrl.run.folder import RunFolder

RECORD = "data.json"
CHOICE = ("name", "subset", "split", "question", "answer", "max_prompt_tokens", "long_prompts")
"""Keys of `data` that decide which rows are read."""


class Record(BaseModel):
    """`sft` is None in a run without a supervised phase."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: Fingerprint
    sft: Fingerprint | None = None


def of_questions(data: DataConfig, questions: Sequence[Question]) -> Fingerprint:
    """The fingerprint of a run's questions, before any are left out."""
    return fingerprint(data.name, ((question.text, question.answer) for question in questions))


def hold(folder: RunFolder, config: RunConfig, questions: Sequence[Question], solutions: Sequence[Solution] | None) -> None:
    """Record the data of a run that begins, and compare it where the run goes on.

    `solutions` are what the supervised phase learns from; None where there is none, or no more. Raises UserError where the
    data is another, or where a run that has results does not say what they were measured on.
    """
    found = of_questions(config.data, questions)
    sft = fingerprint(config.sft.data or config.data.name, solutions) if solutions is not None else None
    path = folder.path / RECORD
    if not path.exists() and not _has_results(folder):
        folder.write_json(RECORD, Record(data=found, sft=sft).model_dump())
        return
    if not path.exists():
        raise UserError(f"{path} is missing: what the run was measured on is not known", "start a new run: --out DIR")
    record: Record = read_json(path, Record)
    _refuse_other(folder, record.data, found, "the data")
    if sft is not None and record.sft is not None:
        _refuse_other(folder, record.sft, sft, "the warm-up's data")


def recorded(folder: RunFolder) -> Record | None:
    """What the run says of its data; None where it says nothing. Raises UserError where that is damaged."""
    path = folder.path / RECORD
    return read_json(path, Record) if path.exists() else None


def is_same(run: RunFolder | None, config: RunConfig, found: Fingerprint) -> bool | None:
    """Whether these questions are those that the run began with; None where that cannot be said: they are not the run's."""
    record = recorded(run) if run is not None else None
    if run is None or record is None or not _is_own(run, config.data):
        return None
    return found.sha256 == record.data.sha256


def warning_for_sample(run: RunFolder, config: RunConfig) -> str | None:
    """A sentence where the run's data file is another than the run was trained on; only local files are looked at."""
    record = recorded(run)
    if record is None or not is_data_file(config.data.name):
        return None
    try:
        found = of_questions(config.data, load_questions(config.data))
    except UserError as error:
        return f"the data that the run was trained on cannot be read any more: {error.message}"
    return None if found.sha256 == record.data.sha256 else changed(record.data, found)


def changed(then: Fingerprint, now: Fingerprint) -> str:
    """What to say where the data is another."""
    return f"{now.name} has changed since the run began: then {then}, now {now}"


def _refuse_other(folder: RunFolder, then: Fingerprint, now: Fingerprint, what: str) -> None:
    if then.sha256 != now.sha256:
        raise UserError(
            f"{what} of {folder.path} is another: {changed(then, now)}",
            "put the old data back and resume, or start a new run with the new data: --out DIR",
        )


def _has_results(folder: RunFolder) -> bool:
    return any((folder.path / name).exists() for name in ("environment.json", "metrics.jsonl", "sft.jsonl", "eval"))


def _is_own(run: RunFolder, data: DataConfig) -> bool:
    own = check(run.config()).data
    return all(getattr(own, key) == getattr(data, key) for key in CHOICE)
