"""Where a data set's rows come from: a local file or folder, an own copy of a known data set, the hub or its cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from microrl.config import catalogue
from microrl.config.catalogue import KnownDataset
from microrl.config.data import GYM, DataConfig
from microrl.config.paths import is_local_data
from microrl.data import arithmetic, higher_lower
from microrl.data.folder import has_data, rows_of_folder
from microrl.data.read import Distinct, rows_of_batches, rows_of_file
from microrl.errors import UserError, did_you_mean, first_line
from microrl.models import hub

GENERATED: Mapping[str, Callable[[], Sequence[Mapping[str, Any]]]] = {
    arithmetic.NAME: arithmetic.rows, higher_lower.NAME: higher_lower.rows,
}  # fmt: skip
"""Data sets that are no files, by name: rows with a question and an answer."""
ROWS_AT_ONCE = 10_000


def rows_of(config: DataConfig) -> Iterable[Mapping[str, Any]]:
    """The raw rows of the data set, in order; of a known one only those that belong to it. Raises UserError."""
    known = catalogue.find(config.name)
    local = local_rows(config)
    rows = _hub_rows(config, known) if local is None else local
    return rows if known is None or known.only is None else _chosen_rows(rows, *known.only, config.name)


def local_rows(config: DataConfig) -> Iterator[Mapping[str, Any]] | None:
    """The rows of a file or folder, which need neither network nor heavy libraries; None for what the hub has. Raises
    UserError."""
    known = catalogue.find(config.name)
    path = Path(config.name) if known is None else own_copy(known)
    if known is None and not is_local_data(config.name):
        return None
    if path.is_dir():
        if known is not None and config.revision is not None:
            raise UserError(
                f"data.revision cannot be used: {path} is a copy of {known.name}",
                "rename that folder, or leave data.revision out",
            )
        subset = config.subset or (known.subset if known else None)
        return rows_of_folder(path, config.split, subset, _distinct(known))
    return rows_of_file(path) if known is None else None


def provenance(config: DataConfig) -> dict[str, str | None]:
    """Where the rows come from, for a record: the hub's id and commit (None: its newest), or the path of local data."""
    known = catalogue.find(config.name)
    if known is None and ("/" not in config.name or is_local_data(config.name)):
        return {"local": config.name, "subset": config.subset, "split": config.split}
    local = None if known is None or not own_copy(known).is_dir() else str(own_copy(known))
    return {
        "hub_id": hub_id(config.name),
        "revision": None if local else config.revision or (known.revision if known else None),
        "local": local,
        "subset": config.subset or (known.subset if known else None),
        "split": config.split,
    }


def own_copy(known: KnownDataset) -> Path:
    """The folder in which a copy of a known data set is looked for before the hub is asked."""
    return hub.cache_folder() / "data" / known.name


def path_or_hub_id(name: str) -> str:
    """What `hub.prepare` is to look for: the path of local data, or else the hub's id."""
    known = catalogue.find(name)
    if known is None:
        return name
    copy = own_copy(known)
    return str(copy) if copy.is_dir() else known.hub_id


def hub_id(name: str) -> str:
    """The id of a data set that is not local. Raises UserError for a name that no data set can have."""
    known = catalogue.find(name)
    if known is not None:
        return known.hub_id
    if Path(name).is_file() or name.startswith(("/", ".", "~")):
        raise UserError(
            f"{name} is not a file of a known type", "pass a .jsonl, .json, .csv or .parquet file, or a folder of such files"
        )
    if "/" not in name:
        raise UserError(
            f"unknown data set `{name}`",
            did_you_mean(name, [*catalogue.DATASETS, *GENERATED])
            + f"; or {GYM}TASK[,TASK]"
            + "; or a Hugging Face id (owner/name), or a .jsonl, .json, .csv or .parquet file",
        )
    return name


def _hub_rows(config: DataConfig, known: KnownDataset | None) -> Iterable[Mapping[str, Any]]:
    name = hub_id(config.name)
    subset = config.subset or (known.subset if known else None)
    revision = config.revision or (known.revision if known else None)
    if not hub.reachable() and revision is not None and (snapshot := _snapshot(name, revision)) is not None:
        return rows_of_folder(snapshot, config.split, subset, _distinct(known))
    from datasets import disable_progress_bars, load_dataset

    disable_progress_bars()
    try:
        dataset = load_dataset(name, subset, split=config.split, revision=revision)
    except ValueError as error:  # an unknown configuration or split; the library's message lists what there is
        raise UserError(
            f"data set {name}: {first_line(error)}", "choose with --set data.subset=NAME and --set data.split=NAME"
        ) from error
    except Exception as error:  # the hub client has many exceptions for missing data sets
        page, copy = (known.licence_page, own_copy(known)) if known is not None else (None, None)
        raise hub.missing("data set", name, error, page, revision=revision, copy=copy) from error
    _refuse_other_commit(dataset, name, revision)
    return dataset if known is None or not known.repeats else _without_repeats(dataset, known)


def _snapshot(name: str, revision: str) -> Path | None:
    """The files of a data set at this commit in the hub's cache; None if they are not there."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, repo_type="dataset", revision=revision, local_files_only=True))
    except (OSError, ValueError):  # LocalEntryNotFoundError is both
        return None
    return folder if has_data(folder) else None


def _refuse_other_commit(dataset: Any, name: str, revision: str | None) -> None:
    """Without a network, the library takes what its cache has, of whatever commit. Raises UserError if that is another."""
    files = getattr(getattr(dataset, "info", None), "download_checksums", None) or {}
    commits = {commit[1] for file in files if (commit := re.search("@([0-9a-f]{40})/", file))}
    if revision is not None and len(revision) == 40 and commits and revision not in commits:
        there = sorted(commits)[0]
        raise UserError(
            f"data set {name}: this machine has commit {there[:12]} of it, and not {revision[:12]}",
            f"connect to the network, or use that one: --set data.revision={there}",
        )


def _without_repeats(dataset: Any, known: KnownDataset) -> Iterator[Mapping[str, Any]]:
    distinct = _distinct(known)
    for table in dataset.with_format("arrow").iter(ROWS_AT_ONCE):
        yield from rows_of_batches(table.to_batches(), distinct)


def _distinct(known: KnownDataset | None) -> Distinct | None:
    return Distinct(known.question) if known is not None and known.repeats else None


def _chosen_rows(rows: Iterable[Mapping[str, Any]], column: str, text: str, name: str) -> Iterator[Mapping[str, Any]]:
    for row in rows:
        if column not in row:
            raise UserError(f"{name}: the data has no column `{column}`, by which its rows are chosen", "download it again")
        if text in str(row[column]):
            yield row
