"""The files of a run folder that carry a `format`: `config.json`, written first, and `summary.json`, written last.

`format` counts up when a key of either changes its meaning. A file of a later format is refused: it is no damage that a run could
begin again after. Within a format, files of other versions can be read: unknown keys of a summary are ignored, and those that
this version can do without have defaults.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from microrl import files
from microrl.config.schema import FORMAT
from microrl.errors import UserError
from microrl.files import Count, Value
from microrl.run import names


class _Format(BaseModel):
    format: Count = FORMAT


def read_json(path: Path, kind: type[Value]) -> Value:
    """A JSON file as `kind`. Raises BadFile where it is missing or damaged, and UserError for a later format."""
    known = files.read_json(path, _Format).format
    if known > FORMAT:
        raise UserError(f"{path} has format {known}, and this version of microrl reads up to {FORMAT}", "update microrl")
    return files.read_json(path, kind)


def config_of(run: Path) -> dict[str, Any]:
    """A run's `config.json` but for its format, not validated. Raises as `read_json`."""
    config = read_json(run / names.CONFIG, dict[str, Any])
    config.pop("format", None)
    return config
