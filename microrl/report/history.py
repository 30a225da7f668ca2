"""A run as its folder tells it: read without torch, as far as it can be read, whatever version wrote it.

Nothing in a run folder is trusted. What is missing or damaged becomes a note, which the report shows, and never an error: a run
that is still going, or that was killed in the middle of a line, is drawn as far as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from operator import mul
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from microrl import files
from microrl.errors import UserError
from microrl.evaluation.gain_parts import KEY as PARTS_KEY
from microrl.evaluation.gain_parts import GainParts
from microrl.files import BadFile, Count
from microrl.run import follow, names, versioned
from microrl.run.environment import Environment
from microrl.run.folder import RunFolder
from microrl.run.metrics import MetricsRow
from microrl.run.summary import Evaluations, Summary, Written, read_if_there
from microrl.terminal import counted

MAX_BYTES = 2**30
"""Of `metrics.jsonl`; what is behind it is left out."""

CHANGED = "metrics.jsonl was changed after it was written: its numbers may not be those of the run"


@dataclass(frozen=True, slots=True)
class Event:
    """A line of `events.jsonl`. `step` is None where the event belongs to no step."""

    time: str
    kind: str
    message: str
    step: int | None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunFinding:
    """Something that went wrong in a run, or, where it is not serious, that is worth knowing. `message`: what happened, with
    numbers; `advice`: which flag or key to change, empty where there is nothing to change; `count`: how often; `steps`: in which
    steps, as words."""

    kind: str
    message: str
    advice: str = ""
    is_serious: bool = False
    count: int = 1
    steps: str = ""

    def to_json(self) -> dict[str, Any]:
        """As it stands in `summary.json`."""
        return {
            "kind": self.kind, "message": self.message, "advice": self.advice, "serious": self.is_serious, "count": self.count,
        }  # fmt: skip

    def __str__(self) -> str:
        """One line."""
        return f"{'what went wrong' if self.is_serious else 'worth knowing'}: {self.text}"

    @property
    def text(self) -> str:
        """Title, message and advice."""
        advice = f" What to do: {self.advice}." if self.advice else ""
        return f"{self.title}: {self.message.rstrip('.')}.{advice}"

    @property
    def title(self) -> str:
        """Kind, count and steps."""
        return self.kind + (f" (x{self.count})" if self.count > 1 else "") + (f", {self.steps}" if self.steps else "")


def steps_said(steps: Sequence[int]) -> str:
    """Counted from 1, as on the console; `steps` are counted from 0, as in `metrics.jsonl`."""
    if not steps:
        return ""
    steps = [step + 1 for step in dict.fromkeys(steps)]
    if len(steps) > 6 and steps[-1] - steps[0] == len(steps) - 1:
        return f"steps {steps[0]} to {steps[-1]}"
    listed = ", ".join(map(str, steps[:6])) + (", ..." if len(steps) > 6 else "")
    return f"step{'s' if len(steps) > 1 else ''} {listed}"


@dataclass(slots=True)
class History:
    """All that is drawn of a run. `config` and `inspection` are the trees of their files, empty where there is
    none."""

    path: Path
    name: str
    """Of the folder; of runs that are shown together, as much of its path as tells them apart."""
    config: Mapping[str, Any]
    rows: list[MetricsRow]
    events: list[Event]
    summary: Summary | None
    """None where there is none, or it is damaged, of which a note speaks."""
    environment: Environment
    evaluations: dict[str, Mapping[str, Any]]
    """The files of `eval/` by their names, without `.json`."""
    inspection: Mapping[str, Any]
    """`inspect.json`."""
    notes: list[str]
    """What could not be read."""
    is_running: bool = False
    sft_logged: int = 0
    """Lines of `sft.jsonl`."""
    gain_parts: GainParts | None = None
    """Where the gain comes from, as it is stored with the evaluation after training."""

    @classmethod
    def load(cls, path: Path, ending: Summary | None = None) -> History:
        """`ending`: the summary of a run that is just ending, instead of its file.

        Raises UserError for what is no run folder, and for one of a later format.
        """
        RunFolder.open(path)
        notes: list[str] = []

        @contextmanager
        def noting() -> Iterator[None]:
            try:
                yield
            except BadFile as error:
                notes.append(error.message)

        def tree(name: str) -> Mapping[str, Any]:
            with noting():
                if (path / name).exists():
                    return versioned.config_of(path) if name == names.CONFIG else files.read_json(path / name, dict[str, Any])
            return {}

        environment, summary = Environment(), ending
        with noting():
            if (path / names.ENVIRONMENT).exists():
                environment = files.read_json(path / names.ENVIRONMENT, Environment)
        with noting():
            summary = read_if_there(path) if ending is None else ending
        written = _written(path, summary)  # before the rows: a run that is going on writes more of them
        history = cls(
            path=path,
            name=path.absolute().name,
            config=tree(names.CONFIG),
            rows=[
                {name: finite(value) for name, value in row.items()}
                for row in _lines(path / names.METRICS, notes)
                if isinstance(row.get("step"), int)
            ],
            events=[_event(line) for line in _lines(path / names.EVENTS, notes)],
            summary=summary,
            environment=environment,
            evaluations={file.stem: tree(f"{names.EVAL}/{file.name}") for file in sorted((path / names.EVAL).glob("*.json"))},
            inspection=tree(names.INSPECTION),
            notes=notes,
            is_running=ending is None and not follow.is_over(path) and follow.is_alive(path),
            sft_logged=sum(1 for _ in _lines(path / names.SFT, [])),
        )
        history.gain_parts = history.checked(GainParts.read(history.evaluations.get(names.AFTER, {}).get(PARTS_KEY)))
        if written is not None and _is_changed(path / names.METRICS, written):
            notes.append(CHANGED)
        if not (path / names.ROLLOUTS).is_dir() and history.rows:
            notes.append("there are no rollouts: completions cannot be shown")
        return history

    def setting(self, key: str, default: Any = None) -> Any:
        """The value of a key such as `adapter.rank`; `default` where the run's version had no such key."""
        node: Any = self.config
        for part in key.split("."):
            if not isinstance(node, Mapping) or part not in node:
                return default
            node = node[part]
        return node

    def undone(self) -> set[int]:
        """The steps whose updates are not in the weights, since the guard has restored those of an earlier checkpoint."""
        undone: dict[int, range] = {}
        for event in self.events:
            first = event.details.get("restored_steps")
            if event.kind == "resumed" and event.step is not None:  # what the killed process did after its checkpoint is void
                undone = {step: steps for step, steps in undone.items() if step < event.step}
            elif event.kind == "rolled back" and event.step is not None and isinstance(first, int):
                undone[event.step] = range(first, event.step + 1)
        made = {int(row["step"] or 0) for row in self.rows}
        return made & {step for steps in undone.values() for step in steps}

    def resumes_from(self) -> str:
        """How much of the run a checkpoint has kept, as words that follow `resume the run`."""
        saved = _checkpoints(self.path)
        if not saved:
            return " (it begins anew, since it has no checkpoint)"
        done, made = int(saved[-1].name.removeprefix("step-")), len(self.rows)
        return f" ({done} of its {made} steps are saved)" if made else ""

    @property
    def rank(self) -> int | None:
        """The adapter's rank, if it has one."""
        rank = self.setting("adapter.rank")
        return rank if isinstance(rank, int) and 0 < rank < 2**31 else None

    @property
    def has_ended(self) -> bool:
        """Whether the run has come to an end, well or not, whose record may be damaged."""
        return self.summary is not None or (self.path / names.SUMMARY).exists()

    @property
    def evaluated(self) -> Evaluations:
        """What the run's summary says of the evaluations before and after training."""
        return Evaluations() if self.summary is None else self.summary.eval

    def checked(self, parts: GainParts | None) -> GainParts | None:
        """The parts of a gain, if it is the one that the run ended with: a run that is extended still has its earlier answers."""
        gain = self.evaluated.paired_gain
        is_its_own = parts is not None and gain is not None and math.isclose(parts.gain.mean, gain.mean, abs_tol=1e-9)
        return parts if is_its_own and not self.is_running else None

    @property
    def sft_steps(self) -> int:
        """Steps of the supervised phase."""
        if self.summary is not None:
            return self.summary.sft.steps if self.summary.sft is not None else 0
        return self.sft_logged

    def entropies(self) -> tuple[float, float, float] | None:
        """Entropy on the held-out questions before and after training, nats per token, and the relative change: dH_rel of micro,
        table 2."""
        before, after = (finite(self.evaluations.get(name, {}).get("entropy")) for name in (names.BEFORE, names.AFTER))
        return None if not before or before < 0 or after is None else (before, after, (after - before) / before)

    def series(self, metric: str, against: str = "step") -> tuple[list[float], list[float]]:
        """The values of two metrics in the steps that have both: (those of `against`, those of `metric`)."""
        pairs = [(row.get(against), row.get(metric)) for row in self.rows]
        points = [(place, value) for place, value in pairs if place is not None and value is not None]
        return [place for place, _ in points], [value for _, value in points]

    def mean(self, metric: str) -> float | None:
        """Of all steps that have this metric; None: no step has it."""
        _, values = self.series(metric)
        return math.fsum(values) / len(values) if values else None

    def failed_calls(self) -> float | None:
        """The fraction of all calls of tools that failed; None without a call."""
        if self.setting("env.target") is None:
            return None
        calls, failures = self.series("tools/failures", "tools/calls")
        return sum(map(mul, calls, failures)) / math.fsum(calls) if any(calls) else None

    def kl_to_base(self) -> float | None:
        """Mean of `policy/kl_ref`, nats per token. With `diagnostics.kl_ref_every`, over those steps alone: a KL term measures
        every step, and a mean over others would not be comparable."""
        every = self.setting("diagnostics.kl_ref_every")
        steps, values = self.series("policy/kl_ref")
        if isinstance(every, int) and every > 0:
            values = [value for step, value in zip(steps, values, strict=True) if step % every == 0]
        return math.fsum(values) / len(values) if values else None

    def status(self) -> str:
        """How the run stands, in a word or two."""
        if self.is_running:
            return "still running"
        if self.summary is not None:
            return self.summary.status
        return "unknown" if self.has_ended else "not finished"


def load_all(paths: Sequence[Path]) -> list[History]:
    """The histories of these runs. Raises UserError for what is no run, or given twice."""
    if len({path.resolve() for path in paths}) < len(paths):
        raise UserError("a run is given twice", "name each run once")
    histories = [History.load(path) for path in paths]
    for history, name in zip(histories, _names([path.absolute() for path in paths]), strict=True):
        history.name = name
    return histories


def _names(paths: Sequence[Path]) -> list[str]:
    """The end of each path: its last part, or as many as tell it from the other paths."""
    ends = []
    for path in paths:
        lengths = range(1, len(path.parts) + 1)
        length = next(length for length in lengths if [one.parts[-length:] for one in paths].count(path.parts[-length:]) == 1)
        ends.append("/".join(path.parts[-length:]))
    return ends


def finite(value: Any) -> float | None:
    """A finite number of a file; None for anything else."""
    try:
        return value if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None
    except OverflowError:
        return None  # an integer of hundreds of digits


def _lines(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """The objects of a file of lines; a note where a line is none. Of a last line without an end nothing is said: it is being
    written, or its writer was killed."""
    lines = follow.JsonlReader(path)
    objects = lines.new(MAX_BYTES)
    if lines.error:
        notes.append(lines.error)
    if lines.damaged:
        notes.append(f"{path.name}: {counted(lines.damaged, 'damaged line')} left out")
    return objects


def _written(path: Path, summary: Summary | None) -> Written | None:
    """What the run has written into `metrics.jsonl`, by its end or by its last checkpoint."""
    if summary is not None and summary.metrics is not None:
        return summary.metrics
    if saved := _checkpoints(path):
        with suppress(BadFile):  # removed meanwhile, or damaged, of which resuming speaks
            state = files.read_json(saved[-1] / "state.json", _State)
            return Written(bytes=state.metrics_offset, sha256=state.metrics_sha256)
    return None


class _State(BaseModel):
    metrics_offset: Count
    metrics_sha256: str


def _checkpoints(path: Path) -> list[Path]:
    """The folders of a run's checkpoints, oldest first."""
    return [folder for folder in names.saved(path / names.CHECKPOINTS) if (folder / "state.json").exists()]


def _is_changed(path: Path, written: Written) -> bool:
    try:
        return written.bytes <= MAX_BYTES and files.sha256(path, written.bytes).hexdigest() != written.sha256
    except FileNotFoundError:
        return written.bytes > 0
    except (OSError, BadFile):
        return False  # a note says that it cannot be read


def _event(line: dict[str, Any]) -> Event:
    step = line.get("step")
    rest = {name: value for name, value in line.items() if name not in ("time", "kind", "message", "step")}
    return Event(
        str(line.get("time", "")),
        str(line.get("kind", "")),
        str(line.get("message", "")),
        step if isinstance(step, int) else None,
        rest,
    )
