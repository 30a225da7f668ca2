"""The evaluations that runs have stored, as `microrl compare` reads them; without torch."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from microrl.config import RunConfig, catalogue
from microrl.config.paths import is_data_file
from microrl.data.fingerprint import Fingerprint
from microrl.evaluation.gain_parts import GainParts
from microrl.evaluation.result import Result, Stored
from microrl.files import RESTORE, BadFile, read_json
from microrl.report.transcripts import own_gain_parts
from microrl.run import names
from microrl.run.data_record import Record
from microrl.run.folder import RunFolder
from microrl.types import Sampling

IS_HELD_OUT, PART = re.compile(r"held-out-n\d+-t\d"), re.compile(r"-s\d+(?:-qs\d+)?(?:-q\d+)?-(best|step-\d{6,15})(?=-|$)")
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
    question_seed: int = 0

    def shared(self) -> Setup:
        """Without what may differ between runs that are compared: they are paired by question."""
        return replace(self, seed=0, question_seed=0, prompts_sha256=None)

    def text(self, *, data: bool) -> str:
        """In short; `data`: with its hash, too."""
        drawn = self.sampling
        text = f"n{drawn.group_size} T{drawn.temperature} p{drawn.top_p} {drawn.max_tokens} tok"
        text += f" data {digits(self.data_sha256) or 'unknown'}" if data else ""
        return text + (" in training" if self.in_training else "")

    def to_json(self) -> dict[str, Any]:
        stored = {name: getattr(self.sampling, name) for name in ("temperature", "top_p", "max_tokens")}
        own = {name: getattr(self, name) for name in ("seed", "question_seed", "data_sha256", "prompts_sha256", "in_training")}
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
    parts: GainParts | None = None
    """Of the gain over the base."""

    @property
    def asks(self) -> tuple[Any, ...]:
        """What in the run's configuration decides on its prompts."""
        config, data = self.entry.config, self.entry.config.data
        return (
            config.model.name, data.system, data.system_role, data.thinking, data.max_prompt_tokens, data.long_prompts,
            config.env.target,
        )  # fmt: skip


def evaluations(entry: Entry) -> list[Evaluation]:
    """The evaluations of the entry's part; those before and after training as `held-out`. Of several with the same setup and base
    the newest counts, unless one of the same weights has more questions."""
    folder = entry.run.path / names.EVAL
    stored = [path for path in folder.glob("[!.]*.json") if path.stem not in (names.BEFORE, names.AFTER)]
    kept: dict[tuple[Setup, str | None], Evaluation] = {}
    parts: dict[Setup, set[str | None]] = {}
    for path in sorted(stored, key=lambda path: (path.stat().st_mtime_ns, path.name)):
        part = match[1] if (match := PART.search(path.stem)) else None
        evaluation = _stored(entry, path)
        parts.setdefault(evaluation.setup, set()).add(part)
        old = kept.get(key := (evaluation.setup, evaluation.over))
        is_same = old is not None and old.adapter_sha256 == evaluation.adapter_sha256
        if part == entry.part and not (old and is_same and len(old.result.right) > len(evaluation.result.right)):
            kept[key] = evaluation
    evaluations = sorted(kept.values(), key=lambda one: (one.setup.benchmark, str(one.setup.sampling), one.setup.seed))
    for one in evaluations:
        one.is_selected = entry.part is not None and len(parts[one.setup]) > 1
    if entry.part is None and (folder / f"{names.AFTER}.json").is_file():
        evaluations.append(_in_training(entry))
    return evaluations


def _stored(entry: Entry, path: Path) -> Evaluation:
    """What `microrl eval` has stored."""
    result, about, base = _read(entry, path)
    name, is_known = _benchmark(path.stem, about.data)
    data_sha256 = None if about.data is None else about.data.sha256
    setup = Setup(name, result.sampling, result.seed, data_sha256, about.prompts_sha256, is_known=is_known)
    setup = replace(setup, question_seed=result.question_seed)
    named = {} if about.base is None else about.base
    over = f"{named.get('model')} {digits(named.get('adapter_sha256'))}" if named else None
    return Evaluation(entry, setup, result, base, over, about.adapter_sha256, parts=GainParts.read(about.gain_parts))


def _in_training(entry: Entry) -> Evaluation:
    """The run's own evaluations before and after training."""
    before, after = (entry.run.path / names.EVAL / f"{side}.json" for side in (names.BEFORE, names.AFTER))
    result, about, _ = _read(entry, after)
    record = entry.run.read_if_there(names.DATA, Record)
    setup = Setup(names.HELD_OUT, result.sampling, result.seed, None if record is None else record.data.sha256, in_training=True)
    setup = replace(setup, question_seed=result.question_seed)
    base = _read(entry, before)[0] if before.is_file() else None
    parts = own_gain_parts(entry.run.path, GainParts.read(about.gain_parts), [])
    return Evaluation(entry, setup, result, base, None if base is None else "before", parts=parts)


def _benchmark(stem: str, data: Fingerprint | None) -> tuple[str, bool]:
    """The name of an evaluation's data, and whether it is the known benchmark of this name: its split, whole."""
    if IS_HELD_OUT.match(stem) or data is None:
        return (names.HELD_OUT if IS_HELD_OUT.match(stem) else stem), False
    if (known := catalogue.find(data.name)) is not None:
        return known.name, data.rows == known.rows.get("test")
    return (Path(data.name).stem if is_data_file(data.name) else Path(data.name).name), False


def _read(entry: Entry, path: Path) -> tuple[Result, Stored, Result | None]:
    """The result, all that the file says, and the result of its base. Raises BadFile."""
    try:
        stored = read_json(path, Stored)
        return stored.result(), stored, None if stored.base is None else Result.of(stored.base)
    except ValueError:  # pydantic's are some
        message = f"{path} is damaged: the result of its base model cannot be read"
    except BadFile as error:
        if error.hint != RESTORE:
            raise
        message = error.message
    raise BadFile(message, f"remove {path}, and evaluate again with the same options: microrl eval {entry.run.path}")


def digits(sha256: str | None) -> str:
    return "" if sha256 is None else str(sha256)[:6]
