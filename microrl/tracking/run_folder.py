"""The run folder: everything a run leaves behind, as plain text or safetensors."""

from __future__ import annotations

import datetime
import gzip
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from microrl.errors import UserError
from microrl.types import Group

PACKAGES = ("microrl", "torch", "transformers", "peft", "datasets", "math-verify", "vllm", "bitsandbytes", "numpy", "tokenizers")


class RunFolder:
    """`runs/NAME/`. Metrics and events are appended and flushed line by line; other files appear whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

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

    @classmethod
    def newest(cls, root: Path = Path("runs")) -> RunFolder:
        """The run that was started last under `root`."""
        found = [entry.parent for entry in root.glob("*/config.json")]
        if not found:
            raise UserError(f"there is no run under {root}/", "start one: `microrl train quickstart`, or name a run or a model")
        return cls(max(found, key=lambda path: (path / "config.json").stat().st_mtime))

    def config(self) -> dict[str, Any]:
        """The resolved configuration the run was started with."""
        return self.read_json("config.json")

    def read_json(self, name: str) -> Any:
        return json.loads((self.path / name).read_text(encoding="utf-8"))

    def write_json(self, name: str, value: Any) -> None:
        """Write a file whole: under another name first, then renamed."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(value, file, indent=2, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)

    def append(self, name: str, value: dict[str, Any]) -> None:
        """One JSON object as one line."""
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")

    def event(self, kind: str, message: str, **details: Any) -> None:
        """Something worth telling that is not a metric: a warning, a skipped update, an interruption."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.append("events.jsonl", {"time": now, "kind": kind, "message": message, **details})

    def log_rollouts(self, step: int, groups: Sequence[Group]) -> None:
        """Everything that was sampled in a step, compressed, one completion a line."""
        path = self.path / "rollouts" / f"step-{step:06d}.jsonl.gz"
        path.parent.mkdir(exist_ok=True)
        # No name and no time in the archive: the same rollouts are the same bytes.
        with path.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="", compresslevel=3) as file:
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
