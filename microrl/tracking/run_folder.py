"""The run folder: everything a run leaves behind, as plain text or safetensors."""

from __future__ import annotations

import datetime
import fcntl
import gzip
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from microrl.errors import UserError
from microrl.tracking import disk
from microrl.types import Group

LOCK = ".lock"
PACKAGES = ("microrl", "torch", "transformers", "peft", "datasets", "math-verify", "vllm", "bitsandbytes", "numpy", "tokenizers")


class RunFolder:
    """`runs/NAME/`. Metrics and events are appended and flushed line by line; other files appear whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unwritten: dict[str, bytes] = {}
        """Lines that the full disk had no room for; they go first when there is some again."""
        self._left_out: set[str] = set()
        self._lock: int | None = None

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
            (path / ".gitignore").write_text("*\n")
            folder.write_json("config.json", config)
        except OSError as error:
            raise UserError(f"cannot write into {path}: {error.strerror}", "choose another one: --out DIR") from None
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run. Raises UserError where it is not one."""
        if not cls.is_one(path):
            raise UserError(f"{path} is not a run folder", "see `ls runs`, or start one with `microrl train`")
        return cls(path)

    @classmethod
    def is_one(cls, path: Path) -> bool:
        """Whether a folder holds a run's configuration, and not, say, a model's."""
        try:
            config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return isinstance(config, dict) and {"budget", "sampling", "adapter"} <= config.keys()

    def lock(self) -> None:
        """Keep other processes from training in this folder, for as long as this one lives. Raises UserError where one does."""
        if self._lock is not None:
            return
        descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # Of the two kinds of locks the one that a forked child does not inherit: it must not outlive this process.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if not isinstance(error, BlockingIOError | PermissionError):
                os.close(descriptor)
                return  # a file system without locks
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise UserError(
                f"another process{f' ({owner})' if owner else ''} is training in {self.path}",
                "wait for it or end it, or choose another folder: --out DIR",
            ) from None
        os.pwrite(descriptor, f"{os.getpid()}\n".encode().ljust(12), 0)
        self._lock = descriptor

    def unlock(self) -> None:
        """Let others train here."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @classmethod
    def newest(cls, root: Path = Path("runs")) -> RunFolder:
        """The run that was started last under `root`."""
        found = [entry.parent for entry in root.glob("*/config.json")]
        if not found:
            raise UserError(f"there is no run under {root}/", "start one: `microrl train quickstart`, or name a run or a model")
        return cls(max(found, key=lambda path: (path / "config.json").stat().st_mtime))

    @classmethod
    def begun_with(cls, config: dict[str, Any], path: Path | None, root: Path = Path("runs")) -> RunFolder | None:
        """The run that was begun with this configuration: at `path`, or the newest under `root` that is not done.

        None where there is none yet. Raises UserError where another run is at `path`.
        """
        if path is not None:
            if not path.exists():
                return None
            folder = cls.open(path)
            if _without_bounds(folder.config()) != _without_bounds(config):
                raise UserError(f"{path} was begun with other settings", f"go on with its own: --resume {path}, or another --out")
            return folder
        found = sorted(root.glob("*/config.json"), key=lambda file: file.stat().st_mtime, reverse=True)
        folders = (cls(file.parent) for file in found if cls.is_one(file.parent))
        return next((folder for folder in folders if folder.config() == config and not folder.is_done()), None)

    def is_done(self) -> bool:
        """Whether the run has come to its end."""
        try:
            return self.read_json("summary.json")["status"] in ("done", "stopped")
        except (OSError, ValueError, KeyError):
            return False

    def config(self) -> dict[str, Any]:
        """The resolved configuration the run was started with."""
        return self.read_json("config.json")

    def read_json(self, name: str) -> Any:
        return json.loads((self.path / name).read_text(encoding="utf-8"))

    def write_json(self, name: str, value: Any) -> None:
        """Write a file whole: under another name first, then renamed."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with _whole(target) as temporary, temporary.open("w", encoding="utf-8") as file:
            json.dump(value, file, indent=2, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())

    def append(self, name: str, value: dict[str, Any]) -> None:
        """One JSON object as one line. On a full disk it waits in memory for the next call: see `flush`."""
        line = json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"
        self._unwritten[name] = self._unwritten.get(name, b"") + line.encode()
        self.flush(name)

    def flush(self, name: str) -> bool:
        """Write what is waiting for this file. False where the disk has no room for it still."""
        waiting = self._unwritten.get(name, b"")
        if not waiting:
            return True
        with (self.path / name).open("ab", buffering=0) as file:
            size = file.tell()
            try:
                complete = file.write(waiting) == len(waiting)
            except OSError as error:
                if not disk.is_full(error):
                    raise
                complete = False
            if not complete:
                os.ftruncate(file.fileno(), size)  # half a line is worse than none
                return False
        del self._unwritten[name]
        return True

    def size(self, name: str) -> int:
        """Bytes of a file, 0 where there is none."""
        path = self.path / name
        return path.stat().st_size if path.exists() else 0

    def rewind(self, name: str, size: int) -> None:
        """Cut a file of lines back to this many bytes."""
        if (self.path / name).exists():
            os.truncate(self.path / name, size)

    def mend(self, name: str) -> None:
        """Cut off the half line that a killed process may have left at the end."""
        path = self.path / name
        if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
            self.rewind(name, content.rfind(b"\n") + 1)

    def forget_rollouts(self, first_step: int) -> None:
        """Remove the rollouts of this step and later ones: they will be sampled again."""
        for path in (self.path / "rollouts").glob("step-*.jsonl.gz"):
            if path.name >= _rollouts(first_step):
                path.unlink()

    @contextmanager
    def left_out_if_full(self, what: str, tell: Callable[..., None] | None = None) -> Iterator[None]:
        """Around writing something the run can do without: where the disk is full it is left out.

        An event (or `tell`) says so, once until there has been room again.
        """
        try:
            yield
        except Exception as error:
            if not disk.is_full(error):
                raise
            if what not in self._left_out:
                self._left_out.add(what)
                (tell or self.event)("disk full", f"no room for {what}: {error}")
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
        """Versions, machine, and the commit that microrl was run from, where it was run from a checkout."""
        versions = {}
        for package in PACKAGES:
            try:
                versions[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                continue
        environment = {
            "command": sys.argv,
            "commit": _commit(),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "packages": versions,
        }
        self.write_json("environment.json", environment | details)

    def discard(self) -> None:
        """Remove a folder in which nothing has been run yet, so that its name is free for another try."""
        if not (self.path / "metrics.jsonl").exists() and not (self.path / "environment.json").exists():
            shutil.rmtree(self.path, ignore_errors=True)


def _without_bounds(config: dict[str, Any]) -> dict[str, Any]:
    """A run may have been given more hours or steps since."""
    return config | {"budget": {name: value for name, value in config["budget"].items() if name not in ("hours", "steps")}}


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """A file that appears under its name only when all of it has been written."""
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        yield temporary
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _rollouts(step: int) -> str:
    return f"step-{step:06d}.jsonl.gz"


def _commit() -> str | None:
    here = Path(__file__).parent
    try:
        tracked = subprocess.run(["git", "ls-files", "--error-unmatch", __file__], cwd=here, capture_output=True)
        if tracked.returncode != 0:
            return None
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"], cwd=here, capture_output=True, text=True
        )
    except OSError:
        return None
    return found.stdout.strip() or None


def crash_log(folder: Path | None, text: str) -> Path:
    """Keep a traceback where it can be found: in the run folder if there is one, else in the current folder."""
    path = (folder if folder is not None and folder.is_dir() else Path()) / "crash.log"
    path.write_text(text, encoding="utf-8")
    return path
