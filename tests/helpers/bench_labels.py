"""Which values of a benchmark's `--json` would be shown by their keys."""

from collections.abc import Iterator, Mapping
from typing import Any

from microrl.config.resolve import leaves


def unlabelled(result: Mapping[str, Any], labels: Mapping[str, str]) -> set[str]:
    """The keys of a result, and of its rows, that have no label."""
    return {name for name in _names(result) if name not in labels and not name.endswith("_range")}


def _names(result: Mapping[str, Any]) -> Iterator[str]:
    for name, value in leaves(result):
        yield name
        if isinstance(value, list) and value and isinstance(value[0], dict):
            yield from (f"{name}.{key}" for row in value for key, _ in leaves(row))
