"""Read the rows of .jsonl, .json, .csv, .parquet and .arrow files, without a cache that could be stale."""

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

from microrl.errors import UserError, first_line
from microrl.files import BadFile, open_regular

Row = dict[str, Any]
_COPY_AGAIN = "the file may be incomplete: copy or download it again"


class Number(str):
    """A number as written in the file, with all its digits."""

    __slots__ = ()


def rows_of_file(path: Path, distinct: Distinct | None = None) -> Iterator[Row]:
    """Every row as {column: value}, parsed one by one. JSON numbers are `Number`; CSV cells are text. Raises UserError.

    `distinct` leaves out a parquet file's repeated rows early; of other files all rows come.
    """
    kind = path.suffix.lower()
    try:
        with _opened(path) as file:
            if kind == ".parquet":
                yield from _parquet(file, path, distinct)
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
        decoded = _decoded(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            yield from _json_lines(text, path)
            return
        raise UserError(f"{path} is not JSON: {error}", "expected a list of objects, or one object per line") from None
    except _Refused as error:
        raise UserError(f"{path}: {error}", _EXAMPLE) from None
    for number, row in enumerate(decoded if isinstance(decoded, list) else [decoded], 1):
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
    members = dict(pairs)
    if len(members) < len(pairs):
        raise _Refused(f"`{_repeated(name for name, _ in pairs)}` occurs twice")
    return members


def _object(value: Any, where: str) -> Row:
    if not isinstance(value, dict):
        raise UserError(f"{where} is not a JSON object", _EXAMPLE)
    return value


# ---- CSV


def _csv(text: str, path: Path) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)
    # Strict: otherwise an unclosed quotation mark puts the rest of the file into one cell.
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(filter(None, reader), [])  # an empty line is no row
        _refuse_repeats(header, path)
        for number, cells in enumerate(filter(None, reader), 1):
            if len(cells) > len(header):
                raise UserError(
                    f"{path}, row {number}: {len(cells)} cells, but the header has {len(header)} columns",
                    "put cells that contain a comma in quotation marks",
                )
            yield dict(zip(header, cells, strict=False))
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num} is not CSV: {error}", "check the quotation marks on that line") from None


# ---- Parquet and Arrow


def rows_of_arrow(path: Path, distinct: Distinct | None = None) -> Iterator[Row]:
    """Every row of an Arrow stream, as `datasets.save_to_disk` writes it. Raises UserError."""
    import pyarrow

    try:
        with _opened(path) as file, pyarrow.ipc.open_stream(file) as stream:
            _refuse_repeats(stream.schema.names, path)
            yield from rows_of_batches(stream, distinct)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}", "check the file and its permissions") from error
    except (pyarrow.ArrowException, ValueError, OverflowError) as error:
        raise UserError(f"{path} cannot be read as Arrow: {first_line(error)}", _COPY_AGAIN) from error


def _parquet(file: BinaryIO, path: Path, distinct: Distinct | None) -> Iterator[Row]:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(file)
        _refuse_repeats(table.schema_arrow.names, path)
        yield from rows_of_batches(table.iter_batches(), distinct)
    except (pyarrow.ArrowException, ValueError, OverflowError, OSError) as error:
        raise UserError(f"{path} cannot be read as parquet: {first_line(error)}", _COPY_AGAIN) from error


def rows_of_batches(batches: Iterable[Any], distinct: Distinct | None = None) -> Iterator[Row]:
    """The rows of Arrow record batches. `distinct`: without those whose text has been read before."""
    import pyarrow

    for batch in batches:
        part = batch if distinct is None else distinct.of(batch)
        columns = {name: part.column(name).to_pylist() for name in part.schema.names}
        for field in part.schema:
            if field.type not in (pyarrow.float16(), pyarrow.float32()):
                continue  # only these would show spurious digits as Python floats
            digits = part.column(field.name).to_numpy(zero_copy_only=False)
            columns[field.name] = [
                Number(digit) if value is not None and math.isfinite(value) else value
                for value, digit in zip(columns[field.name], digits, strict=True)
            ]
        yield from (dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True))


class Distinct:
    """Leaves out rows that repeat a text, before they become Python objects: of 1.8 million rows that is most of the work."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._seen: set[str] = set()

    def of(self, batch: Any) -> Any:
        """The rows of a record batch whose text is new. A chat's text is that of its only message; other cells all stay."""
        import pyarrow

        cells = batch.column(self._column) if self._column in batch.schema.names else None
        if cells is not None and pyarrow.types.is_list(cells.type) and pyarrow.types.is_struct(cells.type.value_type):
            messages = cells.flatten()
            is_chat = len(messages) == len(cells) and "content" in [part.name for part in cells.type.value_type]
            cells = messages.field("content") if is_chat else None
        if cells is None or not (pyarrow.types.is_string(cells.type) or pyarrow.types.is_large_string(cells.type)):
            return batch
        new = []
        for text in cells.to_pylist():
            new.append(text is None or text not in self._seen)
            self._seen.add(text)
        return batch.filter(pyarrow.array(new, pyarrow.bool_()))


def _refuse_repeats(names: list[str], path: Path) -> None:
    if len(set(names)) < len(names):
        raise UserError(f"{path} has two columns `{_repeated(names)}`", "rename one of them")


def _repeated(names: Iterable[str]) -> str:
    seen: set[str] = set()
    return next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
