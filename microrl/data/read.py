"""Read the rows of .jsonl, .json, .csv and .parquet files, without a cache that could be stale."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from microrl.errors import UserError
from microrl.files import BadFile, open_regular

Row = dict[str, Any]


class Number(str):
    """A number as written in the file, with all its digits."""

    __slots__ = ()


def rows_of_file(path: Path) -> Iterator[Row]:
    """Every row as {column: value}, parsed one by one. JSON numbers are `Number`; CSV cells are text. Raises UserError."""
    kind = path.suffix.lower()
    try:
        with _opened(path) as file:
            if kind == ".parquet":
                yield from _parquet(file, path)
                return
            text = _text(file.read(), path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}", "check the file and its permissions") from error
    if kind == ".csv":
        yield from _csv(text, path)
    else:
        yield from _json_lines(text, path) if kind == ".jsonl" else _json(text, path)


def _opened(path: Path) -> BinaryIO:
    """Open the file. Links are followed, since the user has named it; pipes and devices are refused. Raises UserError."""
    if path.is_dir():
        raise UserError(f"{path} is a folder", "pass a .jsonl, .json, .csv or .parquet file in it")
    try:
        return open_regular(Path(os.path.realpath(path)))
    except FileNotFoundError:
        raise UserError(f"there is no data file {path}", "check the path, which is relative to the current folder") from None
    except BadFile:
        raise UserError(f"{path} is not a regular file", "pass a file; pipes and devices are not supported") from None


def _text(content: bytes, path: Path) -> str:
    if b"\0" in content:
        raise UserError(f"{path} contains NUL bytes", "is it a text file? save it as UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8: {error.reason} at byte {error.start}", "save it as UTF-8") from None


# ---- JSON


def _json_lines(text: str, path: Path) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield _object(_parsed(line, f"{path}, line {number}"), f"{path}, line {number}")


def _json(text: str, path: Path) -> Iterator[Row]:
    """A list of objects, one object, or one object per line."""
    if not text.strip():
        return
    try:
        found = _decoded(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            yield from _json_lines(text, path)
            return
        raise UserError(f"{path} is not JSON: {error}", "expected a list of objects, or one object per line") from None
    except _Refused as error:
        raise UserError(f"{path}: {error}", _EXAMPLE) from None
    for number, row in enumerate(found if isinstance(found, list) else [found], 1):
        yield _object(row, f"{path}, row {number}")


_EXAMPLE = 'a valid row: {"question": "What is 1 + 1?", "answer": "2"}'


class _Refused(Exception):
    """Valid JSON that is not usable as data."""


def _parsed(text: str, where: str) -> Any:
    try:
        return _decoded(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not JSON: {error}", _EXAMPLE) from None
    except _Refused as error:
        raise UserError(f"{where}: {error}", _EXAMPLE) from None


def _decoded(text: str) -> Any:
    try:
        return json.loads(text, parse_int=Number, parse_float=Number, object_pairs_hook=_without_repeats)
    except RecursionError:
        raise _Refused("it is nested too deeply") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> Row:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Refused(f"`{_repeated(name for name, _ in pairs)}` occurs twice")
    return found


def _object(value: Any, where: str) -> Row:
    if not isinstance(value, dict):
        raise UserError(f"{where} is not a JSON object", _EXAMPLE)
    return value


# ---- CSV


def _csv(text: str, path: Path) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)
    # Strict: otherwise an unclosed quotation mark puts the rest of the file into one cell.
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    number = 0
    try:
        for cells in reader:
            if not cells:
                continue
            if header is None:
                header = cells
                _refuse_repeats(header, path)
                continue
            number += 1
            if len(cells) > len(header):
                raise UserError(
                    f"{path}, row {number}: {len(cells)} cells, but the header has {len(header)} columns",
                    "put cells that contain a comma in quotation marks",
                )
            yield dict(zip(header, cells, strict=False))
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num} is not CSV: {error}", "check the quotation marks on that line") from None


# ---- Parquet


def _parquet(file: BinaryIO, path: Path) -> Iterator[Row]:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(file)
        _refuse_repeats(table.schema_arrow.names, path)
        narrow = [field.name for field in table.schema_arrow if field.type in (pyarrow.float16(), pyarrow.float32())]
        for batch in table.iter_batches():
            columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
            for name in narrow:  # as Python floats they would show spurious digits
                digits = batch.column(name).to_numpy(zero_copy_only=False)
                columns[name] = [
                    Number(digit) if value is not None and math.isfinite(value) else value
                    for value, digit in zip(columns[name], digits, strict=True)
                ]
            yield from (dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True))
    except (pyarrow.ArrowException, ValueError, OverflowError, OSError) as error:
        raise UserError(
            f"{path} cannot be read as parquet: {_first_line(error)}", "the file may be incomplete: copy or download it again"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _refuse_repeats(names: list[str], path: Path) -> None:
    if len(set(names)) < len(names):
        raise UserError(f"{path} has two columns `{_repeated(names)}`", "rename one of them")


def _repeated(names: Iterable[str]) -> str:
    seen: set[str] = set()
    return next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
