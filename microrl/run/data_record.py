"""The hash of a run's data in `data.json`, which detects data that has changed since the run started."""

from __future__ import annotations

from collections.abc import Sequence

from microrl.config import RunConfig
from microrl.config.paths import is_local_data
from microrl.config.schema import DataConfig
from microrl.data.fingerprint import Fingerprint, fingerprint
from microrl.data.load import Question, load_questions
from microrl.data.sft_examples import Solution
from microrl.errors import UserError
from microrl.files import Frozen
from microrl.run import names
from microrl.run.folder import RunFolder

CHOICE = (
    "name", "subset", "split", "revision", "question", "answer", "answer_kind", "problems", "seed", "max_prompt_tokens",
    "long_prompts",
)  # fmt: skip
"""Keys of `data` that determine which rows are read."""


class Record(Frozen):
    """The content of `data.json`. `sft` is None for a run without a supervised phase."""

    data: Fingerprint
    sft: Fingerprint | None = None


def of_questions(data: DataConfig, questions: Sequence[Question]) -> Fingerprint:
    """The fingerprint of all of a run's questions."""
    return fingerprint(data.name, ((question.text, question.answer) for question in questions))


def record_or_verify(
    folder: RunFolder, config: RunConfig, questions: Sequence[Question], solutions: Sequence[Solution] | None
) -> None:
    """Record the data of a new run; compare it with the record of a resumed run.

    `solutions`: the data of the supervised phase; None if there is none or it is over. Raises UserError if the data has changed,
    or if the record of a run with results is missing.
    """
    current = of_questions(config.data, questions)
    sft = None
    if solutions is not None:
        sft = fingerprint(config.sft.data or config.data.name, ((one.question, one.identity) for one in solutions))
    record = folder.read_if_there(names.DATA, Record)
    if record is None:
        if any((folder.path / name).exists() for name in (names.ENVIRONMENT, names.METRICS, names.SFT, names.EVAL)):
            why = f"{folder.path / names.DATA} is missing, so it is unknown whether the data has changed"
            raise UserError(why, "start a new run: --out DIR")
        folder.write_json(names.DATA, Record(data=current, sft=sft).model_dump())
        return
    _refuse_other(folder, record.data, current, "the data")
    if sft is None:
        return
    if record.sft is None:  # it was handed on
        folder.write_json(names.DATA, record.model_copy(update={"sft": sft}).model_dump())
    else:
        _refuse_other(folder, record.sft, sft, "the SFT data")


def hand_on(base: RunFolder, run: RunFolder) -> None:
    """Record for a new run what the evaluation in `base` says of the data that both share. SFT data is each run's own. Raises
    BadFile if the record is damaged."""
    if (record := base.read_if_there(names.DATA, Record)) is not None:
        run.write_json(names.DATA, record.model_copy(update={"sft": None}).model_dump())


def warning_for_sample(run: RunFolder, config: RunConfig) -> str | None:
    """A warning if the run's data file has changed since training, else None. Only local files are checked."""
    record = run.read_if_there(names.DATA, Record)
    if record is None or not is_local_data(config.data.name):
        return None
    try:
        current = of_questions(config.data, load_questions(config.data))
    except UserError as error:
        return f"the run's training data cannot be read any more: {error.message}"
    return None if current.sha256 == record.data.sha256 else changed(record.data, current)


def changed(then: Fingerprint, now: Fingerprint) -> str:
    """The message about changed data."""
    return f"{now.name} has changed since the run started: it had {then}, and now has {now}"


def _refuse_other(folder: RunFolder, then: Fingerprint, now: Fingerprint, what: str) -> None:
    if then.sha256 != now.sha256:
        raise UserError(
            f"{what} of {folder.path}: {changed(then, now)}",
            "restore the old data and resume, or start a new run with the new data: --out DIR",
        )
