"""Read untrusted files: regular files only, no links, of bounded size, validated by a typed model."""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import json
import os
import re
import shutil
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from microrl.errors import UserError

Value = TypeVar("Value")
MAX_JSON_BYTES = 64 * 2**20
LONGEST_LINE = 64 * 2**20
"""Bytes. A longer line is damage."""
CHUNK = 2**20
"""Bytes that are hashed at once."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""For files written by microrl itself: exactly these keys, and no type conversions."""
Count = Annotated[int, Field(ge=0, le=10**15)]
Seconds = Annotated[float, Field(ge=0, le=10**10)]
"""Up to three centuries, so that sums stay finite."""
Fraction = Annotated[float, Field(ge=0, le=1)]


RESTORE = "restore the file from a copy; without one, start a new run or, for a model's file, download it again"
"""The generic hint of an error about a file."""
OF_ANOTHER_VERSION = "another version of microrl wrote it, or it was changed"
READABLE = "check that it exists and that you may read it"


class Strict(BaseModel):
    """See `STRICT`."""

    model_config = STRICT


class Frozen(BaseModel):
    """Exactly these keys. Types are converted, and then no value changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class BadFile(UserError):
    """A file that is missing, damaged, or not a regular file. By default, its hint is a generic one."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint or RESTORE)


def make_folder(path: Path) -> None:
    """A new folder. Raises OSError; parents that were made for it are then removed again."""
    missing = [parent for parent in path.parents if not os.path.lexists(parent)]
    try:
        path.mkdir(parents=True)
    except OSError:
        for parent in missing:
            with suppress(OSError):
                parent.rmdir()
        raise


def open_regular(path: Path, flags: int = os.O_RDONLY, *, follow: bool = False) -> BinaryIO:
    """Open a regular file without waiting for a pipe's other end, and unless `follow` without following a link at `path` itself.

    `flags` as for `os.open`; a file that `os.O_CREAT` makes is readable by all. `follow` is for what a person has named, such
    as a model in a hub's cache, whose files are links. Raises BadFile for a link, a device, a pipe or a folder, for writing also
    for a file with further hard links, and OSError as `open` does otherwise.
    """
    is_read = flags & (os.O_WRONLY | os.O_RDWR) == 0
    nofollow, nonblock = 0 if follow else getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags & ~os.O_TRUNC | nofollow | nonblock | os.O_CLOEXEC, 0o644)
    except OSError:
        if path.is_symlink() and not follow:
            raise BadFile(f"{path} is a symbolic link", "replace it with the file itself") from None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BadFile(f"{path} is not a regular file", "remove it, or replace it with the file itself")
        if not is_read:
            refuse_hard_links(path, status)
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb" if is_read else "ab" if flags & os.O_APPEND else "r+b", buffering=-1 if is_read else 0)


def refuse_hard_links(path: Path, status: os.stat_result) -> None:
    """Raise BadFile where the file at `path` is one under another name, too: whoever writes here would change it there."""
    if status.st_nlink > 1:
        raise BadFile(
            f"{path} is a hard link: writing would change the file under all its {status.st_nlink} names",
            f"make it a separate copy: cp {path} {path}.own && mv {path}.own {path}",
        )


def sha256(path: Path, size: int | None = None) -> hashlib._Hash:
    """The hash of a file, or of its first `size` bytes. Raises OSError and BadFile."""
    hasher = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(min(CHUNK, CHUNK if size is None else size - file.tell())):
            hasher.update(block)
    return hasher


class RunningSum:
    """The SHA-256 of a file that grows, by what was written into it: what is changed there afterwards has another one."""

    def __init__(self, path: Path) -> None:
        self._path, self._size, self._sum = path, 0, hashlib.sha256()

    def at(self, size: int) -> str:
        """Of the first `size` bytes. They are read if they were not all written here. Raises OSError and BadFile."""
        if size != self._size:
            self._size, self._sum = size, sha256(self._path, size) if size else hashlib.sha256()
        return self._sum.hexdigest()

    def add(self, content: bytes, at: int) -> None:
        """This was written after the first `at` bytes. Raises as `at` does."""
        self.at(at)
        self._size += len(content)
        self._sum.update(content)


def read_bytes(path: Path, limit: int = MAX_JSON_BYTES, *, follow: bool = False) -> bytes:
    """A whole file of at most `limit` bytes; `follow` as for `open_regular`. Raises BadFile."""
    try:
        with open_regular(path, follow=follow) as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror or error}", READABLE) from error
    if len(content) > limit:
        raise BadFile(f"{path} is larger than {limit / 2**20:.0f} MiB", "restore the original file")
    return content


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""Made once a type: making one takes longer than most files do."""


def read_json(path: Path, kind: type[Value], *, follow: bool = False, is_consistent: bool = False) -> Value:
    """A JSON file as `kind`: a pydantic model, a dataclass, or any type that pydantic knows. Raises BadFile.

    `is_consistent`: the defaults of dataclasses are not taken for keys that are missing.
    """
    content = read_bytes(path, follow=follow)
    try:
        parsed: Value = _adapter(kind).validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if is_consistent and first["type"] == "unexpected_keyword_argument":
            raise BadFile(f"{path} has an unexpected key `{_place(first)}`: {OF_ANOTHER_VERSION}") from None
        raise BadFile(f"{path} is damaged: {said_first(error)}") from None
    if is_consistent and (name := absent(json.loads(content), parsed)) is not None:
        raise BadFile(f"{path} has no `{name}`: {OF_ANOTHER_VERSION}")
    return parsed


def said_first(error: ValidationError) -> str:
    """What is wrong first, and at which key."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"`{_place(first)}`: {first['msg']}" if first["loc"] else first["msg"]


def _place(error: ErrorDetails) -> str:
    return ".".join(str(part) for part in error["loc"])


def absent(raw: Any, parsed: Any) -> str | None:
    """The first field of a dataclass or model, and of those in it, that is not in the JSON it was read from."""
    own = [field.name for field in fields(parsed)] if is_dataclass(parsed) else getattr(type(parsed), "model_fields", ())
    for name in own:
        if name not in raw:
            return name
        if (inner := absent(raw[name], getattr(parsed, name))) is not None:
            return f"{name}.{inner}"
    return None


def refuse_links(root: Path) -> None:
    """Raise BadFile where anything below `root` is neither a folder nor a regular file. `root` itself may be a link."""

    def unreadable(error: OSError) -> None:
        if isinstance(error, FileNotFoundError):
            return  # renamed or removed meanwhile, by the run that writes here
        raise BadFile(f"{error.filename} cannot be read: {error.strerror}", READABLE) from error

    for folder, folders, files in os.walk(root, onerror=unreadable):
        for name in (*folders, *files):
            path = Path(folder, name)
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                what = "a symbolic link" if stat.S_ISLNK(mode) else "not a regular file"
                raise BadFile(
                    f"{path} is {what}", "a run folder may contain regular files only: remove it, or copy the run with `cp -rL`"
                )


def remove(path: Path) -> None:
    """Remove what is at `path`, if anything: a file, a folder with all that is in it, or a link but not what it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def one_at_a_time(target: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Inside, no other process is inside for the same `target`, which need not exist; `on_wait` is called before waiting.

    For caches: on a file system without locks, or without room for the file of the lock, nobody waits.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = target.with_name(f".{target.name}.lock")
        file = lock.open("ab")
    except OSError:
        yield
        return
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            on_wait()
            with suppress(OSError):
                fcntl.lockf(file, fcntl.LOCK_EX)
        except OSError:
            pass
        try:
            yield
        finally:
            with suppress(OSError):  # whoever waits has it open; who comes now does not wait for them, and does the work twice
                lock.unlink()


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """A temporary file that is renamed to `target` after it has been written completely."""
    temporary = target.with_name(f".{target.name}.tmp")
    remove(temporary)
    try:
        yield temporary
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_lines(target: Path, lines: Iterable[dict[str, Any]], level: int) -> None:
    """Write JSON lines, compressed, under a temporary name; the same ones give the same bytes. Raises OSError."""
    with (
        written_whole(target) as temporary,
        temporary.open("wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="", compresslevel=level) as file,  # without name and time
    ):
        for line in lines:
            file.write((json.dumps(line, ensure_ascii=False) + "\n").encode("utf-8", "replace"))


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file that `write_lines` has written. Raises BadFile, maybe after some lines; a longer one than LONGEST_LINE
    comes in pieces."""
    try:
        with open_regular(path) as raw, gzip.GzipFile(fileobj=raw) as file:
            while line := file.readline(LONGEST_LINE):
                yield line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadFile(f"{path} is damaged: {error}") from error
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error}") from error


def json_object(line: bytes) -> dict[str, Any] | None:
    """The JSON object in a line; None where there is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of `target` after everything in it is on disk."""
    temporary, old = target.with_name(f".{target.name}.tmp"), target.with_name(f".{target.name}.old")
    remove(temporary)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for path in (*temporary.iterdir(), temporary):
            _flush(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    # From here on it is complete, under either name. Between two renames, `target` is missing for the shortest time.
    remove(old)
    if os.path.lexists(target):
        target.replace(old)
    temporary.replace(target)
    _flush(target.parent)
    remove(old)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(target: Path, value: Any) -> None:
    """Write a file under a temporary name, flush it and rename it. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(target) as temporary, temporary.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def is_writable(folder: Path) -> bool:
    """Whether files can be written to this folder, which need not exist yet."""
    place = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    return place.is_dir() and os.access(place, os.W_OK | os.X_OK)


def is_full(error: BaseException) -> bool:
    """Whether an error means no space: a full disk, a quota, or a file size limit."""
    return _errno(error) in _FULL


def is_refused(error: BaseException) -> bool:
    """Whether an error comes from the operating system: full or read-only disk, missing permissions, deleted folder."""
    return _errno(error) is not None


def _errno(error: BaseException) -> int | None:
    """The errno of an error, or None. safetensors, written in Rust, has it in its message only."""
    if isinstance(error, OSError):
        return error.errno or errno.EIO
    match = re.search(r"\(os error (\d+)\)", str(error))
    return int(match[1]) if match is not None else None
