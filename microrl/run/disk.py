"""A disk that does not take what is written, as it shows."""

from __future__ import annotations

import errno
import re

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: BaseException) -> bool:
    """Whether an error says that there is no room: no space, a quota, or a limit on a file's size."""
    return _number(error) in _FULL


def is_refused(error: BaseException) -> bool:
    """Whether an error is the system's: a full disk, a read-only one, missing rights, a folder that is gone."""
    return _number(error) is not None


def _number(error: BaseException) -> int | None:
    """The system's number for it. safetensors writes in Rust and gives it in its message only."""
    if isinstance(error, OSError):
        return error.errno or errno.EIO
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found is not None else None
