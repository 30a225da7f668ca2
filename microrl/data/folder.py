"""Data sets in a folder: files as a clone of a hub data set has them, and what `datasets.save_to_disk` writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from microrl.config.paths import is_data_file
from microrl.data.read import Distinct, Row, rows_of_arrow, rows_of_file
from microrl.errors import UserError, did_you_mean
from microrl.files import read_json

MAX_FILES = 10_000
DEEPEST = 3
"""Levels of folders that are looked through."""
_SAVED, _SAVED_SPLITS = "state.json", "dataset_dict.json"
_RECORDS = {_SAVED, _SAVED_SPLITS, "dataset_info.json", "dataset_infos.json"}
_SPLITS = ("train", "test", "validation", "valid", "val", "dev")


def rows_of_folder(folder: Path, split: str, subset: str | None, distinct: Distinct | None = None) -> Iterator[Row]:
    """The rows of one split, in the order of the files' names. If there is only one split, it is taken. Raises UserError.

    `distinct` as for `rows_of_file`.
    """
    try:
        if (folder / _SAVED_SPLITS).is_file():
            return _saved(folder / _chosen(split, _listed(folder / _SAVED_SPLITS, "splits"), folder), distinct)
        if (folder / _SAVED).is_file():
            return _saved(folder, distinct)
        if not (files := _files(folder)):
            raise UserError(f"{folder} is a folder without data files", "pass a .jsonl, .json, .csv or .parquet file")
        files = _of_split(_of_subset(files, subset, folder), split, folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror or error}", "check the folder and its permissions") from error
    return chain.from_iterable(rows_of_file(folder / file, distinct) for file in files)


def has_data(folder: Path) -> bool:
    """Whether there are data files in the folder."""
    return bool(_files(folder))


def _saved(folder: Path, distinct: Distinct | None) -> Iterator[Row]:
    """The rows of one split that `datasets.save_to_disk` has written: Arrow files, listed in state.json."""
    return chain.from_iterable(rows_of_arrow(folder / name, distinct) for name in _listed(folder / _SAVED, "_data_files"))


def _listed(path: Path, key: str) -> list[str]:
    """The names of files or folders in the same folder that a JSON file lists. Raises UserError for anything else."""
    entries = read_json(path, dict[str, Any], follow=True).get(key)
    listed = entries if isinstance(entries, list) else []
    values: list[Any] = [one.get("filename") if isinstance(one, dict) else one for one in listed]
    if not values or not all(isinstance(value, str) for value in values):
        raise UserError(f"{path} lists no data", "save the data set again, or pass a .jsonl, .json, .csv or .parquet file")
    if any(Path(value).name != value or value == ".." for value in values):
        raise UserError(f"{path} names a file outside of its folder", "save the data set again")
    return values


def _files(folder: Path) -> list[PurePosixPath]:
    """Every data file in the folder, by its path in it. Raises UserError where there are far too many."""
    data_files: list[PurePosixPath] = []
    level = [folder]
    for _ in range(DEEPEST):
        entries = [entry for one in level for entry in sorted(one.iterdir()) if not entry.name.startswith(".")]
        data_files += [
            PurePosixPath(entry.relative_to(folder))
            for entry in entries
            if is_data_file(entry.name) and entry.name not in _RECORDS and entry.is_file()
        ]
        level = [entry for entry in entries if entry.is_dir()]
        if len(data_files) + len(level) > MAX_FILES:
            raise UserError(f"{folder} has more than {MAX_FILES:,} files", "pass one of its files")
    return data_files


def _of_subset(files: list[PurePosixPath], subset: str | None, folder: Path) -> list[PurePosixPath]:
    """The files of a subset: in a folder of its name, or with its name. Without a subset, the files must lie together."""
    if subset is not None:
        chosen = [file for file in files if subset in (*file.parts[:-1], file.stem)]
        if chosen:
            return chosen
        if subset != "default":
            raise UserError(f"{folder} has no subset `{subset}`", did_you_mean(subset, _subsets(files)))
    usual = [file for file in files if file.parent.name in ("", "data")]
    if usual:
        return usual
    if len(_subsets(files)) > 1:
        raise UserError(f"{folder} has several subsets", f"choose one of them: --set data.subset={_subsets(files)[0]}")
    return files


def _subsets(files: Iterable[PurePosixPath]) -> list[str]:
    return sorted({file.parts[0] if len(file.parts) > 1 else file.stem for file in files if file.parts[0] != "data"})


def _of_split(files: list[PurePosixPath], split: str, folder: Path) -> list[PurePosixPath]:
    """The files of a split, which their names or folders say; all of them where none says one."""
    splits = {file: _split_of(file, split) for file in files}
    named = sorted({name for name in splits.values() if name is not None})
    if not named:
        return files
    chosen = _chosen(split, named, folder)
    return [file for file in files if splits[file] == chosen]


def _split_of(file: PurePosixPath, wanted: str) -> str | None:
    """The split that a file's name or a folder of it says: `train-00000-of-00002`, `my.test`, `dev/part`."""
    words = [re.sub("[-.]", "_", file.stem.lower()), *(part.lower() for part in file.parts[:-1])]
    return next((name for name in (wanted, *_SPLITS) if any(f"_{name.lower()}_" in f"_{word}_" for word in words)), None)


def _chosen(split: str, names: list[str], folder: Path) -> str:
    if split in names:
        return split
    if len(names) == 1:
        return names[0]
    raise UserError(f"{folder} has no split `{split}`; it has: {', '.join(names)}", f"choose one: --set data.split={names[0]}")
