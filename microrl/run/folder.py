"""The run folder: everything a run writes, as plain text or safetensors."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from microrl import clock, files
from microrl.config import RunConfig, check
from microrl.errors import UserError
from microrl.files import BadFile, Value
from microrl.run import locks, names, remedies, rollouts, summary, versioned
from microrl.run.control import run_of, without_bounds
from microrl.terminal import printable


class RunFolder:
    """`runs/NAME/`. Metrics and events are appended and flushed line by line; other files appear completely or not at all."""

    LOG_BYTES = 8 * 2**20
    """Maximum size of `run.log`, which is then renamed to `run.log.1`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unwritten: dict[str, bytes] = {}
        """Lines that could not be written yet, by file; they are written first at the next attempt."""
        self._left_out: set[str] = set()
        self._lock: BinaryIO | None = None
        self.metrics_sum = files.RunningSum(path / names.METRICS)
        self.step: int | None = None
        """The step in progress, which events carry."""

    @classmethod
    def create(cls, path: Path, config: dict[str, Any]) -> RunFolder:
        """Create a folder with its configuration. Raises UserError if it exists or cannot be created."""
        try:
            files.make_folder(path)
        except FileExistsError:
            resume = f"resume it: microrl train --resume {path}, or " if cls.is_one(path) else ""
            raise UserError(f"{path} already exists", f"{resume}choose another folder: --out DIR") from None
        except OSError as error:
            raise UserError(
                f"cannot create the run folder {path}: {error.strerror}", "choose another folder: --out DIR"
            ) from None
        folder = cls(path)
        try:
            folder.write_config(config)
        except BaseException as error:
            shutil.rmtree(path, ignore_errors=True)
            if not isinstance(error, OSError):
                raise
            raise UserError(f"cannot write to {path}: {error.strerror}", "choose another folder: --out DIR") from None
        return folder

    def write_config(self, config: dict[str, Any]) -> None:
        """Write `config.json` and `.gitignore`. Raises OSError."""
        self.write_json(names.CONFIG, {"format": versioned.FORMAT, **config})
        (self.path / names.IGNORE).write_text("*\n")

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run. Raises UserError if it is not a run, or one of a later format, and BadFile if it contains a link,
        a device or a pipe, or a folder in place of a file: nothing may be read or written outside the run folder.
        """
        if not os.path.isdir(path):
            raise not_a_run(path)
        if os.path.lexists(path / names.CONFIG):
            versioned.config_of(path)
        if not cls.is_one(path):
            raise not_a_run(path)
        files.refuse_links(path)
        for name in names.FOLDERS:
            if (path / name).is_file():
                raise BadFile(f"{path / name} is a file but should be a folder", "remove it, or restore the original")
        for file in (*(path / name for name in names.FILES), *(path / names.EVAL).glob("*.json")):
            if file.is_dir():
                raise BadFile(f"{file} is a folder but should be a file", "remove it, or restore the original")
        return cls(path)

    @classmethod
    def is_one(cls, path: Path) -> bool:
        """Whether a folder is a run folder (and not, say, a model), by its configuration or the files that a run writes."""
        try:
            config = files.read_json(path / names.CONFIG, dict[str, Any])
        except (BadFile, ValueError):
            return any(os.path.lexists(path / name) for name in (names.METRICS, names.EVENTS, names.HEARTBEAT))
        return {"budget", "sampling", "adapter"} <= config.keys()

    @property
    def is_in_sweep(self) -> bool:
        """Whether it belongs to a sweep: a trial, or the evaluation of the base model that its trials share."""
        return any(os.path.lexists(parent / names.SWEEP) for parent in list(self.path.absolute().parents)[:2])

    @property
    def has_steps(self) -> bool:
        """Whether a step has been finished, a supervised one included."""
        return any(self.size(name) > 0 for name in (names.METRICS, names.SFT))

    def lock(self) -> None:
        """Lock the folder against other processes until this one ends. Raises UserError if another process holds the lock, and
        where a file that is read and appended to cannot be, or (BadFile) is a link."""
        if self._lock is not None:
            return
        path = self.path
        try:
            for path in (*self.path.glob("*.jsonl"), *self.path.glob("*.log"), *self.path.glob("*/*.log")):
                with suppress(FileNotFoundError):
                    files.open_regular(path, os.O_RDWR).close()
            self._lock = locks.take((path := self.path) / names.LOCK)
        except locks.Held as error:
            owner = f" (PID {error.owner})" if error.owner else ""
            hint = "wait for it, stop it, or choose another folder: --out DIR"
            raise UserError(f"another process{owner} is training in {self.path}", hint) from None
        except OSError as error:
            hint = f"fix its permissions, or copy the run and use the copy: cp -r {self.path} COPY"
            raise UserError(f"cannot read and write {path}: {error.strerror}", hint) from error

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            locks.release(self._lock)
            self._lock = None

    @classmethod
    def newest(cls, root: Path = Path("runs"), *, has_final: bool = False) -> RunFolder:
        """The run under `root` that was started last, with `has_final` among those with a final adapter, if there is one; not the
        control of another run. Raises UserError if there is none at all."""
        runs = [path for path in cls._all_in(root, with_trials=True) if run_of(path) is None]
        if not runs:
            raise UserError(f"there is no run in {root}/", "start one with `microrl train quickstart`, or pass its folder")
        return cls.open(next((path for path in runs if has_final and (path / names.FINAL).is_dir()), runs[0]))

    @classmethod
    def _all_in(cls, root: Path, *, with_trials: bool) -> list[Path]:
        """The runs under `root`, latest first; with or without those of sweeps."""

        def started(path: Path) -> float:
            config = path / names.CONFIG
            return config.lstat().st_mtime if os.path.lexists(config) else 0.0

        of_sweeps = (path for plan in root.glob(f"*/{names.SWEEP}") if with_trials for path in plan.parent.glob("*"))
        return sorted((path for path in (*root.glob("*"), *of_sweeps) if cls.is_one(path)), key=started, reverse=True)

    @classmethod
    def begun_with(cls, config: dict[str, Any], path: Path | None) -> RunFolder | None:
        """The run that was started with this configuration: at `path`, or the newest unfinished one in `runs/`.

        None if there is none. Raises UserError if `path` has a run with other settings.
        """
        if path is not None:
            if not os.path.lexists(path):
                return None
            folder = cls.open(path)
            if without_bounds(folder.config()) != without_bounds(config):
                raise UserError(
                    f"{path} was started with different settings",
                    f"resume it with its own settings: microrl train --resume {path}, or choose another folder: --out DIR",
                )
            return folder
        for candidate in cls._all_in(Path("runs"), with_trials=False):  # those belong to their sweep
            try:
                theirs = versioned.config_of(candidate)
            except UserError:
                continue  # unreadable: not this run
            if theirs == config and not (folder := cls.open(candidate)).is_done():
                return folder
        return None

    def final(self) -> Path:
        """The folder of the final adapter. Raises UserError if there is none yet."""
        final = self.path / names.FINAL
        if not final.is_dir():
            raise remedies.no_adapter(self.path)
        return final

    def is_done(self) -> bool:
        """Whether the run is finished (done, or stopped by the guard)."""
        try:
            return summary.read(self.path).status in ("done", "stopped")
        except BadFile:
            return False

    def config(self) -> dict[str, Any]:
        """See `versioned.config_of`."""
        return versioned.config_of(self.path)

    def settings(self, tree: dict[str, Any] | None = None) -> RunConfig:
        """The run's configuration, or `tree` instead, validated. Raises UserError naming the file."""
        try:
            return check(self.config() if tree is None else tree)
        except BadFile:
            raise
        except UserError as error:
            raise UserError(f"{self.path / names.CONFIG}: {error.message}", error.hint) from None

    def read_json(self, name: str, kind: type[Value]) -> Value:
        """A JSON file as `kind`; see `files.read_json`. Raises BadFile."""
        return files.read_json(self.path / name, kind)

    def read_if_there(self, name: str, kind: type[Value]) -> Value | None:
        """As `read_json`; None where there is no such file."""
        return self.read_json(name, kind) if (self.path / name).exists() else None

    def write_json(self, name: str, value: Any) -> None:
        """Write a file under a temporary name, flush it and rename it. Raises OSError."""
        files.write_json(self.path / name, value)

    def append(self, name: str, value: dict[str, Any]) -> None:
        """Append a JSON object as one line. If the disk refuses it, it stays in memory until the next call; see `flush`."""
        line = json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"
        self._unwritten[name] = self._unwritten.get(name, b"") + line.encode()
        with suppress(OSError):
            self.flush(name)

    def flush(self, name: str) -> None:
        """Write the pending lines of this file. Raises OSError if the disk still refuses them."""
        waiting = self._unwritten.get(name, b"")
        if not waiting:
            return
        try:
            opened = files.open_regular(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        except BadFile as error:
            raise OSError(errno.EINVAL, error.message) from None
        with opened as file:
            size, written = file.tell(), 0
            try:
                written = file.write(waiting)
            finally:
                if written != len(waiting):
                    os.ftruncate(file.fileno(), size)  # half a line is worse than none
        if written != len(waiting):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        del self._unwritten[name]
        if name == names.METRICS:
            self.metrics_sum.add(waiting, at=size)

    def flush_all(self) -> None:
        """Write the pending lines of all files. Raises OSError naming the first file that the disk refuses."""
        for name in list(self._unwritten):
            self.flush(name)

    def log(self, text: str) -> None:
        """Append a console line with its time to `run.log`; dropped if that cannot be written."""
        path = self.path / names.LOG
        with suppress(OSError, BadFile):
            with files.open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
                file.write(f"{clock.stamp()} {printable(text.strip())}\n".encode(errors="backslashreplace"))
                size = file.tell()
            if size > self.LOG_BYTES:
                path.replace(path.with_name(f"{names.LOG}.1"))

    def size(self, name: str) -> int:
        """Size of a file in bytes; 0 if it does not exist."""
        path = self.path / name
        return path.stat().st_size if path.exists() else 0

    def ends_a_line(self, name: str, size: int) -> bool:
        """Whether a file has at least `size` bytes, and the first `size` bytes are complete lines."""
        if size == 0 or size > self.size(name):
            return size == 0
        with files.open_regular(self.path / name) as file:
            file.seek(size - 1)
            return file.read(1) == b"\n"

    def rewind(self, name: str, size: int) -> None:
        """Truncate a file to `size` bytes, if it exists."""
        if (self.path / name).exists():
            with files.open_regular(self.path / name, os.O_RDWR) as file:
                file.truncate(size)

    def drop_partial_line(self, name: str) -> None:
        """Remove the incomplete last line that a killed process may have left."""
        path = self.path / name
        if not path.exists():
            return
        with files.open_regular(path) as file:
            content = file.read()
        if not content.endswith(b"\n"):
            self.rewind(name, content.rfind(b"\n") + 1)

    def forget_rollouts(self, first_step: int) -> None:
        """Remove the rollouts of `first_step` and later, which will be sampled again."""
        for step, path in rollouts.steps(self.path):
            if step >= first_step:
                files.remove(path)

    def keep_before(self) -> None:
        """The run starts over: rename its metrics, rollouts and best adapter to `NAME.before`."""
        for name in (names.METRICS, names.SFT, names.ROLLOUTS, names.BEST):
            path, kept = self.path / name, self.path / f"{name}.before"
            if path.exists():
                files.remove(kept)
                path.replace(kept)

    @contextmanager
    def tolerate_write_errors(self, what: str, tell: Callable[..., None] | None = None) -> Iterator[None]:
        """Wrap writing something that the run can do without: if the disk is full or not writable, it is skipped.

        An event (or `tell`) reports it, once until writing succeeds again.
        """
        try:
            yield
        except Exception as error:
            if not files.is_refused(error):
                raise
            if what not in self._left_out:
                self._left_out.add(what)
                kind, said = ("disk full", "no room for") if files.is_full(error) else ("warning", "cannot write")
                (tell or self.event)(kind, f"{said} {what}: {error}")
        else:
            self._left_out.discard(what)

    def event(self, kind: str, message: str, **details: Any) -> None:
        """Append an event to `events.jsonl`: a warning, a skipped update, an interruption. In training it has a step."""
        step = {} if self.step is None else {"step": self.step}
        self.append(names.EVENTS, {"time": clock.stamp(), "kind": kind, "message": message} | step | details)

    def log_rollouts(self, step: int, lines: Iterable[dict[str, Any]]) -> None:
        """Write all completions of a step, compressed, one per line; see `rollouts.lines`. Raises OSError."""
        path = self.path / names.ROLLOUTS / rollouts.name(step)
        path.parent.mkdir(exist_ok=True)
        files.write_lines(path, lines, level=3)

    def discard(self) -> None:
        """Remove the folder if nothing has been run in it yet, so that its name is free again."""
        with suppress(OSError):
            made = {path.name.lstrip(".").removesuffix(".tmp") for path in self.path.iterdir()}
            if made <= {name.lstrip(".") for name in names.MADE_BEFORE_A_RUN}:
                shutil.rmtree(self.path)


def run_above(path: Path) -> Path | None:
    """The run that this may be a part of."""
    above = path.absolute().parent
    return next((run for run in (above, above.parent) if RunFolder.is_one(run)), None)


def not_a_run(path: Path) -> UserError:
    """For what is no run folder; the hint names the run that it is a part of, if any."""
    run = run_above(path)
    hint = "list your runs with `ls runs`, or start one with `microrl train`" if run is None else f"pass the run itself: {run}"
    return UserError(f"{path} is not a run folder", under_runs(path) or hint)


def under_runs(path: Path) -> str | None:
    """The hint where the path is that of a run without the folder of runs before it."""
    meant = Path("runs") / path
    return f"did you mean `{meant}`?" if meant != path and RunFolder.is_one(meant) else None
