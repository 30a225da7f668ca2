"""The run folder: everything a run leaves behind, as plain text or safetensors."""

from __future__ import annotations

import datetime
import errno
import fcntl
import gzip
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import BaseModel

from microrl import files
from microrl.config import RunConfig, check
from microrl.errors import UserError
from microrl.files import BadFile
from microrl.run import disk, environment
from microrl.terminal import printable
from microrl.types import Group

LOCK, LOG = ".lock", "run.log"
FOLDERS = ("checkpoints", "best", "final", "eval", "rollouts")
FILES = (LOCK, "config.json", "environment.json", "metrics.jsonl", "events.jsonl", "sft.jsonl", "summary.json",
         "heartbeat.json", "sync.json", "data.json", "metrics.jsonl.before", "crash.log", LOG, f"{LOG}.1",
         ".gitignore")  # fmt: skip


class _Ending(BaseModel):
    """What is looked up in a `summary.json`."""

    status: str


class RunFolder:
    """`runs/NAME/`. Metrics and events are appended and flushed line by line; other files appear whole or not at all."""

    LOG_BYTES = 8 * 2**20
    """Of `run.log`, which then becomes `run.log.1` and begins anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unwritten: dict[str, bytes] = {}
        """Lines that the disk has not taken; they go first when it takes some again."""
        self._left_out: set[str] = set()
        self._lock: BinaryIO | None = None

    @classmethod
    def create(cls, path: Path, config: dict[str, Any]) -> RunFolder:
        """A new folder with its configuration. Raises UserError where one exists or none can be made."""
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise UserError(
                f"{path} exists already", f"go on with it: --resume {path}, or choose another name: --out DIR"
            ) from None
        except OSError as error:
            raise UserError(f"cannot make the run folder {path}: {error.strerror}", "choose another one: --out DIR") from None
        folder = cls(path)
        try:
            folder.write_config(config)
        except BaseException as error:
            shutil.rmtree(path, ignore_errors=True)
            if not isinstance(error, OSError):
                raise
            raise UserError(f"cannot write into {path}: {error.strerror}", "choose another one: --out DIR") from None
        return folder

    def write_config(self, config: dict[str, Any]) -> None:
        """What makes a folder a run's. Raises OSError."""
        self.write_json("config.json", config)
        (self.path / ".gitignore").write_text("*\n")

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run. Raises UserError where it is not one, and BadFile where somebody has put a link, a device or a pipe
        into it, or a folder in the place of a file: nothing that is read or written here may lie elsewhere.
        """
        if not os.path.isdir(path):
            raise UserError(f"{path} is not a run folder", "see `ls runs`, or start one with `microrl train`")
        if os.path.lexists(path / "config.json"):
            files.read_json(path / "config.json", dict[str, Any])
        if not cls.is_one(path):
            raise UserError(f"{path} is not a run folder", "see `ls runs`, or start one with `microrl train`")
        files.refuse_links(path)
        for name in FOLDERS:
            if (path / name).is_file():
                raise BadFile(f"{path / name} is a file, and should be a folder", "remove it, or put the run's own back")
        for file in (*(path / name for name in FILES), *(path / "eval").glob("*.json")):
            if file.is_dir():
                raise BadFile(f"{file} is a folder, and should be a file", "remove it, or put the run's own back")
        return cls(path)

    @classmethod
    def is_one(cls, path: Path) -> bool:
        """Whether a folder holds a run, and not, say, a model: by its configuration, or by what a run writes."""
        try:
            config: dict[str, Any] = files.read_json(path / "config.json", dict[str, Any])
        except (BadFile, ValueError):
            return any(os.path.lexists(path / name) for name in ("metrics.jsonl", "events.jsonl", "heartbeat.json"))
        return {"budget", "sampling", "adapter"} <= config.keys()

    def lock(self) -> None:
        """Keep other processes from training in this folder, for as long as this one lives. Raises UserError where one does."""
        if self._lock is not None:
            return
        try:
            file = files.open_regular(self.path / LOCK, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise UserError(
                f"cannot write into {self.path}: {error.strerror}", f"make it writable, or copy it: cp -r {self.path} COPY"
            ) from error
        try:
            # Of the two kinds of locks the one that a forked child does not inherit: it must not outlive this process.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if not isinstance(error, BlockingIOError | PermissionError):
                file.close()
                return  # a file system without locks
            owner = file.read(32).decode(errors="replace").strip()
            file.close()
            raise UserError(
                f"another process{f' ({owner})' if owner else ''} is training in {self.path}",
                "wait for it or end it, or choose another folder: --out DIR",
            ) from None
        with suppress(OSError):  # a full disk: the lock holds without the number
            file.write(f"{os.getpid()}\n".encode().ljust(12))
        self._lock = file

    def unlock(self) -> None:
        """Let others train here."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @classmethod
    def newest(cls, root: Path = Path("runs")) -> RunFolder:
        """The run that was started last under `root`."""
        found = cls._all_in(root)
        if not found:
            raise UserError(f"there is no run under {root}/", "start one: `microrl train quickstart`, or name a run or a model")
        return cls.open(found[0])

    @classmethod
    def _all_in(cls, root: Path) -> list[Path]:
        """The runs under `root`, the one that was started last first."""

        def started(path: Path) -> float:
            config = path / "config.json"
            return config.lstat().st_mtime if os.path.lexists(config) else 0.0

        return sorted((path for path in root.glob("*") if cls.is_one(path)), key=started, reverse=True)

    @classmethod
    def begun_with(cls, config: dict[str, Any], path: Path | None, root: Path = Path("runs")) -> RunFolder | None:
        """The run that was begun with this configuration: at `path`, or the newest under `root` that is not done.

        None where there is none yet. Raises UserError where another run is at `path`.
        """
        if path is not None:
            if not os.path.lexists(path):
                return None
            folder = cls.open(path)
            if _without_bounds(folder.config()) != _without_bounds(config):
                raise UserError(f"{path} was begun with other settings", f"go on with its own: --resume {path}, or another --out")
            return folder
        for found in cls._all_in(root):
            try:
                theirs: dict[str, Any] = files.read_json(found / "config.json", dict[str, Any])
            except BadFile:
                continue  # whichever it was
            if theirs == config and not (folder := cls.open(found)).is_done():
                return folder
        return None

    def is_done(self) -> bool:
        """Whether the run has come to its end."""
        try:
            return self.read_json("summary.json", _Ending).status in ("done", "stopped")
        except BadFile:
            return False

    def config(self) -> dict[str, Any]:
        """The resolved configuration the run was started with, not checked."""
        return self.read_json("config.json", dict[str, Any])

    def settings(self, tree: dict[str, Any] | None = None) -> RunConfig:
        """The configuration, or this changed one, checked. Raises UserError that names the file."""
        try:
            return check(self.config() if tree is None else tree)
        except BadFile:
            raise
        except UserError as error:
            raise UserError(f"{self.path / 'config.json'}: {error.message}", error.hint) from None

    def read_json(self, name: str, kind: Any) -> Any:
        """A file as `kind`. Raises BadFile: see `files.read_json`."""
        return files.read_json(self.path / name, kind)

    def write_json(self, name: str, value: Any) -> None:
        """Write a file whole: under another name first, then renamed."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with _whole(target) as temporary, temporary.open("w", encoding="utf-8") as file:
            json.dump(value, file, indent=2, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())

    def is_writable(self, name: str) -> bool:
        """Whether files can be written into this folder of the run's, which need not exist yet."""
        path = self.path / name
        place = path if path.exists() else self.path
        return place.is_dir() and os.access(place, os.W_OK | os.X_OK)

    def append(self, name: str, value: dict[str, Any]) -> None:
        """One JSON object as one line. Where the disk does not take it, it waits in memory for the next call: see `flush`."""
        line = json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"
        self._unwritten[name] = self._unwritten.get(name, b"") + line.encode()
        with suppress(OSError):
            self.flush(name)

    def flush(self, name: str) -> None:
        """Write what is waiting for this file. Raises OSError where the disk does not take it still."""
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

    def flush_all(self) -> None:
        """Write what is waiting for any file. Raises OSError with the name of the first that the disk does not take."""
        for name in list(self._unwritten):
            self.flush(name)

    def log(self, text: str) -> None:
        """What the console says, with its time, in `run.log`; dropped where that cannot be written."""
        path, now = self.path / LOG, datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        with suppress(OSError, BadFile):
            with files.open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
                file.write(f"{now} {printable(text.strip())}\n".encode(errors="backslashreplace"))
                size = file.tell()
            if size > self.LOG_BYTES:
                path.replace(path.with_name(f"{LOG}.1"))

    def size(self, name: str) -> int:
        """Bytes of a file, 0 where there is none."""
        path = self.path / name
        return path.stat().st_size if path.exists() else 0

    def ends_a_line(self, name: str, size: int) -> bool:
        """Whether the first `size` bytes of a file of lines are there, and are whole lines."""
        if size == 0 or size > self.size(name):
            return size == 0
        with files.open_regular(self.path / name) as file:
            file.seek(size - 1)
            return file.read(1) == b"\n"

    def rewind(self, name: str, size: int) -> None:
        """Cut a file of lines back to this many bytes."""
        if (self.path / name).exists():
            with files.open_regular(self.path / name, os.O_RDWR) as file:
                file.truncate(size)

    def drop_partial_line(self, name: str) -> None:
        """Cut off the half line that a killed process may have left at the end."""
        path = self.path / name
        if not path.exists():
            return
        with files.open_regular(path) as file:
            content = file.read()
        if not content.endswith(b"\n"):
            self.rewind(name, content.rfind(b"\n") + 1)

    def forget_rollouts(self, first_step: int) -> None:
        """Remove the rollouts of this step and later ones: they will be sampled again."""
        for path in (self.path / "rollouts").glob("step-*.jsonl.gz"):
            number = re.fullmatch(r"step-(\d{6,15})\.jsonl\.gz", path.name)
            if number and int(number[1]) >= first_step:
                files.remove(path)

    def keep_before(self) -> None:
        """All of it is begun again: what there is so far gets another name, `NAME.before`."""
        for name in ("metrics.jsonl", "sft.jsonl", "rollouts", "best"):
            path, kept = self.path / name, self.path / f"{name}.before"
            if path.exists():
                files.remove(kept)
                path.replace(kept)

    @contextmanager
    def tolerate_write_errors(self, what: str, tell: Callable[..., None] | None = None) -> Iterator[None]:
        """Around writing something the run can do without: where the disk is full or cannot be written it is left out.

        An event (or `tell`) says so, once until it has been written again.
        """
        try:
            yield
        except Exception as error:
            if not disk.is_refused(error):
                raise
            if what not in self._left_out:
                self._left_out.add(what)
                kind, said = ("disk full", "no room for") if disk.is_full(error) else ("warning", "cannot write")
                (tell or self.event)(kind, f"{said} {what}: {error}")
        else:
            self._left_out.discard(what)

    def event(self, kind: str, message: str, **details: Any) -> None:
        """Something worth telling that is not a metric: a warning, a skipped update, an interruption."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.append("events.jsonl", {"time": now, "kind": kind, "message": message, **details})

    def log_rollouts(self, step: int, groups: Sequence[Group]) -> None:
        """Everything that was sampled in a step, compressed, one completion a line."""
        path = self.path / "rollouts" / _rollouts(step)
        path.parent.mkdir(exist_ok=True)
        # No name and no time in the archive: the same rollouts are the same bytes.
        with (
            _whole(path) as temporary,
            temporary.open("wb") as raw,
            gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="", compresslevel=3) as file,
        ):
            for group in groups:
                for completion, score in zip(group.completions, group.scores, strict=True):
                    line = {
                        "question": group.prompt.question,
                        "answer": group.prompt.answer,
                        "completion": completion.text,
                        "tokens": len(completion.token_ids),
                        "finish": completion.finish,
                        "version": completion.version,
                        "reward": score.total,
                        "accuracy": score.accuracy,
                        "format": score.format,
                    }
                    file.write((json.dumps(line, ensure_ascii=False) + "\n").encode("utf-8"))

    def log_environment(self, **details: Any) -> None:
        """Versions, machine and commit: see `environment.describe`."""
        self.write_json("environment.json", environment.describe() | details)

    def discard(self) -> None:
        """Remove a folder in which nothing has been run yet, so that its name is free for another try."""
        with suppress(OSError):
            if {path.name.lstrip(".").removesuffix(".tmp") for path in self.path.iterdir()} <= _MADE_BEFORE_A_RUN:
                shutil.rmtree(self.path)


_MADE_BEFORE_A_RUN = {"gitignore", "config.json", "lock", "events.jsonl", "heartbeat.json", "data.json", LOG}


def _without_bounds(config: dict[str, Any]) -> dict[str, Any]:
    """A run may have been given more hours or steps since."""
    if not isinstance(config["budget"], dict):
        return config
    return config | {"budget": {name: value for name, value in config["budget"].items() if name not in ("hours", "steps")}}


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """A file that appears under its name only when all of it has been written."""
    temporary = target.with_name(f".{target.name}.tmp")
    files.remove(temporary)
    try:
        yield temporary
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _rollouts(step: int) -> str:
    return f"step-{step:06d}.jsonl.gz"
