"""The traceback of what nobody has explained, on disk."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from microrl import files
from microrl.files import BadFile


def crash_log(folder: Path | None, text: str) -> Path:
    """Keep a traceback where it can be found: in the run folder, the current folder, or the one for temporary files.

    Raises OSError where none of them takes it.
    """
    refused: Exception | None = None
    for place in (*([folder] if folder is not None else []), Path(), Path(tempfile.gettempdir())):
        path = place / "crash.log"
        try:
            with files.open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
                file.write(text.encode(errors="backslashreplace"))
            return path
        except (OSError, BadFile) as error:
            refused = error
    raise OSError("no crash.log could be written") from refused
