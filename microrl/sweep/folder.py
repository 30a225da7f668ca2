"""The folder of a sweep: `sweep.json`, which says what is to be done, a run folder for each trial, and what happened to them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator

from microrl import clock, files
from microrl.config import RunConfig, check
from microrl.errors import UserError
from microrl.files import BadFile, Frozen, Seconds
from microrl.run import follow, names, summary
from microrl.run.folder import RunFolder
from microrl.sweep.grid import SEED, Strategy, Trial

PLAN, EVENTS, CLOCK, LOGS, BASES = names.SWEEP, "trials.jsonl", "clock.json", "logs", "bases"
ATTEMPTS = 2
"""Of a trial that fails."""
RETRIED = "retried"
"""Event of a trial that may be tried as often again."""
FAILED, REFUSED = "failed", "refused"
"""Events of an attempt that failed, and of one that the user's input made impossible: another would end as it did."""
Status = Literal["waiting", "unfinished", "done", "stopped", "failed", "refused"]
"""Of a trial: not begun; begun and to be resumed; ended; ended by the guard; failed ATTEMPTS times; refused."""
UNREADABLE = "fix the file's permissions, restore it from a backup, or start another sweep: --out DIR"
OVER: tuple[Status, ...] = ("done", "stopped", "failed", "refused")
LOST: tuple[Status, ...] = ("failed", "refused")
"""Of trials that have no result and are not tried again."""


class PlannedTrial(Frozen):
    """A trial in `sweep.json`; see `grid.Trial`."""

    name: str = Field(pattern=r"^[A-Za-z0-9+_-][A-Za-z0-9.+_-]*$", max_length=250)
    values: dict[str, Any]
    also: tuple[dict[str, Any], ...] = ()
    config: dict[str, Any]

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str) -> str:
        if name in (PLAN, EVENTS, CLOCK, LOGS, BASES):
            raise ValueError("it is the name of a file of the sweep itself")
        return name

    @field_validator("values")
    @classmethod
    def _has_a_seed(cls, values: dict[str, Any]) -> dict[str, Any]:
        if type(values.get(SEED)) is not int:
            raise ValueError("it has no seed")
        return values


class Plan(Frozen):
    """`sweep.json`."""

    format: Literal[1] = 1
    strategy: Strategy
    hours: float | None = Field(default=None, gt=0, allow_inf_nan=False, strict=True)
    """Of all trials together; None: each has a number of steps, or its preset's own bounds."""
    trials: tuple[PlannedTrial, ...] = Field(min_length=1)


class _Clock(BaseModel):
    elapsed_s: Seconds


class Event(BaseModel):
    """A line of `trials.jsonl`: something that happened to a trial."""

    trial: str
    kind: str
    message: str = ""
    hint: str = ""
    """Of a refusal: what to do."""
    hours: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """What a trial was given; None: its own bounds."""
    rung: int | None = None
    kept: list[str] | None = None
    """Of a rung that has ended: the trials that go on."""


class SweepFolder:
    """A folder of a sweep, and the state of its trials, which is read from their own folders."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path, self.plan = path, plan
        self._files = RunFolder(path)
        self._events: list[Event] = []
        self._new_events = follow.JsonlReader(path / EVENTS)

    @classmethod
    def create(cls, path: Path, strategy: Strategy, hours: float | None, trials: Sequence[Trial]) -> SweepFolder:
        """A new folder. Raises UserError if it exists or cannot be created."""
        planned = [
            PlannedTrial(
                name=trial.name, values=dict(trial.values), also=tuple(map(dict, trial.also)),
                config=trial.config.model_dump(mode="json"),
            )
            for trial in trials
        ]  # fmt: skip
        plan = Plan(strategy=strategy, hours=hours, trials=tuple(planned))
        try:
            files.make_folder(path)
            (path / ".gitignore").write_text("*\n")
            files.write_json(path / PLAN, plan.model_dump(mode="json"))
        except FileExistsError:
            is_same = cls.is_one(path) and cls.open(path).plan == plan
            hint = f"resume it: microrl sweep --resume {path}"
            raise UserError(
                f"{path} already exists"
                + ("" if is_same else " and is " + ("another sweep" if cls.is_one(path) else "not a sweep folder")),
                hint if is_same else "choose another folder: --out DIR",
            ) from None
        except OSError as error:
            raise UserError(f"cannot write to {path}: {error.strerror}", "choose another folder: --out DIR") from None
        return cls(path, plan)

    @classmethod
    def open(cls, path: Path) -> SweepFolder:
        """An existing folder. Raises UserError, and BadFile if it is damaged."""
        if not cls.is_one(path):
            if not os.path.exists(path):  # False, too, for what no file can be called
                raise UserError(f"{path} does not exist", "check the path, which is relative to the current folder")
            raise UserError(f"{path} is not the folder of a sweep: it has no {PLAN}", "pass one that `microrl sweep` has created")
        files.refuse_links(path)
        try:
            plan = files.read_json(path / PLAN, Plan)
        except BadFile as error:
            raise BadFile(error.message, UNREADABLE) from None
        if len({trial.name for trial in plan.trials}) < len(plan.trials):
            raise BadFile(f"{path / PLAN} names a trial twice", UNREADABLE)
        return cls(path, plan)

    @staticmethod
    def is_one(path: Path) -> bool:
        """Whether this is the folder of a sweep."""
        return os.path.lexists(path / PLAN)

    def lock(self) -> None:
        """Lock the folder against other processes until this one ends. Raises UserError if one holds it."""
        self._files.lock()
        self._files.drop_partial_line(EVENTS)  # of a process that was killed in the middle of it

    def trial(self, name: str) -> Path:
        """The run folder of a trial."""
        return self.path / name

    def config(self, trial: PlannedTrial) -> RunConfig:
        """A trial's configuration, without the bounds that the sweep gives it. Raises UserError naming the file.

        All of it has to be there: by default values, a trial would become another experiment.
        """
        where, config = f"{self.path / PLAN}: trial {trial.name}", self.config_to_show(trial)
        if (missing := files.absent(trial.config, config)) is not None:
            raise BadFile(f"{where} has no `{missing}`: {files.OF_ANOTHER_VERSION}", UNREADABLE)
        if self.plan.hours is None and not config.is_bounded:
            raise BadFile(f"{where} has neither hours nor steps", UNREADABLE)
        return config

    def config_to_show(self, trial: PlannedTrial) -> RunConfig:
        """As `config`, but keys that are not there, since an older version wrote the plan, have their default values."""
        try:
            return check(trial.config)
        except UserError as error:
            raise BadFile(f"{self.path / PLAN}: trial {trial.name}: {error.message}", error.hint or UNREADABLE) from None

    def status(self, name: str) -> Status:
        """How a trial stands."""
        path, ended = self.trial(name), self._summary(name)
        if ended is not None and ended.status in ("done", "stopped"):
            return "stopped" if ended.status == "stopped" else "done"
        failures = self._failures(name)
        if failures and failures[-1].kind == REFUSED:
            return "refused"
        if len(failures) >= ATTEMPTS:
            return "failed"
        return "unfinished" if os.path.lexists(path / names.CONFIG) else "waiting"

    def ended_with(self, name: str) -> float | None:
        """The hours that a trial was given when it ended."""
        ended = self._summary(name)
        return None if ended is None else ended.hours_budget

    def _summary(self, name: str) -> summary.Summary | None:
        """None where the trial has not ended, or its summary is damaged."""
        with suppress(BadFile):
            return summary.read_if_there(self.trial(name))
        return None

    def runs(self) -> list[Path]:
        """The run folders that there are, in the order of the plan."""
        return [path for trial in self.plan.trials if RunFolder.is_one(path := self.trial(trial.name))]

    def failures(self, name: str) -> list[str]:
        """What went wrong in each attempt at a trial that failed or was refused, since it was last allowed others."""
        return [one.message for one in self._failures(name)]

    def refusal(self, name: str) -> UserError:
        """The error of a trial that was refused, with its hint."""
        last = self._failures(name)[-1]
        return UserError(last.message, last.hint or None)

    def _failures(self, name: str) -> list[Event]:
        failures: list[Event] = []
        for event in self.events():
            if event.trial == name and event.kind == RETRIED:
                failures = []
            elif event.trial == name and event.kind in (FAILED, REFUSED):
                failures.append(event)
        return failures

    def retry_failed(self) -> None:
        """Allow the trials that have failed or were refused as many attempts again: the cause may be repaired. Raises OSError."""
        for trial in self.plan.trials:
            if self.status(trial.name) in LOST:
                self.event(trial.name, RETRIED)

    def events(self) -> list[Event]:
        """The lines of `trials.jsonl`; a damaged one is left out. Raises BadFile where the file cannot be read."""
        new_events = self._new_events.new()
        if self._new_events.error:
            raise BadFile(self._new_events.error, UNREADABLE)
        for line in new_events:
            with suppress(ValidationError):
                self._events.append(Event.model_validate(line, strict=True))
        return self._events

    def event(self, trial: str, kind: str, message: str = "", **details: Any) -> None:
        """Append a line to `trials.jsonl`. Raises OSError."""
        self._files.append(EVENTS, {"time": clock.stamp(), "trial": trial, "kind": kind, "message": message, **details})
        self._files.flush(EVENTS)

    def elapsed_s(self) -> float:
        """Seconds that earlier processes of the sweep have used; 0 where that cannot be read."""
        try:
            saved_clock = files.read_json(self.path / CLOCK, _Clock)
        except BadFile:
            return 0.0
        return saved_clock.elapsed_s

    def save_clock(self, elapsed_s: float) -> None:
        """Write down the seconds used so far; a full disk is tolerated."""
        with suppress(OSError):
            files.write_json(self.path / CLOCK, {"elapsed_s": elapsed_s})

    def log(self, name: str) -> Path:
        """The file for what a trial prints."""
        path = self.path / LOGS / f"{name}.log"
        path.parent.mkdir(exist_ok=True)
        return path
